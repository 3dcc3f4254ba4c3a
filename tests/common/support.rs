//! What the tests without FUSE share: a file system over a fixture or over bytes, walks and reads of it, and writers of small containers.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mount_tensors::error::Result;
use mount_tensors::formats;
use mount_tensors::fs::{Attr, Bytes, Errno, Fs, Ino, Scratch};
use mount_tensors::source::Source;
use mount_tensors::tree::{Branch, ROOT, Views};

/// The file system of one source, as a mount of it alone has it.
pub(crate) fn open(path: impl AsRef<Path>) -> Result<Fs> {
    let collection = formats::open(path.as_ref())?;
    Ok(Fs::new(vec![Branch { name: None, top: collection.top, parts: collection.parts }], Views::ALL))
}

/// The file system of a container in memory.
pub(crate) fn open_bytes(name: &str, bytes: Vec<u8>) -> Result<Fs> {
    let catalog = formats::open_container(&memory(name, bytes))?;
    Ok(Fs::new(vec![Branch { name: None, top: Some(catalog), parts: Vec::new() }], Views::ALL))
}

/// A source in memory, in a folder that does not exist, so that nothing is looked for beside it.
pub(crate) fn memory(name: &str, bytes: Vec<u8>) -> Arc<Source> {
    Source::from_bytes(Path::new("/nowhere/at/all").join(name), bytes)
}

/// One line of a folder's listing.
pub(crate) struct Line {
    pub(crate) name: Vec<u8>,
    pub(crate) ino: Ino,
    pub(crate) folder: bool,
    pub(crate) next: u64,
}

/// A folder's listing from a position on.
pub(crate) fn list(fs: &Fs, folder: Ino, start: u64) -> Vec<Line> {
    let mut lines = Vec::new();
    fs.list(folder, start, &mut |line| {
        lines.push(Line { name: line.entry.name.to_vec(), ino: line.entry.ino, folder: line.entry.folder, next: line.next });
        true
    })
    .expect("a folder can be listed");
    lines
}

/// Every path below the root with its inode, folders with a `/` at their end, in the order of the listings.
pub(crate) fn walk(fs: &Fs) -> Vec<(Vec<u8>, Ino)> {
    let mut all = Vec::new();
    let mut pending = vec![(Vec::new(), ROOT)];
    while let Some((path, ino)) = pending.pop() {
        let mut folders = Vec::new();
        for line in list(fs, ino, 0) {
            let mut own = [path.as_slice(), &line.name].concat();
            if line.folder {
                own.push(b'/');
                folders.push((own.clone(), line.ino));
            }
            all.push((own, line.ino));
        }
        pending.extend(folders.into_iter().rev());
    }
    all
}

/// The attributes of a path.
pub(crate) fn stat(fs: &Fs, path: impl AsRef<[u8]>) -> std::result::Result<Attr, Errno> {
    fs.attr(fs.resolve(path.as_ref())?)
}

/// Bytes of a file.
pub(crate) fn read_at(fs: &Fs, ino: Ino, offset: u64, size: u32) -> std::result::Result<Vec<u8>, Errno> {
    let mut scratch = Scratch::default();
    Ok(match fs.read(ino, offset, size, &mut scratch)? {
        Bytes::Copied(bytes) => bytes.to_vec(),
        // Nobody cuts the file meanwhile.
        Bytes::Mapped(view) => view.for_the_kernel().to_vec(),
    })
}

/// A whole file, which must be as long as its attributes say.
pub(crate) fn read_ino(fs: &Fs, ino: Ino) -> std::result::Result<Vec<u8>, Errno> {
    let size = fs.attr(ino)?.size;
    let mut out = Vec::new();
    loop {
        let part = read_at(fs, ino, out.len() as u64, 1 << 20)?;
        if part.is_empty() {
            assert_eq!(out.len() as u64, size, "a file is as long as its attributes say");
            return Ok(out);
        }
        out.extend(part);
    }
}

/// A whole file by its path.
pub(crate) fn read(fs: &Fs, path: impl AsRef<[u8]>) -> std::result::Result<Vec<u8>, Errno> {
    read_ino(fs, fs.resolve(path.as_ref())?)
}

/// A JSON document by its path.
pub(crate) fn json(fs: &Fs, path: &str) -> serde_json::Value {
    let bytes = read(fs, path).unwrap_or_else(|e| panic!("{path}: {e:?}"));
    serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{path}: {e}\n{}", String::from_utf8_lossy(&bytes)))
}

/// The paths in a folder that hold fixtures, sorted: files and folders.
pub(crate) fn fixtures(format: &str, kind: &str) -> Vec<PathBuf> {
    let folder = PathBuf::from(format!("fixtures/{format}/{kind}"));
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&folder).into_iter().flatten().map(|entry| entry.expect("a fixture folder can be listed").path()).collect();
    paths.sort();
    paths
}

/// The formats that have fixtures, sorted.
pub(crate) fn fixture_formats() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir("fixtures")
        .expect("tests run in the package's folder")
        .map(|entry| entry.expect("fixtures/ can be listed"))
        .filter(|entry| entry.path().is_dir() && entry.file_name() != "quant" && entry.file_name() != "layouts")
        .map(|entry| entry.file_name().into_string().expect("formats have plain names"))
        .collect();
    names.sort();
    names
}

/// A small random number generator (SplitMix64, <https://prng.di.unimi.it/splitmix64.c>), the same numbers for the same seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }

    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// Writes a GGUF file of version 3, little-endian, without checking anything.
#[derive(Clone, Default)]
pub(crate) struct Gguf {
    keys: Vec<u8>,
    key_count: u64,
    infos: Vec<u8>,
    tensor_count: u64,
    pub(crate) data: Vec<u8>,
}

/// A length and bytes, as GGUF stores them.
pub(crate) fn gguf_string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

impl Gguf {
    /// Adds a key with the bytes of its value.
    pub(crate) fn key(&mut self, key: &[u8], kind: u32, value: &[u8]) -> &mut Self {
        self.keys.extend(gguf_string(key));
        self.keys.extend(kind.to_le_bytes());
        self.keys.extend_from_slice(value);
        self.key_count += 1;
        self
    }

    /// Adds a line of the table of tensors; `dims` with the fastest first.
    pub(crate) fn info(&mut self, name: &[u8], dims: &[u64], kind: u32, offset: u64) -> &mut Self {
        self.infos.extend(gguf_string(name));
        self.infos.extend((dims.len() as u32).to_le_bytes());
        self.infos.extend(dims.iter().flat_map(|d| d.to_le_bytes()));
        self.infos.extend(kind.to_le_bytes());
        self.infos.extend(offset.to_le_bytes());
        self.tensor_count += 1;
        self
    }

    /// Adds a tensor and its bytes, aligned to 32.
    pub(crate) fn tensor(&mut self, name: &[u8], dims: &[u64], kind: u32, bytes: &[u8]) -> &mut Self {
        let offset = self.data.len().next_multiple_of(32);
        self.data.resize(offset, 0);
        self.data.extend_from_slice(bytes);
        self.info(name, dims, kind, offset as u64)
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        self.build_with(self.tensor_count, self.key_count)
    }

    /// The file with these counts in its header, true or not.
    pub(crate) fn build_with(&self, tensors: u64, keys: u64) -> Vec<u8> {
        let mut out = [&b"GGUF"[..], &3u32.to_le_bytes(), &tensors.to_le_bytes(), &keys.to_le_bytes(), &self.keys, &self.infos].concat();
        if !self.data.is_empty() {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend_from_slice(&self.data);
        }
        out
    }
}

/// A safetensors file with this JSON and data.
pub(crate) fn safetensors(json: &str, data: &[u8]) -> Vec<u8> {
    [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), data].concat()
}

/// An npy file of version 1 with this dictionary and data.
pub(crate) fn npy(dictionary: &str, data: &[u8]) -> Vec<u8> {
    [b"\x93NUMPY\x01\x00", &(dictionary.len() as u16).to_le_bytes()[..], dictionary.as_bytes(), data].concat()
}

/// A member of a zip archive with all that its headers say.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) name: Vec<u8>,
    pub(crate) method: u16,
    pub(crate) crc: u32,
    pub(crate) compressed: u32,
    pub(crate) len: u32,
    pub(crate) data: Vec<u8>,
    /// Where the directory says that its local header is; `None` for where it is.
    pub(crate) offset: Option<u32>,
}

impl Member {
    pub(crate) fn stored(name: &str, bytes: &[u8]) -> Self {
        let len = bytes.len() as u32;
        Self { name: name.into(), method: 0, crc: crc(bytes), compressed: len, len, data: bytes.to_vec(), offset: None }
    }

    pub(crate) fn deflated(name: &str, bytes: &[u8]) -> Self {
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).expect("a Vec takes everything");
        let data = encoder.finish().expect("a Vec takes everything");
        Self { method: 8, compressed: data.len() as u32, data, ..Self::stored(name, bytes) }
    }
}

pub(crate) fn crc(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// A zip archive of these members.
pub(crate) fn zip(members: &[Member]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    let fields = |m: &Member| -> Vec<u8> {
        let mut bytes = [0u16, m.method, 0, 0].map(u16::to_le_bytes).concat();
        bytes.extend([m.crc, m.compressed, m.len].map(u32::to_le_bytes).concat());
        bytes.extend([m.name.len() as u16, 0].map(u16::to_le_bytes).concat());
        bytes
    };
    for m in members {
        let offset = m.offset.unwrap_or(out.len() as u32);
        directory.extend(b"PK\x01\x02\x14\x00\x14\x00");
        directory.extend(fields(m));
        directory.extend([0u8; 10]);
        directory.extend(offset.to_le_bytes());
        directory.extend_from_slice(&m.name);
        out.extend(b"PK\x03\x04\x14\x00");
        out.extend(fields(m));
        out.extend_from_slice(&m.name);
        out.extend_from_slice(&m.data);
    }
    let start = out.len() as u64;
    let size = directory.len() as u64;
    out.extend(directory);
    let count = members.len() as u64;
    if count > 0xFFFE {
        let at = out.len() as u64;
        out.extend(b"PK\x06\x06");
        out.extend(44u64.to_le_bytes());
        out.extend([0x2D, 0, 0x2D, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        out.extend([count, count, size, start].map(u64::to_le_bytes).concat());
        out.extend(b"PK\x06\x07\0\0\0\0");
        out.extend(at.to_le_bytes());
        out.extend(1u32.to_le_bytes());
    }
    let short = |n: u64| (n.min(0xFFFF) as u16).to_le_bytes();
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend([short(count), short(count)].concat());
    out.extend([size as u32, start as u32].map(u32::to_le_bytes).concat());
    out.extend([0, 0]);
    out
}

/// How many names each inode has, over a whole tree.
pub(crate) fn names_by_ino(walked: &[(Vec<u8>, Ino)]) -> BTreeMap<Ino, u32> {
    let mut names = BTreeMap::new();
    for (_, ino) in walked {
        *names.entry(*ino).or_insert(0) += 1;
    }
    names
}
