//! The file system without FUSE: names that are never lost, listings that agree with lookups, and reads of any part of any file.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "in a test, a panic is the report of a failure")]

#[path = "common/support.rs"]
mod support;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;

use mount_tensors::fs::{Errno, Fs};
use mount_tensors::tree::ROOT;
use serde_json::Value;
use support::{Gguf, Random, fixture_formats, fixtures, gguf_string, json, list, names_by_ino, open, open_bytes, read, read_at, read_ino, safetensors, walk};

/// The slow statement of how a path gives back the name: the empty name is `%`, `%XX` is a byte.
fn decoded(path: &str) -> Vec<u8> {
    if path == "%" {
        return Vec::new();
    }
    let bytes = path.as_bytes();
    let (mut out, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let hex = path.get(at + 1..at + 3).filter(|hex| bytes[at] == b'%' && hex.bytes().all(|b| b.is_ascii_hexdigit()));
        match hex {
            Some(hex) => {
                out.push(u8::from_str_radix(hex, 16).unwrap());
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    out
}

#[test]
fn the_decoder_reads_what_the_contract_says() {
    for (path, name) in
        [("%2Fabs", &b"/abs"[..]), ("a/%2Fb", b"a//b"), ("%", b""), ("%25", b"%"), ("%2E%2E/x", b"../x"), ("100%", b"100%"), ("%zz", b"%zz"), ("%FF", b"\xFF")]
    {
        assert_eq!(decoded(path), name, "{path}");
    }
}

/// Whether a path holds a component that was shortened (a readable start, `-`, 16 hexadecimal digits) or numbered (`~2`).
fn is_special(path: &str) -> (bool, bool) {
    let short = |part: &str| {
        let bytes = part.as_bytes();
        bytes.len() > 200 && bytes.windows(17).any(|w| w[0] == b'-' && w[1..].iter().all(u8::is_ascii_hexdigit))
    };
    let numbered = |part: &str| part.match_indices('~').any(|(at, _)| part.as_bytes().get(at + 1).is_some_and(u8::is_ascii_digit));
    (path.split('/').any(short), path.split('/').any(numbered))
}

/// Everything that must hold of any tree: names, inodes, links, listings in steps, paths.
fn check_tree(fs: &Fs) {
    let walked = walk(fs);
    let links = names_by_ino(&walked);
    let mut paths = HashSet::new();
    for (path, ino) in &walked {
        let shown = String::from_utf8_lossy(path);
        assert!(paths.insert(path), "{shown}: listed twice");
        assert_eq!(fs.resolve(path), Ok(*ino), "{shown}");
        let attr = fs.attr(*ino).unwrap();
        assert_eq!((attr.ino, attr.folder), (*ino, path.ends_with(b"/")), "{shown}");
        let name = path.strip_suffix(b"/").unwrap_or(path).rsplit(|b| *b == b'/').next().unwrap();
        assert!(!name.is_empty() && name.len() <= 255 && name != b"." && name != b"..", "{shown}");
        assert!(std::str::from_utf8(name).is_ok_and(|name| !name.bytes().any(|b| b < 0x20 || b == 0x7F)), "{shown}");
        if !attr.folder {
            assert_eq!(attr.links, links[ino], "{shown}: links");
            assert_eq!(fs.lookup(*ino, b"x"), Err(Errno::NotFolder));
        }
    }
    for folder in walked.iter().filter(|(path, _)| path.ends_with(b"/")).map(|(_, ino)| *ino).chain([ROOT]) {
        let whole = list(fs, folder, 0);
        let subfolders = whole.iter().filter(|line| line.folder).count() as u32;
        assert_eq!(fs.attr(folder).unwrap().links, 2 + subfolders);
        assert_eq!(fs.read(folder, 0, 1, &mut Default::default()).err(), Some(Errno::IsFolder));
        for (position, line) in whole.iter().enumerate() {
            assert_eq!(fs.lookup(folder, &line.name).unwrap().ino, line.ino);
            let rest = list(fs, folder, line.next);
            let names = |lines: &[support::Line]| lines.iter().map(|l| (l.name.clone(), l.ino, l.next)).collect::<Vec<_>>();
            assert_eq!(names(&rest), names(&whole[position + 1..]), "what follows {:?}", String::from_utf8_lossy(&line.name));
        }
        for absent in [&b""[..], b".", b"..", b"no such name", b"%", b"a.npy.npy", b"\xFF", b".f32"] {
            let listed = whole.iter().any(|line| line.name == absent);
            assert_eq!(fs.lookup(folder, absent).is_ok(), listed, "{:?}", String::from_utf8_lossy(absent));
        }
    }
    let inodes: BTreeSet<u64> = walked.iter().map(|(_, ino)| *ino).chain([ROOT]).collect();
    assert_eq!(fs.totals().files, inodes.len() as u64);
    let unknown = inodes.last().unwrap() + 1_000_000;
    assert_eq!(fs.attr(unknown), Err(Errno::NotFound));
}

/// Every tensor has a path of its own in each view that shows it, and its name can be had from there.
fn check_names(fs: &Fs, names: &[Vec<u8>], raw: impl Fn(usize) -> Vec<u8>) {
    let listed = json(fs, "tensors.json");
    let listed = listed.as_array().unwrap();
    assert_eq!(listed.len(), names.len(), "no tensor is lost");
    let mut seen: HashSet<&str> = HashSet::new();
    for (number, (tensor, name)) in listed.iter().zip(names).enumerate() {
        let shown = tensor["name"].as_str().unwrap();
        match std::str::from_utf8(name) {
            Ok(text) => assert_eq!(shown, text, "JSON holds any text as it is"),
            Err(_) => assert_eq!(decoded(shown), *name, "{shown}"),
        }
        let files = tensor["files"].as_object().unwrap();
        assert!(files.len() >= 2, "{tensor}");
        for (view, path) in files {
            let path = path.as_str().unwrap();
            assert!(seen.insert(path), "{path}: two tensors have it");
            let ino = fs.resolve(path.as_bytes()).unwrap_or_else(|e| panic!("{path} of {shown}: {e:?}"));
            assert!(!fs.attr(ino).unwrap().folder, "{path}: a folder hides the file of {shown:?}");
            let below = path.strip_prefix("as/").unwrap_or(path).split_once('/').unwrap().1;
            let stem = below.rsplit_once('.').unwrap().0;
            let (short, numbered) = is_special(stem);
            assert!(short || numbered || decoded(stem) == *name, "{view}: {path} does not give back {shown:?}");
        }
        assert_eq!(read(fs, tensor["files"]["raw"].as_str().unwrap()).unwrap(), raw(number), "{shown}");
    }
}

/// A random name, of the kinds that have given trouble somewhere.
fn name(random: &mut Random, earlier: &[Vec<u8>]) -> Vec<u8> {
    const PARTS: &[&[u8]] = &[
        b"a",
        b"b",
        b"a.npy",
        b"a.f32",
        b"a~2",
        b"a~2.npy",
        b"",
        b"",
        b".",
        b"..",
        b"%",
        b"%%",
        b"%41",
        b"%2F",
        b"%2e",
        b"%4",
        b"~2",
        b"x~2~3",
        b"model.layers.0.weight",
        b"\xE6\xBC\xA2\xE5\xAD\x97",
        b"caf\xC3\xA9",
        b"cafe\xCC\x81",
        b"\xFF",
        b"\xC3",
        b"\xE6\xBC",
        b"\0",
        b"\n",
        b"\x1b[0m",
        b"\x7F",
        b" ",
        b"A",
        b"...",
        b".npy",
        b"a.",
    ];
    let mut out = match random.below(8) {
        0 if !earlier.is_empty() => return random.pick(earlier).clone(),
        1 if !earlier.is_empty() => [random.pick(earlier).as_slice(), b"/", random.pick::<&[u8]>(PARTS)].concat(),
        2 if !earlier.is_empty() => [random.pick(earlier).as_slice(), random.pick::<&[u8]>(&[b".npy/b", b".f32", b"/", b"~2", b".npy"])].concat(),
        _ => Vec::new(),
    };
    for number in 0..=random.below(4) {
        if number > 0 {
            out.push(b'/');
        }
        match random.below(12) {
            0 => {
                let len = 200 + random.below(120) as usize;
                const CHARACTERS: [&[u8]; 5] = [b"n", b"\xE6\xBC\xA2", b"\xFF", b"%41", b"."];
                let character = random.pick(&CHARACTERS);
                out.extend(character.iter().cycle().take(len / character.len() * character.len()));
                out.extend(random.below(3).to_string().bytes());
            }
            1 => {
                let len = random.below(6) as usize;
                out.extend(random.bytes(len));
            }
            _ => out.extend_from_slice(random.pick::<&[u8]>(PARTS)),
        }
    }
    out
}

#[test]
fn random_trees_keep_every_name() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let (mut gguf, mut names, mut bytes) = (Gguf::default(), Vec::new(), Vec::new());
        for number in 0..2 + random.below(60) {
            let own = name(&mut random, &names);
            // Kinds with few and many views: f32, f16, i8, bf16, q8_0 (whose row is 34 bytes).
            let (kind, elements, size) = *random.pick(&[(0u32, 2u64, 8usize), (1, 2, 4), (24, 4, 4), (30, 2, 4), (8, 32, 34)]);
            let data: Vec<u8> = (0..size).map(|i| (number as usize * 7 + i) as u8 & 0x3F).collect();
            gguf.tensor(&own, &[elements], kind, &data);
            names.push(own);
            bytes.push(data);
            if random.below(10) == 0 {
                // The same bytes under one more name: links.
                let own = name(&mut random, &names);
                let offset = gguf.data.len() - size;
                // Of another shape or type only what has no header is the same file, or only what is stored.
                let (shape, kind) = match random.below(3) {
                    0 => (vec![elements, 1], kind),
                    1 => (vec![size as u64], 24),
                    _ => (vec![elements], kind),
                };
                gguf.info(&own, &shape, kind, offset as u64);
                names.push(own);
                bytes.push(bytes.last().unwrap().clone());
            }
            if random.below(6) == 0 {
                let key = name(&mut random, &names);
                gguf.key(&key, 8, &gguf_string(&key));
            }
        }
        let fs = open_bytes("random.gguf", gguf.build()).unwrap();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            check_tree(&fs);
            check_names(&fs, &names, |number| bytes[number].clone());
        }));
        assert!(result.is_ok(), "seed {seed}");
    }
}

fn named(names: &[&[u8]]) -> (Fs, Vec<Vec<u8>>) {
    let mut gguf = Gguf::default();
    for (number, name) in names.iter().enumerate() {
        gguf.tensor(name, &[1], 0, &(number as u32).to_le_bytes());
    }
    (open_bytes("x", gguf.build()).unwrap(), names.iter().map(|name| name.to_vec()).collect())
}

fn check_named(names: &[&[u8]]) -> Fs {
    let (fs, names) = named(names);
    check_tree(&fs);
    check_names(&fs, &names, |number| (number as u32).to_le_bytes().to_vec());
    fs
}

#[test]
fn files_and_folders_of_one_name() {
    check_named(&[b"a", b"a/b", b"a.npy/b", b"a.f32", b"a.f32/c", b"a.f16/x", b"a.bf16"]);
    check_named(&[b"a.npy/b", b"a"]);
    check_named(&[b"a", b"a", b"a~2", b"a~2", b"a~3", b"a"]);
    check_named(&[b"A", b"a", b"\xC3\xA9", b"e\xCC\x81", b"%41", b"%2541", b"", b"%", b"%25"]);
}

/// Each new name meets a folder again, so that a fixed number of rounds does not end it.
#[test]
fn a_chain_of_clashes_hides_no_tensor() {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut folder = b"a".to_vec();
    for _ in 0..24 {
        names.push([folder.as_slice(), b".npy/x"].concat());
        folder.extend(b"~2");
    }
    let mut numbers: Vec<Vec<u8>> = (2..24).map(|n| format!("b~{n}.npy/x").into_bytes()).collect();
    numbers.insert(0, b"b.npy/x".to_vec());
    names.extend(numbers);
    names.extend([b"a".to_vec(), b"b".to_vec(), b"a".to_vec()]);
    check_named(&names.iter().map(Vec::as_slice).collect::<Vec<_>>());
    // The other way round: the files come first, and the folder has to go on looking.
    let mut names: Vec<Vec<u8>> = (2..24).map(|n| format!("a~{n}").into_bytes()).collect();
    names.extend([b"a".to_vec(), b"a.npy/x".to_vec(), b"a~2.npy/x".to_vec(), b"a".to_vec()]);
    check_named(&names.iter().map(Vec::as_slice).collect::<Vec<_>>());
}

#[test]
fn long_names_of_one_start() {
    let names: Vec<Vec<u8>> = (0..40).map(|n| [vec![b'x'; 300], format!("{}", n % 20).into_bytes()].concat()).collect();
    check_named(&names.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let names: Vec<Vec<u8>> = (245..260).flat_map(|n| [vec![b'x'; n], "漢".repeat(n / 3).into_bytes(), vec![0xFF; n], vec![b'%'; n]]).collect();
    check_named(&names.iter().map(Vec::as_slice).collect::<Vec<_>>());
}

#[test]
fn every_fixture_is_a_sound_tree() {
    for format in fixture_formats() {
        for kind in ["good", "degraded", "hub"] {
            for path in fixtures(&format, kind) {
                let fs = open(&path).unwrap();
                check_tree(&fs);
                for (path, ino) in walk(&fs) {
                    let is_ours = !path.split(|b| *b == b'/').any(|part| part == b"config" || part == b"raw" || part == b"source" || part == b"tokenizer");
                    if is_ours && path.ends_with(b".json") {
                        let text = read_ino(&fs, ino).unwrap();
                        serde_json::from_slice::<Value>(&text).unwrap_or_else(|e| panic!("{}: {e}", String::from_utf8_lossy(&path)));
                        assert!(text.ends_with(b"\n"));
                    }
                }
            }
        }
    }
}

/// Reads random parts of a file and compares them with the whole.
fn random_reads(fs: &Fs, ino: u64, whole: &[u8], reads: usize, random: &mut Random, place: &str) {
    let len = whole.len() as u64;
    for _ in 0..reads {
        let offset = if random.below(20) == 0 { len + random.below(3) } else { random.below(len + 1) };
        let size = match random.below(4) {
            0 => random.below(9),
            1 => random.below(300),
            2 => random.below(70_000),
            _ => random.below(len + 10),
        };
        let found = read_at(fs, ino, offset, size as u32).unwrap_or_else(|e| panic!("{place}: {size} bytes at {offset}: {e:?}"));
        let start = offset.min(len) as usize;
        let expected = &whole[start..(offset.saturating_add(size).min(len) as usize).max(start)];
        if found != expected {
            let at = found.iter().zip(expected).position(|(a, b)| a != b);
            panic!("{place}: {size} bytes at {offset}: {} bytes came, {} expected; the first that differs: {at:?}", found.len(), expected.len());
        }
    }
    for offset in [u64::MAX, u64::MAX - 1, i64::MAX as u64, len, len + 1] {
        assert_eq!(read_at(fs, ino, offset, u32::MAX).unwrap(), b"", "{place}: past the end");
    }
}

/// Random reads of the first file of every kind: type, byte order, order and view, documents by name.
fn check_reads(fs: &Fs, place: &str, reads: usize, seen: &mut BTreeMap<String, u64>) {
    let mut random = Random(place.len() as u64);
    for (path, ino) in walk(fs) {
        if path.ends_with(b"/") {
            continue;
        }
        let kind = match fs.tensor_of(ino).unwrap() {
            Some((_, tensor)) => {
                let member = fs.tree().sets()[0].catalog().source(tensor.source()).is_some_and(|s| s.is_member());
                let view = fs.view_of(ino).unwrap();
                format!("{} {:?} {:?} {member} {:?}", tensor.dtype(), tensor.endian(), tensor.order(), view)
            }
            None => String::from_utf8_lossy(path.split(|b| *b == b'/').next().unwrap()).into_owned(),
        };
        let so_far = seen.entry(kind).or_default();
        // A scalar is no place to look for a wrong offset, and neither is the tenth file of a kind.
        let size = fs.attr(ino).unwrap().size;
        if *so_far > size || *so_far > 1 << 16 {
            continue;
        }
        *so_far = size;
        let whole = read_ino(fs, ino).unwrap();
        random_reads(fs, ino, &whole, reads, &mut random, &format!("{place}: {}", String::from_utf8_lossy(&path)));
    }
}

#[test]
fn any_part_of_any_fixture_is_the_part_of_the_whole() {
    let mut seen = BTreeMap::new();
    for format in fixture_formats() {
        for path in fixtures(&format, "good").into_iter().chain(fixtures(&format, "hub")) {
            check_reads(&open(&path).unwrap(), &path.display().to_string(), 2_000, &mut seen);
        }
    }
    for wanted in ["raw", "npy", "as", "metadata", "tokenizer", "config", "source", "tensors.json", "info.json", "issues.json", "metadata.json"] {
        assert!(["raw", "npy", "as"].contains(&wanted) || seen.contains_key(wanted), "{wanted} was not read: {seen:?}");
    }
    assert!(seen.len() > 250, "only {} kinds of files were read", seen.len());
}

/// Ten thousand reads of each view of tensors that are larger than any buffer inside, mapped from a file and not.
#[test]
fn any_part_of_large_tensors_is_the_part_of_the_whole() {
    let mut random = Random(7);
    let mut gguf = Gguf::default();
    // f32, f16, q4_0, q5_k, bf16, i8, f64, mxfp4, tq1_0, iq2_xs: elements and bytes of a block.
    for (kind, elements, size) in
        [(0u32, 1u64, 4usize), (1, 1, 2), (2, 32, 18), (13, 256, 176), (30, 1, 2), (24, 1, 1), (28, 1, 8), (39, 32, 17), (34, 256, 54), (17, 256, 74)]
    {
        let blocks = 20_000 / elements + 3;
        let data = random.bytes(blocks as usize * size);
        gguf.tensor(format!("t{kind}").as_bytes(), &[elements * blocks], kind, &data);
    }
    let bytes = gguf.build();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &bytes).unwrap();
    let (memory, mapped) = (open_bytes("x", bytes).unwrap(), open(file.path()).unwrap());
    for (path, ino) in
        walk(&memory).into_iter().filter(|(path, _)| [&b"raw/"[..], b"npy/", b"as/"].iter().any(|view| path.starts_with(view)) && !path.ends_with(b"/"))
    {
        let shown = String::from_utf8_lossy(&path).into_owned();
        let whole = read_ino(&memory, ino).unwrap();
        let twin = mapped.resolve(&path).unwrap();
        assert!(read_ino(&mapped, twin).unwrap() == whole, "{shown}: mapped or not, the bytes are the same");
        let reads = if path.starts_with(b"as/f") || path.starts_with(b"raw/") || path.starts_with(b"npy/") { 1_500 } else { 400 };
        random_reads(&memory, ino, &whole, reads, &mut random, &shown);
        random_reads(&mapped, twin, &whole, reads, &mut random, &shown);
    }
}

fn from_base64(text: &str) -> Vec<u8> {
    let digit = |b: u8| match b {
        b'A'..=b'Z' => b - b'A',
        b'a'..=b'z' => b - b'a' + 26,
        b'0'..=b'9' => b - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let mut out = Vec::new();
    for group in text.as_bytes().chunks(4) {
        let padding = group.iter().filter(|b| **b == b'=').count();
        let word = group.iter().fold(0u32, |word, b| word << 6 | if *b == b'=' { 0 } else { u32::from(digit(*b)) });
        out.extend_from_slice(&word.to_be_bytes()[1..4 - padding]);
    }
    out
}

fn value_bytes(value: &Value) -> Vec<u8> {
    match value.get("base64") {
        Some(text) => from_base64(text.as_str().unwrap()),
        None => value.as_str().unwrap().as_bytes().to_vec(),
    }
}

#[test]
fn large_metadata_is_rendered_piece_by_piece_without_loss() {
    let mut random = Random(11);
    // Characters of one to four bytes and everything that JSON escapes, so that cuts fall anywhere.
    let alphabet = ["a", "é", "漢", "😀", "\"", "\\", "\n", "\0", "\u{7F}", "\u{2028}", "/"];
    let mut text = String::new();
    while text.len() < 5_000_000 {
        text.push_str(random.pick::<&str>(&alphabet));
    }
    let wide = "😀".repeat(40_000);
    let mut broken_at_the_end = text.clone().into_bytes();
    broken_at_the_end.extend(b"\xE6\xBC");
    let mut broken_in_the_middle = wide.clone().into_bytes();
    broken_in_the_middle[(48 << 10) + 1] = b'x';
    let noise = random.bytes(5_000_001);
    let strings: Vec<Vec<u8>> = (0..100_000u64)
        .map(|n| match n % 50 {
            0 => random.bytes(9),
            1 => Vec::new(),
            2 => "漢".repeat(n as usize % 90).into_bytes(),
            _ => format!("token{n}\n").into_bytes(),
        })
        .collect();
    let array = |kind: u32, count: usize, bytes: Vec<u8>| [&kind.to_le_bytes()[..], &(count as u64).to_le_bytes(), &bytes].concat();
    let numbers: Vec<u8> = (0..50_000u32).flat_map(|n| (if n == 7 { f32::NAN } else { n as f32 / 3.0 }).to_le_bytes()).collect();
    let mut gguf = Gguf::default();
    gguf.key(b"text", 8, &gguf_string(text.as_bytes()))
        .key(b"wide", 8, &gguf_string(wide.as_bytes()))
        .key(b"end", 8, &gguf_string(&broken_at_the_end))
        .key(b"middle", 8, &gguf_string(&broken_in_the_middle))
        .key(b"noise", 8, &gguf_string(&noise))
        .key(b"tokenizer.ggml.tokens", 9, &array(8, strings.len(), strings.iter().flat_map(|s| gguf_string(s)).collect()))
        .key(b"numbers", 9, &array(6, 50_000, numbers))
        .key(b"tokenizer.chat_template", 8, &gguf_string(text.as_bytes()));
    let fs = open_bytes("x", gguf.build()).unwrap();
    let all = json(&fs, "metadata.json");
    for (key, expected) in
        [("text", text.as_bytes()), ("wide", wide.as_bytes()), ("end", &broken_at_the_end), ("middle", &broken_in_the_middle), ("noise", &noise)]
    {
        assert_eq!(all[key]["type"], "string");
        assert!(value_bytes(&all[key]["value"]) == expected, "{key} in metadata.json");
        assert!(value_bytes(&json(&fs, &format!("metadata/{key}.json"))) == expected, "metadata/{key}.json");
        assert_eq!(all[key]["value"].is_string(), std::str::from_utf8(expected).is_ok());
    }
    let tokens = &all["tokenizer.ggml.tokens"];
    assert_eq!(tokens["type"], "array<string>");
    let tokens = tokens["value"].as_array().unwrap();
    assert_eq!(tokens.len(), strings.len());
    for (token, expected) in tokens.iter().zip(&strings) {
        assert_eq!(value_bytes(token), *expected);
    }
    assert_eq!(json(&fs, "tokenizer/tokens.json"), all["tokenizer.ggml.tokens"]["value"]);
    assert_eq!(all["numbers"]["value"][7], "NaN");
    assert_eq!(all["numbers"]["value"][10].as_f64().unwrap() as f32, 10f32 / 3.0);
    assert!(read(&fs, "tokenizer/chat_template.jinja").unwrap() == text.as_bytes());
    for path in ["metadata.json", "metadata/text.json", "metadata/noise.json", "tokenizer/tokens.json", "tokenizer/chat_template.jinja"] {
        let ino = fs.resolve(path.as_bytes()).unwrap();
        let whole = read_ino(&fs, ino).unwrap();
        for _ in 0..300 {
            let (offset, size) = (random.below(whole.len() as u64), 1 + random.below(200_000));
            let end = (offset + size).min(whole.len() as u64);
            assert!(read_at(&fs, ino, offset, size as u32).unwrap() == whole[offset as usize..end as usize], "{path}: {size} bytes at {offset}");
        }
    }
}

#[test]
fn attributes_are_what_tensors_json_says() {
    let fs = open("fixtures/gguf/good/tiny.gguf").unwrap();
    for tensor in json(&fs, "tensors.json").as_array().unwrap() {
        for path in tensor["files"].as_object().unwrap().values() {
            let ino = fs.resolve(path.as_str().unwrap().as_bytes()).unwrap();
            let names = String::from_utf8(fs.attributes(ino).unwrap().to_vec()).unwrap();
            for attribute in names.split_terminator('\0') {
                let value: Value = serde_json::from_slice(&fs.attribute(ino, attribute.as_bytes()).unwrap()).unwrap();
                // Files with the same bytes are one inode, whose attributes are those of the first tensor.
                if tensor.get("shares").is_none() {
                    assert_eq!(value, tensor[attribute.strip_prefix("user.tensor.").unwrap()], "{path}: {attribute}");
                }
            }
        }
    }
    let document = fs.resolve(b"info.json").unwrap();
    assert_eq!(fs.attributes(document), Ok(&b""[..]));
    assert_eq!(fs.attribute(document, b"user.tensor.name"), Err(Errno::NoAttribute));
    assert_eq!(fs.attribute(document, b"security.selinux"), Err(Errno::NotSupported));
}

#[test]
fn files_of_one_content_are_one_inode() {
    let fs = open("fixtures/safetensors/good/tied.safetensors").unwrap();
    let tensors = json(&fs, "tensors.json");
    let paths: Vec<&str> = tensors.as_array().unwrap().iter().map(|t| t["files"]["raw"].as_str().unwrap()).collect();
    let inodes: HashSet<u64> = paths.iter().map(|path| fs.resolve(path.as_bytes()).unwrap()).collect();
    assert!(paths.len() > 1 && inodes.len() == 1, "{paths:?} are {inodes:?}");
    // raw/, as/raw-f32/ of each.
    assert_eq!(fs.attr(*inodes.iter().next().unwrap()).unwrap().links as usize, 2 * paths.len());
}

#[test]
fn tied_tensors_of_two_shapes_share_what_has_no_header() {
    let entry = |dtype: &str, shape: &str| format!("{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[0,16]}}");
    let json = format!("{{\"a\":{},\"b\":{},\"c\":{}}}", entry("F32", "[4]"), entry("F32", "[2,2]"), entry("I32", "[4]"));
    let fs = open_bytes("x", safetensors(&json, &[7; 16])).unwrap();
    check_tree(&fs);
    let attr = |path: &str| fs.attr(fs.resolve(path.as_bytes()).unwrap()).unwrap();
    for path in ["raw/a.f32", "raw/b.f32", "raw/c.i32", "as/raw-f32/a.f32", "as/raw-f32/b.f32"] {
        assert_eq!((attr(path).ino, attr(path).links), (attr("raw/a.f32").ino, 5), "{path}");
    }
    for path in ["as/raw-bf16/a.bf16", "as/raw-f16/b.f16"] {
        assert_eq!(attr(path).links, 2, "{path}");
    }
    assert_ne!(attr("npy/a.npy").ino, attr("npy/b.npy").ino);
    assert_eq!((attr("npy/b.npy").links, attr("npy/c.npy").links), (2, 1));
}

#[test]
fn chosen_views_are_all_there_is() {
    use mount_tensors::tree::{Branch, Views};
    let open_with = |views: &str| {
        let collection = mount_tensors::formats::open(Path::new("fixtures/gguf/good/tiny.gguf")).unwrap();
        let fs = Fs::new(vec![Branch { name: None, top: collection.top, parts: Vec::new() }], Views::parse(views).unwrap());
        check_tree(&fs);
        list(&fs, ROOT, 0).into_iter().map(|line| String::from_utf8(line.name).unwrap()).filter(|name| !name.ends_with(".json")).collect::<Vec<_>>()
    };
    assert_eq!(open_with("raw"), ["raw"]);
    assert_eq!(open_with("raw-f32,f32"), ["as"]);
    assert_eq!(open_with("npy, metadata/"), ["metadata", "npy"]);
    assert_eq!(open_with("as,source,tokenizer,config"), ["as", "source", "tokenizer"]);
    assert_eq!(open_with("all"), ["as", "metadata", "npy", "raw", "source", "tokenizer"]);
    assert!(Views::parse("raw,nope").is_err());
}

#[test]
fn sub_byte_and_eight_bit_types_of_safetensors() {
    let data: Vec<u8> = (0..=255).collect();
    let types = ["F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "BF16", "F16", "F64", "BOOL", "I8", "U16", "C64"];
    for dtype in types {
        let bytes = match dtype {
            "BF16" | "F16" | "U16" => 2,
            "F64" | "C64" => 8,
            _ => 1,
        };
        let json = format!("{{\"t\":{{\"dtype\":\"{dtype}\",\"shape\":[{}],\"data_offsets\":[0,256]}}}}", 256 / bytes);
        let fs = open_bytes("x", safetensors(&json, &data)).unwrap();
        check_tree(&fs);
        check_reads(&fs, dtype, 500, &mut BTreeMap::new());
    }
    let fs = open_bytes("x", safetensors("{\"t\":{\"dtype\":\"F4\",\"shape\":[16,32],\"data_offsets\":[0,256]}}", &data)).unwrap();
    assert_eq!(read(&fs, "raw/t.f4").unwrap(), data);
    assert_eq!(fs.attr(fs.resolve(b"npy/t.npy").unwrap()).unwrap().size, 128 + 512 * 4);
    check_reads(&fs, "F4", 2_000, &mut BTreeMap::new());
}
