//! Reads of every size, at every offset, from many readers at once; and listings in small steps.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use crate::common::posix::{Dirent, getdents, seek_folder};
use crate::common::{Mounted, Place, assert_same, errno, fixture, fuse_is_here, gguf, text};

const SIZES: [usize; 7] = [1, 7, 4095, 4096, 4097, 131_072, 131_073];

/// A mount of a file with every block type, and its larger files: decoded, stored, rendered.
fn mounted() -> (Mounted, Vec<PathBuf>) {
    let mounted = Mounted::new(fixture("gguf/good/tiny.gguf"));
    let mut files: Vec<PathBuf> = Vec::new();
    for folder in ["raw", "npy", "as/f32", "as/f16", "as/raw-bf16", "as/bits", "source", "."] {
        files.extend(fs::read_dir(mounted.path(folder)).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_file()));
    }
    (mounted, files)
}

/// A plain generator of numbers, so that a failure can be had again.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit.max(1)
    }
}

#[test]
fn any_buffer_size_gives_the_whole_and_any_piece_is_a_piece_of_it() {
    if !fuse_is_here() {
        return;
    }
    let (mounted, files) = mounted();
    let mut numbers = Numbers(0x9E37_79B9_7F4A_7C15);
    for path in &files {
        let whole = fs::read(path).unwrap();
        let shown = path.display().to_string();
        for size in SIZES.iter().filter(|size| **size > 1 || whole.len() < 5000) {
            let mut file = File::open(path).unwrap();
            let (mut found, mut buffer) = (Vec::new(), vec![0u8; *size]);
            loop {
                let read = file.read(&mut buffer).unwrap();
                if read == 0 {
                    break;
                }
                found.extend_from_slice(&buffer[..read]);
            }
            assert_same(&format!("{shown} in steps of {size}"), &found, &whole);
        }
        let file = File::open(path).unwrap();
        for _ in 0..40 {
            let offset = numbers.below(whole.len() as u64 + 10);
            let mut buffer = vec![0u8; numbers.below(20_000) as usize];
            let read = file.read_at(&mut buffer, offset).unwrap();
            let start = whole.len().min(offset as usize);
            assert_same(&format!("{shown} at {offset}"), &buffer[..read], &whole[start..whole.len().min(start + buffer.len())]);
        }
        assert_eq!(file.read_at(&mut [0; 10], 1 << 62).unwrap(), 0);
        let mut file = file;
        assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), whole.len() as u64);
    }
    mounted.unmount();
}

#[test]
fn direct_reads_that_pass_the_kernels_cache_give_the_same_bytes() {
    if !fuse_is_here() {
        return;
    }
    let (mounted, files) = mounted();
    for path in &files {
        // Not read before through the cache: these bytes come from the server in just these pieces.
        let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
        let size = file.metadata().unwrap().len() as usize;
        let mut memory = vec![0u8; 8192 + 4096];
        let start = memory.as_ptr().align_offset(4096);
        let (mut found, buffer) = (Vec::new(), &mut memory[start..start + 8192]);
        while found.len() < size {
            let read = file.read_at(buffer, found.len() as u64).unwrap();
            assert!(read > 0, "{}", path.display());
            found.extend_from_slice(&buffer[..read]);
        }
        assert_same(&path.display().to_string(), &found, &fs::read(path).unwrap());
    }
    mounted.unmount();
}

#[test]
fn eight_readers_at_once_see_the_same_bytes() {
    if !fuse_is_here() {
        return;
    }
    let (mounted, files) = mounted();
    let expected: Vec<Vec<u8>> = files
        .iter()
        .map(|path| {
            let relative = path.strip_prefix(&mounted.point).unwrap();
            crate::common::run(mounted.place.program().arg("cat").arg(fixture("gguf/good/tiny.gguf")).arg(relative)).out
        })
        .collect();
    std::thread::scope(|scope| {
        for reader in 0..8u64 {
            let (files, expected) = (&files, &expected);
            scope.spawn(move || {
                let mut numbers = Numbers(reader + 1);
                for _ in 0..400 {
                    let at = numbers.below(files.len() as u64) as usize;
                    let direct = if numbers.below(2) == 0 { libc::O_DIRECT } else { 0 };
                    let file = File::options().read(true).custom_flags(direct).open(&files[at]).unwrap();
                    let whole = &expected[at];
                    let mut memory = vec![0u8; 65_536 + 4096];
                    let align = memory.as_ptr().align_offset(4096);
                    let offset = numbers.below(whole.len() as u64) as usize & !4095;
                    let buffer = &mut memory[align..align + 4096 * (1 + numbers.below(16) as usize)];
                    let read = file.read_at(buffer, offset as u64).unwrap();
                    let end = whole.len().min(offset + buffer.len());
                    assert_same(&format!("{} at {offset}", files[at].display()), &buffer[..read], &whole[offset..end]);
                }
            });
        }
    });
    mounted.unmount();
}

#[test]
fn folders_are_no_files_and_files_no_folders() {
    if !fuse_is_here() {
        return;
    }
    let (mounted, _) = mounted();
    assert_eq!(errno(fs::read(mounted.path("raw"))), libc::EISDIR);
    assert_eq!(errno(fs::read_dir(mounted.path("info.json"))), libc::ENOTDIR);
    assert_eq!(errno(fs::read(mounted.path("info.json/x"))), libc::ENOTDIR);
    for missing in ["nothing", "raw/nothing", "npy/output_norm.weight", "npy/output_norm.weight.npy~2", "RAW"] {
        assert_eq!(errno(fs::read(mounted.path(missing))), libc::ENOENT, "{missing}");
    }
    // The same again, since the kernel may have kept the answer.
    assert_eq!(errno(fs::read(mounted.path("nothing"))), libc::ENOENT);
    assert_eq!(errno(fs::read(mounted.path("x".repeat(256)))), libc::ENAMETOOLONG);
    mounted.unmount();
}

/// Lists a folder to its end with a buffer of this size.
fn list(folder: &File, size: usize) -> Vec<Dirent> {
    let mut all = Vec::new();
    loop {
        let some = getdents(folder, size).unwrap();
        if some.is_empty() {
            return all;
        }
        all.extend(some);
    }
}

#[test]
fn a_large_folder_lists_each_entry_once_in_steps_of_any_size_and_from_any_place() {
    if !fuse_is_here() {
        return;
    }
    const COUNT: u32 = 20_000;
    let place = Place::new();
    let source = place.path("many.gguf");
    gguf::many(&source, COUNT);
    let mounted = Mounted::at(place, &source, &[]);
    let open = || File::open(mounted.path("raw")).unwrap();
    let whole = list(&open(), 1 << 16);
    let names: BTreeMap<&[u8], u64> = whole.iter().map(|e| (e.name.as_slice(), e.ino)).collect();
    assert_eq!((whole.len(), names.len()), (COUNT as usize + 2, COUNT as usize + 2));
    for i in [0, 1, 9_999, COUNT - 1] {
        let name = format!("blk.{i}.weight.f32");
        assert!(names.contains_key(name.as_bytes()));
        assert_eq!(fs::read(mounted.path("raw").join(&name)).unwrap(), gguf::many_values(i));
        use std::os::unix::fs::MetadataExt;
        assert_eq!(fs::metadata(mounted.path("raw").join(&name)).unwrap().ino(), names[name.as_bytes()]);
    }
    // A buffer for one or two entries, and the two halves of it in two listers at once.
    std::thread::scope(|scope| {
        for size in [72, 100, 333] {
            let (whole, folder) = (&whole, open());
            scope.spawn(move || assert!(list(&folder, size) == *whole, "steps of {size} bytes"));
        }
    });
    // seekdir to what telldir said, and rewinddir.
    let folder = open();
    for at in [0, 1, 2, 3, 500, 10_000, COUNT as usize + 1] {
        seek_folder(&folder, whole[at].next);
        assert!(list(&folder, 4096) == whole[at + 1..], "from entry {at}");
    }
    seek_folder(&folder, 0);
    assert!(list(&folder, 300) == whole);
    let kinds: Vec<u8> = list(&File::open(&mounted.point).unwrap(), 4096).iter().map(|e| e.kind).collect();
    assert!(kinds.contains(&libc::DT_DIR) && kinds.contains(&libc::DT_REG));
    assert!(text(mounted.path("info.json")).contains("20000"));
    drop(folder);
    mounted.unmount();
}
