//! Tensors in huge pages: copied or decoded once into a file that the kernel then reads without asking this program.
//!
//! The files have no name and lie on a tmpfs that is mounted nowhere; their pages are 2 MiB large, which is why reading and mapping them is faster than
//! the original. They are memory that cannot be reclaimed, so they stay under a budget, and under what the machine and every control group have left.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::memory::Memory;
use crate::sys;

/// How much the files may hold together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// A share of what is free when the mount starts.
    Share,
    /// So many bytes.
    Bytes(u64),
}

/// Bytes that one worker fills at a time: two huge pages.
const CHUNK: usize = 4 << 20;
/// Size of a huge page on the machines that have them for tmpfs, in bytes.
const HUGE: u64 = 2 << 20;
/// How often whoever waits for a file is thought of while it is filled.
const TICK: Duration = Duration::from_millis(5);
/// How often memory is looked at while a file is filled.
const LOOK: Duration = Duration::from_millis(20);
/// What is left to others of a control group's memory, in bytes: more than the threads that fill take before they look again.
const RESERVE: u64 = MOST_THREADS as u64 * CHUNK as u64;
/// Most threads that fill a file.
const MOST_THREADS: usize = 8;

/// The files' place.
pub struct Pool {
    folder: OwnedFd,
    memory: Memory,
    limit: u64,
    /// The budget was chosen by the user: then only a reserve is left to others, not most of what is free.
    chosen: bool,
    threads: usize,
    /// A control group limits this process.
    is_limited: bool,
}

/// Fills a part of a file: offset and where to put the bytes.
pub type Fill<'a> = dyn Fn(u64, &mut [u8]) -> io::Result<()> + Sync + 'a;

impl Pool {
    /// A pool with a budget.
    ///
    /// # Errors
    /// This user may not mount, there are no huge pages for tmpfs, or the budget has no room for even one.
    pub fn new(budget: Budget) -> io::Result<Self> {
        let memory = Memory::new();
        let (limit, chosen) = match budget {
            Budget::Share => (memory.headroom().share(), false),
            Budget::Bytes(bytes) => (bytes, true),
        };
        let limit = limit / HUGE * HUGE;
        if limit == 0 {
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, "the budget is smaller than a huge page"));
        }
        let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get).min(MOST_THREADS);
        let is_limited = memory.headroom().limit != u64::MAX;
        Ok(Self { folder: sys::huge_page_folder(limit)?, memory, limit, chosen, threads, is_limited })
    }

    /// Most bytes that it holds.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Whether a file of `len` bytes may be made now.
    pub fn has_room(&self, len: u64) -> bool {
        let len = len.div_ceil(HUGE).saturating_mul(HUGE);
        let used = sys::used_bytes(&self.folder).unwrap_or(u64::MAX);
        let now = self.memory.headroom();
        let free = if self.chosen { (now.available / 4 * 3).min(now.group / 4 * 3) } else { now.share() };
        used.saturating_add(len) <= self.limit && len <= free && len.saturating_add(RESERVE) <= now.group && !now.is_short()
    }

    /// A file of `len` bytes, filled by all cores.
    ///
    /// `meanwhile` is called every few milliseconds until it is done, and says whether to go on.
    ///
    /// # Errors
    /// There is no memory, or `fill` failed.
    pub fn filled(&self, len: u64, fill: &Fill<'_>, meanwhile: &mut dyn FnMut() -> bool) -> io::Result<File> {
        let file = sys::unnamed_file(&self.folder)?;
        file.set_len(len)?;
        let size = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut map = sys::map_for_writing(&file, size)?;
        let chunks = Mutex::new(map.chunks_mut(CHUNK).enumerate());
        let stop = AtomicBool::new(false);
        let worker = || {
            while !stop.load(Ordering::Relaxed) {
                let Some((number, chunk)) = chunks.lock().unwrap_or_else(PoisonError::into_inner).next() else { return Ok(()) };
                let offset = (number as u64).saturating_mul(CHUNK as u64);
                // Past its group's limit the server would be killed, and others fill the group as well.
                if self.is_limited && self.memory.headroom().group < RESERVE {
                    stop.store(true, Ordering::Relaxed);
                    return Err(io::Error::new(io::ErrorKind::OutOfMemory, "the memory control group is nearly full"));
                }
                // With its memory at hand, a chunk can be written to without a SIGBUS.
                let done = sys::allocate(&file, offset, chunk.len() as u64).and_then(|()| fill(offset, chunk));
                done.inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
            }
            Err(io::ErrorKind::Interrupted.into())
        };
        let worker = &worker;
        let result = std::thread::scope(|scope| {
            let (alive, ended) = channel::<()>();
            let mut workers = Vec::new();
            for _ in 0..self.threads {
                let alive = alive.clone();
                let started = std::thread::Builder::new().spawn_scoped(scope, move || {
                    let _alive = alive;
                    worker()
                });
                match started {
                    Ok(handle) => workers.push(handle),
                    // One is enough; where the system has not even that, the file is read another way.
                    Err(_) if !workers.is_empty() => break,
                    Err(e) => return Err(e),
                }
            }
            drop(alive);
            let mut looked = Instant::now();
            let mut short = false;
            while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                if looked.elapsed() > LOOK {
                    looked = Instant::now();
                    short = self.memory.headroom().is_short();
                }
                if !meanwhile() || short {
                    stop.store(true, Ordering::Relaxed);
                }
            }
            let results = workers.into_iter().map(|worker| worker.join().unwrap_or_else(|_| Err(io::Error::other("a worker has panicked"))));
            let mut errors: Vec<io::Error> = results.filter_map(Result::err).collect();
            // The error that stopped the others says more than theirs.
            errors.sort_by_key(|e| e.kind() == io::ErrorKind::Interrupted);
            match errors.into_iter().next() {
                Some(e) if short && e.kind() == io::ErrorKind::Interrupted => Err(io::Error::new(io::ErrorKind::OutOfMemory, "memory is short")),
                Some(e) if e.kind() == io::ErrorKind::Interrupted => Err(io::Error::new(e.kind(), "it is not wanted any more")),
                other => other.map_or(Ok(()), Err),
            }
        });
        drop(map);
        result.map(|()| file)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use std::os::unix::fs::FileExt;

    use super::*;

    /// A pool, or a word that it cannot be had here.
    pub(crate) fn pool(budget: u64) -> Option<Pool> {
        match Pool::new(Budget::Bytes(budget)) {
            Ok(pool) => Some(pool),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EINVAL | libc::ENOSYS)) => {
                // Not eprintln: the harness would swallow it for a test that passes.
                let _ = io::Write::write_all(&mut io::stderr(), format!("skipped: no tmpfs of huge pages here ({e})\n").as_bytes());
                None
            }
            Err(e) => panic!("{e}"),
        }
    }

    fn ramp(offset: u64, out: &mut [u8]) -> io::Result<()> {
        out.iter_mut().zip(offset..).for_each(|(byte, at)| *byte = (at % 251) as u8);
        Ok(())
    }

    fn check(file: &File, len: u64) {
        assert_eq!(file.metadata().unwrap().len(), len);
        let mut bytes = vec![0; usize::try_from(len).unwrap()];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes.iter().zip(0u64..).all(|(byte, at)| u64::from(*byte) == at % 251));
    }

    #[test]
    fn files_hold_what_was_filled_in() {
        let Some(pool) = pool(64 << 20) else { return };
        for len in [9_000_001, 1, 20 << 20, 4 << 20] {
            check(&pool.filled(len, &ramp, &mut || true).unwrap(), len);
        }
    }

    #[test]
    fn the_budget_is_kept_and_given_back() {
        let Some(pool) = pool(16 << 20) else { return };
        assert!(pool.has_room(16 << 20));
        assert!(!pool.has_room((16 << 20) + 1));
        let file = pool.filled(9 << 20, &ramp, &mut || true).unwrap();
        assert!(!pool.has_room(8 << 20));
        // Past the budget the file system itself says no, before anything is written.
        assert!(pool.filled(9 << 20, &ramp, &mut || true).is_err());
        drop(file);
        assert!(pool.has_room(16 << 20));
    }

    #[test]
    fn a_source_that_fails_ends_the_filling() {
        let Some(pool) = pool(64 << 20) else { return };
        let fill = |offset, out: &mut [u8]| if offset == 8 << 20 { Err(io::Error::other("gone")) } else { ramp(offset, out) };
        let error = pool.filled(40 << 20, &fill, &mut || true).unwrap_err();
        assert_eq!(error.to_string(), "gone");
        assert!(pool.has_room(64 << 20));
    }
}
