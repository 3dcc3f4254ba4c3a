//! Work on many files by several threads.
//!
//! A thread takes one file after the other and works through its pieces in order, so that files are read and written in long runs and no two threads wait
//! for each other's writes to one file. A thread for which no file is left helps with the pieces of the others' files: one huge file keeps all cores busy.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use mount_tensors::error::Result;
use mount_tensors::fs::Scratch;

/// Bytes that a thread takes at a time.
pub(super) const PIECE: u64 = 8 << 20;

/// What is to be done with each of a number of files.
pub(super) trait Job: Sync {
    /// A file that is being worked on.
    type File: Send + Sync;

    /// How many files there are.
    fn count(&self) -> usize;

    /// Opens a file.
    fn begin(&self, index: usize) -> Result<Begun<Self::File>>;

    /// Does a part of a file.
    fn piece(&self, file: &Self::File, range: Range<u64>, scratch: &mut Scratch) -> Result<()>;

    /// Called once, when all parts of a file are done.
    fn end(&self, file: &Self::File) -> Result<()>;
}

/// A file that was opened.
pub(super) struct Begun<F> {
    pub(super) file: F,
    pub(super) len: u64,
    /// Whether its parts may be done at the same time and in any order.
    pub(super) divisible: bool,
}

/// A file on which threads are working.
struct Shared<F> {
    index: usize,
    file: F,
    len: u64,
    /// Where the next piece begins.
    next: AtomicU64,
    /// Bytes that are not done yet.
    left: AtomicU64,
}

impl<F> Shared<F> {
    fn take(&self) -> Option<Range<u64>> {
        // More than the length by at most a piece for each thread.
        let start = self.next.fetch_add(PIECE, Ordering::Relaxed);
        (start < self.len).then(|| start..self.len.min(start.saturating_add(PIECE)))
    }
}

struct Board<'a, J: Job> {
    job: &'a J,
    state: Mutex<State<J::File>>,
    /// Told when a file was opened or could not be.
    opened: Condvar,
    /// Whether something failed: nobody begins anything any more.
    stopped: AtomicBool,
}

struct State<F> {
    /// The first file that nobody has taken.
    next: usize,
    /// How many are being opened.
    opening: usize,
    /// The files with which others may help.
    shared: Vec<Arc<Shared<F>>>,
    /// Of the failures, that of the first file.
    failure: Option<(usize, mount_tensors::error::Error)>,
}

/// What a thread does next.
enum Task<F> {
    Open(usize),
    Help(Arc<Shared<F>>),
}

/// Does the whole job. Of each file the parts are begun in order, and no part of it is begun any more once one has failed.
///
/// # Errors
/// The failure of the first of the files that failed; files that were not done to their end are dropped without `end`.
pub(super) fn run<J: Job>(job: &J) -> Result<()> {
    let state = State { next: 0, opening: 0, shared: Vec::new(), failure: None };
    let board = Board { job, state: Mutex::new(state), opened: Condvar::new(), stopped: AtomicBool::new(false) };
    // Two at least: one computes while the other waits for the disk.
    let threads = thread::available_parallelism().map_or(2, |n| n.get().max(2));
    thread::scope(|scope| {
        for _ in 1..threads {
            // Where the system gives no more threads, those that there are do it all.
            let _ = thread::Builder::new().spawn_scoped(scope, || board.work());
        }
        board.work();
    });
    let state = board.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    state.failure.map_or(Ok(()), |(_, e)| Err(e))
}

impl<J: Job> Board<'_, J> {
    fn state(&self) -> MutexGuard<'_, State<J::File>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut scratch = Scratch::default();
        while let Some(task) = self.task() {
            match task {
                Task::Open(index) => self.open(index, &mut scratch),
                Task::Help(shared) => self.pieces(&shared, &mut scratch),
            }
        }
    }

    fn task(&self) -> Option<Task<J::File>> {
        let mut state = self.state();
        loop {
            if self.stopped.load(Ordering::Relaxed) {
                return None;
            }
            if state.next < self.job.count() {
                state.next += 1;
                state.opening += 1;
                return Some(Task::Open(state.next - 1));
            }
            state.shared.retain(|shared| shared.next.load(Ordering::Relaxed) < shared.len);
            if let Some(shared) = state.shared.first() {
                return Some(Task::Help(Arc::clone(shared)));
            }
            if state.opening == 0 {
                return None;
            }
            state = self.opened.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn open(&self, index: usize, scratch: &mut Scratch) {
        let opening = Opening(self);
        match self.job.begin(index) {
            Err(e) => self.fail(index, e),
            Ok(Begun { file, len, divisible }) => {
                let shared = Arc::new(Shared { index, file, len, next: AtomicU64::new(0), left: AtomicU64::new(len) });
                if divisible && len > PIECE {
                    let mut state = self.state();
                    state.shared.retain(|shared| shared.next.load(Ordering::Relaxed) < shared.len);
                    state.shared.push(Arc::clone(&shared));
                }
                drop(opening);
                match len {
                    0 => self.job.end(&shared.file).unwrap_or_else(|e| self.fail(index, e)),
                    _ => self.pieces(&shared, scratch),
                }
            }
        }
    }

    /// Takes pieces of a file until there are no more.
    fn pieces(&self, shared: &Shared<J::File>, scratch: &mut Scratch) {
        while !self.stopped.load(Ordering::Relaxed) {
            let Some(range) = shared.take() else { return };
            let bytes = range.end - range.start;
            let done = self.job.piece(&shared.file, range, scratch).and_then(|()| match shared.left.fetch_sub(bytes, Ordering::AcqRel) == bytes {
                true => self.job.end(&shared.file),
                false => Ok(()),
            });
            if let Err(e) = done {
                return self.fail(shared.index, e);
            }
        }
    }

    fn fail(&self, index: usize, error: mount_tensors::error::Error) {
        let mut state = self.state();
        self.stopped.store(true, Ordering::Relaxed);
        if state.failure.as_ref().is_none_or(|(first, _)| index < *first) {
            state.failure = Some((index, error));
        }
        // Those who were waiting for a file to be opened need not any more.
        self.opened.notify_all();
    }
}

/// A file is being opened; dropped when it is open, or cannot be.
struct Opening<'a, 'b, J: Job>(&'a Board<'b, J>);

impl<J: Job> Drop for Opening<'_, '_, J> {
    fn drop(&mut self) {
        self.0.state().opening -= 1;
        self.0.opened.notify_all();
    }
}
