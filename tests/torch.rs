//! PyTorch files that are far larger than what is in them: opened in little time and memory, and read in pieces.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "in a test, a panic is the report of a failure")]

#[path = "common/support.rs"]
mod support;

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use mount_tensors::fs::Fs;
use support::{json, open, read_at, stat};

/// What each of these may take; the issue is about one second, the machine may be busy.
const TIME: Duration = Duration::from_secs(10);

/// `BINUNICODE` of a short text.
fn text(value: &str) -> Vec<u8> {
    [b"X", &(value.len() as u32).to_le_bytes()[..], value.as_bytes()].concat()
}

/// An integer.
fn int(value: u64) -> Vec<u8> {
    [&[0x8a, 8][..], &value.to_le_bytes()].concat()
}

/// A tensor as torch pickles it.
fn tensor(key: &str, elements: u64, shape: &[u64], strides: &[u64]) -> Vec<u8> {
    let sizes = |sizes: &[u64]| [b"(".to_vec(), sizes.iter().flat_map(|size| int(*size)).collect(), b"t".to_vec()].concat();
    let storage = [b"(".to_vec(), text("storage"), b"ctorch\nFloatStorage\n".to_vec(), text(key), text("cpu"), int(elements), b"tQ".to_vec()].concat();
    [b"ctorch._utils\n_rebuild_tensor_v2\n(".to_vec(), storage, int(0), sizes(shape), sizes(strides), b"\x89ccollections\nOrderedDict\n)RtR".to_vec()].concat()
}

fn dict(items: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let items = items.iter().flat_map(|(key, value)| [text(key), value.clone()].concat()).collect();
    [b"\x80\x02}(".to_vec(), items, b"u.".to_vec()].concat()
}

/// A legacy file: storages by key and number of elements, of which only the last is written; the others are holes.
fn legacy(path: &Path, value: &[u8], storages: &[(&str, u64)]) {
    let magic = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}.";
    let keys = [b"\x80\x02](".to_vec(), storages.iter().flat_map(|(key, _)| text(key)).collect(), b"e.".to_vec()].concat();
    let file = File::create(path).unwrap();
    let head = [magic.as_slice(), value, &keys].concat();
    file.write_all_at(&head, 0).unwrap();
    let mut at = head.len() as u64;
    for (index, (_, elements)) in storages.iter().enumerate() {
        file.write_all_at(&elements.to_le_bytes(), at).unwrap();
        at += 8;
        if index + 1 == storages.len() {
            let values: Vec<u8> = (0..*elements).flat_map(|i| (i as f32).to_le_bytes()).collect();
            file.write_all_at(&values, at).unwrap();
        }
        at += elements * 4;
    }
    file.set_len(at).unwrap();
}

/// Anonymous memory of this process, in bytes.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

fn timed(path: &Path) -> Fs {
    timed_within(path, 100 << 20)
}

fn timed_within(path: &Path, bytes: u64) -> Fs {
    let (start, before) = (Instant::now(), anonymous());
    let fs = open(path).unwrap();
    assert!(start.elapsed() < TIME, "{:?}", start.elapsed());
    assert!(anonymous().saturating_sub(before) < bytes, "{} MiB", (anonymous() - before) >> 20);
    fs
}

fn floats(fs: &Fs, path: &str, offset: u64, count: u32) -> Vec<f32> {
    let bytes = read_at(fs, fs.resolve(path.as_bytes()).unwrap(), offset, count * 4).unwrap();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

#[test]
fn a_legacy_file_of_10_gb_opens_without_being_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.pth");
    let large = 2_500_000_000;
    let value = dict(&[("large", tensor("9", large, &[large], &[1])), ("small", tensor("1", 4, &[2, 2], &[2, 1]))]);
    legacy(&path, &value, &[("9", large), ("1", 4)]);
    let fs = timed(&path);
    assert_eq!(floats(&fs, "raw/small.f32", 0, 4), [0.0, 1.0, 2.0, 3.0]);
    assert_eq!(stat(&fs, "raw/large.f32").unwrap().size, 10_000_000_000);
    assert_eq!(floats(&fs, "raw/large.f32", 9_999_999_996, 9), [0.0]);
    let tensors = json(&fs, "tensors.json");
    assert!(tensors.as_array().unwrap().iter().all(|t| t["zero_copy"].as_array().is_some_and(|views| !views.is_empty())));
}

#[test]
fn a_zip_file_of_5_gb_opens_without_being_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.pt");
    let large = 1_250_000_000_u64;
    let pickle = dict(&[("large", tensor("0", large, &[large], &[1])), ("small", tensor("1", 2, &[2], &[1]))]);
    let small: Vec<u8> = [1.5_f32, -2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let file = File::create(&path).unwrap();
    let (mut at, mut directory) = (0_u64, Vec::new());
    for (name, len, data) in [("m/data.pkl", pickle.len() as u64, pickle.as_slice()), ("m/data/0", large * 4, &[]), ("m/data/1", 8, &small)] {
        let fixed = |len: u32| {
            [20_u16, 0, 0, 0, 0].iter().flat_map(|v| v.to_le_bytes()).chain([0; 4]).chain([len, len].iter().flat_map(|v| v.to_le_bytes())).collect::<Vec<u8>>()
        };
        let names = |extra: u16| [(name.len() as u16).to_le_bytes(), extra.to_le_bytes()].concat();
        file.write_all_at(&[b"PK\x03\x04".to_vec(), fixed(0), names(0), name.as_bytes().to_vec()].concat(), at).unwrap();
        let wide: Vec<u8> = [len, len, at].iter().flat_map(|v| v.to_le_bytes()).collect();
        let extra = [&[1, 0, 24, 0][..], &wide].concat();
        directory.extend([b"PK\x01\x02\x14\0".to_vec(), fixed(u32::MAX), names(28), vec![0; 10], vec![0xFF; 4], name.as_bytes().to_vec(), extra].concat());
        at += 30 + name.len() as u64;
        file.write_all_at(data, at).unwrap();
        at += len;
    }
    let mut end: Vec<u8> = [b"PK\x06\x06".to_vec(), 44_u64.to_le_bytes().to_vec(), vec![45, 0, 45, 0], vec![0; 8]].concat();
    end.extend([3, 3, directory.len() as u64, at].iter().flat_map(|v| v.to_le_bytes()));
    end.extend([b"PK\x06\x07".to_vec(), vec![0; 4], (at + directory.len() as u64).to_le_bytes().to_vec(), vec![1, 0, 0, 0]].concat());
    end.extend([b"PK\x05\x06\0\0\0\0\x03\0\x03\0".to_vec(), vec![0xFF; 8], vec![0, 0]].concat());
    file.write_all_at(&[directory, end].concat(), at).unwrap();
    let fs = timed(&path);
    assert_eq!(json(&fs, "issues.json").as_array().unwrap().len(), 0);
    assert_eq!(floats(&fs, "raw/small.f32", 0, 2), [1.5, -2.0]);
    assert_eq!(stat(&fs, "raw/large.f32").unwrap().size, 5_000_000_000);
    assert_eq!(floats(&fs, "npy/large.npy", 128, 2), [0.0, 0.0]);
}

#[test]
fn sixteen_bytes_expanded_to_4_tb_are_listed_and_read_in_pieces() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("expanded.pth");
    legacy(&path, &dict(&[("w", tensor("0", 4, &[1 << 38, 4], &[0, 1]))]), &[("0", 4)]);
    let fs = timed(&path);
    assert_eq!(stat(&fs, "raw/w.f32").unwrap().size, 1 << 42);
    for row in [0, 12_345_678_901, (1 << 38) - 2] {
        assert_eq!(floats(&fs, "raw/w.f32", row * 16 + 4, 5), [1.0, 2.0, 3.0, 0.0, 1.0]);
        assert_eq!(floats(&fs, "as/raw-f32/w.f32", row * 16, 2), [0.0, 1.0]);
    }
    let before = anonymous();
    assert_eq!(read_at(&fs, fs.resolve(b"npy/w.npy").unwrap(), 1 << 41, 1 << 20).unwrap().len(), 1 << 20);
    assert!(anonymous().saturating_sub(before) < 100 << 20);
}

#[test]
fn a_million_memo_entries_take_linear_time() {
    let folder = tempfile::tempdir().unwrap();
    let mut times = Vec::new();
    for count in [250_000_u32, 1_000_000] {
        let path = folder.path().join(format!("{count}.pkl"));
        let mut file = std::io::BufWriter::new(File::create(&path).unwrap());
        file.write_all(b"\x80\x02](").unwrap();
        for index in 0..count {
            file.write_all(b"K\x01\x85r").unwrap();
            file.write_all(&index.to_le_bytes()).unwrap();
        }
        file.write_all(b"e.").unwrap();
        file.into_inner().unwrap();
        let start = Instant::now();
        let fs = open(&path).unwrap();
        assert_eq!(json(&fs, "info.json")["metadata_keys"], 1);
        times.push(start.elapsed());
    }
    assert!(times[1] < TIME, "{times:?}");
    assert!(times[1] < times[0] * 16 + Duration::from_millis(500), "four times the entries: {times:?}");
}

#[test]
fn two_to_the_power_of_sixty_names_are_not_listed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("laughs.pth");
    let pairs: Vec<u8> = (0..60_u8).flat_map(|i| [b'q', i, b'h', i, 0x86]).collect();
    legacy(&path, &[b"\x80\x02".to_vec(), tensor("0", 1, &[1], &[1]), pairs, b".".to_vec()].concat(), &[("0", 1)]);
    let fs = timed(&path);
    let tensors = json(&fs, "tensors.json").as_array().unwrap().len();
    assert!((100..10_000).contains(&tensors), "{tensors}");
    assert!(json(&fs, "issues.json")[0]["what"].as_str().unwrap().contains("refer to each other"));
}

#[test]
fn values_nested_hundreds_of_thousands_deep_do_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep.pkl");
    let nested = |inner: &[u8]| [b"\x80\x02}(".to_vec(), text("deep"), inner.to_vec(), [0x85].repeat(300_000), text("k"), b"K\x01u.".to_vec()].concat();
    std::fs::write(&path, nested(b"N")).unwrap();
    let fs = open(&path).unwrap();
    assert_eq!(json(&fs, "metadata.json")["k"]["value"], 1);
    assert_eq!(json(&fs, "issues.json").as_array().unwrap().len(), 1);
    std::fs::write(&path, nested(b"ctorch._utils\n_rebuild_tensor_v2\n)R")).unwrap();
    assert!(!json(&open(&path).unwrap(), "issues.json").as_array().unwrap().is_empty());
}

/// What is left out of metadata is an issue, and the text says where: values of a pickle may multiply without end.
#[test]
fn values_that_multiply_are_cut_with_an_issue_and_a_mark() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("laughs.pkl");
    let lists: Vec<u8> = (0..24_u8).flat_map(|i| [b'(', b'h', i, b'h', i, b'l', b'q', i + 1, b'0']).collect();
    let pair = |i: u8| [b"}(X\x01\0\0\0ah".to_vec(), vec![i], b"X\x01\0\0\0bh".to_vec(), vec![i], b"uq".to_vec(), vec![i + 1, b'0']].concat();
    let dicts: Vec<u8> = (0..24_u8).flat_map(pair).collect();
    for (values, mark) in [(lists, &b"{\"__opaque__\": \"left out\"}]"[..]), (dicts, b"\"__opaque__\": \"left out\"}")] {
        for (before, after) in [(&b""[..], &b"."[..]), (b"}X\x04\0\0\0long", b"s.")] {
            std::fs::write(&path, [b"\x80\x02", before, b"]q\x000", &values, b"h\x18", after].concat()).unwrap();
            let fs = timed_within(&path, 300 << 20);
            let issues = json(&fs, "issues.json");
            assert_eq!(issues.as_array().unwrap().len(), 1, "{issues}");
            assert!(issues[0]["what"].as_str().unwrap().contains("too large"), "{issues}");
            let file = stat(&fs, "metadata.json").unwrap();
            let end = read_at(&fs, file.ino, file.size - 1000, 1000).unwrap();
            assert!(end.windows(mark.len()).any(|part| part == mark), "{}", String::from_utf8_lossy(&end));
        }
    }
}

/// torch's tensors are keys like any others: an optimizer's state may be kept by them.
#[test]
fn tensors_that_are_keys_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.pth");
    let (a, b, c) = (tensor("0", 4, &[4], &[1]), tensor("1", 2, &[2], &[1]), tensor("2", 1, &[1], &[1]));
    let inner = [b"}(".to_vec(), text("exp_avg"), b, b"u".to_vec()].concat();
    let state = [b"}(".to_vec(), a, inner, c, b"K\x01\x86K\x05u".to_vec()].concat();
    legacy(&path, &dict(&[("state", state)]), &[("0", 4), ("1", 2), ("2", 1)]);
    let fs = timed(&path);
    let tensors = json(&fs, "tensors.json");
    let shapes: Vec<u64> = tensors.as_array().unwrap().iter().map(|t| t["shape"][0].as_u64().unwrap()).collect();
    assert_eq!(shapes, [4, 2, 1], "{tensors}");
    let name = |i: usize| tensors[i]["name"].as_str().unwrap();
    assert!(name(0).starts_with("state.torch._utils._rebuild_tensor_v2(") && name(1) == format!("{}.exp_avg", name(0)), "{tensors}");
    assert!(name(2).starts_with("state.(") && name(2).ends_with(".0"), "{tensors}");
    assert_eq!(floats(&fs, tensors[2]["files"]["raw"].as_str().unwrap(), 0, 1), [0.0]);
    let metadata: Vec<_> = json(&fs, "metadata.json").as_object().unwrap().values().map(|v| v["value"].as_u64().unwrap()).collect();
    assert_eq!(metadata, [5, 1], "the value, and what else is in its key");
    assert_eq!(json(&fs, "issues.json").as_array().unwrap().len(), 0);
}

/// 16 bytes that are shown as 4 TB: whoever wants to see every value need not read them 2^38 times.
#[test]
fn what_an_expanded_tensor_stores_can_be_read_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("expanded.pth");
    legacy(&path, &dict(&[("w", tensor("0", 4, &[1 << 38, 4], &[0, 1])), ("v", tensor("0", 4, &[9, 4], &[0, 1]))]), &[("0", 4)]);
    let fs = timed(&path);
    let catalog = fs.tree().sets()[0].catalog();
    let once = catalog.once(catalog.tensor(0).unwrap()).unwrap();
    let small = once.tensor(0).unwrap();
    assert_eq!((small.name(), small.shape(), small.bytes()), (&b"w"[..], &[4][..], Some(16)));
    let content = mount_tensors::content::Content::new(mount_tensors::tree::View::RawF32, small).unwrap();
    let mut scratch = Default::default();
    let bytes = content.read_copied(once.sources(), 0, 99, &mut scratch).unwrap();
    assert_eq!(bytes, [0.0_f32, 1.0, 2.0, 3.0].map(f32::to_le_bytes).concat());
    // One that is small is read as it is.
    assert!(catalog.once(catalog.tensor(1).unwrap()).is_none());
}
