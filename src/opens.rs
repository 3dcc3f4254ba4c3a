//! Which way the bytes of an open file go, decided at each open from what is known of the file.
//!
//! | way | bytes | good for |
//! |---|---|---|
//! | kept | through the kernel's page cache, which stays from one open to the next | small files, mapping, small reads, reading again |
//! | direct | from this program into the reader's buffer | one long read: no second copy in memory, a third of the work |
//! | passed | the kernel reads another file in place of this one and does not ask | `source/`; tensors in huge pages |
//!
//! As an ordinary user files are kept, unless the page cache cannot hold them. With CAP_SYS_ADMIN a long tensor is read directly, or is put into a [`Pool`]
//! file first and passed. What was read in bulk and is opened again is worth its memory. So is what is opened for the first time, if the tensors of this mount
//! are seen to be read whole, one after the other: filling it with all cores and passing it is faster than reading it directly, and far faster for who maps
//! it. One of every few first opens is read directly to see whether that is still so, and only a few such files are there at a time. A search that glances
//! at each file soon finds none of them filled, and never one that takes more than a few milliseconds.
//!
//! The kernel refuses an open that does not fit those that are alive: none may be passed while another of the same inode is kept or direct, and the
//! other way round. Each open and release is counted here for that; the kernel leaves a way before it tells of the release, so the count errs on the safe side.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::fs::{Ino, Nature, Opened};
use crate::memory::Memory;
use crate::pool::{Fill, Pool};
use crate::sys;

/// What the user wants of caching.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Setting {
    /// Whatever is best.
    #[default]
    Auto,
    /// Always the kernel's page cache.
    Always,
    /// Nothing is kept anywhere.
    Never,
}

/// Whoever waits for the answer to an open.
pub trait Waiter: Send {
    /// A file that the kernel reads in place of another one.
    type Backing: Send;
    /// Tells the kernel of such a file.
    ///
    /// # Errors
    /// It takes none from this user (EPERM), or not from this file's file system.
    fn back(&self, file: &File) -> io::Result<Self::Backing>;
    /// The file is opened, kept; bytes from before are right if `unchanged`.
    fn kept(self, handle: u64, unchanged: bool);
    /// The file is opened, direct.
    fn direct(self, handle: u64);
    /// The file is opened, passed.
    fn passed(self, handle: u64, backing: &Self::Backing);
}

/// Fills a part of a file: which, at what offset, and where to put the bytes.
pub type FillPart<'a> = dyn Fn(Ino, u64, &mut [u8]) -> io::Result<()> + Sync + 'a;

/// Files below this size are kept: making a file of huge pages and the calls for it cost more than they save. In bytes.
const BULK: u64 = 4 << 20;
/// What was read of a file in bulk before it is worth its memory: this share of it, and at least [`BULK`].
const EVIDENCE: u64 = 16;
/// Reads below this size suit the page cache better, in bytes.
const SMALL_READ: u64 = 64 << 10;
/// How long an open may wait for its file to be filled: a gigabyte takes 200 ms from memory.
const PATIENCE: Duration = Duration::from_millis(300);
/// A file that nobody has open is given back after this.
const IDLE: Duration = Duration::from_secs(300);
/// So long if it was filled for a first reader, and not opened again.
const IDLE_ONCE: Duration = Duration::from_secs(20);
/// Files that were filled for a first reader, and that nobody has open, are used again for the next beyond this number.
const ONCE: usize = 2;
/// Files above this size are not filled for a first reader, who would wait too long: this one takes 100 to 200 ms from memory. In bytes.
const LARGEST_ONCE: u64 = 1 << 30;
/// The same as long as nobody has been observed: a few milliseconds.
const LARGEST_UNSEEN: u64 = 32 << 20;
/// One of so many first opens is read directly, to see how tensors are read.
const SAMPLE: u32 = 8;
/// After a file could not be filled it is not tried again for so long.
const PAUSE: Duration = Duration::from_secs(10);
/// How many open files are observed; more are served as well.
const COUNTERS: usize = 4096;
/// Read-ahead that is asked for a sequential reader, in bytes.
const AHEAD: u64 = 8 << 20;
/// The way is written into the handle above the number of the counter.
const WAY_SHIFT: u32 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Kept = 1,
    Direct = 2,
    Passed = 3,
}

/// What one open file has been asked for.
#[derive(Default)]
struct Counter {
    bytes: AtomicU64,
    requests: AtomicU64,
    /// The end of the last read.
    next: AtomicU64,
    /// How far read-ahead was asked for.
    ahead: AtomicU64,
}

enum State<W: Waiter> {
    Cold,
    /// Waits to be filled, or is filled; who waits for it, and until when.
    Filling(Vec<(W, bool, Instant)>),
    /// Filled; not to be used by new opens if it is stale.
    Ready {
        id: Option<W::Backing>,
        file: File,
    },
}

struct Inode<W: Waiter> {
    size: u64,
    state: State<W>,
    /// The source has changed since the state began.
    stale: bool,
    /// It is a container, whose backing is no memory of ours.
    original: bool,
    /// Opens that are kept or direct and alive.
    first: u32,
    /// Opens that are passed and alive.
    passed: u32,
    /// The counters of those that are kept or direct.
    counters: Vec<u32>,
    /// What opens that were kept or direct, and have ended, were asked for: bytes altogether, and bytes of kept ones.
    bytes: u64,
    kept_bytes: u64,
    /// The last direct open read in small pieces.
    small: bool,
    used: Instant,
    refused: Option<Instant>,
    /// It was filled for a first reader and not opened again since that one closed it.
    once: bool,
    /// Its last passed open has ended.
    left: bool,
}

/// How the tensors of a mount are read.
#[derive(Default)]
struct Habit {
    /// Whether the last one that was observed was read whole; `None` before there was any.
    bulk: Option<bool>,
    /// The one that is observed.
    sample: Option<Ino>,
    /// First opens since it was chosen.
    since: u32,
}

/// A file to be filled.
struct Job {
    ino: Ino,
    size: u64,
    spare: Option<File>,
}

struct Table<W: Waiter> {
    inodes: HashMap<Ino, Inode<W>>,
    free: Vec<u32>,
    jobs: VecDeque<Job>,
    habit: Habit,
    ended: bool,
}

/// Every open file.
pub struct Opens<W: Waiter> {
    setting: Setting,
    pool: Option<Pool>,
    memory: Memory,
    /// Passing works as far as is known.
    passing: AtomicBool,
    /// What the machine has available, looked at once a second.
    available: AtomicU64,
    table: Mutex<Table<W>>,
    wake: Condvar,
    counters: Box<[Counter]>,
}

impl<W: Waiter> Opens<W> {
    /// Nothing is open. Without a pool no tensor is passed; unless `passing`, nothing is.
    pub fn new(setting: Setting, pool: Option<Pool>, passing: bool) -> Self {
        let counters: Box<[Counter]> = (0..COUNTERS).map(|_| Counter::default()).collect();
        let memory = Memory::new();
        let available = memory.headroom().available;
        // Number 0 is no counter.
        let free = (1..COUNTERS as u32).rev().collect();
        Self {
            setting,
            pool,
            memory,
            passing: AtomicBool::new(passing),
            available: AtomicU64::new(available),
            table: Mutex::new(Table { inodes: HashMap::new(), free, jobs: VecDeque::new(), habit: Habit::default(), ended: false }),
            wake: Condvar::new(),
            counters,
        }
    }

    /// The kernel does not pass opens on.
    pub fn cannot_pass(&self) {
        self.passing.store(false, Ordering::Relaxed);
    }

    fn passes(&self) -> bool {
        self.passing.load(Ordering::Relaxed)
    }

    /// The pool, while it is of use.
    fn pool(&self) -> Option<&Pool> {
        self.pool.as_ref().filter(|_| self.passes())
    }

    fn table(&self) -> MutexGuard<'_, Table<W>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers an open, now or when its file is filled.
    pub fn open(&self, ino: Ino, opened: Opened<'_>, waiter: W) {
        let Opened { size, unchanged, nature } = opened;
        match (self.setting, nature) {
            (Setting::Always, _) | (_, Nature::Text) => return waiter.kept(0, unchanged),
            (Setting::Never, _) => return waiter.direct(0),
            (Setting::Auto, Nature::Part) if size < BULK => return waiter.kept(0, unchanged),
            (Setting::Auto, _) => {}
        }
        let mut table = self.table();
        let table = &mut *table;
        let is_new = !table.inodes.contains_key(&ino);
        let is_candidate = is_new && unchanged && matches!(nature, Nature::Part) && self.pool().is_some();
        let eager = is_candidate && self.is_to_be_filled_at_once(table, ino, size);
        let inode = table.inodes.entry(ino).or_insert_with(|| Inode::new(size));
        if !unchanged {
            inode.changed();
        }
        if inode.passed > 0 {
            return self.pass(inode, &mut table.free, waiter, unchanged);
        }
        let worth = unchanged && self.is_worth_its_memory(inode);
        match (&mut inode.state, nature) {
            (State::Ready { .. }, _) if inode.first == 0 && !inode.stale => return self.pass(inode, &mut table.free, waiter, unchanged),
            (State::Cold, Nature::Whole(file)) if inode.first == 0 && unchanged && self.passes() && inode.refused.is_none() => {
                if let Ok(file) = file.try_clone() {
                    inode.state = State::Ready { id: None, file };
                    inode.original = true;
                    return self.pass(inode, &mut table.free, waiter, unchanged);
                }
            }
            (State::Filling(waiters), _) if inode.first == 0 && !inode.stale => return waiters.push((waiter, unchanged, Instant::now() + PATIENCE)),
            (State::Cold, Nature::Part) if worth || eager => {
                if let Some(spare) = self.make_room(table, ino, size, eager) {
                    let Some(inode) = table.inodes.get_mut(&ino) else { return waiter.kept(0, unchanged) };
                    (inode.once, inode.left) = (eager, false);
                    table.jobs.push_back(Job { ino, size, spare });
                    self.wake.notify_one();
                    let mut waiters = Vec::new();
                    if inode.first == 0 {
                        waiters.push((waiter, unchanged, Instant::now() + PATIENCE));
                        inode.state = State::Filling(waiters);
                        return;
                    }
                    inode.state = State::Filling(waiters);
                    return self.first(inode, &mut table.free, waiter, unchanged);
                }
                let Some(inode) = table.inodes.get_mut(&ino) else { return waiter.kept(0, unchanged) };
                inode.refused = worth.then(Instant::now);
                return self.first(inode, &mut table.free, waiter, unchanged);
            }
            _ => {}
        }
        self.first(inode, &mut table.free, waiter, unchanged);
    }

    /// Whether so much of a file was read that the next reader is served best from memory.
    fn is_worth_its_memory(&self, inode: &Inode<W>) -> bool {
        self.pool().is_some() && inode.refused.is_none_or(|since| since.elapsed() > PAUSE) && self.read_of(inode) >= (inode.size / EVIDENCE).max(BULK)
    }

    /// How much was read of a file by opens that were not passed, in bytes.
    fn read_of(&self, inode: &Inode<W>) -> u64 {
        let live = inode.counters.iter().filter_map(|at| self.counter(*at)).map(|c| c.bytes.load(Ordering::Relaxed));
        live.fold(inode.bytes, u64::saturating_add)
    }

    /// Whether a tensor that is opened for the first time will most likely be read whole. Notes it as the next to be observed where that is not known.
    fn is_to_be_filled_at_once(&self, table: &mut Table<W>, ino: Ino, size: u64) -> bool {
        let Table { inodes, habit, .. } = table;
        if let Some(inode) = habit.sample.and_then(|sample| inodes.get(&sample)) {
            let whole = self.read_of(inode) >= inode.size / 2;
            // One that is still open may be read yet.
            if whole || inode.first == 0 {
                habit.bulk = Some(whole);
                habit.sample = None;
            }
        }
        let most = match habit.bulk {
            Some(true) => LARGEST_ONCE,
            Some(false) => 0,
            None => LARGEST_UNSEEN,
        };
        let fill = habit.since < SAMPLE && size <= most;
        habit.since = habit.since.saturating_add(1);
        if !fill && habit.sample.is_none() {
            (habit.sample, habit.since) = (Some(ino), 0);
        }
        fill
    }

    /// Makes room in the pool for a file, giving back those that nobody has open, the longest unused first; `None` if that is not enough. One of them may be
    /// used again, and is if the file is filled for a first reader and some were so before.
    fn make_room(&self, table: &mut Table<W>, ino: Ino, size: u64, once: bool) -> Option<Option<File>> {
        let pool = self.pool()?;
        if size > pool.limit() {
            return None;
        }
        let mut spare: Option<File> = None;
        if once {
            let mut idle: Vec<_> = table.inodes.values_mut().filter(|inode| inode.once && inode.is_idle()).collect();
            idle.sort_by_key(|inode| inode.used);
            let surplus = idle.len().saturating_sub(ONCE);
            for inode in idle.into_iter().take(surplus) {
                spare = inode.evict().filter(sys::is_only_use).or(spare);
            }
        }
        loop {
            let spared = spare.as_ref().and_then(|file| file.metadata().ok()).map_or(0, |meta| meta.len());
            if pool.has_room(size, spared) {
                return Some(spare);
            }
            let idle = table.inodes.iter_mut().filter(|(other, inode)| **other != ino && inode.is_idle());
            let (_, oldest) = idle.min_by_key(|(_, inode)| inode.used)?;
            let file = oldest.evict();
            spare = spare.or(file.filter(sys::is_only_use));
        }
    }

    /// Answers with the way of files that are not passed.
    fn first(&self, inode: &mut Inode<W>, free: &mut Vec<u32>, waiter: W, unchanged: bool) {
        let direct = match self.pool() {
            Some(_) if !inode.original && inode.refused.is_none_or(|since| since.elapsed() > PAUSE) => true,
            // What the page cache cannot hold, or did not, is not put there.
            _ => inode.size > self.available.load(Ordering::Relaxed) / 2 || (!inode.small && inode.kept_bytes >= inode.size.saturating_add(inode.size / 2)),
        };
        inode.first = inode.first.saturating_add(1);
        let counter = free.pop().unwrap_or(0);
        if let Some(counter) = self.counter(counter) {
            counter.reset();
        }
        if counter > 0 {
            inode.counters.push(counter);
        }
        if direct { waiter.direct(handle(Way::Direct, counter)) } else { waiter.kept(handle(Way::Kept, counter), unchanged) }
    }

    /// Answers by passing the open on; if the kernel takes no backing file, with another way.
    fn pass(&self, inode: &mut Inode<W>, free: &mut Vec<u32>, waiter: W, unchanged: bool) {
        if let State::Ready { id, file } = &mut inode.state {
            let made = match id.take() {
                Some(id) => Ok(id),
                None => waiter.back(file),
            };
            match made {
                Ok(backing) => {
                    // Opened again after its first reader has gone: it is there to stay.
                    inode.once &= !inode.left;
                    inode.passed = inode.passed.saturating_add(1);
                    inode.used = Instant::now();
                    return waiter.passed(handle(Way::Passed, 0), id.insert(backing));
                }
                Err(e) => {
                    log::info!("files cannot be passed on: {e}");
                    // A container's file system may be unfit; our own files are refused only if all are.
                    if !inode.original || e.raw_os_error() == Some(libc::EPERM) {
                        self.cannot_pass();
                    }
                    inode.refused = Some(Instant::now());
                }
            }
        }
        inode.state = State::Cold;
        self.first(inode, free, waiter, unchanged);
    }

    fn counter(&self, number: u32) -> Option<&Counter> {
        self.counters.get(number as usize).filter(|_| number > 0)
    }

    /// Notes a read; gives the part after it for which read-ahead should be asked, if it is one of many in a row.
    pub fn read(&self, handle: u64, offset: u64, size: u32) -> Option<(u64, u64)> {
        let counter = self.counter(handle as u32)?;
        let end = offset.saturating_add(size.into());
        let before = counter.bytes.fetch_add(size.into(), Ordering::Relaxed);
        counter.requests.fetch_add(1, Ordering::Relaxed);
        let last = counter.next.swap(end, Ordering::Relaxed);
        // The kernel asks for neighbouring parts at once, so they may arrive in another order.
        if offset > last.saturating_add(AHEAD / 8) || end.saturating_add(AHEAD / 8) < last {
            counter.ahead.store(end, Ordering::Relaxed);
            return None;
        }
        let ahead = counter.ahead.load(Ordering::Relaxed).max(end);
        // Whoever glances at a file has not read so much of it.
        if before < AHEAD / 8 || ahead.saturating_sub(end) > AHEAD / 2 {
            return None;
        }
        let wanted = end.saturating_add(AHEAD);
        counter.ahead.store(wanted, Ordering::Relaxed);
        Some((ahead, wanted.saturating_sub(ahead)))
    }

    /// Notes that an open file was closed for good.
    pub fn release(&self, ino: Ino, handle: u64) {
        if handle == 0 {
            return;
        }
        let mut table = self.table();
        let table = &mut *table;
        let Some(inode) = table.inodes.get_mut(&ino) else { return };
        inode.used = Instant::now();
        if handle >> WAY_SHIFT == Way::Passed as u64 {
            inode.passed = inode.passed.saturating_sub(1);
            inode.left = inode.passed == 0;
            if inode.passed == 0 && inode.stale {
                inode.evict();
            }
            return;
        }
        inode.first = inode.first.saturating_sub(1);
        let number = handle as u32;
        let Some(counter) = self.counter(number) else { return };
        let (bytes, requests) = (counter.bytes.load(Ordering::Relaxed), counter.requests.load(Ordering::Relaxed));
        inode.bytes = inode.bytes.saturating_add(bytes);
        if handle >> WAY_SHIFT == Way::Kept as u64 {
            inode.kept_bytes = inode.kept_bytes.saturating_add(bytes);
        } else {
            inode.small = bytes.checked_div(requests).is_some_and(|mean| mean < SMALL_READ);
            inode.kept_bytes = if inode.small { 0 } else { inode.kept_bytes };
        }
        inode.counters.retain(|live| *live != number);
        table.free.push(number);
    }

    /// Notes that a file's source has changed: what was filled is not for new readers.
    pub fn changed(&self, ino: Ino) {
        if let Some(inode) = self.table().inodes.get_mut(&ino) {
            inode.changed();
        }
    }

    /// Gives back what nobody has used for long, or everything that is unused if memory is short; to be called every second.
    pub fn tick(&self) {
        let now = self.memory.headroom();
        self.available.store(now.available, Ordering::Relaxed);
        let short = now.is_short();
        let mut table = self.table();
        for inode in table.inodes.values_mut().filter(|inode| inode.is_idle()) {
            if short || inode.used.elapsed() > if inode.once { IDLE_ONCE } else { IDLE } {
                inode.evict();
            }
        }
    }

    /// Answers those who have waited long enough.
    fn answer_the_impatient(&self) {
        let now = Instant::now();
        let mut table = self.table();
        let Table { inodes, free, .. } = &mut *table;
        for inode in inodes.values_mut() {
            let State::Filling(waiters) = &mut inode.state else { continue };
            let impatient: Vec<_> = waiters.extract_if(.., |(_, _, until)| *until <= now).collect();
            for (waiter, unchanged, _) in impatient {
                self.first(inode, free, waiter, unchanged);
            }
        }
    }

    /// Fills files as they are asked for, until [`Opens::end`]. `fill` gives a file's bytes, `is_unchanged` whether they are still right.
    pub fn fill_files(&self, fill: &FillPart<'_>, is_unchanged: &dyn Fn(Ino) -> bool) {
        let Some(pool) = &self.pool else { return };
        loop {
            let mut table = self.table();
            let Job { ino, size, spare } = loop {
                if table.ended {
                    return;
                }
                match table.jobs.pop_front() {
                    Some(job) => break job,
                    None => table = self.wake.wait(table).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(table);
            let started = Instant::now();
            let part: &Fill<'_> = &|offset, out| fill(ino, offset, out);
            let filled = pool.filled(size, spare, part, &mut || self.answer_the_impatient());
            match &filled {
                Ok(_) => log::debug!("inode {ino}: {size} bytes put into huge pages in {} ms", started.elapsed().as_millis()),
                Err(e) => log::info!("inode {ino}: cannot be put into huge pages: {e}"),
            }
            let right = is_unchanged(ino);
            self.filled(ino, filled.ok().filter(|_| right));
        }
    }

    /// Notes that a file was filled, or could not be, and answers those who wait for it.
    fn filled(&self, ino: Ino, file: Option<File>) {
        let mut table = self.table();
        let Table { inodes, free, .. } = &mut *table;
        let Some(inode) = inodes.get_mut(&ino) else { return };
        let State::Filling(waiters) = std::mem::replace(&mut inode.state, State::Cold) else { return };
        inode.bytes = 0;
        inode.used = Instant::now();
        match file {
            Some(file) if !inode.stale => inode.state = State::Ready { id: None, file },
            _ => inode.refused = Some(Instant::now()),
        }
        inode.stale = false;
        for (waiter, unchanged, _) in waiters {
            if inode.first == 0 && matches!(inode.state, State::Ready { .. }) {
                self.pass(inode, free, waiter, unchanged);
            } else {
                self.first(inode, free, waiter, unchanged);
            }
        }
    }

    /// Lets [`Opens::fill_files`] return.
    pub fn end(&self) {
        self.table().ended = true;
        self.wake.notify_all();
    }
}

impl<W: Waiter> Inode<W> {
    fn new(size: u64) -> Self {
        Self {
            size,
            state: State::Cold,
            stale: false,
            original: false,
            first: 0,
            passed: 0,
            counters: Vec::new(),
            bytes: 0,
            kept_bytes: 0,
            small: false,
            used: Instant::now(),
            refused: None,
            once: false,
            left: false,
        }
    }

    /// Whether it holds memory of the pool that nobody has open.
    fn is_idle(&self) -> bool {
        !self.original && self.passed == 0 && matches!(self.state, State::Ready { .. })
    }

    /// Has what was filled end with those who have it open.
    fn changed(&mut self) {
        self.stale = !matches!(self.state, State::Cold);
        if self.passed == 0 && matches!(self.state, State::Ready { .. }) {
            self.evict();
        }
    }

    /// Forgets the backing file, which lives on for as long as somebody has it mapped.
    fn evict(&mut self) -> Option<File> {
        self.stale = false;
        match std::mem::replace(&mut self.state, State::Cold) {
            // The kernel lets go of the file first.
            State::Ready { id, file } => {
                drop(id);
                Some(file)
            }
            other => {
                self.state = other;
                None
            }
        }
    }
}

impl Counter {
    fn reset(&self) {
        self.bytes.store(0, Ordering::Relaxed);
        self.requests.store(0, Ordering::Relaxed);
        self.next.store(0, Ordering::Relaxed);
        self.ahead.store(0, Ordering::Relaxed);
    }
}

fn handle(way: Way, counter: u32) -> u64 {
    (way as u64) << WAY_SHIFT | u64::from(counter)
}
