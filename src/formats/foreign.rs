//! Tensor formats of others that are not read: recognised by their structure, and named with what reads them.
//!
//! Those with a magic number at a fixed place are in [`super::unknown`]; here are protobuf messages, headers without a magic number, and folders.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::Head;
use crate::error::Error;
use crate::limits;
use crate::source::Source;

/// What a file is, and what reads it.
type Named = (&'static str, &'static str);

pub(super) const SAVED_MODEL: Named = (
    "a TensorFlow SavedModel, which is not read",
    "TensorFlow reads it: tf.saved_model.load(FOLDER); its variables: tf.train.load_checkpoint(FOLDER + '/variables/variables')",
);
const CHECKPOINT: Named = (
    "a TensorFlow checkpoint, which is not read",
    "TensorFlow reads it: tf.train.load_checkpoint(PREFIX).get_tensor(NAME), where PREFIX is the path without .index or .data-00000-of-00001",
);
const CHECKPOINT_INDEX: Named = ("the index of a TensorFlow checkpoint (a LevelDB table), which is not read", CHECKPOINT.1);
const CHECKPOINT_DATA: Named = ("the data of a TensorFlow checkpoint, which is not read", CHECKPOINT.1);
const GRAPH_DEF: Named =
    ("a TensorFlow graph (GraphDef), which is not read", "TensorFlow reads it: tf.compat.v1.GraphDef.FromString(...); tf2onnx converts it to ONNX");
const CORE_ML: Named = ("a Core ML model, which is not read", "coremltools reads it: coremltools.models.MLModel(FILE).get_spec()");
const CORE_ML_WEIGHTS: Named = ("the weights of a Core ML model, which are not read", "coremltools reads the .mlpackage that they belong to");
const PADDLE_PROGRAM: Named = ("a Paddle program (.pdmodel), which is not read", PADDLE_HINT);
const PADDLE_PARAMETERS: Named = ("the parameters of a Paddle program (.pdiparams), which are not read", PADDLE_HINT);
const PADDLE: Named = ("a Paddle inference model, which is not read", PADDLE_HINT);
const PADDLE_HINT: &str = "PaddlePaddle reads it: paddle.jit.load(PREFIX); paddle2onnx converts it to ONNX";
const DISTRIBUTED: Named = (
    "a torch.distributed checkpoint, which is not read",
    "make it one file first: python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER OUTPUT",
);
const MXNET: Named = ("an MXNet parameter file, which is not read", "MXNet reads it: mxnet.nd.load(FILE)");
const ORBAX: Named = ("an Orbax checkpoint (JAX), which is not read", "orbax reads it: orbax.checkpoint.PyTreeCheckpointer().restore(FOLDER)");
const ZARR: Named = ("a Zarr array or group, which is not read", "zarr reads it: zarr.open(FOLDER)");
const ONNX_TEXT: Named = ("an ONNX model in its text form, which is not read", "write the binary form: onnx.save(onnx.load(FILE, format='textproto'), OUTPUT)");
const MSGPACK: Named = ("msgpack, but no Flax checkpoint: no whole array is found in it", "msgpack reads it: msgpack.unpackb(open(FILE, 'rb').read())");
const OPEN_VINO: Named = ("an OpenVINO model, which is not read", "OpenVINO reads it: openvino.Core().read_model(FILE)");

/// The last eight bytes of a LevelDB table, such as the index of a TensorFlow checkpoint.
pub(super) const TABLE_END: [u8; 8] = 0xdb47_7524_8b80_fb57_u64.to_le_bytes();

/// What a file is, if it is one of these.
pub(super) fn file(head: &Head<'_>) -> Option<Named> {
    let (bytes, source) = (head.bytes, head.source);
    if bytes.starts_with(b"\x80") && contains(bytes, b"torch.distributed.checkpoint") {
        return Some(DISTRIBUTED);
    }
    if let Some(named) = protobuf(bytes, source) {
        return Some(named);
    }
    if bytes.get(4..8) == Some(&[2, 0, 0, 0]) && bytes.get(64..68) == Some(&[0xef, 0xbe, 0xad, 0xde]) {
        return Some(CORE_ML_WEIGHTS);
    }
    // LoDTensor: two versions and a level of detail, all 0, then the length of a description {data type, dimensions}.
    let is_tensor = bytes.starts_with(&[0; 16]) && matches!(bytes.get(16..23), Some([4..=255, 0, 0, 0, 0x08, 0..=30, 0x10]));
    if is_tensor {
        return Some(PADDLE_PARAMETERS);
    }
    if bytes.starts_with(&[0x12, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) {
        return Some(MXNET);
    }
    if bytes.starts_with(b"ir_version:") || bytes.starts_with(b"producer_name:") && contains(bytes, b"\ngraph {") {
        return Some(ONNX_TEXT);
    }
    if bytes.starts_with(b"<") && contains(bytes, b"<net ") && contains(bytes, b"<layer") {
        return Some(OPEN_VINO);
    }
    if super::msgpack::is_map(source) {
        return Some(MSGPACK);
    }
    let mut end = [0; 8];
    if source.read_at(source.len().saturating_sub(8), &mut end).is_ok() && end == TABLE_END {
        return Some(CHECKPOINT_INDEX);
    }
    // The data of a checkpoint has no structure: it is told by the index beside it.
    let path = source.path();
    let name = path.file_name().map(OsStrExt::as_bytes).unwrap_or_default();
    let prefix = name.windows(6).position(|w| w == b".data-").and_then(|at| name.get(..at))?;
    let index = path.with_file_name(std::ffi::OsStr::from_bytes(&[prefix, b".index"].concat()));
    index.is_file().then_some(CHECKPOINT_DATA)
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

/// A varint and what follows it.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    for (index, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f).checked_shl(u32::try_from(index).ok()?.checked_mul(7)?)?;
        if *byte < 0x80 {
            return Some((value, bytes.get(index.checked_add(1)?..)?));
        }
    }
    None
}

/// Protobuf messages by their first fields.
fn protobuf(bytes: &[u8], source: &Source) -> Option<Named> {
    match bytes {
        // A version, then a message: of SavedModel a MetaGraphDef to the end of the file, of Core ML's Model a description and then the kind of model.
        [0x08, version, 0x12, rest @ ..] => {
            let (len, inner) = varint(rest)?;
            if inner.first() != Some(&0x0a) {
                return None;
            }
            let start = (bytes.len() as u64).checked_sub(inner.len() as u64)?;
            let end = start.checked_add(len).filter(|end| *end <= source.len())?;
            let mut next = vec![0; usize::try_from(source.len().saturating_sub(end)).unwrap_or(usize::MAX).min(4)];
            source.read_at(end, &mut next).ok()?;
            match varint(&next) {
                None if next.is_empty() && *version == 1 => Some(SAVED_MODEL),
                Some((0x12, _)) if *version == 1 => Some(SAVED_MODEL),
                // Wire type 2, numbers of the kinds of model; 10 says whether it may be trained.
                Some((tag, _)) if *version <= 20 && (tag == 0x50 || tag & 7 == 2 && (200..4000).contains(&(tag >> 3))) => Some(CORE_ML),
                _ => None,
            }
        }
        // A block of number 0 whose parent is -1.
        [0x0a, rest @ ..] => {
            let (_, inner) = varint(rest)?;
            if inner.starts_with(&[0x08, 0, 0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]) {
                return Some(PADDLE_PROGRAM);
            }
            // A node: its name, and its operator.
            let (name_len, name) = varint(inner.strip_prefix(b"\x0a")?)?;
            let after = name.get(usize::try_from(name_len).ok()?..)?;
            let (op_len, op) = varint(after.strip_prefix(b"\x12")?)?;
            let op = op.get(..usize::try_from(op_len).ok()?)?;
            let is_op = op.first().is_some_and(u8::is_ascii_uppercase) && op.iter().all(|b| b.is_ascii_alphanumeric());
            is_op.then_some(GRAPH_DEF)
        }
        _ => None,
    }
}

/// What a folder without a container that is read is, if it is one of these.
pub(super) fn folder(path: &Path) -> Option<Error> {
    let names: Vec<Vec<u8>> =
        std::fs::read_dir(path).ok()?.take(limits::FOLDER_FILES).filter_map(|entry| Some(entry.ok()?.file_name().as_bytes().to_vec())).collect();
    let has = |name: &str| names.iter().any(|n| n == name.as_bytes());
    let any = |suffix: &str| names.iter().any(|n| n.ends_with(suffix.as_bytes()));
    let (what, hint) = if has("saved_model.pb") || has("saved_model.pbtxt") {
        SAVED_MODEL
    } else if any(".index") && names.iter().any(|n| contains(n, b".data-00000-of-")) {
        CHECKPOINT
    } else if has(".metadata") && any(".distcp") {
        DISTRIBUTED
    } else if has("Manifest.json") && path.join("Data/com.apple.CoreML").is_dir() {
        CORE_ML
    } else if any(".pdmodel") || any(".pdiparams") {
        PADDLE
    } else if has("manifest.ocdbt") || has("_METADATA") || has("_CHECKPOINT_METADATA") {
        ORBAX
    } else if has(".zgroup") || has(".zarray") || has("zarr.json") {
        ZARR
    } else {
        return None;
    };
    Some(Error::unsupported(format!("is {what}")).hint(hint).in_file(path))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn named(bytes: &[u8]) -> Option<&'static str> {
        let source = Source::from_bytes("file", bytes.to_vec());
        file(&Head { bytes, source: &source }).map(|(what, _)| what)
    }

    #[test]
    fn files_are_named_by_their_structure() {
        let deadbeef = [&[1, 0, 0, 0, 2, 0, 0, 0][..], &[0; 56], &[0xef, 0xbe, 0xad, 0xde], &[0; 60]].concat();
        let parameters = [&[0; 16][..], &[4, 0, 0, 0, 0x08, 5, 0x10, 3], &[0; 12]].concat();
        let parent = [&b"\x0a\x20\x08\x00\x10"[..], &[0xff; 9], &[1], &[0; 30]].concat();
        for (bytes, what) in [
            (&b"\x08\x01\x12\x04\x0a\x02ab"[..], "SavedModel"),
            (b"\x08\x01\x12\x04\x0a\x02ab\x12\x00", "SavedModel"),
            (b"\x08\x07\x12\x04\x0a\x02ab\xb2\x1f\x00", "Core ML model"),
            (b"\x08\x04\x12\x02\x0a\x00\xa2\x1f\x01", "Core ML model"),
            (&deadbeef, "weights of a Core ML"),
            (&parameters, ".pdiparams"),
            (&parent, ".pdmodel"),
            (b"\x0a\x0b\x0a\x01x\x12\x05Const\x2a\x00", "GraphDef"),
            (b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n", "torch.distributed"),
            (b"\x12\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01", "MXNet"),
            (b"\x82\xa1a\x01\xa1b\x02", "no Flax checkpoint"),
            (b"ir_version: 8\ngraph {\n}\n", "ONNX model in its text form"),
            (b"<?xml version=\"1.0\"?>\n<net name=\"m\" version=\"11\">\n<layers>\n<layer id=\"0\">", "OpenVINO"),
            (&[&b"some blocks"[..], &TABLE_END].concat(), "index of a TensorFlow checkpoint"),
        ] {
            assert!(named(bytes).is_some_and(|found| found.contains(what)), "{what}: {:?}", named(bytes));
        }
        for bytes in [&b"\x08\x07\x12\x07pytorch\x1a\x03"[..], b"\x0a\x05hello", b"\x80\x02}q\x00.", b"", b"<html>"] {
            assert_eq!(named(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn folders_are_named_by_what_is_in_them() {
        for (files, what) in [
            (&["saved_model.pb"][..], "SavedModel"),
            (&["model.ckpt.index", "model.ckpt.data-00000-of-00001"], "TensorFlow checkpoint"),
            (&[".metadata", "__0_0.distcp"], "torch.distributed"),
            (&["Manifest.json", "Data/com.apple.CoreML/model.mlmodel"], "Core ML"),
            (&["inference.pdmodel", "inference.pdiparams"], "Paddle"),
            (&["manifest.ocdbt"], "Orbax"),
            (&["zarr.json"], "Zarr"),
        ] {
            let at = tempfile::tempdir().unwrap();
            for name in files {
                let path = at.path().join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, b"anything").unwrap();
            }
            let error = folder(at.path()).unwrap().to_string();
            assert!(error.contains(what) && error.contains("\nhint: "), "{error}");
            // Opening it says the same.
            let opened = super::super::open(at.path()).err().unwrap().to_string();
            assert_eq!(opened, error);
        }
        assert!(folder(tempfile::tempdir().unwrap().path()).is_none());
    }
}
