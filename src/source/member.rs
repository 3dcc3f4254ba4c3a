//! Compressed zip members that read like files.
//!
//! A member is decompressed as far as it is read, in order, into an unlinked temporary file; every later read at any offset is a pread of that file. The
//! files of all members together stay under a budget: the one used longest ago is dropped and made again when it is needed.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

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
/// How much is decompressed at a time, in bytes.
const STEP: usize = 256 << 10;

/// A compressed run of bytes in another source.
pub struct Member {
    parent: Arc<Source>,
    offset: u64,
    compressed: u64,
    len: u64,
    crc: u32,
    method: Compression,
    work: Arc<Mutex<Work>>,
}

/// What has been decompressed so far.
#[derive(Default)]
struct Work {
    file: Option<File>,
    decoder: Option<Box<dyn Read + Send>>,
    done: u64,
    crc: flate2::Crc,
    broken: bool,
    used: u64,
}

/// Every member that holds a temporary file, for the budget.
static HOLDERS: Mutex<Vec<Weak<Mutex<Work>>>> = Mutex::new(Vec::new());
static CLOCK: AtomicU64 = AtomicU64::new(1);
/// Bytes in all temporary files.
static HELD: AtomicU64 = AtomicU64::new(0);

impl Work {
    /// Gives the temporary file back.
    fn release(&mut self) {
        self.file = None;
        self.decoder = None;
        HELD.fetch_sub(std::mem::take(&mut self.done), Ordering::Relaxed);
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.release();
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

    /// Decompresses up to `out.len()` first bytes without keeping anything, to look at a member's head.
    ///
    /// # Errors
    /// The compressed bytes cannot be read or are damaged.
    pub fn head(&self, out: &mut [u8]) -> io::Result<usize> {
        let mut decoder = self.decoder()?;
        let mut done = 0;
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
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        work.used = CLOCK.fetch_add(1, Ordering::Relaxed);
        if work.broken {
            return Err(damaged("the compressed member is damaged"));
        }
        if work.file.is_none() {
            work.file = Some(temporary_file()?);
            work.decoder = Some(self.decoder()?);
            work.crc = flate2::Crc::new();
            HOLDERS.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&self.work));
        }
        if work.done < end {
            if self.parent.health() == Health::Rewritten {
                return Err(damaged("the container was rewritten"));
            }
            let advanced = self.advance(&mut work, end);
            if let Err(e) = advanced {
                work.broken = true;
                work.release();
                log::error!("{}: compressed member at offset {}: {e}", self.parent.path().display(), self.offset);
                return Err(e);
            }
        }
        let Work { file: Some(file), .. } = &*work else { return Err(damaged("no temporary file")) };
        file.read_exact_at(out, offset)?;
        drop(work);
        if HELD.load(Ordering::Relaxed) > BUDGET {
            keep_budget();
        }
        Ok(())
    }

    fn advance(&self, work: &mut Work, end: u64) -> io::Result<()> {
        let mut step = vec![0; STEP];
        let (Some(file), Some(decoder)) = (&mut work.file, &mut work.decoder) else { return Err(damaged("no decoder")) };
        while work.done < end {
            let wanted = usize::try_from(self.len.saturating_sub(work.done)).unwrap_or(STEP).min(STEP);
            let part = step.get_mut(..wanted).ok_or_else(|| damaged("step"))?;
            let n = decoder.read(part)?;
            let part = part.get(..n).filter(|part| !part.is_empty()).ok_or_else(|| damaged("it ends before its declared size"))?;
            work.crc.update(part);
            file.write_all(part)?;
            work.done = work.done.saturating_add(n as u64);
            HELD.fetch_add(n as u64, Ordering::Relaxed);
        }
        if work.done == self.len && work.crc.sum() != self.crc {
            return Err(damaged("its CRC-32 does not match"));
        }
        Ok(())
    }

    fn decoder(&self) -> io::Result<Box<dyn Read + Send>> {
        let input = BufReader::with_capacity(64 << 10, Compressed { parent: Arc::clone(&self.parent), at: self.offset, left: self.compressed });
        Ok(match self.method {
            Compression::Deflate => Box::new(flate2::bufread::DeflateDecoder::new(input)),
            Compression::Bzip2 => Box::new(bzip2::bufread::BzDecoder::new(input)),
            Compression::Lzma => lzma(input, self.len)?,
        })
    }
}

/// The LZMA stream of a zip member: two version bytes, the size of the properties (5), the properties, raw LZMA (APPNOTE.TXT 5.8.8).
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

/// An unlinked file in the temporary folder (TMPDIR), or in memory where that folder cannot be written.
fn temporary_file() -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let unnamed = File::options().read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE).open(std::env::temp_dir());
    unnamed.or_else(|_| memory_file())
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

/// Drops the temporary files used longest ago until the rest fits the budget. A member that is being read just now is left alone.
fn keep_budget() {
    let mut candidates = Vec::new();
    HOLDERS.lock().unwrap_or_else(PoisonError::into_inner).retain(|holder| {
        let Some(work) = holder.upgrade() else { return false };
        let Ok(state) = work.try_lock() else { return true };
        let (holds, used) = (state.file.is_some(), state.used);
        drop(state);
        if holds {
            candidates.push((used, work));
        }
        holds
    });
    candidates.sort_by_key(|(used, _)| *used);
    candidates.pop(); // the newest is the one just read
    for (_, work) in candidates {
        if HELD.load(Ordering::Relaxed) <= BUDGET {
            break;
        }
        if let Ok(mut state) = work.try_lock() {
            state.release();
        }
    }
}
