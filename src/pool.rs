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
        Ok(Self { folder: sys::huge_page_folder(limit)?, memory, limit, chosen, threads })
    }

    /// Most bytes that it holds.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// What the machine has left.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Whether a file of `len` bytes may be made now, given that `spare` bytes of those in use would be used again for it.
    pub fn has_room(&self, len: u64, spare: u64) -> bool {
        let len = len.div_ceil(HUGE).saturating_mul(HUGE);
        let used = sys::used_bytes(&self.folder).unwrap_or(u64::MAX);
        let more = len.saturating_sub(spare);
        let now = self.memory.headroom();
        let free = if self.chosen { (now.available / 4 * 3).min(now.group / 4 * 3) } else { now.share() };
        used.saturating_sub(spare).saturating_add(len) <= self.limit && more <= free && (more == 0 || !now.is_short())
    }

    /// A file of `len` bytes, filled by all cores. `spare` is a file that is used for nothing else any more: its pages need no clearing.
    ///
    /// `meanwhile` is called every few milliseconds until it is done.
    ///
    /// # Errors
    /// There is no memory, or `fill` failed.
    pub fn filled(&self, len: u64, spare: Option<File>, fill: &Fill<'_>, meanwhile: &mut dyn FnMut()) -> io::Result<File> {
        let file = spare.map_or_else(|| sys::unnamed_file(&self.folder), Ok)?;
        file.set_len(len)?;
        let size = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut map = sys::map_for_writing(&file, size)?;
        let chunks = Mutex::new(map.chunks_mut(CHUNK).enumerate());
        let stop = AtomicBool::new(false);
        let worker = || {
            while !stop.load(Ordering::Relaxed) {
                let Some((number, chunk)) = chunks.lock().unwrap_or_else(PoisonError::into_inner).next() else { return Ok(()) };
                let offset = (number as u64).saturating_mul(CHUNK as u64);
                // With its memory at hand, a chunk can be written to without a SIGBUS.
                let done = sys::allocate(&file, offset, chunk.len() as u64).and_then(|()| fill(offset, chunk));
                done.inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
            }
            Err(io::ErrorKind::Interrupted.into())
        };
        let worker = &worker;
        let result = std::thread::scope(|scope| {
            let (alive, ended) = channel::<()>();
            let workers: Vec<_> = (0..self.threads)
                .map(|_| {
                    let alive = alive.clone();
                    scope.spawn(move || {
                        let _alive = alive;
                        worker()
                    })
                })
                .collect();
            drop(alive);
            let mut looked = Instant::now();
            while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                meanwhile();
                if looked.elapsed() > LOOK {
                    looked = Instant::now();
                    if self.memory.headroom().is_short() {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            }
            let results = workers.into_iter().map(|worker| worker.join().unwrap_or_else(|_| Err(io::Error::other("a worker has panicked"))));
            let mut errors: Vec<io::Error> = results.filter_map(Result::err).collect();
            // The error that stopped the others says more than theirs.
            errors.sort_by_key(|e| e.kind() == io::ErrorKind::Interrupted);
            errors.into_iter().next().map_or(Ok(()), Err)
        });
        drop(map);
        result.map(|()| file)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use std::os::unix::fs::FileExt;

    use super::*;

    /// A pool, or a word that it cannot be had here.
    fn pool(budget: u64) -> Option<Pool> {
        match Pool::new(Budget::Bytes(budget)) {
            Ok(pool) => Some(pool),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EINVAL | libc::ENOSYS)) => {
                eprintln!("skipped: no tmpfs of huge pages here ({e})");
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
    fn files_hold_what_was_filled_in_also_when_used_again() {
        let Some(pool) = pool(64 << 20) else { return };
        let mut last = None;
        for len in [9_000_001, 1, 20 << 20, 4 << 20] {
            let file = pool.filled(len, last.take(), &ramp, &mut || {}).unwrap();
            check(&file, len);
            last = Some(file);
        }
    }

    #[test]
    fn the_budget_is_kept_and_given_back() {
        let Some(pool) = pool(16 << 20) else { return };
        assert!(pool.has_room(16 << 20, 0));
        assert!(!pool.has_room((16 << 20) + 1, 0));
        let file = pool.filled(9 << 20, None, &ramp, &mut || {}).unwrap();
        assert!(!pool.has_room(8 << 20, 0));
        assert!(pool.has_room(8 << 20, 10 << 20));
        // Past the budget the file system itself says no, before anything is written.
        assert!(pool.filled(9 << 20, None, &ramp, &mut || {}).is_err());
        drop(file);
        assert!(pool.has_room(16 << 20, 0));
    }

    #[test]
    fn a_source_that_fails_ends_the_filling() {
        let Some(pool) = pool(64 << 20) else { return };
        let fill = |offset, out: &mut [u8]| if offset == 8 << 20 { Err(io::Error::other("gone")) } else { ramp(offset, out) };
        let error = pool.filled(40 << 20, None, &fill, &mut || {}).unwrap_err();
        assert_eq!(error.to_string(), "gone");
        assert!(pool.has_room(64 << 20, 0));
    }

    #[test]
    fn a_mapping_counts_as_a_use() {
        let Some(pool) = pool(64 << 20) else { return };
        let file = pool.filled(4 << 20, None, &ramp, &mut || {}).unwrap();
        assert!(sys::is_only_use(&file));
        let reader = File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file))).unwrap();
        assert!(!sys::is_only_use(&file));
        let map = sys::map_for_writing(&file, 4096);
        drop(reader);
        drop(map);
        assert!(sys::is_only_use(&file));
    }
}
