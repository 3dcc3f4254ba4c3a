//! ONNX models that no fixture can be: larger than protobuf allows, with data far out in a side file, or made to exhaust a reader.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "in a test, a panic is the report of a failure")]

#[path = "common/support.rs"]
mod support;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use mount_tensors::fs::Fs;
use support::{json, open, open_bytes, read, read_at, stat};

fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

/// A field with a length and bytes.
fn bytes(number: u64, content: &[u8]) -> Vec<u8> {
    [varint(number << 3 | 2), varint(content.len() as u64), content.to_vec()].concat()
}

/// A field with a number.
fn number(number: u64, value: u64) -> Vec<u8> {
    [varint(number << 3), varint(value)].concat()
}

/// A ModelProto around a graph.
fn model(graph: &[u8]) -> Vec<u8> {
    [number(1, 8), bytes(8, &number(2, 17)), bytes(7, graph)].concat()
}

/// A file that is opened in time and without much memory of its own.
fn opened(path: &Path) -> Fs {
    let before = anonymous();
    let start = Instant::now();
    let fs = open(path).unwrap();
    let took = start.elapsed();
    assert!(took < Duration::from_secs(5), "opening took {took:?}");
    let grown = anonymous().saturating_sub(before);
    assert!(grown < 100 << 10, "opening took {grown} kB");
    fs
}

/// Anonymous memory of this process, in kB.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The first and the last 16 bytes of a tensor's file.
fn ends(fs: &Fs, path: &str) -> (Vec<u8>, Vec<u8>) {
    let attr = stat(fs, path).unwrap();
    (read_at(fs, attr.ino, 0, 16).unwrap(), read_at(fs, attr.ino, attr.size - 16, 16).unwrap())
}

#[test]
fn a_model_of_three_gigabytes_opens_at_once() {
    const EACH: u64 = 1_073_741_824;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.onnx");
    let file = File::create(&path).unwrap();
    // Three initialisers of 1 GiB each, whose data is holes but for their ends.
    let mut heads = Vec::new();
    for name in ["a", "b", "c"] {
        let inner = [number(1, EACH / 4), number(2, 1), bytes(8, name.as_bytes()), varint(9 << 3 | 2), varint(EACH)].concat();
        heads.push([varint(5 << 3 | 2), varint(inner.len() as u64 + EACH), inner].concat());
    }
    let graph: u64 = heads.iter().map(|head| head.len() as u64 + EACH).sum();
    let start = [number(1, 8), bytes(8, &number(2, 17)), varint(7 << 3 | 2), varint(graph)].concat();
    file.write_all_at(&start, 0).unwrap();
    let mut at = start.len() as u64;
    for (head, mark) in heads.iter().zip(1u8..) {
        file.write_all_at(head, at).unwrap();
        at += head.len() as u64;
        file.write_all_at(&[mark; 16], at).unwrap();
        file.write_all_at(&[mark + 100; 16], at + EACH - 16).unwrap();
        at += EACH;
    }
    file.set_len(at).unwrap();
    assert!(at > 3 << 30);
    let fs = opened(&path);
    assert_eq!(json(&fs, "issues.json"), serde_json::json!([]));
    for (name, mark) in [("a", 1u8), ("b", 2), ("c", 3)] {
        assert_eq!(ends(&fs, &format!("raw/{name}.f32")), (vec![mark; 16], vec![mark + 100; 16]), "{name}");
        let tensor = json(&fs, "tensors.json").as_array().unwrap().iter().find(|t| t["name"] == name).unwrap().clone();
        assert!(tensor["zero_copy"].as_array().unwrap().iter().any(|view| view == "raw"), "{tensor}");
    }
}

#[test]
fn external_data_lies_at_any_offset() {
    let folder = tempfile::tempdir().unwrap();
    let data = File::create(folder.path().join("m.data")).unwrap();
    let offsets = [5_000_000_000u64, 13, 4097];
    let mut graph = Vec::new();
    for (offset, mark) in offsets.into_iter().zip(1u8..) {
        data.write_all_at(&[mark; 64], offset).unwrap();
        let entry = |key: &str, value: &str| bytes(13, &[bytes(1, key.as_bytes()), bytes(2, value.as_bytes())].concat());
        let entries = [entry("location", "m.data"), entry("offset", &offset.to_string()), entry("length", "64")].concat();
        graph.extend(bytes(5, &[number(1, 64), number(2, 2), bytes(8, format!("t{mark}").as_bytes()), entries, number(14, 1)].concat()));
    }
    let path = folder.path().join("m.onnx");
    std::fs::write(&path, model(&graph)).unwrap();
    let fs = opened(&path);
    for (mark, offset) in (1u8..).zip(offsets) {
        assert_eq!(read(&fs, format!("raw/t{mark}.u8")).unwrap(), [mark; 64]);
        let tensor = &json(&fs, "tensors.json")[usize::from(mark) - 1];
        assert_eq!(tensor["offset"], offset);
        assert_eq!(tensor["source"], "m.data");
    }
    assert_eq!(json(&fs, "issues.json"), serde_json::json!([]));
    assert_eq!(stat(&fs, "source/m.data").unwrap().size, 5_000_000_064);
}

#[test]
fn a_missing_side_file_is_named_and_the_rest_is_served() {
    let fs = open("fixtures/onnx/degraded/missing_file/model.onnx").unwrap();
    let issues = json(&fs, "issues.json");
    assert_eq!(issues.as_array().unwrap().len(), 1, "{issues}");
    let text = issues[0].to_string();
    assert!(text.contains("fixtures/onnx/degraded/missing_file/model.onnx_data: No such file"), "{text}");
    assert!(text.contains("and 1 more"), "{text}");
    assert_eq!(read(&fs, "raw/inline.f32").unwrap().len(), 12);
    let tensors = json(&fs, "tensors.json");
    assert_eq!(tensors.as_array().unwrap().len(), 3);
    assert_eq!(tensors[0]["files"], serde_json::json!({}));
}

#[test]
fn no_path_leads_out_of_the_folder() {
    let fs = open("fixtures/onnx/degraded/unsafe_paths/model.onnx").unwrap();
    let issues = json(&fs, "issues.json");
    let tensors = json(&fs, "tensors.json");
    let served: Vec<_> = tensors.as_array().unwrap().iter().filter(|t| t["files"].get("raw").is_some()).map(|t| t["name"].clone()).collect();
    assert_eq!(served, ["inline"]);
    for tensor in tensors.as_array().unwrap().iter().filter(|t| t["name"] != "inline") {
        let name = tensor["name"].as_str().unwrap();
        assert!(issues.as_array().unwrap().iter().any(|issue| issue.to_string().contains(&format!("tensor \\\"{name}\\\""))), "{name}: {issues}");
    }
    let fs = open("fixtures/onnx/degraded/link_out/model.onnx").unwrap();
    assert!(json(&fs, "issues.json").to_string().contains("is a link out of the model's folder; not opened"));
}

#[test]
fn a_million_empty_initialisers_take_linear_time() {
    let graph = bytes(5, b"").repeat(1_000_000);
    let start = Instant::now();
    let fs = open_bytes("bomb.onnx", [model(&graph), bytes(14, &[bytes(1, b"k"), bytes(2, b"v")].concat())].concat()).unwrap();
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    assert_eq!(fs.tree().sets()[0].catalog().len(), 1_000_000);
}

#[test]
fn deep_graphs_and_long_names_are_bounded() {
    // If in If in If ..., far deeper than protobuf follows.
    let mut graph = Vec::new();
    for _ in 0..1000 {
        graph = bytes(1, &[bytes(4, b"If"), bytes(5, &[bytes(1, b"then_branch"), bytes(6, &graph)].concat())].concat());
    }
    let tensor = bytes(5, &[number(1, 1), number(2, 2), bytes(8, b"top"), bytes(9, b"x")].concat());
    let fs = open_bytes("deep.onnx", model(&[tensor.clone(), graph].concat())).unwrap();
    assert!(json(&fs, "issues.json").to_string().contains("are nested more than"));
    assert_eq!(read(&fs, "raw/top.u8").unwrap(), b"x");

    // One long name around many tensors is not kept once for each.
    let inner = bytes(5, &[number(1, 1), number(2, 2), bytes(9, b"x")].concat()).repeat(50_000);
    let node = bytes(1, &[bytes(3, &vec![b'n'; 1 << 20]), bytes(4, b"If"), bytes(5, &[bytes(1, b"b"), bytes(6, &inner)].concat())].concat());
    let before = anonymous();
    let fs = open_bytes("long.onnx", model(&[tensor, node].concat())).unwrap();
    assert_eq!(fs.tree().sets()[0].catalog().len(), 50_001);
    assert!(anonymous().saturating_sub(before) < 200 << 10);
}

#[test]
fn damage_costs_the_part_it_is_in() {
    let good = |name: &[u8]| bytes(5, &[number(1, 1), number(2, 2), bytes(8, name), bytes(9, b"x")].concat());
    let long = [&[0x08][..], &[0xff; 10], &[1]].concat();
    for (bad, what) in [
        (&long[..], "more than 10 bytes"),
        (b"\x4a\x7f\0", "past the end of the message"),
        (b"\0\x01", "a number that there is not"),
        (b"\x0f", "no wire type"),
    ] {
        let graph = [good(b"a"), bytes(5, bad), good(b"b"), bytes(1, bad), good(b"c")].concat();
        let fs = open_bytes("damaged.onnx", model(&graph)).unwrap();
        let issues = json(&fs, "issues.json").to_string();
        assert!(issues.contains(what), "{issues}");
        for name in ["a", "b", "c"] {
            assert_eq!(read(&fs, format!("raw/{name}.u8")).unwrap(), b"x", "{what}: {name}");
        }
    }
}
