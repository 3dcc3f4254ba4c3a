//! Opening speed of each format: tensors a second, from a file with many small tensors to its catalogue, and on to the tree that a mount serves.
//!
//! The files are made in a temporary folder and are in the page cache: what is measured is the program, not the disk. Each tensor holds four f32, its own
//! number and quarters of it, and each catalogue is compared with that. The median over all passes, formats in turn.
//!
//! `cargo bench --bench parse --no-default-features [-- N [NAME...]]`: N tensors, 20,000 unless given, 65,000 at most (zip archives without zip64 have no
//! more members). `scripts/make-large` writes larger files, for start-up times of the whole program.
#![expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark reports on stdout, and a panic ends it"
)]

use std::path::Path;
use std::time::Instant;

use mount_tensors::catalog::Catalog;
use mount_tensors::formats;
use mount_tensors::fs::Fs;
use mount_tensors::tree::{Branch, Views};

/// Passes, of which the median counts.
const PASSES: usize = 9;
const MOST: usize = 65_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let count = arguments.iter().find_map(|arg| arg.parse().ok()).unwrap_or(20_000).min(MOST);
    let wanted: Vec<&String> = arguments.iter().filter(|arg| arg.parse::<usize>().is_err()).collect();
    let folder = tempfile::tempdir().unwrap();
    type Make = fn(usize) -> Vec<u8>;
    let formats: [(&str, Make); 5] =
        [("many.gguf", gguf), ("many.safetensors", safetensors), ("many.npz", npz), ("many.pt", torch_zip), ("many-legacy.pt", torch_legacy)];
    let chosen: Vec<_> = formats.into_iter().filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str()))).collect();
    let mut times = vec![(Vec::new(), Vec::new()); chosen.len()];
    for (name, make) in &chosen {
        std::fs::write(folder.path().join(name), make(count)).unwrap();
    }
    for _ in 0..=PASSES {
        for ((name, _), times) in chosen.iter().zip(&mut times) {
            let start = Instant::now();
            let catalog = open(&folder.path().join(name));
            times.0.push(start.elapsed().as_secs_f64());
            check(name, &catalog, count);
            let start = Instant::now();
            let fs = Fs::new(vec![Branch { name: None, top: Some(catalog), parts: Vec::new() }], Views::ALL);
            times.1.push(start.elapsed().as_secs_f64());
            assert!(fs.resolve(b"raw").is_ok(), "{name} has no raw/");
        }
    }
    println!("{count} tensors, median of {PASSES} passes\n\n| file | bytes | to the catalogue, ms | tensors/s | to the tree, ms |\n|---|---|---|---|---|");
    for ((name, _), (parse, tree)) in chosen.iter().zip(&mut times) {
        // The first pass warms up.
        let (parse, tree) = (median(&mut parse[1..]), median(&mut tree[1..]));
        let bytes = std::fs::metadata(folder.path().join(name)).unwrap().len();
        println!("| {name} | {bytes} | {:.2} | {:.0} | {:.2} |", parse * 1e3, count as f64 / parse, tree * 1e3);
    }
}

fn open(path: &Path) -> Catalog {
    formats::open(path).unwrap().top.unwrap()
}

/// Compares the catalogue with what was written.
fn check(name: &str, catalog: &Catalog, count: usize) {
    assert_eq!(catalog.len() as usize, count, "{name}");
    assert!(catalog.issues().is_empty(), "{name}: {:?}", catalog.issues());
    for index in (0..count).step_by(997).chain([count - 1]) {
        let tensor = catalog.tensor(index as u32).unwrap();
        assert_eq!(tensor.name(), self::name(index).as_bytes(), "{name}");
        let extent = tensor.stored().unwrap();
        let mut bytes = vec![0; extent.len() as usize];
        catalog.source(extent.source()).unwrap().read_at(extent.offset(), &mut bytes).unwrap();
        assert_eq!(bytes, values(index), "{name}: tensor {index}");
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn name(index: usize) -> String {
    format!("blk.{}.part_{}.weight", index / 9, index % 9)
}

fn values(index: usize) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes.as_chunks_mut().0.iter_mut().zip([0.0, 0.25, 0.5, 0.75]).for_each(|(out, part): (&mut [u8; 4], f32)| *out = (index as f32 + part).to_le_bytes());
    bytes
}

fn gguf(count: usize) -> Vec<u8> {
    let string = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let mut out = [b"GGUF".as_slice(), &3u32.to_le_bytes(), &(count as u64).to_le_bytes(), &1u64.to_le_bytes()].concat();
    out.extend([string("general.architecture"), 8u32.to_le_bytes().to_vec(), string("llama")].concat());
    for index in 0..count {
        out.extend(string(&name(index)));
        out.extend([&1u32.to_le_bytes()[..], &4u64.to_le_bytes(), &0u32.to_le_bytes(), &(32 * index as u64).to_le_bytes()].concat());
    }
    out.resize(out.len().next_multiple_of(32), 0);
    (0..count).for_each(|index| out.extend([values(index), [0; 16]].concat()));
    out
}

fn safetensors(count: usize) -> Vec<u8> {
    let entry = |index| format!("\"{}\":{{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[{},{}]}}", name(index), 16 * index, 16 * index + 16);
    let mut header = format!("{{{}}}", (0..count).map(entry).collect::<Vec<_>>().join(","));
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    let mut out = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    (0..count).for_each(|index| out.extend(values(index)));
    out
}

/// A zip archive of stored members; nobody looks at the sums.
fn archive(members: impl Iterator<Item = (String, Vec<u8>)>) -> Vec<u8> {
    let (mut out, mut directory, mut count) = (Vec::new(), Vec::new(), 0u16);
    for (name, data) in members {
        let sizes = [[0; 4], (data.len() as u32).to_le_bytes(), (data.len() as u32).to_le_bytes()].concat();
        let lengths = [(name.len() as u16).to_le_bytes(), [0; 2]].concat();
        let common = [&20u16.to_le_bytes()[..], &[0; 8], &sizes, &lengths].concat();
        directory.extend([b"PK\x01\x02", &20u16.to_le_bytes()[..], &common, &[0; 10], &(out.len() as u32).to_le_bytes(), name.as_bytes()].concat());
        out.extend([b"PK\x03\x04", &common[..], name.as_bytes(), &data].concat());
        count += 1;
    }
    let start = out.len() as u32;
    out.extend(&directory);
    out.extend([b"PK\x05\x06", &[0; 4][..], &count.to_le_bytes(), &count.to_le_bytes()].concat());
    out.extend([&(directory.len() as u32).to_le_bytes()[..], &start.to_le_bytes(), &[0; 2]].concat());
    out
}

fn npz(count: usize) -> Vec<u8> {
    let text = format!("{:<117}\n", "{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }");
    let head = [b"\x93NUMPY\x01\x00", &118u16.to_le_bytes()[..], text.as_bytes()].concat();
    archive((0..count).map(|index| (format!("{}.npy", name(index)), [&head[..], &values(index)].concat())))
}

/// The pickle that torch.save makes of a dict of tensors; what was written before is taken from the memo.
fn state_dict(count: usize, tail: &[u8]) -> Vec<u8> {
    let text = |text: &str| [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    let mut out = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\x00ctorch\nFloatStorage\nq\x01ccollections\nOrderedDict\nq\x02000}(".to_vec();
    let mut memo = 3u32;
    let mut put = |out: &mut Vec<u8>| {
        out.extend([b"r", &memo.to_le_bytes()[..]].concat());
        memo += 1;
    };
    for index in 0..count {
        out.extend(text(&name(index)));
        put(&mut out);
        out.extend([b"h\x00((", &text("storage")[..], b"h\x01", &text(&index.to_string())].concat());
        put(&mut out);
        out.extend([&text("cpu")[..], b"K\x04", tail, b"t"].concat());
        put(&mut out);
        out.extend(b"QK\x00K\x04\x85");
        put(&mut out);
        out.extend(b"K\x01\x85");
        put(&mut out);
        out.extend(b"\x89h\x02)R");
        put(&mut out);
        out.extend(b"t");
        put(&mut out);
        out.extend(b"R");
        put(&mut out);
    }
    out.extend(b"u.");
    out
}

fn torch_zip(count: usize) -> Vec<u8> {
    let storages = (0..count).map(|index| (format!("many/data/{index}"), values(index).to_vec()));
    archive([("many/data.pkl".to_string(), state_dict(count, b""))].into_iter().chain(storages))
}

fn torch_legacy(count: usize) -> Vec<u8> {
    let mut out = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}.".to_vec();
    out.extend(state_dict(count, b"N"));
    out.extend(b"\x80\x02](");
    for index in 0..count {
        let key = index.to_string();
        out.extend([b"X", &(key.len() as u32).to_le_bytes()[..], key.as_bytes()].concat());
    }
    out.extend(b"e.");
    (0..count).for_each(|index| out.extend([&4u64.to_le_bytes()[..], &values(index)].concat()));
    out
}
