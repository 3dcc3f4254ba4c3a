//! Every fixture as its tree shows it, its values against those of the reference libraries, and the rules of the table of formats.
//!
//! `UPDATE=1 cargo test --test formats` rewrites `tests/golden/`; read the difference before it is committed.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "in a test, a panic is the report of a failure")]

#[path = "common/golden.rs"]
mod golden;
#[path = "common/support.rs"]
mod support;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use mount_tensors::catalog::Order;
use mount_tensors::content::npy;
use mount_tensors::formats::{self, FORMATS};
use mount_tensors::fs::{Errno, Fs};
use mount_tensors::quant::narrow;
use serde_json::Value;
use sha2::{Digest, Sha256};
use support::{fixture_formats, fixtures, json, open, read, walk};

/// Documents up to this size stand in the golden file, larger ones as their sum.
const SHOWN_BYTES: usize = 6 << 10;
/// All golden files together.
const GOLDEN_BYTES: u64 = 1_500_000;

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A fixture's golden file.
fn golden_name(path: &Path) -> String {
    let name = path.strip_prefix("fixtures").unwrap().to_str().unwrap();
    format!("{name}.txt")
}

/// info.json without what differs from one checkout or release to the next.
fn info(fs: &Fs, path: &str) -> String {
    let mut info = json(fs, path);
    for file in info["files"].as_array_mut().unwrap() {
        let file = file.as_object_mut().unwrap();
        assert!(file.remove("mtime").is_some_and(|mtime| mtime.is_u64()));
        assert!(file["path"].as_str().unwrap().starts_with("fixtures/"), "a path is shown as it was given");
    }
    let program = info.as_object_mut().unwrap().remove("program");
    assert_eq!(program, Some(format!("mount-tensors {}", env!("CARGO_PKG_VERSION")).into()));
    serde_json::to_string_pretty(&info).unwrap()
}

/// The tree of a fixture as text: its documents, then every path with its size.
fn listing(fs: &Fs) -> String {
    let walked = walk(fs);
    let mut text = String::new();
    for (path, _) in &walked {
        let path = String::from_utf8(path.clone()).expect("paths are UTF-8");
        let name = path.rsplit('/').next().unwrap();
        let in_metadata = path.split('/').any(|part| part == "metadata" || part == "config" || part == "tokenizer");
        if in_metadata || !["info.json", "issues.json", "tensors.json", "metadata.json"].contains(&name) {
            continue;
        }
        let document = if name == "info.json" { info(fs, &path) } else { String::from_utf8(read(fs, &path).unwrap()).unwrap() };
        let document = if document.len() > SHOWN_BYTES { format!("sha256 {}", sha256(document.as_bytes())) } else { document };
        let _ = writeln!(text, "== {path}\n{}", document.trim_end());
    }
    let _ = writeln!(text, "== paths");
    for (path, ino) in &walked {
        let attr = fs.attr(*ino).unwrap();
        let path = String::from_utf8_lossy(path);
        // The size of info.json depends on how the source was named and on its time stamp.
        if attr.folder || path.ends_with("info.json") {
            let _ = writeln!(text, "{:>8} {path}", "-");
        } else {
            let _ = writeln!(text, "{:>8} {path}", attr.size);
        }
    }
    text
}

/// Every fixture that opens: what `good`, `degraded` and the folders of caches hold.
fn opening() -> Vec<(PathBuf, &'static str)> {
    let mut all = Vec::new();
    for format in fixture_formats() {
        for kind in ["good", "degraded", "hub"] {
            all.extend(fixtures(&format, kind).into_iter().map(|path| (path, kind)));
        }
    }
    all
}

#[test]
fn trees_are_as_recorded() {
    let mut wrong = Vec::new();
    let mut names = vec!["bad.txt".to_string()];
    for (path, kind) in opening() {
        names.push(golden_name(&path));
        let fs = match open(&path) {
            Ok(fs) => fs,
            Err(e) => {
                wrong.push(format!("should open: {e}"));
                continue;
            }
        };
        let issues: usize = fs.tree().sets().iter().map(|set| set.catalog().issues().len()).sum();
        // Only reading finds a wrong sum.
        let found_late = path.ends_with("wrong_crc.npz");
        if (kind == "degraded" && !found_late) != (issues > 0) {
            wrong.push(format!("{}: {issues} issues in a {kind} fixture", path.display()));
        }
        if let Err(e) = golden::compare(&golden_name(&path), &listing(&fs)) {
            wrong.push(e);
        }
    }
    wrong.extend(golden::stale(&names).into_iter().map(|name| format!("tests/golden/{name}: its fixture has gone (UPDATE=1 removes it)")));
    assert!(wrong.is_empty(), "{} golden files differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn refusals_are_as_recorded() {
    let mut text = String::new();
    for format in fixture_formats() {
        for path in fixtures(&format, "bad") {
            let Err(e) = formats::open(&path) else { panic!("{} should be refused", path.display()) };
            let message = e.to_string();
            assert!(message.starts_with("fixtures/"), "the file is named first: {message}");
            assert!(!message.lines().any(|line| line.ends_with('.')), "no full stop at the end: {message}");
            let _ = writeln!(text, "{}", message.replace('\n', "\n    "));
        }
    }
    golden::compare("bad.txt", &text).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn golden_files_are_small() {
    let mut total = 0;
    let mut folders = vec![golden::folder()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            if entry.path().is_dir() { folders.push(entry.path()) } else { total += entry.metadata().unwrap().len() }
        }
    }
    assert!(total < GOLDEN_BYTES, "the golden files take {total} bytes");
}

#[test]
fn a_wrong_sum_is_an_error_when_it_is_read() {
    let fs = open("fixtures/npz/degraded/wrong_crc.npz").unwrap();
    let tensors = json(&fs, "tensors.json");
    let path = |name: &str| tensors.as_array().unwrap().iter().find(|t| t["name"] == name).unwrap()["files"]["raw"].as_str().unwrap().to_string();
    assert_eq!(read(&fs, path("a")), Err(Errno::Io));
    assert!(read(&fs, path("b")).is_ok());
}

/// NumPy's own description of the elements of `npy/`, by the table of the contract.
fn npy_descr(dtype: &str, endian: &str) -> String {
    let order = if endian == "big" { '>' } else { '<' };
    match dtype {
        "bool" => "|b1".to_string(),
        "i8" | "i4" | "i2" => "|i1".to_string(),
        "u8" | "u4" | "u2" | "u1" => "|u1".to_string(),
        "c32" => "<c8".to_string(),
        "f64" | "f32" | "f16" | "i64" | "i32" | "i16" | "u64" | "u32" | "u16" | "c64" | "c128" => {
            format!("{order}{}{}", &dtype[..1], dtype[1..].parse::<u32>().unwrap() / 8)
        }
        only_numpy if only_numpy.starts_with(['<', '>', '|', '[', '=']) => only_numpy.to_string(),
        _ => "<f4".to_string(),
    }
}

fn shape_of(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|d| d.as_u64().unwrap()).collect()
}

/// Elements of four bytes from Fortran to C order.
fn to_c_order(bytes: &[u8], shape: &[u64]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut index = vec![0u64; shape.len()];
    for _ in 0..bytes.len() / 4 {
        let mut stride = 1;
        let mut at = 0;
        for (i, d) in index.iter().zip(shape) {
            at += i * stride;
            stride *= d;
        }
        out.extend_from_slice(&bytes[at as usize * 4..][..4]);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    out
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Whether two files of 16-bit floats hold the same values; any NaN equals any NaN.
fn same_halves(a: &[u8], b: &[u8], exponent: u16) -> bool {
    let nan = |h: u16| h & exponent == exponent && h & !(exponent | 0x8000) != 0;
    let halves =
        |bytes: &[u8]| bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).map(|h| if nan(h) { exponent | 1 } else { h }).collect::<Vec<_>>();
    a.len() == b.len() && halves(a) == halves(b)
}

/// Checks every view of a tensor against the one before it in the chain: stored bytes, values, narrowed values, headers.
fn check_views(fs: &Fs, place: &str, tensor: &Value) {
    let file = |view: &str| tensor["files"][view].as_str().map(|path| read(fs, path).unwrap_or_else(|e| panic!("{place}: {path}: {e:?}")));
    let (dtype, endian) = (tensor["dtype"].as_str().unwrap(), tensor["endian"].as_str().unwrap());
    let order = if tensor["order"] == "F" { Order::F } else { Order::C };
    let shape = shape_of(&tensor["shape"]);
    let header = |descr: &str| npy::header(descr, order, &shape);
    let raw = file("raw");
    let values = file("f32");
    // What several tensors make is decoded, whatever type the packed values are stored as.
    let several = tensor.get("scheme").is_some();
    let descr = if several { "<f4".to_string() } else { npy_descr(dtype, endian) };
    if let Some(whole) = file("npy") {
        let body = match (&raw, &values) {
            (_, Some(values)) if several || !["f64", "f32", "f16"].contains(&dtype) && descr == "<f4" => values.clone(),
            (_, Some(values)) if matches!(dtype, "i4" | "i2" | "u4" | "u2" | "u1") => floats(values).into_iter().map(|v| v as i16 as u8).collect(),
            (Some(raw), _) if dtype == "c32" => raw.chunks_exact(2).flat_map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32().to_le_bytes()).collect(),
            (Some(raw), _) => raw.clone(),
            _ => panic!("{place}: npy/ without raw/"),
        };
        assert!(whole == [header(&descr), body].concat(), "{place}: npy/ is not the header for {descr} and the elements");
    }
    for (view, bare, descr) in [("f32_npy", "f32", "<f4"), ("f16_npy", "f16", "<f2"), ("bf16_npy", "bf16", "<V2")] {
        assert_eq!(tensor["files"][view].is_string(), values.is_some(), "{place}: {view} is there if f32 is");
        if let (Some(whole), Some(body)) = (file(view), file(bare)) {
            assert!(whole == [header(descr), body].concat(), "{place}: {view} is not a header and {bare}");
        }
    }
    let Some(values) = values else { return };
    let values = floats(&values);
    let (mut f16, mut bf16) = (vec![0; values.len() * 2], vec![0; values.len() * 2]);
    if dtype == "f64" {
        let swap = |b: &[u8]| -> [u8; 8] {
            let mut b: [u8; 8] = b.try_into().unwrap();
            if endian == "big" {
                b.reverse();
            }
            b
        };
        let doubles: Vec<f64> = raw.unwrap().chunks_exact(8).map(|b| f64::from_le_bytes(swap(b))).collect();
        narrow::narrow_f64_to_f16(&doubles, &mut f16);
        narrow::narrow_f64_to_bf16(&doubles, &mut bf16);
    } else {
        narrow::narrow_f16(&values, &mut f16);
        narrow::narrow_bf16(&values, &mut bf16);
    }
    assert!(same_halves(&file("f16").unwrap(), &f16, 0x7C00), "{place}: as/raw-f16 is not the narrowed f32");
    assert!(same_halves(&file("bf16").unwrap(), &bf16, 0x7F80), "{place}: as/raw-bf16 is not the narrowed f32");
}

#[test]
fn values_are_those_of_the_reference_libraries() {
    let expected: Value = serde_json::from_slice(&std::fs::read("fixtures/values.json").unwrap()).unwrap();
    let mut checked = 0;
    for (path, tensors) in expected.as_object().unwrap() {
        let fs = open(Path::new("fixtures").join(path)).unwrap_or_else(|e| panic!("{e}"));
        let listed = json(&fs, "tensors.json");
        let listed = listed.as_array().unwrap();
        for (name, wanted) in tensors.as_object().unwrap() {
            let place = format!("{path}: {name}");
            let tensor = listed.iter().find(|t| t["name"] == name.as_str()).unwrap_or_else(|| panic!("{place}: is not listed"));
            assert_eq!(tensor["dtype"], wanted["dtype"], "{place}: dtype");
            let shape = tensor.get("stored_shape").unwrap_or(&tensor["shape"]);
            assert_eq!(*shape, wanted["shape"], "{place}: shape");
            // Where both orders are the same, NumPy writes C.
            let one_dimension = shape_of(shape).iter().filter(|d| **d != 1).count() <= 1;
            let order = wanted.get("order").filter(|_| !one_dimension).cloned().unwrap_or("C".into());
            assert_eq!(tensor["order"], order, "{place}: order");
            assert_eq!(tensor["endian"], *wanted.get("endian").unwrap_or(&"little".into()), "{place}: endian");
            let raw = read(&fs, tensor["files"]["raw"].as_str().unwrap()).unwrap();
            assert_eq!(raw.len() as u64, tensor["bytes"].as_u64().unwrap(), "{place}: bytes");
            // How long a tensor of an unknown type is, nobody can say: padding up to the next one may follow.
            let padding = if tensor["dtype"].as_str().unwrap().starts_with("unknown_") { 32 } else { 1 };
            let sum = wanted["raw_sha256"].as_str().unwrap();
            assert!((0..padding).any(|n| sha256(&raw[..raw.len() - n]) == sum), "{place}: raw/ has the sum {}, expected {sum}", sha256(&raw));
            if let Some(sum) = wanted.get("f32_sha256") {
                let decoded = tensor["files"]["f32"].as_str().unwrap_or_else(|| panic!("{place}: has no decoded file"));
                let mut values = read(&fs, decoded).unwrap();
                if tensor["order"] == "F" {
                    values = to_c_order(&values, &shape_of(&tensor["shape"]));
                }
                for value in values.chunks_exact_mut(4) {
                    if f32::from_le_bytes(value.try_into().unwrap()).is_nan() {
                        value.copy_from_slice(&0x7fc0_0000u32.to_le_bytes());
                    }
                }
                assert_eq!(sha256(&values), sum.as_str().unwrap(), "{place}: as/raw-f32");
            }
            checked += 1;
        }
    }
    assert!(checked > 380, "only {checked} tensors were checked");
}

#[test]
fn every_view_follows_from_the_stored_bytes() {
    for (path, _) in opening() {
        if path.ends_with("wrong_crc.npz") {
            continue;
        }
        let fs = open(&path).unwrap();
        for set in 0..fs.tree().sets().len() {
            // Of a folder of several containers each has a tensors.json; the paths in it are relative to its own root.
            let documents: Vec<Vec<u8>> = walk(&fs).into_iter().map(|(path, _)| path).filter(|path| path.ends_with(b"tensors.json")).collect();
            let root = String::from_utf8(documents[set].clone()).unwrap();
            let root = root.strip_suffix("tensors.json").unwrap();
            for mut tensor in json(&fs, &format!("{root}tensors.json")).as_array().unwrap().clone() {
                for file in tensor["files"].as_object_mut().unwrap().values_mut() {
                    *file = format!("{root}{}", file.as_str().unwrap()).into();
                }
                let place = format!("{}: {root}{}", path.display(), tensor["name"]);
                check_views(&fs, &place, &tensor);
            }
        }
    }
}

#[test]
fn sums_are_those_of_the_files() {
    for path in ["fixtures/gguf/good/split", "fixtures/safetensors/good/model", "fixtures/npz/good/deflated.npz"] {
        let fs = open(path).unwrap();
        let sums = String::from_utf8(read(&fs, "source/SHA256SUMS").unwrap()).unwrap();
        assert!(!sums.is_empty());
        for line in sums.lines() {
            let (sum, name) = line.split_once("  ").unwrap();
            let bytes = read(&fs, format!("source/{name}")).unwrap();
            assert_eq!(sha256(&bytes), sum, "{path}: {name}");
            let file = if Path::new(path).is_dir() { Path::new(path).join(name) } else { PathBuf::from(path) };
            assert_eq!(bytes, std::fs::read(file).unwrap());
        }
    }
}

#[test]
fn the_table_of_formats_keeps_its_rules() {
    let mut titles: Vec<&str> = FORMATS.iter().map(|format| format.title).collect();
    titles.sort_unstable();
    titles.dedup();
    assert_eq!(titles.len(), FORMATS.len(), "titles are unique");
    let mut rows: Vec<(&str, &[&str])> = FORMATS.iter().map(|format| (format.name, format.extensions)).collect();
    rows.sort_unstable();
    rows.dedup();
    assert_eq!(rows.len(), FORMATS.len(), "a name that occurs twice is told apart by its extensions");
    for format in FORMATS {
        assert!(!format.title.is_empty() && !format.title.ends_with('.'), "{}", format.name);
        assert!(format.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{}", format.name);
        assert!(!format.extensions.is_empty(), "{}", format.name);
        for extension in format.extensions {
            assert!(!extension.starts_with('.') && *extension == extension.to_lowercase(), "{}: {extension}", format.name);
        }
        for kind in ["good", "bad"] {
            assert!(!fixtures(format.name, kind).is_empty(), "fixtures/{}/{kind} is missing or empty", format.name);
        }
    }
    for folder in fixture_formats() {
        assert!(FORMATS.iter().any(|format| format.name == folder), "fixtures/{folder} belongs to no format");
    }
}
