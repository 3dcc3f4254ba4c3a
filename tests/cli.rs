//! The program without a mount: ls, cat, export, check, help, exit codes.
#![cfg(feature = "mount")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "in a test, a panic is the report of a failure")]

#[path = "common/support.rs"]
mod support;

use std::ffi::OsStr;
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use support::{Member, npy, safetensors, zip};

const TINY: &str = "fixtures/gguf/good/tiny.gguf";

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mount-tensors"));
    command.env_remove("RUST_LOG").env_remove("RUST_BACKTRACE").stdin(Stdio::null());
    command
}

fn run<S: AsRef<OsStr>>(arguments: &[S]) -> Output {
    program().args(arguments).output().unwrap()
}

/// Standard output of a run that must succeed and say nothing else.
fn good<S: AsRef<OsStr>>(arguments: &[S]) -> Vec<u8> {
    let output = run(arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && errors.is_empty(), "{:?}: {errors}", output.status);
    output.stdout
}

fn text<S: AsRef<OsStr>>(arguments: &[S]) -> String {
    String::from_utf8(good(arguments)).unwrap()
}

/// Exit code and standard error of a run that must fail with a message and nothing on standard output.
fn failure<S: AsRef<OsStr>>(arguments: &[S]) -> (i32, String) {
    let output = run(arguments);
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!errors.is_empty() && !errors.contains("panicked") && !errors.contains("RUST_BACKTRACE"), "{errors}");
    (output.status.code().unwrap(), errors)
}

/// A safetensors file with one tensor, in a temporary folder.
struct Source {
    folder: tempfile::TempDir,
}

impl Source {
    fn new(dtype: &str, shape: &str, bytes: &[u8]) -> Self {
        let source = Self { folder: tempfile::tempdir().unwrap() };
        let json = format!("{{\"t\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[0,{}]}}}}", bytes.len());
        std::fs::write(source.path(), safetensors(&json, bytes)).unwrap();
        source
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("x.safetensors")
    }

    fn run(&self, command: &[&str], rest: &[&str]) -> String {
        let path = self.path();
        let arguments: Vec<&OsStr> = command.iter().map(OsStr::new).chain([path.as_os_str()]).chain(rest.iter().map(OsStr::new)).collect();
        text(&arguments)
    }
}

#[test]
fn ls_shows_the_tree() {
    let expected = "as/\ninfo.json\nissues.json\nmetadata/\nmetadata.json\nnpy/\nraw/\nsource/\ntensors.json\ntokenizer/\n";
    assert_eq!(text(&["ls", TINY]), expected);
    assert_eq!(text(&["ls", TINY, "/"]), expected);
    assert_eq!(text(&["ls", TINY, "source"]), "SHA256SUMS\ntiny.gguf\n");
    assert_eq!(text(&["ls", TINY, "source/tiny.gguf"]), "source/tiny.gguf\n");
    assert_eq!(text(&["ls", TINY, "as"]).lines().count(), 7);
}

#[test]
fn ls_long_shows_modes_and_sizes() {
    let source = Source::new("F32", "[2,3]", &[0; 24]);
    let lines = source.run(&["ls", "-l"], &["raw"]);
    let fields: Vec<&str> = lines.split_whitespace().collect();
    // raw/ and as/raw-f32/ are one file.
    assert_eq!(fields, ["-r--r--r--", "2", "24", "t.f32"]);
    let root = source.run(&["ls", "-l"], &[]);
    assert!(root.lines().any(|line| line.starts_with("dr-xr-xr-x") && line.ends_with(" raw/")), "{root}");
}

#[test]
fn ls_json_is_json() {
    let rows: serde_json::Value = serde_json::from_slice(&good(&["ls", "--json", TINY, "source"])).unwrap();
    assert_eq!(rows[1]["name"], "tiny.gguf");
    assert_eq!(rows[1]["bytes"], std::fs::metadata(TINY).unwrap().len());
    let rows: serde_json::Value = serde_json::from_slice(&good(&["ls", "--json", TINY])).unwrap();
    assert_eq!(rows[0], serde_json::json!({"name": "as", "type": "folder"}));
}

#[test]
fn ls_describes_a_tensor() {
    let described = text(&["ls", TINY, "blk.0.attn_q.weight"]);
    let value = |key: &str| described.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_else(|| panic!("{key}: {described}")).trim().to_string();
    assert_eq!((value("name "), value("dtype "), value("raw ")), ("blk.0.attn_q.weight".into(), "q6_k".into(), "raw/blk.0.attn_q.weight.q6_k".into()));
    assert_eq!(value("row bytes").parse::<u64>().unwrap() % 210, 0);
    let object: serde_json::Value = serde_json::from_slice(&good(&["ls", "--json", TINY, "blk.0.attn_q.weight"])).unwrap();
    assert_eq!(object["files"]["npy"], "npy/blk.0.attn_q.weight.npy");
    let (code, errors) = failure(&["ls", TINY, "no such tensor"]);
    assert_eq!(code, 1);
    assert!(errors.contains("\"no such tensor\"") && errors.contains("hint: "), "{errors}");
}

#[test]
fn ls_escapes_what_a_terminal_would_obey() {
    let source = tempfile::tempdir().unwrap();
    let path = source.path().join("e\u{1b}[31m.safetensors");
    std::fs::write(&path, safetensors("{}", &[])).unwrap();
    let listed = text(&[OsStr::new("ls"), path.as_os_str(), OsStr::new("source")]);
    assert!(!listed.contains('\u{1b}'), "{listed:?}");
    std::fs::write(&path, b"x").unwrap();
    let (_, errors) = failure(&[OsStr::new("ls"), path.as_os_str()]);
    assert!(!errors.contains('\u{1b}'), "{errors:?}");
}

#[test]
fn cat_gives_the_bytes() {
    let bytes: Vec<u8> = (0..24).collect();
    let source = Source::new("F32", "[2,3]", &bytes);
    let path = source.path();
    let cat = |file: &str| good(&[OsStr::new("cat"), path.as_os_str(), OsStr::new(file)]);
    assert_eq!(cat("raw/t.f32"), bytes);
    assert_eq!(cat("source/x.safetensors"), std::fs::read(&path).unwrap());
    assert_eq!(cat("npy/t.npy")[128..], bytes);
    assert_eq!(cat("issues.json"), b"[]\n");
    let (code, errors) = failure(&[OsStr::new("cat"), path.as_os_str(), OsStr::new("raw")]);
    assert!(code == 1 && errors.contains("is a folder"), "{errors}");
    let (code, errors) = failure(&[OsStr::new("cat"), path.as_os_str(), OsStr::new("raw/none.f32")]);
    assert!(code == 1 && errors.contains("raw/none.f32"), "{errors}");
}

/// What `'%.18e' % value` gives in Python, which is np.savetxt's default.
#[test]
fn cat_text_is_that_of_savetxt() {
    let text = |dtype: &str, shape: &str, bytes: Vec<u8>, file: &str| Source::new(dtype, shape, &bytes).run(&["cat", "--text"], &[file]);
    let f32s = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let f64s = |values: &[f64]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    assert_eq!(
        text("F32", "[2,3]", f32s(&[0.1, 3.4e38, 1e-45, 1.0 / 3.0, f32::NAN, f32::NEG_INFINITY]), "npy/t.npy"),
        "1.000000014901161194e-01 3.399999952144364249e+38 1.401298464324817071e-45\n3.333333432674407959e-01 nan -inf\n"
    );
    assert_eq!(
        text("F64", "[4]", f64s(&[0.1, 1e-300, -0.0, 1.0 / 3.0]), "raw/t.f64"),
        "1.000000000000000056e-01\n1.000000000000000025e-300\n-0.000000000000000000e+00\n3.333333333333333148e-01\n"
    );
    let i32s: Vec<u8> = [-2_147_483_648i32, 0, 7, -1].iter().flat_map(|v| v.to_le_bytes()).collect();
    assert_eq!(
        text("I32", "[2,2]", i32s.clone(), "npy/t.npy"),
        "-2.147483648000000000e+09 0.000000000000000000e+00\n7.000000000000000000e+00 -1.000000000000000000e+00\n"
    );
    assert_eq!(text("I32", "[2,2]", i32s.clone(), "raw/t.i32"), text("I32", "[2,2]", i32s, "npy/t.npy"));
    assert_eq!(text("U64", "[1]", vec![0xFF; 8], "npy/t.npy"), "1.844674407370955162e+19\n");
    assert_eq!(text("BOOL", "[2]", vec![1, 0], "npy/t.npy"), "1.000000000000000000e+00\n0.000000000000000000e+00\n");
    // 1.5, 3.140625, the smallest subnormal, -infinity.
    let bf16: Vec<u8> = [0x3FC0u16, 0x4049, 0x0001, 0xFF80].iter().flat_map(|v| v.to_le_bytes()).collect();
    let printed = "1.500000000000000000e+00 3.140625000000000000e+00\n9.183549615799121156e-41 -inf\n";
    for file in ["npy/t.npy", "raw/t.bf16", "as/f32/t.npy", "as/raw-f32/t.f32", "as/bf16/t.npy", "as/raw-bf16/t.bf16"] {
        assert_eq!(text("BF16", "[2,2]", bf16.clone(), file), printed, "{file}");
    }
    // Three dimensions: a row of the last axis a line.
    assert_eq!(text("U8", "[2,1,2]", vec![1, 2, 3, 4], "npy/t.npy").lines().count(), 2);
    // Big-endian elements, under each of the views that hold them.
    for file in ["raw/big_f32.f32", "npy/big_f32.npy", "as/f32/big_f32.npy"] {
        let printed = self::text(&["cat", "--text", "fixtures/npy/good/big_f32.npy", file]);
        assert_eq!(printed, "1.000000000000000000e+00\n2.000000000000000000e+00\n1.000000000000000000e+02\n", "{file}");
    }
}

#[test]
fn cat_text_refuses_what_holds_no_numbers() {
    for file in ["info.json", "raw/blk.0.attn_q.weight.q6_k", "source/tiny.gguf"] {
        let (code, errors) = failure(&["cat", "--text", TINY, file]);
        assert!(code == 1 && errors.contains("hint: "), "{file}: {errors}");
    }
}

#[test]
fn export_copies_bytes_and_times() {
    let bytes: Vec<u8> = (0..24).collect();
    let source = Source::new("F32", "[2,3]", &bytes);
    let path = source.path();
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000);
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(then).unwrap();
    let out = source.folder.path().join("out");
    std::fs::create_dir(&out).unwrap();
    let export = |arguments: &[&str]| {
        let to = arguments.last().unwrap();
        let target = out.join(to);
        let arguments: Vec<&OsStr> = [OsStr::new("export"), path.as_os_str()]
            .into_iter()
            .chain(arguments[..arguments.len() - 1].iter().map(OsStr::new))
            .chain([target.as_os_str()])
            .collect();
        assert_eq!(good(&arguments), b"");
    };
    let read = |name: &str| std::fs::read(out.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    export(&["raw/t.f32", "file.bin"]);
    assert_eq!(read("file.bin"), bytes);
    assert_eq!(out.join("file.bin").metadata().unwrap().modified().unwrap(), then);
    export(&["raw/t.f32", ""]);
    assert_eq!(read("t.f32"), bytes);
    export(&["raw", "copy"]);
    assert_eq!(read("copy/t.f32"), bytes);
    export(&["as", ""]);
    assert_eq!(read("as/raw-f32/t.f32"), bytes);
    assert_eq!(read("as/f32/t.npy")[128..], bytes);
    export(&["raw/t.f32", "npy/", "info.json", "several"]);
    assert_eq!(read("several/t.f32"), bytes);
    assert_eq!(read("several/npy/t.npy")[128..], bytes);
    assert!(read("several/info.json").starts_with(b"{"));
    export(&[".", "everything"]);
    assert_eq!(read("everything/source/x.safetensors"), std::fs::read(&path).unwrap());
    assert_eq!(read("everything/tensors.json"), source.run(&["cat"], &["tensors.json"]).into_bytes());
    let (code, errors) = failure(&[OsStr::new("export"), path.as_os_str(), OsStr::new("none"), out.as_os_str()]);
    assert!(code == 1 && errors.contains("\"none\""), "{errors}");
    let nowhere = out.join("no/such/folder");
    let (code, errors) = failure(&[OsStr::new("export"), path.as_os_str(), OsStr::new("raw/t.f32"), nowhere.as_os_str()]);
    assert!(code == 1 && errors.contains("no/such/folder"), "{errors}");
}

/// Large files are written in pieces by several threads: each byte in its place, and in order where there is no other way.
#[test]
fn export_writes_large_files_in_pieces() {
    let bytes: Vec<u8> = (0..20_000_004u32).map(|i| (i % 251) as u8).collect();
    let source = Source::new("F32", "[5000001]", &bytes);
    let path = source.path();
    let folder = source.folder.path();
    let export = |file: &str, to: &Path| good(&[OsStr::new("export"), path.as_os_str(), OsStr::new(file), to.as_os_str()]);
    export("raw", &folder.join("raw"));
    assert!(std::fs::read(folder.join("raw/t.f32")).unwrap() == bytes);
    export("as/f16", &folder.join("f16"));
    assert!(std::fs::read(folder.join("f16/t.npy")).unwrap() == good(&[OsStr::new("cat"), path.as_os_str(), OsStr::new("as/f16/t.npy")]));
    // What was longer before is as long as the file afterwards.
    std::fs::write(folder.join("longer"), vec![1; 21_000_000]).unwrap();
    export("raw/t.f32", &folder.join("longer"));
    assert!(std::fs::read(folder.join("longer")).unwrap() == bytes);
    let fifo = folder.join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let reader = std::thread::spawn({
        let fifo = fifo.clone();
        move || std::fs::read(fifo).unwrap()
    });
    export("raw/t.f32", &fifo);
    assert!(reader.join().unwrap() == bytes);
}

#[test]
fn an_export_that_fails_leaves_no_half_written_file() {
    let out = tempfile::tempdir().unwrap();
    let before = out.path().join("a.npy");
    let export = || failure(&[OsStr::new("export"), OsStr::new("fixtures/npz/degraded/wrong_crc.npz"), OsStr::new("npy/a.npy"), before.as_os_str()]);
    let (code, errors) = export();
    assert!(code == 1 && errors.contains("a.npy: cannot copy"), "{errors}");
    assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 0);
    // One that was there before is as it was.
    std::fs::write(&before, b"x").unwrap();
    export();
    assert_eq!(std::fs::read(&before).unwrap(), b"x");
    assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 1);
}

#[test]
fn export_replaces_the_file_behind_a_link_and_keeps_its_permissions() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let source = Source::new("U8", "[3]", &[1, 2, 3]);
    let folder = source.folder.path();
    std::fs::write(folder.join("there"), "before").unwrap();
    std::fs::set_permissions(folder.join("there"), std::fs::Permissions::from_mode(0o640)).unwrap();
    symlink("there", folder.join("link")).unwrap();
    source.run(&["export"], &["raw/t.u8", folder.join("link").to_str().unwrap()]);
    assert_eq!(std::fs::read(folder.join("there")).unwrap(), [1, 2, 3]);
    assert_eq!(folder.join("there").metadata().unwrap().permissions().mode() & 0o777, 0o640);
    assert!(folder.join("link").symlink_metadata().unwrap().is_symlink());
}

/// What is written over itself is gone, the source and the copy.
#[test]
fn nothing_is_written_over_its_own_source() {
    let source = Source::new("U8", "[3]", &[1, 2, 3]);
    let (folder, path) = (source.folder.path(), source.path());
    let before = std::fs::read(&path).unwrap();
    std::fs::hard_link(&path, folder.join("hard")).unwrap();
    std::os::unix::fs::symlink("x.safetensors", folder.join("soft")).unwrap();
    let export = |what: &str, to: PathBuf| failure(&[OsStr::new("export"), path.as_os_str(), OsStr::new(what), to.as_os_str()]);
    for (what, to) in
        [("source/x.safetensors", folder.to_path_buf()), ("raw/t.u8", path.clone()), ("raw/t.u8", folder.join("hard")), ("raw/t.u8", folder.join("soft"))]
    {
        let (code, errors) = export(what, to);
        assert!(code == 1 && errors.contains("is a file of the source itself"), "{errors}");
        assert_eq!(std::fs::read(&path).unwrap(), before, "{what}");
    }
    let append = std::fs::File::options().append(true).open(&path).unwrap();
    let output = program().arg("cat").arg(&path).arg("raw/t.u8").stdout(append).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(std::fs::read(&path).unwrap(), before);
    // A model folder's other files are its source as well.
    let model = folder.join("model");
    std::fs::create_dir(&model).unwrap();
    std::fs::write(model.join("config.json"), "{\"a\": 1}").unwrap();
    std::fs::rename(&path, model.join("model.safetensors")).unwrap();
    let (code, errors) = failure(&[OsStr::new("export"), model.as_os_str(), OsStr::new("config/config.json"), model.as_os_str()]);
    assert!(code == 1 && errors.contains("config.json: is a file of the source itself"), "{errors}");
    assert_eq!(std::fs::read(model.join("config.json")).unwrap(), b"{\"a\": 1}");
}

#[test]
fn check_tells_by_its_exit_code() {
    let check = |paths: &[&str]| {
        let output = program().arg("check").args(paths).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, said) = check(&[TINY]);
    assert_eq!(code, 0, "{said}");
    assert!(said.ends_with("0 issues\n"), "{said}");
    let (code, said) = check(&[TINY, "fixtures/gguf/degraded/overlap.gguf"]);
    assert_eq!(code, 1);
    assert!(said.contains("overlaps tensor") && said.contains(TINY), "{said}");
    let (code, said) = check(&["fixtures/npz/degraded/wrong_crc.npz"]);
    assert!(code == 1 && said.contains("tensor \"a\""), "only reading finds it: {said}");
    let (code, said) = check(&["fixtures/gguf/bad/version_4.gguf", TINY]);
    assert!(code == 1 && said.contains("version 4") && said.contains("12 tensors"), "the others are checked all the same: {said}");
}

/// Several threads read, but what they find is told in the order of the file.
#[test]
fn check_tells_of_damage_in_the_order_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npz");
    // Large and small by turns, so that a later one is read before an earlier one.
    let members: Vec<Member> = (0..40)
        .map(|number| {
            let elements = if number % 2 == 0 { 1 << 20 } else { 1 };
            let array = npy(&format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({elements},), }}"), &vec![number; elements]);
            let member = Member::deflated(&format!("{}{number}.npy", ["z", "a"][usize::from(number % 4 < 2)]), &array);
            Member { crc: if number % 5 == 4 { member.crc } else { !member.crc }, ..member }
        })
        .collect();
    std::fs::write(&path, zip(&members)).unwrap();
    let damaged: Vec<String> =
        members.iter().enumerate().filter(|(number, _)| number % 5 != 4).map(|(_, m)| String::from_utf8(m.name.clone()).unwrap().replace(".npy", "")).collect();
    for _ in 0..5 {
        let output = program().arg("check").arg(&path).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stdout).unwrap();
        let told: Vec<&str> = said.lines().filter_map(|line| line.split_once("tensor \"")?.1.split_once('"')).map(|(name, _)| name).collect();
        assert_eq!(told, damaged, "{said}");
    }
}

#[test]
fn check_counts_what_f16_cannot_hold() {
    let values = [1.0f32, 70_000.0, -65_520.0, 65_519.9, f32::INFINITY, f32::NAN];
    let source = Source::new("F32", "[6]", &values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
    let said = source.run(&["check"], &[]);
    assert!(said.contains("note: tensor \"t\": 2 finite values become infinite in f16, the largest is 7e4"), "{said}");
    assert!(said.ends_with("0 issues\n"), "a note is no issue: {said}");
}

/// Whoever reads may stop early, as head does.
#[test]
fn a_reader_that_stops_early_is_no_failure() {
    let source = Source::new("F32", "[1024,1024]", &vec![0; 4 << 20]);
    let path = source.path();
    for arguments in
        [&["cat", "@", "raw/t.f32"][..], &["cat", "@", "as/f16/t.npy"], &["cat", "--text", "@", "npy/t.npy"], &["cat", "@", "source/x.safetensors"]]
    {
        let mut child = program()
            .args(arguments.iter().map(|a| if *a == "@" { path.as_os_str() } else { OsStr::new(a) }))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0; 10];
        child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {:?} {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_full_disk_is_a_failure() {
    if !Path::new("/dev/full").exists() {
        writeln!(std::io::stderr(), "SKIPPED: there is no /dev/full").unwrap();
        return;
    }
    for arguments in [&["ls", TINY][..], &["cat", TINY, "source/tiny.gguf"], &["cat", "--text", TINY, "npy/blk.0.attn_norm.weight.npy"], &["check", TINY]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = program().args(arguments).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?} says nothing");
    }
    // A copy that fails leaves what was there before alone: a device above all.
    let output = program().args(["export", TINY, "npy/output.weight.npy", "/dev/full"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(!std::fs::metadata("/dev/full").unwrap().is_file());
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let cases: [&[&str]; 14] = [
        &[],
        &["one-path-only"],
        &["--no-such-option", "a", "b"],
        &["--views", "raw,nope", "a", "b"],
        &["--umask", "999", "a", "b"],
        &["--uid", "me", "a", "b"],
        &["-o", "no_such_option", "a", "b"],
        &["-o", "umask=9", "a", "b"],
        &["ls"],
        &["ls", "--nope", TINY],
        &["cat", TINY],
        &["export", TINY, "raw"],
        &["check"],
        &["-u"],
    ];
    for arguments in cases {
        let (code, errors) = failure(arguments);
        assert_eq!(code, 2, "{arguments:?}: {errors}");
    }
    // An option is named as it was written.
    let unknown = (2, "mount-tensors: unknown option \"no_such_option\" after -o\nhint: see --help\n".to_string());
    assert_eq!(failure(&["-o", "ro,no_such_option=1", "a", "b"]), unknown);
}

#[test]
fn an_option_list_takes_no_word_beside_it_and_splits_no_list_of_views() {
    for key in ["uid", "gid", "umask", "views", "log_file"] {
        let (code, errors) = failure(&["-o", key, "/nowhere/a", "/nowhere/b"]);
        assert!(errors.contains(&format!("--{}", key.replace('_', "-"))), "{key}: {errors}");
        assert!(!errors.contains("nowhere"), "{key}: {errors}");
        assert_eq!(code, 2, "{key}: {errors}");
    }
    for list in ["--views=", "--views=,", "-oviews=:"] {
        let (code, errors) = failure(&[list, "/nowhere/a", "/nowhere/b"]);
        assert!(code == 2 && errors.contains("expected a list of views"), "{list}: {errors}");
    }
    // Taken apart at its commas, the list would be options that there are not.
    for list in ["views=raw,npy", "ro,views=raw-f32,npy,metadata,allow_other", "views=as"] {
        let (code, errors) = failure(&["-o", list, "/nowhere/a", "/nowhere/b"]);
        assert!(code == 1 && errors.contains("/nowhere/a"), "{list}: {errors}");
    }
    let (code, errors) = failure(&["-o", "views=raw,nope", "/nowhere/a", "/nowhere/b"]);
    assert!(code == 2 && errors.contains("unknown option \"nope\""), "{errors}");
}

#[test]
fn an_empty_path_is_told_in_words() {
    for arguments in [&["ls", ""][..], &["check", ""], &["cat", "", "info.json"]] {
        let output = program().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let said = [output.stdout, output.stderr].concat();
        assert!(String::from_utf8_lossy(&said).contains("expected the path of a source, found an empty one"), "{}", String::from_utf8_lossy(&said));
    }
}

/// A process that may open no more files says so; no shard is missing.
#[test]
fn too_few_open_files_are_no_missing_shards() {
    let folder = tempfile::tempdir().unwrap();
    let header = |name: String| format!("{{\"{name}\":{{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}}}").into_bytes();
    for (kind, suffix) in [("safetensors", ".safetensors"), ("folder", ".safetensors")] {
        let place = folder.path().join(kind);
        std::fs::create_dir(&place).unwrap();
        for number in 1..=60 {
            let header = header(format!("t{number}"));
            let bytes = [&(header.len() as u64).to_le_bytes()[..], &header, &[7]].concat();
            let name = if kind == "folder" { format!("m{number}{suffix}") } else { format!("m-{number:05}-of-00060{suffix}") };
            std::fs::write(place.join(name), bytes).unwrap();
        }
        let source = if kind == "folder" { place } else { place.join("m-00007-of-00060.safetensors") };
        let limited = |files: u32| {
            let script = format!("ulimit -n {files}; exec \"$0\" ls \"$1\"");
            Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_mount-tensors")]).arg(&source).output().unwrap()
        };
        let output = limited(40);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains("Too many open files") && errors.contains("\nhint: raise the limit with `ulimit -n`"), "{errors}");
        assert!(limited(200).status.success());
    }
}

#[test]
fn failures_are_exit_code_1_and_name_the_file() {
    assert_eq!(failure(&["ls", "/nowhere/x.gguf"]), (1, "mount-tensors: /nowhere/x.gguf: cannot open: No such file or directory\n".to_string()));
    let (code, errors) = failure(&["cat", "fixtures/gguf/bad/cut_4.gguf", "info.json"]);
    assert_eq!(code, 1);
    assert!(errors.starts_with("mount-tensors: fixtures/gguf/bad/cut_4.gguf: ") && errors.contains("\nhint: "), "{errors}");
}

#[test]
fn help_names_every_option() {
    let help = text(&["--help"]);
    for option in [
        "-f",
        "-u",
        "-o ",
        "--allow-other",
        "--uid",
        "--gid",
        "--umask",
        "--default-permissions",
        "--replace",
        "--allow-non-empty",
        "--views",
        "--strict",
        "--log-file",
        "-v,",
        "-q,",
        "-V,",
        "-h,",
        "ls ",
        "cat ",
        "export ",
        "check ",
        "SOURCE... MOUNTPOINT",
        "NAME=SOURCE",
    ] {
        assert!(help.contains(option), "--help does not mention {option}:\n{help}");
    }
    for (command, options) in [("ls", &["-l", "--json"][..]), ("cat", &["--text"]), ("export", &["DEST"]), ("check", &["SOURCES"])] {
        let help = text(&[command, "--help"]);
        options.iter().for_each(|option| assert!(help.contains(option), "{command} --help does not mention {option}:\n{help}"));
    }
    assert_eq!(text(&["-V"]), format!("mount-tensors {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(text(&["--version"]), text(&["-V"]));
}

#[test]
fn names_that_are_no_utf8_can_be_asked_for() {
    let source = "fixtures/gguf/good/names_not_utf8.gguf";
    let listed = text(&["ls", source, "raw"]);
    assert!(listed.contains("%FF%FE.f32"), "{listed}");
    let described = good(&[OsStr::new("ls"), OsStr::new(source), OsStr::from_bytes(b"\xFF\xFE")]);
    assert!(String::from_utf8(described).unwrap().contains("raw/%FF%FE.f32"));
}

#[test]
fn a_name_chosen_for_a_source_makes_a_folder() {
    assert_eq!(text(&["ls", &format!("mine={TINY}")]), "mine/\n");
    assert_eq!(text(&["ls", &format!("mine={TINY}"), "mine/source"]), "SHA256SUMS\ntiny.gguf\n");
}
