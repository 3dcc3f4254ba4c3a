//! What a file is that is no tensor container, and what to do about it.

use std::ops::ControlFlow;

use super::Head;
use super::foreign;
use super::zip::{self, Directory};
use crate::error::{Error, counted, quoted};
use crate::source::Source;

/// Files that are recognised by fixed bytes at a fixed place: offset, bytes, what it is, and a hint (empty if there is none).
const MAGICS: &[(usize, &[u8], &str, &str)] = &[
    (0, b"\x1f\x8b", "a gzip file", UNPACK),
    (0, b"\x28\xb5\x2f\xfd", "a zstd file", UNPACK),
    (0, b"\xfd7zXZ\0", "an xz file", UNPACK),
    (0, b"BZh", "a bzip2 file", UNPACK),
    (0, b"\x04\x22\x4d\x18", "an lz4 file", UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    (0, b"Rar!\x1a\x07", "a rar archive", UNPACK),
    (257, b"ustar", "a tar archive", UNPACK),
    (0, b"%PDF-", "a PDF document", ""),
    (0, b"\x89PNG\r\n\x1a\n", "a PNG image", ""),
    (0, b"\xff\xd8\xff", "a JPEG image", ""),
    (0, b"GIF8", "a GIF image", ""),
    (0, b"\x80\x02", PICKLE, ""),
    (0, b"\x80\x03", PICKLE, ""),
    (0, b"\x80\x04", PICKLE, ""),
    (0, b"\x80\x05", PICKLE, ""),
    (0, b"\x89HDF\r\n\x1a\n", HDF5, H5PY),
    (4, b"TFL3", "a TensorFlow Lite model, which is not read yet", "TensorFlow reads it: tf.lite.Interpreter(FILE), get_tensor_details() and tensor()"),
    (4, b"ET12", "an ExecuTorch program, which is not read", EXECUTORCH),
    (4, b"FT01", "the tensors of an ExecuTorch program (.ptd), which are not read", EXECUTORCH),
    (4, b"ORTM", "an ONNX Runtime model (.ort), which is not read", "take the .onnx model that it was made from"),
    (0, b"N\xef\x01\x00", "an NNEF tensor file, which is not read", "nnef reads it: nnef.read_tensor(FILE)"),
    (0, b"lmgg", "a legacy ggml file (no version), from before GGUF", GGML),
    (0, b"fmgg", "a legacy ggmf file, from before GGUF", GGML),
    (0, b"tjgg", "a legacy ggjt file, from before GGUF", GGML),
    (0, b"algg", "a legacy ggla file (a LoRA adapter), from before GGUF", GGML),
    // llama.cpp writes these magic numbers as little-endian integers: "ggsn" is stored as "nsgg".
    (0, b"nsgg", SESSION, ""),
    (0, b"qsgg", SESSION, ""),
    (0, b"ggsn", SESSION, ""),
    (0, b"ggsq", SESSION, ""),
    (0, b"ftrt", TENSORRT, ""),
    (0, b"ptrt", TENSORRT, ""),
    (0, b"MATLAB 5.0 MAT-file", "a MATLAB file", "scipy.io.loadmat reads it"),
    (0, b"MATLAB 7.3 MAT-file", "a MATLAB file (version 7.3, HDF5 inside)", H5PY),
    (0, b"PAR1", "a Parquet file", ""),
    (0, b"ARROW1", "an Arrow file", ""),
    (0, b"SQLite format 3\0", "an SQLite database", ""),
    (0, b"NRRD000", "an NRRD image", ""),
    (0, b"7767517\n", "an ncnn parameter file", ""),
    (0, b"\x7fELF", "a program", ""),
    (0, b"#!", "a script", ""),
    (0, b"MZ", "a Windows program", ""),
];

const UNPACK: &str = "unpack it first";
const GGML: &str = "convert it with llama.cpp's convert_llama_ggml_to_gguf.py";
const PICKLE: &str = "a Python pickle";
const HDF5: &str = "an HDF5 file (Keras, MATLAB 7.3, ...), which is not read yet";
const H5PY: &str = "h5py reads it: h5py.File(FILE).visititems(print) lists what is in it";
const EXECUTORCH: &str = "only the ExecuTorch runtime reads it; take the model that it was exported from";
const SESSION: &str = "a session file of llama.cpp (the state of a conversation, not a model)";
const TENSORRT: &str = "a TensorRT engine, which only the TensorRT version that made it reads";
const AGAIN: &str = "download it again: the address gave a page (a login, an error) instead of the file";

/// What a file is instead of a tensor container.
pub(super) fn explain(head: &Head<'_>) -> Error {
    let len = head.source.len();
    let is = |what: &str| Error::unsupported(format!("is {what}"));
    if let Some(error) = damaged(head) {
        return error;
    }
    if head.bytes.starts_with(b"PK") {
        return zip_archive(head);
    }
    if let Some((what, hint)) = foreign::file(head) {
        return is(what).hint(hint);
    }
    if let Some(Kind { what, hint }) = kind(head.bytes, len) {
        // A description with a comma goes on to say why it is not read.
        let error = is(&if what.contains(',') { what } else { format!("{what}, not a tensor container") });
        return if hint.is_empty() { error } else { error.hint(hint) };
    }
    for offset in [512, 1024, 2048] {
        if head.bytes.get(offset..).is_some_and(|rest| rest.starts_with(b"\x89HDF\r\n\x1a\n")) {
            return is(HDF5).hint(H5PY);
        }
    }
    is(&describe(head.bytes, len).replacen("a file", "of no known format: a file", 1))
}

/// A container of a known format that is cut so short that it was not recognised.
fn damaged(head: &Head<'_>) -> Option<Error> {
    let (bytes, len) = (head.bytes, head.source.len());
    let cut = |what: String| Some(Error::format(what).hint("a download that was cut short? compare the size with the original's"));
    if len == 0 {
        return cut("is empty (0 bytes)".to_string());
    }
    for (magic, name) in [(b"GGUF".as_slice(), "GGUF"), (b"FUGG", "GGUF (big-endian)"), (super::npy::MAGIC, "npy")] {
        if bytes.starts_with(magic) {
            return cut(format!("starts as {name} and is cut short within its header: it has only {len} bytes"));
        }
    }
    if len < 8 {
        return cut(format!("is only {len} bytes long{}, too short for any tensor container", hex(bytes)));
    }
    let (header, rest) = bytes.split_first_chunk::<8>()?;
    let needed = u64::from_le_bytes(*header);
    let missing = needed.checked_add(8)?.checked_sub(len).filter(|missing| *missing > 0)?;
    if rest.first() == Some(&b'{') && needed < 1 << 40 {
        let have = len.saturating_sub(8);
        return cut(format!(
            "is a safetensors file cut short: its header needs {needed} bytes, {have} are there, {}",
            counted(missing, "is missing", "are missing")
        ));
    }
    None
}

fn zip_archive(head: &Head<'_>) -> Error {
    let len = head.source.len();
    match Directory::find(head.source) {
        Ok(directory) => match contents(head.source, &directory) {
            Ok(contents) => contents,
            Err(e) => e,
        },
        Err(e) if e.message().starts_with("its end-of-archive record is missing") && starts_as_torch(head.bytes) => {
            Error::format(format!("is truncated or not a PyTorch file: end-of-archive record missing, size {len} bytes"))
                .hint("download it again: the end of the file has not arrived")
        }
        Err(e) if head.bytes.starts_with(b"PK\x03\x04") && e.message().starts_with("its end-of-archive record is missing") => {
            Error::format(format!("is a zip archive (npz or PyTorch file?) cut short: its end-of-archive record is missing, size {len} bytes"))
                .hint("download it again: the end of the file has not arrived")
        }
        Err(e) => e,
    }
}

/// Whether a zip archive's first member is one of those that torch writes first.
fn starts_as_torch(bytes: &[u8]) -> bool {
    let len = bytes.get(26..28).and_then(|len| len.first_chunk()).map_or(0, |len| usize::from(u16::from_le_bytes(*len)));
    let name = bytes.get(30..).and_then(|rest| rest.get(..len.min(rest.len()))).unwrap_or_default();
    let inside = name.iter().position(|b| *b == b'/').and_then(|slash| name.get(slash.saturating_add(1)..)).unwrap_or_default();
    zip::is_torch_pickle(name) || inside.starts_with(b"data/") || matches!(inside, b"version" | b"byteorder" | b".format_version" | b"archive_format")
}

/// What a whole zip archive holds.
fn contents(source: &Source, directory: &Directory) -> crate::error::Result<Error> {
    const SHOWN: usize = 3;
    let mut names = Vec::new();
    let mut count: u64 = 0;
    let (mut gguf, mut keras, mut models, mut live_script) = (false, false, false, false);
    directory.walk(source, |entry| {
        count = count.saturating_add(1);
        gguf |= zip::has_suffix(entry.name, b".gguf");
        keras |= entry.name == b"model.weights.h5";
        live_script |= entry.name == b"matlab/document.xml";
        models |= zip::has_suffix(entry.name, b".onnx") || zip::has_suffix(entry.name, b".safetensors");
        if names.len() < SHOWN {
            names.push(quoted(entry.name));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    if count > SHOWN as u64 {
        names.push("…".to_string());
    }
    let list = names.join(", ");
    Ok(if gguf {
        Error::unsupported("is a zip archive with a compressed GGUF file, which only a stored one can be read from").hint(UNPACK)
    } else if keras {
        Error::unsupported("is a Keras model (.keras), which is not read yet").hint("Keras reads it: keras.saving.load_model(FILE).get_weights()")
    } else if live_script {
        Error::unsupported("is a MATLAB Live Script (.mlx), which holds text and code, no tensors").hint("the models of Apple's MLX are .safetensors files")
    } else if count == 0 {
        Error::unsupported("is an empty zip archive")
    } else {
        let error = Error::unsupported(format!("is a zip archive without arrays: {count} members ({list})"));
        if models { error.hint(UNPACK) } else { error }
    })
}

struct Kind {
    what: String,
    hint: &'static str,
}

/// What a file of `len` bytes is by its first bytes, in words that go on after "is": `a PNG image`, `an empty file`.
pub(super) fn describe(bytes: &[u8], len: u64) -> String {
    match kind(bytes, len) {
        Some(kind) => kind.what,
        None if len == 0 => "an empty file".to_string(),
        None => format!("a file of {len} bytes{}", hex(bytes)),
    }
}

fn kind(bytes: &[u8], len: u64) -> Option<Kind> {
    let found = |what: &str, hint| Some(Kind { what: what.to_string(), hint });
    if bytes.is_empty() {
        return None;
    }
    for (offset, magic, what, hint) in MAGICS {
        if bytes.get(*offset..).is_some_and(|rest| rest.starts_with(magic)) {
            return found(what, hint);
        }
    }
    if zip::is_magic(bytes) {
        return found("a zip archive", UNPACK);
    }
    if bytes.iter().all(|b| *b == 0) {
        let what = format!("a file that starts with {} zero bytes of {len}", bytes.len());
        return found(&what, "a download that was never finished? some programs reserve the space first");
    }
    if is_onnx(bytes) {
        return found("the beginning of an ONNX model, but no graph follows", "a download that was cut short? compare the size with the original's");
    }
    text(bytes)
}

/// What a text is, if it is one.
fn text(bytes: &[u8]) -> Option<Kind> {
    let found = |what: &str, hint| Some(Kind { what: what.to_string(), hint });
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        // The look may end within a character.
        Err(e) if bytes.len().saturating_sub(e.valid_up_to()) < 4 && e.error_len().is_none() => std::str::from_utf8(bytes.get(..e.valid_up_to())?).ok()?,
        Err(_) => return None,
    };
    if text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t' | '\x0c')) {
        return None;
    }
    let start = text.trim_start();
    let lower = start.to_ascii_lowercase();
    if lower.starts_with("version https://git-lfs.github.com/spec/") {
        return found("a Git LFS pointer, not the file it stands for", "run `git lfs pull` in its folder");
    }
    if lower.starts_with("<!doctype html") || lower.starts_with("<html") || lower.starts_with("<head") {
        return found("an HTML page", AGAIN);
    }
    if lower.starts_with("<?xml") || lower.starts_with("<error>") {
        return found("an XML document", AGAIN);
    }
    let complaint = ["not found", "restricted", "unauthorized", "forbidden", "invalid credentials", "access denied", "gated repo"];
    let short = lower.len() < 1024 && complaint.iter().any(|word| lower.contains(word));
    let line: String = start.lines().next().unwrap_or_default().chars().take(80).collect();
    match start.chars().next() {
        Some('{' | '[') if short => found(&format!("JSON text, perhaps a server's error message ({})", quoted(line.as_bytes())), AGAIN),
        Some('{' | '[') => found("JSON text", ""),
        _ if short => found(&format!("plain text, perhaps a server's error message ({})", quoted(line.as_bytes())), AGAIN),
        _ => found(&format!("plain text that begins {}", quoted(line.as_bytes())), ""),
    }
}

/// Whether a file begins as ONNX models do: ir_version (field 1, a small number), then producer_name (field 2, a short text) or another field of ModelProto.
fn is_onnx(bytes: &[u8]) -> bool {
    match bytes {
        [0x08, 1..=30, 0x12, len, rest @ ..] => {
            let name = rest.get(..usize::from(*len)).unwrap_or(rest);
            !name.is_empty() && name.iter().all(|b| b.is_ascii_graphic() || *b == b' ')
        }
        [0x08, 1..=30, 0x1a | 0x22 | 0x2a | 0x32 | 0x3a | 0x42, ..] => true,
        _ => false,
    }
}

/// First bytes for a message: `, starting 00 01 02`.
fn hex(bytes: &[u8]) -> String {
    let digits: Vec<String> = bytes.iter().take(16).map(|b| format!("{b:02x}")).collect();
    format!(", starting {}", digits.join(" "))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::indexing_slicing, reason = "tests")]

    use super::super::zip::tests::{archive, stored};
    use super::*;

    fn explained(bytes: &[u8]) -> String {
        let source = Source::from_bytes("file", bytes.to_vec());
        let head = &bytes[..bytes.len().min(4096)];
        explain(&Head { bytes: head, source: &source }).to_string()
    }

    fn padded(start: &[u8]) -> Vec<u8> {
        [start, &[0xEE; 600]].concat()
    }

    #[test]
    fn fixed_bytes_are_named() {
        for (start, what) in [
            (&b"\x1f\x8b\x08"[..], "is a gzip file, not a tensor container\nhint: unpack it first"),
            (b"\x28\xb5\x2f\xfd", "zstd"),
            (b"\xfd7zXZ\0", "an xz file"),
            (b"BZh9", "bzip2"),
            (b"7z\xbc\xaf\x27\x1c", "7z"),
            (b"Rar!\x1a\x07\x01", "rar"),
            (b"%PDF-1.7", "PDF"),
            (b"\x89PNG\r\n\x1a\n", "is a PNG image, not a tensor container"),
            (b"\xff\xd8\xff\xe0", "JPEG"),
            (b"\x80\x04\x95", "Python pickle"),
            (b"\x89HDF\r\n\x1a\n", "HDF5"),
            (b"\x1c\0\0\0TFL3", "TensorFlow Lite"),
            (b"lmgg", "legacy ggml file"),
            (b"fmgg\x01\0\0\0", "legacy ggmf file"),
            (b"tjgg\x03\0\0\0", "hint: convert it with llama.cpp's convert_llama_ggml_to_gguf.py"),
            (b"algg", "ggla"),
            (b"nsgg", "session"),
            (b"qsgg", "session"),
            (b"ftrt", "TensorRT"),
            (b"MATLAB 5.0 MAT-file, Platform", "MATLAB"),
            (b"\x08\x07\x12\x07pytorch\x1a\x03", "ONNX"),
            (b"\x7fELF", "a program"),
        ] {
            let text = explained(&padded(start));
            assert!(text.contains(what), "{text}");
        }
        let mut tar = vec![b'x'; 600];
        tar[257..262].copy_from_slice(b"ustar");
        assert!(explained(&tar).contains("tar archive"));
        let mut hdf = vec![0xEE; 600];
        hdf[512..520].copy_from_slice(b"\x89HDF\r\n\x1a\n");
        assert!(explained(&hdf).contains("HDF5"));
        assert!(explained(&[&[7; 100][..], &foreign::TABLE_END].concat()).contains("TensorFlow checkpoint"));
        assert!(explained(&[0; 5000]).contains("starts with 4096 zero bytes of 5000"));
        assert!(explained(&padded(b"\xde\xad\xbe\xef")).contains("of no known format: a file of 604 bytes, starting de ad be ef ee"));
    }

    #[test]
    fn texts_are_named() {
        for (text, what) in [
            (
                "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 5\n",
                "is a Git LFS pointer, not the file it stands for\nhint: run `git lfs pull`",
            ),
            ("<!DOCTYPE html>\n<html>", "is an HTML page, not a tensor container\nhint: download it again"),
            ("\n  <html lang=en>", "HTML"),
            ("<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "XML"),
            ("\u{feff}{\"a\": 1}", "is JSON text, not"),
            ("{\"error\": \"Entry not found\"}", "server's error message"),
            ("Entry not found", "is plain text, perhaps a server's error message (\"Entry not found\")"),
            ("Access to model m is restricted. You must be logged in.", "download it again"),
            ("hello world\nmore", "is plain text that begins \"hello world\""),
            ("caf\u{e9} \u{1b}[31m", "of no known format"),
        ] {
            let explained = explained(text.as_bytes());
            assert!(explained.contains(what), "{explained}");
        }
        let cut = ["x".repeat(4095), "é".to_string()].concat();
        assert!(explained(cut.as_bytes()).contains("plain text"), "the look ends within a character");
    }

    #[test]
    fn what_was_cut_short_is_named() {
        for (bytes, what) in [
            (&b""[..], "is empty (0 bytes)"),
            (b"\x10\0\0\0\0\0\0", "is only 7 bytes long, starting 10 00 00"),
            (b"GGUF\x03", "starts as GGUF and is cut short within its header: it has only 5 bytes"),
            (b"\x93NUMPY", "starts as npy and is cut short"),
            (b"\x00\x02\0\0\0\0\0\0{\"a\":", "its header needs 512 bytes, 5 are there, 507 are missing"),
        ] {
            let text = explained(bytes);
            assert!(text.contains(what), "{text}");
        }
    }

    #[test]
    fn zips_are_named_by_what_they_hold() {
        let torch = archive(&[stored("m/data.pkl", b"."), stored("m/data/0", b"0000")]);
        let numpy = archive(&[stored("a.npy", b"\x93NUMPY")]);
        assert!(explained(&numpy[..numpy.len() - 1]).contains("cut short: its end-of-archive record is missing"));
        for cut in [1, 22, torch.len() / 2] {
            let text = explained(&torch[..torch.len() - cut]);
            assert!(text.contains(&format!("is truncated or not a PyTorch file: end-of-archive record missing, size {} bytes", torch.len() - cut)), "{text}");
        }
        assert!(explained(&archive(&[stored("config.json", b"{}"), stored("model.weights.h5", b"..")])).contains("Keras"));
        assert!(explained(&archive(&[stored("a.txt", b"a"), stored("b\x1b.txt", b"b")])).contains("without arrays: 2 members (\"a.txt\", \"b\\u{1b}.txt\")"));
        assert!(explained(&archive(&[stored("m.safetensors", b"a")])).contains("unpack it first"));
        let parts: Vec<String> = (0..9).map(|i| format!("{i}")).collect();
        let parts: Vec<_> = parts.iter().map(|name| stored(name, b"x")).collect();
        assert!(explained(&archive(&parts)).contains("9 members (\"0\", \"1\", \"2\", …)"));
    }

    #[test]
    fn magic_numbers_are_told_apart() {
        for (i, (offset, magic, ..)) in MAGICS.iter().enumerate() {
            let earlier = MAGICS[..i].iter().find(|(o, m, ..)| o == offset && magic.starts_with(m));
            assert!(earlier.is_none(), "{magic:?} is never reached");
        }
    }
}
