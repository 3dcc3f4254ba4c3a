//! What becomes of a mount when its source is cut, replaced, rewritten or appended to.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{Mounted, Place, errno, eventually, fuse_is_here, gguf, text, walk};

const ELEMENTS: u64 = 1 << 20;
const BYTES: u64 = ELEMENTS * 4;
/// How long it may take until the server has seen that a source was rewritten.
const SEEN: Duration = Duration::from_secs(5);

fn ramp() -> (Mounted, PathBuf) {
    let place = Place::new();
    let source = place.path("ramp.gguf");
    gguf::ramp(&source, ELEMENTS);
    let log = place.path("log").into_os_string().into_string().unwrap();
    (Mounted::at(place, &source, &["--log-file", &log]), source)
}

/// Where the bytes of `ramp` start in the source.
fn start_of_ramp(source: &std::path::Path) -> u64 {
    fs::metadata(source).unwrap().len() - BYTES - 32
}

/// Reads a piece; what comes back must be what was there, whatever has happened.
fn piece(file: &File, offset: u64, len: usize) -> std::io::Result<()> {
    let mut bytes = vec![0u8; len];
    let mut done = 0;
    while done < len {
        // A read may stop short of what is gone, but then the next one has to fail: there is no end of the file here.
        let read = file.read_at(&mut bytes[done..], offset + done as u64)?;
        assert_ne!(read, 0, "an end of the file at {}", offset + done as u64);
        let wrong = bytes[done..done + read].iter().zip(offset + done as u64..).position(|(byte, at)| *byte != (at % 251) as u8);
        assert_eq!(wrong, None, "a wrong byte behind offset {offset} + {done}");
        done += read;
    }
    Ok(())
}

#[test]
fn a_source_that_is_cut_fails_only_reads_of_what_is_gone() {
    if !fuse_is_here() {
        return;
    }
    for round in 0..10u64 {
        let (mounted, source) = ramp();
        let start = start_of_ramp(&source);
        // On a page's edge while others read; within a page (whose rest the kernel fills with zeros) in the odd rounds.
        let cut = (start + BYTES / 10 * round.max(1)) & !4095;
        let cut = if round % 2 == 1 { cut + 1234 } else { cut };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for reader in 0..3u64 {
                let (path, stop) = (mounted.path("raw/ramp.f32"), &stop);
                scope.spawn(move || {
                    let file = File::open(path).unwrap();
                    let mut at = reader;
                    while !stop.load(Ordering::Relaxed) {
                        at = (at * 6_364_136_223 + 1_442_695) % (BYTES - 70_000);
                        // The partial page may be caught in the middle of the cut; elsewhere every byte that is read is right.
                        if round % 2 == 0 {
                            if let Err(e) = piece(&file, at, 65_536) {
                                assert_eq!(e.raw_os_error(), Some(libc::EIO));
                            }
                        } else {
                            let _ = file.read_at(&mut [0; 65_536], at);
                        }
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(20));
            File::options().write(true).open(&source).unwrap().set_len(cut).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            stop.store(true, Ordering::Relaxed);
        });
        let file = File::open(mounted.path("raw/ramp.f32")).unwrap();
        let left = cut - start;
        piece(&file, 0, 4096).unwrap();
        piece(&file, (left & !4095) - 8192, 4096).unwrap();
        // What the kernel had in its cache goes once the server has seen the cut.
        for offset in [(left & !4095) + 8192, BYTES - 4096, left & !4095] {
            eventually("reads of what is gone fail", SEEN, || piece(&file, offset, 4096).is_err_and(|e| e.raw_os_error() == Some(libc::EIO)));
        }
        assert_eq!(errno(fs::read(mounted.path("raw/last.f32"))), libc::EIO);
        assert_eq!(fs::read(mounted.path("raw/first.f32")).unwrap(), [1; 32]);
        assert!(walk(&mounted.point).len() > 20);
        assert!(text(mounted.path("tensors.json")).contains("ramp"));
        assert!(text(mounted.place.path("log")).contains("was cut"), "{}", text(mounted.place.path("log")));
        drop(file);
        mounted.unmount();
    }
}

#[test]
fn a_source_that_is_emptied_leaves_a_mount_that_lists_and_unmounts() {
    if !fuse_is_here() {
        return;
    }
    let (mounted, source) = ramp();
    File::options().write(true).open(&source).unwrap().set_len(0).unwrap();
    for path in ["raw/ramp.f32", "npy/last.npy", "as/f16/ramp.npy", "source/ramp.gguf", "source/SHA256SUMS"] {
        assert_eq!(errno(fs::read(mounted.path(path))), libc::EIO, "{path}");
    }
    assert!(walk(&mounted.point).len() > 20);
    mounted.unmount();
}

#[test]
fn a_source_that_is_replaced_keeps_its_old_bytes() {
    if !fuse_is_here() {
        return;
    }
    let (mounted, source) = ramp();
    let file = File::open(mounted.path("raw/ramp.f32")).unwrap();
    let other = mounted.place.path("other");
    fs::write(&other, vec![7; 10_000]).unwrap();
    fs::rename(&other, &source).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    for offset in [0, BYTES / 2, BYTES - 4096] {
        piece(&file, offset, 4096).unwrap();
        piece(&File::open(mounted.path("raw/ramp.f32")).unwrap(), offset + 1, 4095).unwrap();
    }
    fs::remove_file(&source).unwrap();
    assert_eq!(fs::read(mounted.path("raw/last.f32")).unwrap(), [2; 32]);
    assert!(text(mounted.path("source/SHA256SUMS")).contains("ramp.gguf"));
    drop(file);
    mounted.unmount();
}

#[test]
fn a_source_that_is_rewritten_in_place_fails_even_where_the_kernel_had_its_bytes() {
    if !fuse_is_here() {
        return;
    }
    let (mounted, source) = ramp();
    let path = mounted.path("raw/ramp.f32");
    let file = File::open(&path).unwrap();
    piece(&file, 0, BYTES as usize).unwrap();
    fs::read(mounted.path("as/f16/ramp.npy")).unwrap();
    let mut writer = File::options().write(true).open(&source).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    writer.write_all_at(&[9; 5000], start_of_ramp(&source)).unwrap();
    writer.flush().unwrap();
    let mut bytes = [0u8; 4096];
    assert_eq!(errno(File::open(&path)), libc::EIO);
    for offset in [0, BYTES / 2] {
        eventually("reads of a rewritten source fail", SEEN, || file.read_at(&mut bytes, offset).is_err_and(|e| e.raw_os_error() == Some(libc::EIO)));
    }
    for path in ["raw/first.f32", "npy/ramp.npy", "as/f16/ramp.npy", "source/ramp.gguf"] {
        assert_eq!(errno(fs::read(mounted.path(path))), libc::EIO, "{path}");
    }
    assert!(text(mounted.place.path("log")).contains("was rewritten"));
    assert!(walk(&mounted.point).len() > 20);
    drop(file);
    mounted.unmount();
}

#[test]
fn a_source_that_is_appended_to_or_touched_counts_as_rewritten() {
    if !fuse_is_here() {
        return;
    }
    for append in [true, false] {
        let (mounted, source) = ramp();
        let file = File::open(mounted.path("raw/ramp.f32")).unwrap();
        piece(&file, 0, 4096).unwrap();
        let mut writer = File::options().append(true).open(&source).unwrap();
        if append {
            writer.write_all(b"more").unwrap();
        } else {
            writer.set_modified(std::time::SystemTime::now() + Duration::from_secs(100)).unwrap();
        }
        assert_eq!(errno(fs::read(mounted.path("raw/last.f32"))), libc::EIO);
        assert_eq!(errno(piece(&file, BYTES / 2, 4096)), libc::EIO);
        eventually("reads of what was cached fail", SEEN, || piece(&file, 0, 4096).is_err());
        assert!(walk(&mounted.point).len() > 20);
        drop(file);
        mounted.unmount();
    }
}

#[test]
fn a_second_change_is_seen_as_well_as_the_first() {
    if !fuse_is_here() {
        return;
    }
    // Cut first, then rewritten where it still was.
    let (mounted, source) = ramp();
    let file = File::open(mounted.path("raw/ramp.f32")).unwrap();
    let writer = File::options().write(true).open(&source).unwrap();
    writer.set_len(start_of_ramp(&source) + BYTES / 2).unwrap();
    eventually("the cut is seen", SEEN, || piece(&file, BYTES - 4096, 4096).is_err());
    std::thread::sleep(Duration::from_millis(1500));
    piece(&file, 0, 65_536).unwrap();
    writer.write_all_at(&[9; 5000], 40).unwrap();
    eventually("reads of a rewritten source fail", SEEN, || piece(&file, 0, 4096).is_err());
    drop(file);
    mounted.unmount();

    // One source, then another.
    let place = Place::new();
    let (one, two) = (place.path("one.gguf"), place.path("two.gguf"));
    gguf::ramp(&one, ELEMENTS);
    gguf::ramp(&two, ELEMENTS);
    crate::common::run(place.program().args([&one, &two]).arg(place.path("mnt"))).good();
    let open = |name: &str| File::open(place.path("mnt").join(name).join("raw/ramp.f32")).unwrap();
    for (path, name) in [(one, "one"), (two, "two")] {
        let file = open(name);
        piece(&file, 0, 65_536).unwrap();
        File::options().append(true).open(path).unwrap().write_all(b"more").unwrap();
        eventually("reads of a rewritten source fail", SEEN, || piece(&file, 0, 4096).is_err());
    }
}

#[test]
fn metadata_of_a_rewritten_source_is_never_made_of_its_new_bytes() {
    if !fuse_is_here() {
        return;
    }
    let place = Place::new();
    let source = place.copy("gguf/good/tiny.gguf", "tiny.gguf");
    let mounted = Mounted::at(place, &source, &[]);
    let template = text(mounted.path("metadata/tokenizer.chat_template.json"));
    let bytes = fs::read(&source).unwrap();
    // One token becomes another one of its length: the file is as sound as before, so that nothing but its being rewritten can be why a read fails.
    let at = bytes.windows(5).position(|w| w == b"<unk>").unwrap();
    File::options().write(true).open(&source).unwrap().write_all_at(b"ZZZZZ", at as u64).unwrap();
    let fresh = crate::common::run(mounted.place.program().args(["cat".as_ref(), source.as_os_str(), "tokenizer/tokens.json".as_ref()])).good();
    assert!(fresh.contains("\"ZZZZZ\""), "{fresh}");
    for path in ["tokenizer/tokens.json", "metadata/tokenizer.ggml.tokens.json", "metadata.json"] {
        let read = fs::read(mounted.path(path));
        assert!(read.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EIO)), "{path}: {read:?}");
    }
    // What was read before may still be known, but then it is what it was.
    if let Ok(again) = fs::read_to_string(mounted.path("metadata/tokenizer.chat_template.json")) {
        assert_eq!(again, template);
    }
    assert!(text(mounted.path("tensors.json")).starts_with('['));
    mounted.unmount();
}

#[test]
fn a_source_that_changes_while_it_is_opened_mounts_or_is_refused() {
    if !fuse_is_here() {
        return;
    }
    let place = Place::new();
    let source = place.path("changing.gguf");
    let whole = fs::read(crate::common::fixture("gguf/good/tiny.gguf")).unwrap();
    fs::write(&source, &whole).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = File::options().write(true).open(&source).unwrap();
            for round in 0u64.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                file.set_len(round * 977 % whole.len() as u64).unwrap();
                std::thread::sleep(Duration::from_micros(500));
                file.write_all_at(&whole, 0).unwrap();
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        let results: Vec<_> = (0..40)
            .map(|_| {
                let done = crate::common::run(place.program().arg("-q").arg(&source).arg(place.path("mnt")));
                if done.code == Some(0) {
                    // Whatever is served, the listing is there and the server lives.
                    let listed = fs::read_dir(place.path("mnt")).map(Iterator::count);
                    place.unmount(place.path("mnt"));
                    place.all_over();
                    listed.map(|_| ()).map_err(|e| e.to_string())
                } else if done.code == Some(1) && !done.err.contains("panicked") && !done.err.contains("internal error") {
                    Ok(())
                } else {
                    Err(format!("{done:?}"))
                }
            })
            .collect();
        stop.store(true, Ordering::Relaxed);
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    });
    place.all_over();
}
