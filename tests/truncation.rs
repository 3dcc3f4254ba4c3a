//! Files that are cut, damaged or made to do harm: each gives an error or a catalogue, in bounded time and memory, and never a panic.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, clippy::print_stdout, reason = "in a test, a panic is the report of a failure")]

#[path = "common/support.rs"]
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mount_tensors::fs::{Errno, Fs};
use mount_tensors::tree::ROOT;
use support::{Gguf, Member, Random, fixtures, gguf_string, json, npy, open_bytes, read, read_at, safetensors, stat, walk, zip};

/// No single allocation may be larger, in bytes.
const LARGEST: usize = 64 << 20;
/// What a case holds at once may not be more, in bytes.
const PEAK: isize = 256 << 20;
/// How long one damaged file may take.
const TIME: Duration = Duration::from_secs(2);
/// How long a million parts may take: generous, but nothing quadratic gets by with it.
const MILLION_TIME: Duration = Duration::from_secs(30);
/// Files looked into in each folder.
const FILES: usize = 300;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static HIGHEST: Cell<isize> = const { Cell::new(0) };
    static LARGEST_SEEN: Cell<usize> = const { Cell::new(0) };
}

/// The processor time of this thread, which does not depend on what else the machine has to do; the time of day where the system does not tell.
struct Clock(Duration);

impl Clock {
    fn start() -> Self {
        Self(Self::now())
    }

    fn now() -> Duration {
        let spent = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
        let spent = spent.and_then(|text| text.split(' ').next()?.parse().ok().map(Duration::from_nanos));
        spent.unwrap_or_else(|| std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default())
    }

    fn elapsed(&self) -> Duration {
        Self::now().saturating_sub(self.0)
    }
}

/// Counts what this thread allocates.
struct Counting;

fn count(change: isize) {
    // A thread that is ending has no cells any more.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + change);
        let _ = HIGHEST.try_with(|highest| highest.set(highest.get().max(live.get())));
    });
    if change > 0 {
        let _ = LARGEST_SEEN.try_with(|largest| largest.set(largest.get().max(change.unsigned_abs())));
    }
}

#[expect(unsafe_code, reason = "an allocator is unsafe by nature; this one counts and passes everything on")]
// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both may exist for a moment.
        count(size.cast_signed());
        count(-layout.size().cast_signed());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a piece of work took of this thread's memory: the most at once, and the largest single allocation.
fn measured<T>(work: impl FnOnce() -> T) -> (T, isize, usize) {
    let before = LIVE.get();
    HIGHEST.set(before);
    LARGEST_SEEN.set(0);
    let result = work();
    (result, HIGHEST.get() - before, LARGEST_SEEN.get())
}

/// Inodes from all over a tree, from large folders only the first of each.
fn some_of(fs: &Fs) -> Vec<u64> {
    let (mut found, mut folders) = (Vec::new(), vec![ROOT]);
    while let Some(folder) = folders.pop() {
        let mut here = 0;
        let _ = fs.list(folder, 0, &mut |line| {
            found.push(line.entry.ino);
            folders.extend(line.entry.folder.then_some(line.entry.ino));
            here += 1;
            here < FILES && found.len() < FILES * 20
        });
    }
    found.truncate(FILES * 20);
    found
}

/// Reads the first and the last bytes of files all over a tree.
fn look_around(fs: &Fs) {
    for ino in some_of(fs) {
        let attr = match fs.attr(ino) {
            Ok(attr) => attr,
            Err(e) => {
                assert_eq!(e, Errno::Io, "a listed name has attributes");
                continue;
            }
        };
        if attr.folder {
            continue;
        }
        for offset in [0, attr.size.saturating_sub(100)] {
            match read_at(fs, ino, offset, 100) {
                Ok(bytes) => assert_eq!(bytes.len() as u64, (attr.size - offset).min(100)),
                Err(e) => assert_eq!(e, Errno::Io),
            }
        }
    }
}

/// Opens a file in memory and looks around in it; the answer is whether it opened.
fn case(name: &str, what: &str, bytes: Vec<u8>) -> bool {
    let start = Clock::start();
    let (result, peak, largest) = measured(|| {
        catch_unwind(AssertUnwindSafe(|| match open_bytes(name, bytes) {
            Ok(fs) => {
                look_around(&fs);
                true
            }
            Err(e) => {
                assert!(!e.message().is_empty());
                false
            }
        }))
    });
    let opened = result.unwrap_or_else(|_| panic!("{name}, {what}: panics (see above)"));
    let took = start.elapsed();
    assert!(took < TIME, "{name}, {what}: took {took:?}");
    assert!(largest <= LARGEST, "{name}, {what}: {largest} bytes were allocated at once");
    assert!(peak <= PEAK, "{name}, {what}: {peak} bytes were held");
    opened
}

/// The small files among a format's fixtures, those in folders too.
fn files(format: &str, kinds: &[&str]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut pending: Vec<PathBuf> = kinds.iter().rev().flat_map(|kind| fixtures(format, kind).into_iter().rev()).collect();
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.metadata().is_ok_and(|meta| meta.len() < 200_000) {
            files.push(path);
        }
    }
    files.sort();
    assert!(!files.is_empty(), "fixtures/{format} has nothing to damage");
    files
}

/// Cuts and damages every fixture of a format.
fn damage(format: &str, kinds: &[&str]) {
    let (mut cases, mut opened) = (0, 0);
    for path in files(format, kinds) {
        let whole = std::fs::read(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let mut random = Random(whole.len() as u64);
        let mut run = |what: &str, bytes: Vec<u8>| {
            cases += 1;
            opened += u64::from(case(name, what, bytes));
        };
        let len = whole.len() as u64;
        let spread = (0..60).map(|step| 600 + len.saturating_sub(600) * step / 60);
        for cut in (0..600).chain(spread).chain(len.saturating_sub(30)..len).filter(|cut| *cut < len) {
            run(&format!("cut to {cut} bytes"), whole[..cut as usize].to_vec());
        }
        if whole.is_empty() {
            continue;
        }
        // Most of a header is at the start: half of the damage goes there.
        let position = |random: &mut Random| {
            let range = if random.below(2) == 0 { len } else { len.min(400) };
            random.below(range) as usize
        };
        for _ in 0..200 {
            let mut bytes = whole.clone();
            let (at, change) = (position(&mut random), 1 + random.below(255) as u8);
            bytes[at] ^= change;
            run(&format!("byte {at} changed by {change:#x}"), bytes);
        }
        for number in 0..50 {
            let mut bytes = whole.clone();
            let at = position(&mut random);
            let end = (at + 1 + random.below(16) as usize).min(bytes.len());
            match number % 3 {
                0 => bytes[at..end].fill(0),
                1 => bytes[at..end].fill(0xFF),
                _ => bytes[at..end].iter_mut().for_each(|byte| *byte = random.next() as u8),
            }
            run(&format!("overwrite {number} at {at}..{end}"), bytes);
        }
    }
    assert!(opened > 0 && opened < cases, "{opened} of {cases} damaged files opened");
}

#[test]
fn damaged_gguf() {
    damage("gguf", &["degraded", "bad"]);
}

#[test]
fn damaged_good_gguf() {
    damage("gguf", &["good"]);
}

#[test]
fn damaged_safetensors() {
    damage("safetensors", &["good", "degraded", "bad"]);
}

#[test]
fn damaged_npy() {
    damage("npy", &["good", "degraded", "bad"]);
}

#[test]
fn damaged_npz() {
    damage("npz", &["good", "degraded", "bad"]);
}

/// The message of a file that must be refused, within the limits of time and memory.
fn refusal(bytes: Vec<u8>) -> String {
    let (start, input) = (Clock::start(), bytes.len());
    let (result, peak, largest) = measured(|| open_bytes("x", bytes).map(|_| ()));
    assert!(start.elapsed() < TIME, "took {:?}", start.elapsed());
    assert!(largest <= LARGEST.max(input) && peak <= PEAK, "{peak} bytes were held, {largest} allocated at once");
    match result {
        Ok(()) => panic!("should be refused"),
        Err(e) => e.to_string(),
    }
}

/// The file system of a file that must open, all of it looked at, within the limits of time and memory.
fn accepted(name: &str, bytes: Vec<u8>) -> Fs {
    let start = Clock::start();
    let (result, peak, largest) = measured(|| {
        let fs = open_bytes(name, bytes);
        if let Ok(fs) = &fs {
            look_around(fs);
        }
        fs
    });
    assert!(start.elapsed() < TIME, "took {:?}", start.elapsed());
    assert!(largest <= LARGEST && peak <= PEAK, "{peak} bytes were held, {largest} allocated at once");
    result.unwrap_or_else(|e| panic!("should open: {e}"))
}

/// A GGUF with one key and one good tensor, to be spoiled.
fn sound() -> Gguf {
    let mut gguf = Gguf::default();
    gguf.key(b"general.architecture", 8, &gguf_string(b"llama")).tensor(b"good", &[4], 0, &[1; 16]);
    gguf
}

fn issues(fs: &Fs) -> Vec<String> {
    json(fs, "issues.json").as_array().unwrap().iter().map(|i| format!("{}: {}", i["where"].as_str().unwrap(), i["what"].as_str().unwrap())).collect()
}

/// A tensor that cannot be served stands in the list with an issue and without files, and the good one is served.
fn costs_only_itself(bytes: Vec<u8>) -> Vec<String> {
    let fs = accepted("x", bytes);
    assert_eq!(read(&fs, "raw/good.f32").unwrap(), [1; 16]);
    let tensors = json(&fs, "tensors.json");
    for tensor in tensors.as_array().unwrap().iter().filter(|t| t["name"] != "good") {
        assert_eq!(tensor["files"], serde_json::json!({}), "{tensor}");
    }
    let issues = issues(&fs);
    assert!(!issues.is_empty(), "{tensors}");
    issues
}

/// Numbers around every power of two at which a product or a cast may wrap.
const HUGE: [u64; 9] = [1 << 32, (1 << 32) + 1, 1 << 48, 1 << 60, 1 << 62, (1 << 63) - 1, 1 << 63, u64::MAX - 1, u64::MAX];

// https://github.com/ggml-org/llama.cpp/security (TALOS-2024-1912 to 1916): a count times a size wraps.
#[test]
fn gguf_counts_that_wrap() {
    for count in HUGE {
        assert!(refusal(sound().build_with(count, 1)).contains("announces"));
        assert!(refusal(sound().build_with(1, count)).contains("announces"));
        assert!(refusal([&b"GGUF\x03\0\0\0"[..], &count.to_le_bytes(), &count.to_le_bytes()].concat()).contains("announces"));
    }
}

#[test]
fn gguf_tiny_files() {
    let whole = sound().build();
    for len in [0, 3, 4, 7, 8, 12, 23] {
        refusal(whole[..len].to_vec());
    }
    for version in [0u32, 4, 0x0300, 0x0300_0000, u32::MAX] {
        let mut bytes = whole.clone();
        bytes[4..8].copy_from_slice(&version.to_le_bytes());
        refusal(bytes);
    }
}

// ollama CVE-2025-66959, stable-diffusion.cpp #1397, llama.cpp #19003: a string as long as it likes.
#[test]
fn gguf_string_lengths() {
    for len in HUGE.into_iter().chain([100, 1000]) {
        let mut key = Gguf::default();
        key.key(b"k", 8, &len.to_le_bytes());
        assert!(refusal(key.build()).contains("needs"), "a value of {len}");
        let name = [&b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"[..], &len.to_le_bytes(), &[0; 40]].concat();
        assert!(refusal(name).contains("needs"), "a name of {len}");
        let key = [&b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0"[..], &len.to_le_bytes(), &[0; 40]].concat();
        assert!(refusal(key).contains("needs"), "a key of {len}");
        let mut inside = Gguf::default();
        inside.key(b"k", 9, &[&8u32.to_le_bytes()[..], &1u64.to_le_bytes(), &len.to_le_bytes()].concat());
        refusal(inside.build());
    }
}

// ollama CVE-2025-66960: the closing NUL of a version 1 string that is empty.
#[test]
fn gguf_version_1_empty_strings() {
    let mut bytes = b"GGUF\x01\0\0\0\x01\0\0\0\x01\0\0\0".to_vec();
    bytes.extend([0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]); // the key "" is ""
    bytes.extend([0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]); // the tensor "" has one f32
    bytes.resize(bytes.len().next_multiple_of(32) + 4, 7);
    let fs = accepted("x", bytes);
    assert_eq!(read(&fs, "raw/%.f32").unwrap(), [7; 4]);
    assert_eq!(json(&fs, "metadata.json"), serde_json::json!({"": {"type": "string", "value": ""}}));
}

// gguf-py before #27188 hung on the 43-byte file; candle #3533, huggingface.js #2020 allocate.
#[test]
fn gguf_array_counts() {
    for count in HUGE {
        for kind in 0..=13u32 {
            let mut gguf = sound();
            gguf.key(b"k", 9, &[&kind.to_le_bytes()[..], &count.to_le_bytes()].concat());
            refusal(gguf.build());
        }
    }
    for kind in [13u32, 14, 255, u32::MAX] {
        let mut gguf = sound();
        gguf.key(b"k", 9, &[&kind.to_le_bytes()[..], &0u64.to_le_bytes()].concat());
        assert!(refusal(gguf.build()).contains("element type"));
        let mut gguf = sound();
        gguf.key(b"k", kind, &[0; 8]);
        assert!(refusal(gguf.build()).contains("value type"));
    }
}

// huggingface.js #2028, candle #3533, gguf-py: recursion without a limit.
#[test]
fn gguf_arrays_nested_100_000_deep() {
    let mut value = Vec::new();
    for _ in 0..100_000 {
        value.extend([9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    }
    value.extend([0; 12]);
    let mut gguf = sound();
    gguf.key(b"k", 9, &value);
    assert!(refusal(gguf.build()).contains("deep"));
}

/// Long strings in an array are rendered piece by piece, wherever a read begins.
#[test]
fn gguf_long_strings_in_arrays() {
    let long = "é\"\n".repeat(60_000).into_bytes();
    let binary: Vec<u8> = (0..=255).cycle().take(150_001).collect();
    let strings: [&[u8]; 7] = [b"first", &long, b"", &binary, &long[..4097], &long[..4096], b"last"];
    let mut value = [&8u32.to_le_bytes()[..], &(strings.len() as u64).to_le_bytes()].concat();
    strings.iter().for_each(|text| value.extend(gguf_string(text)));
    let mut gguf = sound();
    gguf.key(b"k", 9, &value);
    gguf.key(b"after", 7, &[1]);
    let fs = accepted("x", gguf.build());
    let rendered = json(&fs, "metadata.json");
    assert_eq!(rendered["after"]["value"], true);
    let found = rendered["k"]["value"].as_array().unwrap();
    assert_eq!(found.len(), strings.len());
    for (text, found) in strings.iter().zip(found) {
        match std::str::from_utf8(text) {
            Ok(text) => assert!(found == text, "{} bytes of text", text.len()),
            Err(_) => assert_eq!(found["base64"].as_str().unwrap().len(), text.len().div_ceil(3) * 4),
        }
    }
    let whole = read(&fs, "metadata/k.json").unwrap();
    let ino = fs.resolve(b"metadata/k.json").unwrap();
    for offset in (0..whole.len()).step_by(40_961) {
        let end = (offset + 7_000).min(whole.len());
        assert!(read_at(&fs, ino, offset as u64, 7_000).unwrap() == whole[offset..end], "at {offset}");
    }
}

/// Nested arrays are rendered in one go, and are bounded for that.
#[test]
fn gguf_a_long_text_in_a_nested_array() {
    let text = vec![b'x'; 70 << 20];
    let inner = [&8u32.to_le_bytes()[..], &1u64.to_le_bytes(), &gguf_string(&text)].concat();
    let mut gguf = sound();
    gguf.key(b"k", 9, &[&9u32.to_le_bytes()[..], &1u64.to_le_bytes(), &inner].concat());
    assert!(refusal(gguf.build()).contains("nested arrays hold more than"));
}

/// Many small arrays cost memory in proportion to the file.
#[test]
fn gguf_wide_arrays_of_arrays() {
    let value = |count: u64| [&9u32.to_le_bytes()[..], &count.to_le_bytes(), &[0; 12].repeat(count as usize)].concat();
    let mut gguf = sound();
    gguf.key(b"k", 9, &value(100_000));
    let fs = accepted("x", gguf.build());
    let rendered = json(&fs, "metadata.json");
    assert_eq!(rendered["k"]["type"], "array<array<u8>>");
    assert_eq!(rendered["k"]["value"].as_array().unwrap().len(), 100_000);
    // Every level a million wide would be 2^20 values a level.
    let mut gguf = sound();
    (0..20).for_each(|n| {
        gguf.key(format!("k{n}").as_bytes(), 9, &value(100_000));
    });
    assert!(refusal(gguf.build()).contains("nested arrays hold more than"));
}

// CVE-2025-53630, CVE-2026-27940: sizes that add up past 2^64; CVE-2026-33298, llama.cpp #26318: a product or its padding that wraps.
#[test]
fn gguf_sizes_that_wrap() {
    let mut sum = sound();
    sum.info(b"a", &[1 << 61], 0, 32).info(b"b", &[1 << 61], 0, 32).info(b"c", &[(1 << 62) - 8], 24, 32);
    costs_only_itself(sum.build());
    let dims: [&[u64]; 10] = [
        &[(1 << 42) + 1, 1 << 22],
        &[1 << 32, 1 << 32],
        &[1 << 63],
        &[u64::MAX],
        &[u64::MAX, u64::MAX, u64::MAX, u64::MAX],
        &[4, (1 << 30) - 1, (1 << 30) + 1],
        &[1 << 16, 1 << 16, 1 << 16, 1 << 16],
        &[3, 6_148_914_691_236_517_206],
        &[1 << 31, 1 << 31],
        &[32, 1 << 58],
    ];
    for dims in dims {
        for kind in [0, 1, 2, 12, 24, 28, 30, 39] {
            let mut gguf = sound();
            gguf.info(b"a", dims, kind, 0);
            let said = costs_only_itself(gguf.build());
            assert!(said.iter().any(|issue| issue.contains("tensor \"a\"")), "{dims:?} of type {kind}: {said:?}");
        }
    }
}

#[test]
fn gguf_dimensions_of_zero() {
    for dims in [&[0][..], &[0, 5], &[5, 0], &[0, 0, 0, 0], &[0, 1 << 40]] {
        let mut gguf = sound();
        gguf.info(b"empty", dims, 0, 0).info(b"packed", dims, 2, 0);
        let fs = accepted("x", gguf.build());
        assert_eq!(stat(&fs, "raw/empty.f32").unwrap().size, 0);
        assert_eq!(read(&fs, "npy/empty.npy").unwrap().len(), 128);
    }
    // Zero elements in a shape that NumPy cannot hold.
    let mut gguf = sound();
    gguf.info(b"empty", &[0, u64::MAX, u64::MAX], 0, 0);
    costs_only_itself(gguf.build());
}

// TALOS-2024-1916, zackshen/gguf #15, huggingface.js #2028: the number of dimensions.
#[test]
fn gguf_numbers_of_dimensions() {
    let mut five = sound();
    five.info(b"a", &[1, 1, 1, 2, 2], 0, 0);
    assert_eq!(read(&accepted("x", five.build()), "raw/a.f32").unwrap(), [1; 16]);
    for n_dims in [65u32, 1000, 1 << 16, 1 << 31, u32::MAX] {
        let mut bytes = sound().build();
        let at = bytes.windows(4).position(|w| w == b"good").unwrap() + 4;
        bytes[at..at + 4].copy_from_slice(&n_dims.to_le_bytes());
        assert!(refusal(bytes).contains("dimensions"));
    }
}

// ollama CVE-2025-0317, gguf-tools #28, ggml #1516, huggingface.js #2201: an alignment of any size and type.
#[test]
fn gguf_alignments() {
    let with = |kind: u32, value: &[u8]| {
        let mut gguf = Gguf::default();
        gguf.key(b"general.alignment", kind, value).tensor(b"good", &[4], 0, &[1; 16]);
        gguf.build()
    };
    for alignment in [0u32, 3, 12, 33, 1 << 30, 1 << 31, u32::MAX] {
        assert!(refusal(with(4, &alignment.to_le_bytes())).contains("general.alignment"));
    }
    refusal(with(10, &(1u64 << 63).to_le_bytes()));
    refusal(with(5, &(-32i32).to_le_bytes()));
    refusal(with(8, &gguf_string(b"32")));
    refusal(with(7, &[0]));
    refusal(with(6, &32f32.to_le_bytes()));
    refusal(with(9, &[&4u32.to_le_bytes()[..], &1u64.to_le_bytes(), &32u32.to_le_bytes()].concat()));
    for (kind, value) in [(4, &32u32.to_le_bytes()[..]), (5, &32i32.to_le_bytes()), (10, &32u64.to_le_bytes()), (0, &[32])] {
        assert_eq!(read(&accepted("x", with(kind, value)), "raw/good.f32").unwrap(), [1; 16]);
    }
}

// llama.cpp #19856: a negative type indexes in front of the table.
#[test]
fn gguf_type_numbers_outside_the_table() {
    for kind in [4u32, 5, 31, 36, 38, 43, 139, 1 << 16, 1 << 31, u32::MAX] {
        let mut gguf = sound();
        gguf.info(b"strange", &[4], kind, 0);
        let fs = accepted("x", gguf.build());
        assert_eq!(read(&fs, format!("raw/strange.unknown_{kind}")).unwrap(), [1; 16]);
        assert!(issues(&fs).iter().any(|issue| issue.contains(&format!("unknown type {kind}"))));
        assert_eq!(stat(&fs, "npy/strange.npy"), Err(Errno::NotFound));
    }
}

// ollama CVE-2026-7482: bytes outside the file; overlaps and unaligned offsets.
#[test]
fn gguf_offsets() {
    for offset in HUGE.into_iter().chain([u64::MAX - 31, (1 << 63) - 200, 17, 32, 1 << 20]) {
        let mut gguf = sound();
        gguf.info(b"away", &[4], 0, offset);
        costs_only_itself(gguf.build());
        let mut gguf = sound();
        gguf.info(b"away", &[4], 139, offset);
        assert_eq!(read(&accepted("x", gguf.build()), "raw/good.f32").unwrap(), [1; 16]);
    }
    let mut gguf = sound();
    gguf.info(b"inside", &[2], 0, 4).info(b"over", &[3], 0, 4);
    let fs = accepted("x", gguf.build());
    assert!(issues(&fs).iter().any(|issue| issue.contains("overlaps")));
    assert_eq!(read(&fs, "raw/over.f32").unwrap(), [1; 12]);
}

#[test]
fn gguf_rows_that_are_no_whole_blocks() {
    for elements in [1, 31, 33, 255, 257] {
        for kind in [2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 16, 39] {
            let mut gguf = sound();
            gguf.info(b"a", &[elements], kind, 0).info(b"b", &[elements, 32], kind, 0);
            costs_only_itself(gguf.build());
        }
    }
}

// CVE-2024-34359, CVE-2026-5760: a chat template is text; llama.cpp #26690: arrays of another type than expected; CVE-2025-49847: long tokens.
#[test]
fn gguf_tokenizers_of_the_wrong_types() {
    let template = b"{{ ''.__class__.__mro__[1].__subclasses__() }}\r\n";
    let array = |kind: u32, count: u64, bytes: &[u8]| [&kind.to_le_bytes()[..], &count.to_le_bytes(), bytes].concat();
    let mut gguf = sound();
    gguf.key(b"tokenizer.chat_template", 8, &gguf_string(template))
        .key(b"tokenizer.ggml.scores", 9, &array(0, 3, &[1, 2, 3]))
        .key(b"tokenizer.ggml.token_type", 9, &array(0, 1, &[1]))
        .key(b"tokenizer.ggml.merges", 9, &array(4, 1, &[1, 0, 0, 0]))
        .key(b"tokenizer.ggml.tokens", 9, &array(8, 1, &gguf_string(&b"x".repeat(1 << 20))))
        .key(b"tokenizer.ggml.precompiled_charsmap", 9, &array(0, 2, &[255, 255]))
        .key(b"split.count", 2, &[255, 255])
        .key(b"general.file_type", 8, &gguf_string(b"x"));
    let fs = accepted("x.gguf", gguf.build());
    assert_eq!(read(&fs, "tokenizer/chat_template.jinja").unwrap(), template);
    assert_eq!(json(&fs, "tokenizer/scores.json"), serde_json::json!([1, 2, 3]));
    assert_eq!(json(&fs, "tokenizer/tokens.json")[0].as_str().unwrap().len(), 1 << 20);
}

/// Names that are paths, that are no text, and that are long: each is a file below its view and nowhere else.
#[test]
fn gguf_hostile_names() {
    let names: [&[u8]; 16] = [
        b"../../etc/passwd",
        b"/etc/passwd",
        b"..",
        b".",
        b"",
        b"a/../b",
        b"a//b",
        b"a/",
        b"nul\0name",
        b"new\nline",
        b"\x1b[31mred",
        b"\xFF\xFE",
        b"cut\xE6\xBC",
        b"%2e%2e",
        &[b'x'; 5000],
        &[b'/'; 300],
    ];
    let mut gguf = sound();
    for (number, name) in names.iter().enumerate() {
        gguf.tensor(name, &[1], 0, &[number as u8; 4]);
    }
    gguf.tensor(&vec![b'y'; 1 << 20], &[1], 0, &[99; 4]);
    let fs = accepted("x", gguf.build());
    let tensors = json(&fs, "tensors.json");
    let tensors = tensors.as_array().unwrap();
    assert_eq!(tensors.len(), names.len() + 2);
    for (number, tensor) in tensors[1..=names.len()].iter().enumerate() {
        let path = tensor["files"]["raw"].as_str().unwrap();
        assert!(path.starts_with("raw/") && path.split('/').all(|part| !part.is_empty() && part != "." && part != ".." && part.len() <= 255), "{path:?}");
        assert!(!path.chars().any(char::is_control), "{path:?}");
        assert_eq!(read(&fs, path).unwrap(), [number as u8; 4]);
    }
}

/// Holds a file of a million parts to linear time, and memory to a multiple of its size.
fn million(name: &str, bytes: Vec<u8>) -> Fs {
    let (start, input) = (Clock::start(), bytes.len());
    let (fs, peak, largest) = measured(|| {
        let fs = open_bytes(name, bytes).unwrap_or_else(|e| panic!("should open: {e}"));
        look_around(&fs);
        fs
    });
    println!("{name}: {input} bytes, {:?}, {peak} bytes held, {largest} at once", start.elapsed());
    assert!(start.elapsed() < MILLION_TIME, "took {:?}", start.elapsed());
    assert!(peak.unsigned_abs() < input * 60, "{peak} bytes were held for a file of {input}");
    fs
}

// ggml: duplicate keys and names were looked for in quadratic time.
#[test]
fn gguf_a_million_keys() {
    let mut gguf = Gguf::default();
    for number in 0..1_000_000u32 {
        gguf.key(&number.to_be_bytes(), 0, &[1]);
    }
    assert_eq!(million("keys", gguf.build()).tree().sets()[0].catalog().metadata().len(), 1_000_000);
}

#[test]
fn gguf_a_million_equal_keys() {
    let mut gguf = Gguf::default();
    for _ in 0..1_000_000u32 {
        gguf.key(b"k", 0, &[1]);
    }
    million("equal keys", gguf.build());
}

#[test]
fn gguf_a_million_tensors() {
    let mut gguf = Gguf::default();
    gguf.data = vec![0; 32];
    for number in 0..1_000_000u32 {
        gguf.info(&number.to_be_bytes(), &[], 24, 0);
    }
    million("tensors", gguf.build());
}

#[test]
fn gguf_a_million_tensors_of_one_name() {
    let mut gguf = Gguf::default();
    gguf.data = vec![0; 32];
    for _ in 0..1_000_000u32 {
        gguf.info(b"t", &[], 24, 0);
    }
    let fs = million("equal names", gguf.build());
    assert!(fs.resolve(b"raw/t~1000000.i8").is_ok());
}

/// Every byte of data belongs to a hundred thousand tensors, none of which has the range of another.
#[test]
fn gguf_overlaps_without_end() {
    let mut gguf = Gguf::default();
    gguf.data = vec![0; 100_032];
    for number in 0..100_000u64 {
        gguf.info(format!("t{number}").as_bytes(), &[number + 1], 24, 0);
    }
    let fs = million("overlaps", gguf.build());
    assert!(issues(&fs).last().unwrap().contains("further issues"));
}

/// The JSON of a good safetensors file, and a second entry in it.
fn beside(entry: &str) -> Vec<u8> {
    safetensors(&format!("{{\"good\":{{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}},{entry}}}"), &[1; 16])
}

#[test]
fn safetensors_header_lengths() {
    for len in HUGE.into_iter().chain([0, 1, 100_000_000, (1 << 30) + 1]) {
        let mut bytes = beside("\"b\":{}");
        bytes[..8].copy_from_slice(&len.to_le_bytes());
        refusal(bytes);
    }
    for len in 0..8 {
        refusal(vec![b'{'; len]);
    }
}

#[test]
fn safetensors_headers_that_are_not_the_json() {
    for json in
        ["[]", "null", "{", "{]", "{\"a\":", "\u{FEFF}{}", "{}\0", "{\"a\":{}}x", "{\"\\ud800\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}"]
    {
        refusal(safetensors(json, &[]));
    }
    let not_utf8 = [&7u64.to_le_bytes()[..], b"{\"\xFF\":1}"].concat();
    refusal(not_utf8);
}

#[test]
fn safetensors_deep_json() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let deep = format!("{}0{}", open.repeat(200_000), close.repeat(200_000));
        for place in [
            "\"b\":@",
            "\"b\":{\"dtype\":@,\"shape\":[1],\"data_offsets\":[0,4]}",
            "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":@}",
            "\"__metadata__\":@",
            "\"__metadata__\":{\"k\":@}",
        ] {
            let bytes = beside(&place.replace('@', &deep));
            // Skipped values may be refused as a whole or cost their entry; neither may overflow the stack.
            match open_bytes("x", bytes) {
                Ok(fs) => look_around(&fs),
                Err(e) => assert!(!e.to_string().is_empty()),
            }
        }
    }
}

#[test]
fn safetensors_entries_that_cannot_stand() {
    for entry in [
        "5",
        "null",
        "{}",
        "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}",
        "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}",
        "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,16]}",
        "{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}",
        "{\"dtype\":\"F32\",\"shape\":[2e0],\"data_offsets\":[0,8]}",
        "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,18446744073709551616]}",
        "{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}",
        "{\"dtype\":32,\"shape\":[2],\"data_offsets\":[0,8]}",
        "{\"dtype\":\"F32\",\"shape\":{\"0\":2},\"data_offsets\":[0,8]}",
        "{\"shape\":[2],\"data_offsets\":[0,8]}",
    ] {
        let fs = accepted("x", beside(&format!("\"b\":{entry}")));
        assert_eq!(read(&fs, "raw/good.f32").unwrap(), [1; 16], "{entry}");
        assert!(issues(&fs).iter().any(|issue| issue.contains("tensor \"b\"")), "{entry}");
    }
}

#[test]
fn safetensors_shapes_and_offsets_that_wrap() {
    let max = u64::MAX;
    for (shape, begin, end) in [
        (format!("[{max},{max},2]"), 0, 16),
        (format!("[{max}]"), 0, 4),
        ("[4294967296,4294967296]".to_string(), 0, 0),
        ("[4611686018427387904]".to_string(), 0, 0),
        (format!("[0,{max},2]"), 0, 0),
        ("[4]".to_string(), max - 15, max),
        ("[4]".to_string(), 1 << 63, (1 << 63) + 16),
        ("[4]".to_string(), 8, 24),
        ("[2305843009213693951]".to_string(), 0, 9_223_372_036_854_775_804),
    ] {
        let entry = format!("\"b\":{{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[{begin},{end}]}}");
        costs_only_itself(beside(&entry));
    }
    // More dimensions than NumPy has: the bytes are certain all the same.
    let many = vec!["1"; 100_000].join(",");
    let fs = accepted("x", beside(&format!("\"b\":{{\"dtype\":\"F32\",\"shape\":[{many}],\"data_offsets\":[0,4]}}")));
    assert!(!issues(&fs).is_empty());
}

#[test]
fn safetensors_duplicate_keys() {
    let entry = |begin: u64| format!("{{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[{begin},{}]}}", begin + 8);
    let fs = accepted("x", safetensors(&format!("{{\"a\":{},\"a\":{}}}", entry(0), entry(8)), &[[1; 8], [2; 8]].concat()));
    assert_eq!(read(&fs, "raw/a.f32").unwrap(), [1; 8]);
    assert_eq!(read(&fs, "raw/a~2.f32").unwrap(), [2; 8]);
    assert_eq!(issues(&fs).len(), 1);
    let fs = accepted("x", beside("\"__metadata__\":{\"k\":\"1\"},\"__metadata__\":{\"k\":\"2\"}"));
    assert_eq!(read(&fs, "raw/good.f32").unwrap(), [1; 16]);
    assert_eq!(read(&fs, "metadata/k~2.json").unwrap(), b"\"2\"\n");
    assert_eq!(issues(&fs).len(), 2);
    // Order, equal keys and integers of any size are what the file says.
    let fs =
        accepted("x", beside("\"__metadata__\":{\"z\":\"1\",\"a\":\"2\",\"z\":\"3\",\"n\":[18446744073709551616, {\"y\":1, \"x\":-9223372036854775809}]}"));
    let expected = "{\n\"z\": {\"type\": \"string\", \"value\": \"1\"},\n\"a\": {\"type\": \"string\", \"value\": \"2\"},\n\"z~2\": {\"type\": \"string\", \"value\": \"3\"},\n\
                    \"n\": {\"type\": \"json\", \"value\": [18446744073709551616,{\"y\":1,\"x\":-9223372036854775809}]}\n}\n";
    assert_eq!(String::from_utf8(read(&fs, "metadata.json").unwrap()).unwrap(), expected);
    assert_eq!(issues(&fs).len(), 2);
}

#[test]
fn safetensors_a_million_tensors() {
    let entries: Vec<String> = (0..1_000_000u32).map(|n| format!("\"{n}\":{{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[{n},{}]}}", n + 1)).collect();
    million("safetensors", safetensors(&format!("{{{}}}", entries.join(",")), &vec![0; 1_000_000]));
}

#[test]
fn safetensors_a_million_keys() {
    let entries: Vec<String> = (0..1_000_000u32).map(|n| format!("\"{n}\":\"\"")).collect();
    million("metadata", safetensors(&format!("{{\"__metadata__\":{{{}}}}}", entries.join(",")), &[]));
}

/// Every key claims to be tied to the last of very many tensors.
#[test]
fn safetensors_ties_without_end() {
    let tensors: Vec<String> = (0..100_000u32).map(|n| format!("\"{n}\":{{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[{n},{}]}}", n + 1)).collect();
    let ties: Vec<String> = (0..100_000u32).map(|n| format!("\"t{n}\":\"99999\"")).collect();
    let fs = million("ties", safetensors(&format!("{{\"__metadata__\":{{{}}},{}}}", ties.join(","), tensors.join(",")), &vec![0; 100_000]));
    assert_eq!(fs.tree().sets()[0].catalog().len(), 200_000);
}

fn dictionary(descr: &str, shape: &str) -> String {
    format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n")
}

// libnpy #44, CVE-2019-6446, numpy #22393.
#[test]
fn npy_headers() {
    for version in [2u8, 3] {
        for len in [u32::MAX, 1 << 31, 1 << 20, 100] {
            refusal([&b"\x93NUMPY"[..], &[version, 0], &len.to_le_bytes(), b"{'descr'"].concat());
        }
    }
    for text in [
        "",
        "{",
        "{}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}",
        "__import__('os').system('true')",
        "{'descr': __import__('os'), 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} or 1",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1+1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': [1]}",
    ] {
        refusal(npy(text, &[0; 8]));
    }
}

#[test]
fn npy_nesting_without_end() {
    let wide = |text: String| [&b"\x93NUMPY\x02\0"[..], &(text.len() as u32).to_le_bytes(), text.as_bytes(), &[0; 64]].concat();
    for (open, close) in [("(", ")"), ("[", "]"), ("{'a':", "}"), ("[('a', ", ")]")] {
        for text in [format!("{}1{}", open.repeat(90_000), close.repeat(90_000)), open.repeat(200_000)] {
            refusal(wide(text.clone()));
            refusal(wide(dictionary(&text, "(1,)")));
            refusal(wide(dictionary("'<f4'", &text)));
        }
    }
    // A header of a megabyte with sixty thousand fields is what NumPy writes for such a type.
    let fields: Vec<String> = (0..50_000).map(|n| format!("('f{n}', '|u1')")).collect();
    let fs = accepted("many.npy", [wide(dictionary(&format!("[{}]", fields.join(", ")), "(1,)")), vec![0; 50_000 - 64]].concat());
    assert_eq!(stat(&fs, "raw/many.bin").unwrap().size, 50_000);
}

#[test]
fn npy_shapes() {
    let max = u64::MAX;
    for shape in [
        format!("({max},)"),
        format!("({max}, {max})"),
        format!("({max}, 0, {max})"),
        "(4294967296, 4294967296)".to_string(),
        "(1000000000000,)".to_string(),
        "(-1,)".to_string(),
        "(18446744073709551616,)".to_string(),
        "(1.0,)".to_string(),
        format!("({})", "1, ".repeat(65)),
        "(True,)".to_string(),
        "5".to_string(),
    ] {
        refusal(npy(&dictionary("'<f4'", &shape), &[0; 8]));
    }
    for descr in [
        "'|V18446744073709551615'",
        "'<U4611686018427387904'",
        "'|S99999999999999999999'",
        "('<f4', (4294967296, 4294967296))",
        "[('a', '<f4', (65536, 65536, 65536, 65536))]",
    ] {
        refusal(npy(&dictionary(descr, "(2,)"), &[0; 8]));
    }
    let nothing = accepted("nothing.npy", npy(&dictionary("'|V0'", "(9223372036854775807,)"), &[]));
    assert_eq!(stat(&nothing, "raw/nothing.bin").unwrap().size, 0);
}

fn array(elements: u16) -> Vec<u8> {
    npy(&dictionary("'<f4'", &format!("({elements},)")), &vec![0; usize::from(elements) * 4])
}

/// A member that says it holds 4 GiB, and one that does give a thousand times its size: opening decompresses neither.
#[test]
fn npz_bombs() {
    let header = dictionary("'|u1'", "(4294967000,)");
    let declared = Member { len: u32::MAX, ..Member::deflated("a.npy", &npy(&header, &[0; 100])) };
    let good = Member::stored("good.npy", &array(4));
    let fs = accepted("x", zip(&[declared.clone(), good.clone()]));
    assert_eq!(read(&fs, "raw/good.f32").unwrap(), [0; 16]);
    let stored = Member { method: 0, ..declared };
    assert_eq!(read(&accepted("x", zip(&[stored, good.clone()])), "raw/good.f32").unwrap(), [0; 16]);
    // 100 MB of zeros in about 100 kB.
    let real = Member::deflated("real.npy", &npy(&dictionary("'|u1'", "(100000000,)"), &vec![0; 100_000_000]));
    let bytes = zip(&[real, good]);
    assert!(bytes.len() < 200_000);
    let start = Clock::start();
    let (fs, peak, largest) = measured(|| {
        let fs = open_bytes("x", bytes).unwrap();
        assert_eq!(stat(&fs, "raw/real.u8").unwrap().size, 100_000_000);
        fs
    });
    assert!(start.elapsed() < Duration::from_millis(500) && peak < 4 << 20, "{:?}, {peak} bytes held", start.elapsed());
    assert!(largest <= 1 << 20);
    let (end, peak, _) = measured(|| read_at(&fs, fs.resolve(b"raw/real.u8").unwrap(), 99_999_900, 100).unwrap());
    assert_eq!(end, [0; 100]);
    assert!(peak < 4 << 20, "{peak} bytes were held to decompress 100 MB");
}

// Fifield 2019: members that share their compressed bytes.
#[test]
fn npz_overlapping_members() {
    let whole = Member::deflated("a0.npy", &array(1000));
    let mut members = vec![whole.clone()];
    // The others have no bytes of their own: the directory says they lie at the first one's place.
    for number in 1..1000 {
        members.push(Member { name: format!("a{number}.npy").into(), data: Vec::new(), offset: Some(0), ..whole.clone() });
    }
    let fs = accepted("x", zip(&members));
    assert_eq!(read(&fs, "raw/a0.f32").unwrap(), [0; 4000]);
    let issues = issues(&fs);
    assert!(issues.len() > 50 && issues.iter().any(|issue| issue.contains("overlap")), "{issues:?}");
}

#[test]
fn npz_directories_that_lie() {
    let good = zip(&[Member::stored("a.npy", &array(4)), Member::deflated("b.npy", &array(4))]);
    let end = good.len() - 22;
    for at in [4, 6, 8, 10, 12, 16, 20] {
        for value in [0u8, 1, 0x7F, 0xFF] {
            let mut bytes = good.clone();
            bytes[end + at..end + (at + 4).min(22)].fill(value);
            case("x", &format!("end record at {at} is {value}"), bytes);
        }
    }
    let mut names = Vec::new();
    for name in ["../../up.npy", "/abs.npy", "..npy", "", "a\0b.npy", "a/b/../c.npy", "a.npy", "a.npy"] {
        names.push(Member::stored(name, &array(1)));
    }
    let fs = accepted("x", zip(&names));
    for (path, _) in walk(&fs) {
        assert!(path.split(|b| *b == b'/').all(|part| part != b".." && part != b"."), "{}", String::from_utf8_lossy(&path));
    }
}

#[test]
fn npz_a_million_members() {
    let one = array(1);
    let first = Member::stored("0.npy", &one);
    let mut members = vec![first.clone()];
    for number in 1..1_000_000u32 {
        members.push(Member { name: format!("{number}.npy").into(), data: Vec::new(), offset: Some(0), ..first.clone() });
    }
    let bytes = zip(&members);
    drop(members);
    let start = Clock::start();
    let result = open_bytes("x", bytes);
    println!("npz: {:?}", start.elapsed());
    assert!(start.elapsed() < MILLION_TIME);
    look_around(&result.unwrap_or_else(|e| panic!("{e}")));
    assert!(Path::new("fixtures").exists());
}

/// A torch archive of one deflated pickle.
fn deflated_pickle(pickle: &[u8]) -> Vec<u8> {
    zip(&[Member::deflated("m/data.pkl", pickle), Member::stored("m/byteorder", b"little")])
}

/// Streams of millions of equal opcodes in a few kilobytes: what is kept of them is bounded by what is stored, not by what comes out.
#[test]
fn pickles_that_deflate_made_a_thousand_times_smaller() {
    let start = Clock::start();
    for (what, head, unit, count, end, limit) in [
        ("opcodes", &b"N"[..], &b"\x80\x04"[..], 16_000_000, &b"."[..], "opcodes"),
        ("items one by one", b"\x80\x04]", b"K\x01\x94a", 16_000_000, b".", "values"),
        ("copies of one value", b"K\x01", b"2", 60_000_000, b".", "values"),
        ("empty strings", b"(", b"X\0\0\0\0", 15_000_000, b"l.", "values"),
        ("short strings", b"(", b"X\x1e\0\0\0aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\x94", 2_000_000, b"l.", "short strings"),
        ("long strings", b"(", &[&b"X\0\x08\0\0"[..], &[b'a'; 2048]].concat(), 40_000, b"l.", "short strings"),
        ("calls", b"cos\nf\nq\0(", b"h\0)R", 8_000_000, b"l.", "values"),
        ("lists", b"(", b"]K\x01a", 8_000_000, b"l.", "values"),
        ("references of a list", b"](", b"N", 8_000_000, b"e.", "values"),
        ("references of a tuple", b"(", b"N", 8_000_000, b"t.", "values"),
        ("references of a dict", b"}(", b"N", 8_000_000, b"u.", "values"),
        ("references of the memo", b"N", b"\x94", 8_000_000, b".", "values"),
        ("marks", b"", b"(", 8_000_000, b"N.", "values"),
        ("long lines", b"", &[&b"I"[..], &[b'0'; 60_000], b"1\n0"].concat(), 3000, b"N.", "opcodes"),
        ("names", b"", &[&b"c"[..], &[b'a'; 60_000], b"\nb\n0"].concat(), 3000, b"N.", "opcodes"),
    ] {
        let bytes = deflated_pickle(&[head, &unit.repeat(count), end].concat());
        assert!(bytes.len() < 800_000, "{what}: {} bytes", bytes.len());
        let error = refusal(bytes);
        assert!(error.contains(&format!("its pickle's {limit}")) && error.contains("the limit for a file of"), "{what}: {error}");
    }
    println!("{:?}", start.elapsed());
}

#[test]
fn a_stream_far_longer_than_its_container() {
    let long = [&b"B\0\0\0\x28"[..], &vec![0; 0x2800_0000], b"."].concat();
    let bytes = deflated_pickle(&long);
    drop(long);
    let error = refusal(bytes);
    assert!(error.contains("its pickle has 671088646 bytes, the limit for a file of"), "{error}");
}

/// The most repetitive checkpoint that real writers make: its bounds are a multiple away.
#[test]
fn a_deflated_checkpoint_of_many_small_tensors_is_served() {
    let mut pickle = b"\x80\x02}(".to_vec();
    let text = |text: &str| [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    for number in 0..100_000_u32 {
        pickle.extend(text(&format!("model.layers.{}.mlp.experts.{}.weight", number / 100, number % 100)));
        pickle.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuJ\x80\x1a\x06\0tQJ");
        pickle.extend((number * 4).to_le_bytes());
        pickle.extend(b"K\x02K\x02\x86K\x02K\x01\x86\x89ccollections\nOrderedDict\n)RtR");
    }
    pickle.extend(b"u.");
    let data: Vec<u8> = (0..400_000_u32).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let bytes = zip(&[Member::deflated("m/data.pkl", &pickle), Member::deflated("m/data/0", &data)]);
    let fs = accepted("x", bytes);
    assert_eq!(issues(&fs), Vec::<String>::new());
    assert_eq!(read(&fs, "raw/model.layers.999.mlp.experts.99.weight.f32").unwrap(), data[1_599_984..]);
}

#[test]
fn a_pickled_dict_of_too_many_keys_is_refused_before_anything_is_made_of_it() {
    let mut pickle = b"\x80\x02}(".to_vec();
    (0..4_300_000_u32).for_each(|key| pickle.extend([&b"J"[..], &key.to_le_bytes(), b"N"].concat()));
    pickle.extend(b"u.");
    let start = Clock::start();
    let (result, peak, _) = measured(|| open_bytes("x", pickle).map(|_| ()));
    println!("{:?}, {peak} bytes", start.elapsed());
    assert!(result.unwrap_err().to_string().contains("more than 4194304 metadata keys"));
    assert!(start.elapsed() < TIME && peak < 512 << 20, "{:?}, {peak} bytes", start.elapsed());
}

#[test]
fn a_dict_of_one_key_a_hundred_thousand_times_in_a_hundred_thousand_places() {
    let many = 100_000;
    let pair = &b"X\x01\0\0\0aK\x01"[..];
    for (what, dict) in [
        ("a dict", [&b"}q\0("[..], &pair.repeat(many), b"u"].concat()),
        ("a list that an OrderedDict is made of", [&b"ccollections\nOrderedDict\n]("[..], &[pair, b"\x86"].concat().repeat(many), b"e\x85Rq\0"].concat()),
        ("a tuple that a Counter is made of", [&b"ccollections\nCounter\n("[..], &[pair, b"\x86"].concat().repeat(many), b"t\x85Rq\0"].concat()),
    ] {
        let fs = accepted("x", [&b"\x80\x02"[..], &dict, b"0](", &b"h\0".repeat(many), b"e."].concat());
        assert!(read(&fs, "metadata.json").unwrap().ends_with(b"{\"a\": 1}]}\n}\n"), "{what}");
    }
    // As many dicts, each made of the same list.
    let pairs = [pair, b"\x86"].concat().repeat(many);
    let fs = accepted("x", [&b"\x80\x02ccollections\nOrderedDict\nq\0]("[..], &pairs, b"e\x85q\x0100](", &b"h\0h\x01R".repeat(many), b"e."].concat());
    assert!(read(&fs, "metadata.json").unwrap().ends_with(b"{\"a\": 1}]}\n}\n"));
}

/// A byte of the stream refers to a value; what refers is neither made longer when it is looked through, nor free.
#[test]
fn millions_of_references_to_one_value_in_a_few_kilobytes() {
    for (what, head, end) in [
        ("a list", &b"\x80\x02]("[..], &b"e."[..]),
        ("a list beside a tensor's", b"\x80\x02](](", b"eNe."),
        ("a tuple", b"\x80\x02(", b"t."),
        ("a dict of one key", b"\x80\x02}(", b"u."),
        ("a call's arguments", b"\x80\x02cos\nf\n(", b"tR."),
    ] {
        let bytes = deflated_pickle(&[head, &b"N".repeat(2_000_000), end].concat());
        assert!(bytes.len() < 8000, "{what}: {} bytes", bytes.len());
        let (result, peak, _) = measured(|| open_bytes("x", bytes).map(|_| ()));
        println!("{what}: {peak} bytes held");
        assert!(result.is_ok() && peak < 100 << 20, "{what}: {peak} bytes held, {result:?}");
    }
}

#[test]
fn what_many_objects_are_given_is_looked_through_once() {
    let many = 50_000_u32;
    let keys: Vec<u8> = (0..many).flat_map(|key| [&b"J"[..], &key.to_le_bytes(), b"N"].concat()).collect();
    let nones = b"N".repeat(many as usize);
    for (what, given, object) in [
        ("a state", [&b"}("[..], &keys, b"u"].concat(), &b"h\0)Rh\x01b"[..]),
        ("arguments", [&b"("[..], &nones, b"t"].concat(), b"h\0h\x01R"),
        ("a list", [&b"]("[..], &nones, b"e\x85"].concat(), b"c__builtin__\nset\nh\x01R"),
        ("keywords", [&b"}("[..], &keys, b"u"].concat(), b"h\0)h\x01\x92"),
    ] {
        let start = Clock::start();
        let pickle = [&b"\x80\x02cos\nf\nq\x000"[..], &given, b"q\x010](", &object.repeat(many as usize), b"e."].concat();
        let result = open_bytes("x", pickle).map(|_| ());
        println!("{what}: {:?}", start.elapsed());
        assert!(result.is_ok() && start.elapsed() < TIME, "{what}: {:?}, {result:?}", start.elapsed());
    }
}
