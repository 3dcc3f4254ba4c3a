//! Compressed zip members that read like files.
//!
//! A member is decompressed as far as it is read, in order, into an unlinked temporary file; every later read at any offset is a pread of that file. One
//! thread decompresses, straight into the buffer of the read it is for where that read goes on from there; readers of what there is already do not wait for
//! it, and those of what comes next wait no longer than until it is there. The files of all members together stay under a budget of bytes and of open
//! files: the one used longest ago is dropped and made again when it is needed.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError, Weak};

use super::{Health, Source};

/// How a zip member is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Method 8.
    Deflate,
    /// Method 12.
    Bzip2,
    /// Method 14.
    Lzma,
}

/// The temporary files of all members together may hold this much, in bytes; one member alone may be larger.
const BUDGET: u64 = 4 << 30;
/// So many temporary files may be open at once: an archive may have more members than a process may have files.
const FILES: u64 = 128;
/// How much is decompressed at a time, in bytes.
const STEP: usize = 256 << 10;
/// A read that wants no less than this of what comes next has it decompressed into its own buffer; smaller ones are read ahead of, in bytes.
const DIRECT: usize = 64 << 10;

/// A compressed run of bytes in another source.
pub struct Member {
    parent: Arc<Source>,
    offset: u64,
    compressed: u64,
    len: u64,
    crc: u32,
    method: Compression,
    work: Arc<Work>,
}

/// What has been decompressed so far. The lock is never held while something is decompressed.
#[derive(Default)]
struct Work {
    state: Mutex<State>,
    /// Told when there is more, and when the thread that decompresses has stopped.
    advanced: Condvar,
}

#[derive(Default)]
struct State {
    file: Option<Arc<File>>,
    /// Where decompression goes on; a thread that decompresses has it.
    decoder: Option<Decoder>,
    inflating: bool,
    done: u64,
    /// What is wrong with the member, once that is known.
    broken: Option<String>,
    used: u64,
    /// Whether it is among the holders.
    listed: bool,
}

/// A member's bytes in order, and their sum.
struct Decoder {
    stream: Box<dyn Read + Send>,
    crc: flate2::Crc,
}

/// Every member that holds a temporary file, for the budget.
static HOLDERS: Mutex<Vec<Weak<Work>>> = Mutex::new(Vec::new());
static CLOCK: AtomicU64 = AtomicU64::new(1);
/// Bytes in all temporary files.
static HELD: AtomicU64 = AtomicU64::new(0);
/// How many temporary files there are.
static OPEN: AtomicU64 = AtomicU64::new(0);

fn over_budget() -> bool {
    HELD.load(Ordering::Relaxed) > BUDGET || OPEN.load(Ordering::Relaxed) > FILES
}

impl Work {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Gives the temporary file back.
    fn release(&mut self) {
        if self.file.take().is_some() {
            OPEN.fetch_sub(1, Ordering::Relaxed);
        }
        self.decoder = None;
        HELD.fetch_sub(std::mem::take(&mut self.done), Ordering::Relaxed);
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.release();
    }
}

/// The one thread that decompresses a member. If it panics, the member begins anew with the next read.
struct Inflating<'a>(&'a Work);

impl Drop for Inflating<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.inflating = false;
        state.release();
        drop(state);
        self.0.advanced.notify_all();
    }
}

impl Member {
    /// The member whose `compressed` bytes start at `offset` in `parent` and give `len` bytes with this CRC-32.
    pub fn new(parent: Arc<Source>, offset: u64, compressed: u64, len: u64, crc: u32, method: Compression) -> Self {
        Self { parent, offset, compressed, len, crc, method, work: Arc::default() }
    }

    /// The source that holds the compressed bytes.
    pub fn parent(&self) -> &Source {
        &self.parent
    }

    /// Decompresses up to `out.len()` first bytes without keeping anything, to look at a member's head; gives how many there are.
    ///
    /// # Errors
    /// The compressed bytes cannot be read or are damaged.
    pub fn head(&self, out: &mut [u8]) -> io::Result<usize> {
        let mut decoder = self.stream()?;
        let mut done: usize = 0;
        // Never asked for more than the member has: an LZMA stream may end without saying so.
        let declared = usize::try_from(self.len).unwrap_or(usize::MAX).min(out.len());
        let out = out.get_mut(..declared).unwrap_or_default();
        while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match decoder.read(rest)? {
                0 => break,
                n => done = done.saturating_add(n),
            }
        }
        Ok(done)
    }

    /// Fills `out` with the decompressed bytes at `offset`.
    pub(super) fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(out.len() as u64).filter(|end| *end <= self.len);
        let end = end.ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "the member ends before these bytes"))?;
        if out.is_empty() {
            return Ok(());
        }
        let mut state = self.work.state();
        state.used = CLOCK.fetch_add(1, Ordering::Relaxed);
        loop {
            if let Some(what) = &state.broken {
                return Err(damaged(what));
            }
            match &state.file {
                Some(file) if state.done >= end => {
                    let file = Arc::clone(file);
                    drop(state);
                    file.read_exact_at(out, offset)?;
                    break;
                }
                _ if state.inflating => state = self.work.advanced.wait(state).unwrap_or_else(PoisonError::into_inner),
                _ => {
                    self.advance(state, offset, out)?;
                    break;
                }
            }
        }
        if over_budget() {
            keep_budget();
        }
        Ok(())
    }

    /// Decompresses up to the end of `out` and fills it with the bytes at `offset`; nobody else is decompressing.
    fn advance(&self, mut state: MutexGuard<'_, State>, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let decoder = state.decoder.take();
        let (file, mut decoder) = match (&state.file, decoder) {
            (Some(file), Some(decoder)) => (Arc::clone(file), decoder),
            _ => {
                state.release();
                let decoder = Decoder { stream: self.stream()?, crc: flate2::Crc::new() };
                let file = Arc::new(temporary_file()?);
                state.file = Some(Arc::clone(&file));
                OPEN.fetch_add(1, Ordering::Relaxed);
                if !std::mem::replace(&mut state.listed, true) {
                    remember(&self.work);
                }
                (file, decoder)
            }
        };
        let start = state.done;
        state.inflating = true;
        drop(state);
        let inflating = Inflating(&self.work);
        let inflated = self.inflate(&file, &mut decoder, start, offset, out);
        // It did not panic. From here on another thread may decompress.
        std::mem::forget(inflating);
        let mut state = self.work.state();
        match &inflated {
            Ok(()) => state.decoder = (state.done < self.len).then_some(decoder),
            Err(e) => {
                // What is wrong with the member stays wrong; a full disk may have room again.
                if matches!(e.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof) {
                    state.broken = Some(e.to_string());
                }
                state.release();
                log::error!("{}: compressed member at offset {}: {e}", self.parent.path().display(), self.offset);
            }
        }
        state.inflating = false;
        drop(state);
        self.work.advanced.notify_all();
        inflated
    }

    /// Decompresses from `done` to the end of `out` and fills it with the bytes at `offset`, those before `done` from the file.
    fn inflate(&self, file: &File, decoder: &mut Decoder, mut done: u64, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.parent.health() == Health::Rewritten {
            return Err(damaged("the container was rewritten"));
        }
        let before = usize::try_from(done.saturating_sub(offset)).unwrap_or(usize::MAX).min(out.len());
        let (before, mut out) = out.split_at_mut(before);
        file.read_exact_at(before, offset)?;
        let mut step = Vec::new();
        while !out.is_empty() {
            let left = usize::try_from(self.len.saturating_sub(done)).unwrap_or(usize::MAX);
            let filled;
            if offset <= done && (out.len() >= DIRECT || out.len() == left) {
                let part = out.split_at_mut(out.len().min(STEP)).0;
                filled = self.step(file, decoder, done, part)?;
                done = done.saturating_add(filled as u64);
            } else {
                step.resize(left.min(STEP), 0);
                let n = self.step(file, decoder, done, &mut step)?;
                let skip = usize::try_from(offset.saturating_sub(done)).unwrap_or(usize::MAX);
                let part = step.get(skip..n).unwrap_or_default();
                filled = part.len().min(out.len());
                out.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
                done = done.saturating_add(n as u64);
            }
            out = out.split_at_mut(filled).1;
        }
        Ok(())
    }

    /// Decompresses the next bytes after the first `done` ones, some or all of `part`, into it and into the file, and tells those who wait for them.
    fn step(&self, file: &File, decoder: &mut Decoder, done: u64, part: &mut [u8]) -> io::Result<usize> {
        let n = decoder.stream.read(part)?;
        let part = part.get(..n).filter(|part| !part.is_empty()).ok_or_else(|| damaged("it ends before its declared size"))?;
        decoder.crc.update(part);
        file.write_all_at(part, done)?;
        let done = done.saturating_add(n as u64);
        if done == self.len && decoder.crc.sum() != self.crc {
            return Err(damaged("its CRC-32 does not match"));
        }
        HELD.fetch_add(n as u64, Ordering::Relaxed);
        self.work.state().done = done;
        self.work.advanced.notify_all();
        Ok(n)
    }

    fn stream(&self) -> io::Result<Box<dyn Read + Send>> {
        let input = BufReader::with_capacity(64 << 10, Compressed { parent: Arc::clone(&self.parent), at: self.offset, left: self.compressed });
        Ok(match self.method {
            Compression::Deflate => Box::new(flate2::bufread::DeflateDecoder::new(input)),
            Compression::Bzip2 => Box::new(bzip2::bufread::BzDecoder::new(input)),
            Compression::Lzma => lzma(input, self.len)?,
        })
    }
}

/// The LZMA stream of a zip member: two version bytes, the size of the properties (5), the properties, raw LZMA (APPNOTE.TXT 5.8.8).
///
/// Whether a marker ends the stream (bit 1 of the member's flags) does not matter: it is decoded as one that has a marker, and never read past its length.
fn lzma(mut input: BufReader<Compressed>, len: u64) -> io::Result<Box<dyn Read + Send>> {
    /// The largest dictionary that is allocated, in bytes: xz -9 uses 64 MiB.
    const DICTIONARY: u32 = 64 << 20;
    let mut head = [0; 9];
    input.read_exact(&mut head)?;
    let [_, _, size, high, properties, a, b, c, d] = head;
    if size != 5 || high != 0 {
        return Err(damaged("its LZMA properties have an unknown size"));
    }
    let dictionary = u32::from_le_bytes([a, b, c, d]).min(u32::try_from(len).unwrap_or(u32::MAX).max(4096));
    if dictionary > DICTIONARY {
        return Err(damaged("its LZMA dictionary is larger than 64 MiB"));
    }
    Ok(Box::new(lzma_rust2::LzmaReader::new_with_props(input, u64::MAX, properties, dictionary, None)?))
}

/// The compressed bytes in order.
struct Compressed {
    parent: Arc<Source>,
    at: u64,
    left: u64,
}

impl Read for Compressed {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = usize::try_from(self.left).unwrap_or(usize::MAX).min(out.len());
        let Some(part) = out.get_mut(..n) else { return Ok(0) };
        self.parent.read_at(self.at, part)?;
        self.at = self.at.saturating_add(n as u64);
        self.left = self.left.saturating_sub(n as u64);
        Ok(n)
    }
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// An unlinked file in the temporary folder (TMPDIR), or in memory where that folder cannot be written at all.
fn temporary_file() -> io::Result<File> {
    temporary_file_in(&std::env::temp_dir())
}

fn temporary_file_in(folder: &Path) -> io::Result<File> {
    static TOLD: Once = Once::new();
    let unnamed = File::options().read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE).open(folder);
    let file = match unnamed {
        // The file system or the kernel knows no files without a name.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) => unlinked_file(folder),
        other => other,
    };
    match file {
        // A disk that is full, or too many open files, is no reason to fill the memory.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EROFS | libc::ENOENT | libc::ENOTDIR | libc::EACCES | libc::EPERM)) => {
            TOLD.call_once(|| log::warn!("{}: cannot be written ({e}), compressed members are kept in memory instead", folder.display()));
            memory_file()
        }
        other => other,
    }
}

/// A file that loses its name as soon as it has been made.
fn unlinked_file(folder: &Path) -> io::Result<File> {
    for _ in 0..100 {
        let path = folder.join(format!(".mount-tensors-{}-{}", std::process::id(), CLOCK.fetch_add(1, Ordering::Relaxed)));
        match File::options().read(true).write(true).create_new(true).mode(0o600).open(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other.and_then(|file| std::fs::remove_file(path).map(|()| file)),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[expect(unsafe_code, reason = "memfd_create has no safe wrapper in std")]
fn memory_file() -> io::Result<File> {
    use std::os::fd::FromRawFd;
    // SAFETY: the name is a NUL-terminated literal; the call has no other requirement.
    let fd = unsafe { libc::memfd_create(c"mount-tensors".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and has no other owner.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Enters a member that has made its temporary file.
fn remember(work: &Arc<Work>) {
    let mut holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
    if holders.len() == holders.capacity() {
        holders.retain(|holder| holder.strong_count() > 0);
    }
    holders.push(Arc::downgrade(work));
}

/// Drops the temporary files used longest ago until the rest fits the budget. A member that is being read just now is left alone.
fn keep_budget() {
    let mut candidates = Vec::new();
    HOLDERS.lock().unwrap_or_else(PoisonError::into_inner).retain(|holder| {
        let Some(work) = holder.upgrade() else { return false };
        let Ok(mut state) = work.state.try_lock() else { return true };
        let (holds, used) = (state.file.is_some(), state.used);
        state.listed = holds;
        drop(state);
        if holds {
            candidates.push((used, work));
        }
        holds
    });
    candidates.sort_by_key(|(used, _)| *used);
    candidates.pop(); // the newest is the one just read
    for (_, work) in candidates {
        if !over_budget() {
            break;
        }
        if let Ok(mut state) = work.state.try_lock()
            && !state.inflating
        {
            state.release();
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use std::io::Write;
    use std::time::UNIX_EPOCH;

    use super::*;

    /// Bytes that compress, with a different value at every place that matters: a ramp modulo 251.
    fn ramp(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i % 251) as u8).collect()
    }

    fn deflated(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn bzipped(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn crc(bytes: &[u8]) -> u32 {
        let mut crc = flate2::Crc::new();
        crc.update(bytes);
        crc.sum()
    }

    /// A member behind 7 other bytes and before 3 more.
    fn member(packed: &[u8], len: u64, crc: u32, method: Compression) -> Member {
        let archive = [b"before:", packed, b"end"].concat();
        Member::new(Source::from_bytes("a.npz", archive), 7, packed.len() as u64, len, crc, method)
    }

    fn source(member: Member) -> Arc<Source> {
        let len = member.len;
        Source::from_member("a.npz/m", UNIX_EPOCH, len, member)
    }

    #[test]
    fn reads_at_odd_offsets() {
        let plain = ramp(1_000_003);
        for (packed, method) in [(deflated(&plain), Compression::Deflate), (bzipped(&plain), Compression::Bzip2)] {
            let source = source(member(&packed, plain.len() as u64, crc(&plain), method));
            for (offset, len) in [(0, 1), (299_999, 7), (13, 40_000), (262_143, 2), (1_000_002, 1), (0, 1_000_003), (1_000_003, 0), (524_288, 262_145)] {
                let mut out = vec![0; len];
                source.read_at(offset as u64, &mut out).unwrap();
                assert!(out == plain[offset..offset + len], "{method:?} {offset} {len}");
            }
            assert!(source.read_at(1_000_003, &mut [0]).is_err());
            assert!(source.read_at(u64::MAX, &mut [0]).is_err());
        }
    }

    #[test]
    fn a_head_is_no_longer_than_the_member() {
        let plain = ramp(100);
        let member = member(&deflated(&plain), 100, crc(&plain), Compression::Deflate);
        let mut out = [1; 300];
        assert_eq!(member.head(&mut out).unwrap(), 100);
        assert_eq!(out[..100], plain);
        assert_eq!(member.head(&mut out[..7]).unwrap(), 7);
        assert_eq!(member.head(&mut []).unwrap(), 0);
    }

    /// `b"mount-tensors " * 20` as an LZMA member of Python's zipfile has it, which ends in a marker, and as 7-Zip writes it, which does not.
    #[test]
    fn lzma_with_and_without_an_end_marker() {
        const MARKED: &[u8] =
            b"\x09\x04\x05\x00\x5d\x00\x00\x80\x00\x00\x36\x9b\xcb\x11\x9b\xf1\x96\xc7\x20\x99\x0a\x22\x1b\xed\x22\x6f\x70\xd2\x00\xc7\xff\xff\xfa\xdf\x80\x00";
        const UNMARKED: &[u8] = b"\x09\x04\x05\x00\x5d\x00\x00\x80\x00\x00\x36\x9b\xcb\x11\x9b\xf1\x96\xc7\x20\x99\x0a\x22\x1b\xed\x22\x6f\x70\xc7\x19\x00\x00";
        let plain = b"mount-tensors ".repeat(20);
        for packed in [MARKED, UNMARKED] {
            let member = member(packed, plain.len() as u64, crc(&plain), Compression::Lzma);
            let mut head = vec![0; 1000];
            assert_eq!(member.head(&mut head).unwrap(), plain.len());
            assert_eq!(head[..plain.len()], plain);
            let source = source(member);
            let mut out = vec![0; plain.len()];
            source.read_at(0, &mut out).unwrap();
            assert_eq!(out, plain);
        }
    }

    #[test]
    fn lzma_properties_are_checked() {
        for head in
            [&b"\x09\x04\x05\x00\xff\x00\x00\x01\x00"[..], b"\x09\x04\x06\x00\x5d\x00\x00\x01\x00", b"\x09\x04\x05\x00\x5d\x00\x00\x00\xf0", b"\x09\x04"]
        {
            let member = member(head, 1 << 40, 0, Compression::Lzma);
            assert!(member.head(&mut [0; 16]).is_err(), "{head:?}");
        }
    }

    #[test]
    fn a_damaged_member_fails_and_says_so_once_and_for_all() {
        let plain = ramp(300_000);
        let packed = deflated(&plain);
        let wrong_sum = source(member(&packed, 300_000, 1, Compression::Deflate));
        let mut out = vec![0; 300_000];
        assert_eq!(wrong_sum.read_at(0, &mut out).unwrap_err().to_string(), "its CRC-32 does not match");
        assert!(wrong_sum.read_at(0, &mut out[..1]).is_err());
        let too_long = source(member(&packed, 300_001, crc(&plain), Compression::Deflate));
        assert!(too_long.read_at(300_000, &mut [0]).is_err());
        let garbage = source(member(&[0xff; 100], 300_000, 1, Compression::Deflate));
        assert!(garbage.read_at(0, &mut [0]).is_err());
        let cut = source(member(&packed[..packed.len() / 2], 300_000, crc(&plain), Compression::Deflate));
        assert!(cut.read_at(299_999, &mut [0]).is_err());
    }

    #[test]
    fn more_members_than_open_files() {
        let plain = ramp(5000);
        let packed = deflated(&plain);
        let sources: Vec<_> = (0..3 * FILES).map(|_| source(member(&packed, 5000, crc(&plain), Compression::Deflate))).collect();
        for pass in 0..2 {
            for source in &sources {
                let mut out = [0; 3];
                source.read_at(4000 + pass, &mut out).unwrap();
                assert_eq!(out[..], plain[4000 + pass as usize..][..3]);
                assert!(OPEN.load(Ordering::Relaxed) <= FILES + 64, "other tests may hold a few");
            }
        }
    }

    /// What was decompressed once is there for everybody while another reader waits for the far end.
    #[test]
    fn a_reader_of_the_start_does_not_wait_for_the_end() {
        use std::sync::mpsc;

        /// A decoder that gives a step's worth whenever it is told to.
        struct Slow(mpsc::Receiver<()>);
        impl Read for Slow {
            fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
                self.0.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
                out.fill(7);
                Ok(out.len())
            }
        }

        let (go, wait) = mpsc::channel();
        let len = 4 * STEP as u64;
        let member = member(&[], len, 0, Compression::Deflate);
        {
            let mut state = member.work.state();
            state.file = Some(Arc::new(temporary_file().unwrap()));
            OPEN.fetch_add(1, Ordering::Relaxed);
            state.decoder = Some(Decoder { stream: Box::new(Slow(wait)), crc: flate2::Crc::new() });
        }
        std::thread::scope(|scope| {
            let far = scope.spawn(|| member.read_at(len - 10, &mut [0; 10]));
            go.send(()).unwrap();
            // The first step comes, although the far reader holds the decoder and waits for three more; then it is read again and again.
            for _ in 0..3 {
                let mut out = [0; 100];
                member.read_at(STEP as u64 - 100, &mut out).unwrap();
                assert_eq!(out, [7; 100]);
            }
            assert!(!far.is_finished());
            (0..3).for_each(|_| go.send(()).unwrap());
            assert_eq!(far.join().unwrap().unwrap_err().to_string(), "its CRC-32 does not match");
        });
        // Everybody is told the same.
        assert_eq!(member.read_at(0, &mut [0]).unwrap_err().to_string(), "its CRC-32 does not match");
    }

    #[test]
    fn memory_holds_members_only_where_no_file_can() {
        let name = |file: &File| {
            use std::os::fd::AsRawFd;
            std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap().to_string_lossy().into_owned()
        };
        let folder = tempfile::tempdir().unwrap();
        assert!(name(&temporary_file_in(folder.path()).unwrap()).starts_with(folder.path().to_str().unwrap()));
        assert!(name(&temporary_file_in(&folder.path().join("none")).unwrap()).contains("memfd"));
        let unlinked = unlinked_file(folder.path()).unwrap();
        unlinked.write_all_at(b"x", 0).unwrap();
        assert!(name(&unlinked).contains("(deleted)"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn many_threads_read_one_member() {
        let plain = ramp(2_000_000);
        let packed = deflated(&plain);
        let source = source(member(&packed, 2_000_000, crc(&plain), Compression::Deflate));
        std::thread::scope(|scope| {
            for thread in 0..4_usize {
                let (source, plain) = (&source, &plain);
                scope.spawn(move || {
                    for step in 0..50 {
                        let offset = (step * 7919 * (thread + 3)) % 1_900_000;
                        let mut out = vec![0; 1001];
                        source.read_at(offset as u64, &mut out).unwrap();
                        assert!(out == plain[offset..offset + 1001]);
                    }
                });
            }
        });
        // In turn and in order, as a kernel reads ahead: whoever stops decompressing is followed at once.
        for len in [1000, 70_000] {
            for _ in 0..20 {
                let source = self::source(member(&packed, 2_000_000, crc(&plain), Compression::Deflate));
                std::thread::scope(|scope| {
                    for thread in 0..4_usize {
                        let (source, plain) = (&source, &plain);
                        scope.spawn(move || {
                            for part in plain.chunks(len).enumerate().skip(thread).step_by(4) {
                                let mut out = vec![0; part.1.len()];
                                source.read_at((part.0 * len) as u64, &mut out).unwrap();
                                assert!(out == part.1);
                            }
                        });
                    }
                });
            }
        }
    }
}
