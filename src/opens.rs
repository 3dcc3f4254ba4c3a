//! Which way the bytes of an open file go, decided at each open from what is known of the file.
//!
//! | way | bytes | good for |
//! |---|---|---|
//! | kept | through the kernel's page cache, which stays from one open to the next | small files, mapping, small reads, reading again |
//! | direct | from this program into the reader's buffer | one long read: no second copy in memory, twice as fast as kept |
//! | passed | the kernel reads another file in place of this one and does not ask | `source/`; tensors in huge pages |
//!
//! As an ordinary user files are kept, unless the page cache cannot hold them. With CAP_SYS_ADMIN a long tensor is first read directly. What was read in bulk
//! and is opened again is worth its memory: it is put into a [`Pool`] file, and passed from then on. So one pass over a model puts nothing there, nor does a
//! search that glances at each file. Filling every tensor for its first reader would be a little faster still, but who has a passed file open does not learn
//! that the source was rewritten: that is accepted only where it is worth most.
//!
//! The kernel refuses an open that does not fit those that are alive: none may be passed while another of the same inode is kept or direct, and the
//! other way round. Each open and release is counted here for that; the kernel leaves a way before it tells of the release, so the count errs on the safe side.

mod counter;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use self::counter::Counter;
use crate::fs::{Ino, Nature, Opened};
use crate::memory::Memory;
use crate::pool::{Fill, Pool};

/// What the user wants of caching.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Setting {
    /// Whatever is best.
    #[default]
    Auto,
    /// Always the kernel's page cache.
    Always,
    /// Nothing that can be read directly is kept anywhere.
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
    /// The file is opened, direct; what others have mapped of it is right if `unchanged`.
    fn direct(self, handle: u64, unchanged: bool);
    /// The file is opened, passed.
    fn passed(self, handle: u64, backing: &Self::Backing);
}

/// Fills a part of a file: which, at what offset, and where to put the bytes.
pub type FillPart<'a> = dyn Fn(Ino, u64, &mut [u8]) -> io::Result<()> + Sync + 'a;

/// Files below this size are kept: making a file of huge pages and the calls for it cost more than they save. In bytes.
const BULK: u64 = 4 << 20;
/// What was read of a file before it is worth its memory: this share of it, and at least this much, or all of it. file(1) reads 7 MiB. In bytes.
const EVIDENCE_SHARE: u64 = 16;
const EVIDENCE: u64 = 8 << 20;
/// Reads below this size suit the page cache better, in bytes.
const SMALL_READ: u64 = 64 << 10;
/// How long an open may wait for its file to be filled: a gigabyte takes 200 ms from memory.
const PATIENCE: Duration = Duration::from_millis(300);
/// A file that nobody has open is given back after this.
const IDLE: Duration = Duration::from_secs(300);
/// After a file could not be filled it is not tried again for so long.
const PAUSE: Duration = Duration::from_secs(10);
/// How many open files are observed; more are served as well.
const COUNTERS: usize = 4096;
/// The way is written into the handle above the number of the counter.
const WAY_SHIFT: u32 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Kept = 1,
    Direct = 2,
    Passed = 3,
}

/// An open that waits for its file to be filled: until when, and whether bytes from before are right.
struct Waiting<W> {
    waiter: W,
    unchanged: bool,
    until: Instant,
}

enum State<W: Waiter> {
    Cold,
    /// Waits to be filled, or is being filled; who waits for it.
    Filling(Vec<Waiting<W>>),
    /// There is a file that the kernel can read in place of it, of the pool unless it is a container; not for new opens if it is stale.
    Ready {
        backing: Option<W::Backing>,
        file: Option<File>,
    },
}

struct Inode<W: Waiter> {
    size: u64,
    state: State<W>,
    /// The source has changed since the state began.
    stale: bool,
    /// It is a whole container, which is never filled.
    is_container: bool,
    /// Opens that are kept or direct and alive.
    unpassed: u32,
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
}

/// A file to be filled.
struct Job {
    ino: Ino,
    size: u64,
}

struct Table<W: Waiter> {
    inodes: HashMap<Ino, Inode<W>>,
    free: Vec<u32>,
    jobs: VecDeque<Job>,
    /// When the file was begun that is being filled now.
    filling_since: Option<Instant>,
    ended: bool,
}

/// Every open file.
pub struct Opens<W: Waiter> {
    setting: Setting,
    pool: Option<Pool>,
    memory: Memory,
    /// Passing works as far as is known.
    passing: AtomicBool,
    /// Files that are opened directly can be mapped.
    maps_direct: AtomicBool,
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
            maps_direct: AtomicBool::new(true),
            available: AtomicU64::new(available),
            table: Mutex::new(Table { inodes: HashMap::new(), free, jobs: VecDeque::new(), filling_since: None, ended: false }),
            wake: Condvar::new(),
            counters,
        }
    }

    /// The kernel does not pass opens on.
    pub fn cannot_pass(&self) {
        self.passing.store(false, Ordering::Relaxed);
    }

    /// Files that are opened directly cannot be mapped by several processes (Linux before 6.6): no file is opened so unless the user says it.
    pub fn cannot_map_direct(&self) {
        self.maps_direct.store(false, Ordering::Relaxed);
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
            (Setting::Never, _) => return waiter.direct(0, unchanged),
            (Setting::Auto, Nature::Part) if size < BULK => return waiter.kept(0, unchanged),
            (Setting::Auto, _) => {}
        }
        let mut table = self.table();
        let table = &mut *table;
        let job = if matches!(nature, Nature::Part) && unchanged { self.job(table, ino, size) } else { None };
        let inode = table.inodes.entry(ino).or_insert_with(|| Inode::new(size));
        inode.is_container = matches!(nature, Nature::Whole(_));
        if !unchanged {
            inode.changed();
        }
        if let Some(job) = job {
            table.jobs.push_back(job);
            self.wake.notify_one();
            inode.state = State::Filling(Vec::new());
        }
        match (&mut inode.state, nature) {
            // The kernel takes no other way while one is passed.
            _ if inode.passed > 0 => self.pass(inode, &mut table.free, waiter, unchanged),
            _ if inode.unpassed > 0 || inode.stale => self.answer(inode, &mut table.free, waiter, unchanged),
            (State::Ready { .. }, _) => self.pass(inode, &mut table.free, waiter, unchanged),
            (State::Filling(waiters), _) => waiters.push(Waiting { waiter, unchanged, until: Instant::now() + PATIENCE }),
            (State::Cold, Nature::Whole(file)) if unchanged && self.passes() && inode.refused.is_none() => match waiter.back(file) {
                Ok(backing) => {
                    inode.state = State::Ready { backing: Some(backing), file: None };
                    self.pass(inode, &mut table.free, waiter, unchanged);
                }
                Err(e) => {
                    self.refused(inode, &e);
                    self.answer(inode, &mut table.free, waiter, unchanged);
                }
            },
            (State::Cold, _) => self.answer(inode, &mut table.free, waiter, unchanged),
        }
    }

    /// What is to be done to have a tensor passed, if so much was read of it before that it is worth its memory.
    fn job(&self, table: &mut Table<W>, ino: Ino, size: u64) -> Option<Job> {
        self.pool().filter(|_| !table.ended)?;
        let inode = table.inodes.get(&ino).filter(|inode| matches!(inode.state, State::Cold))?;
        if inode.is_paused() || self.read_of(inode) < (inode.size / EVIDENCE_SHARE).max(EVIDENCE).min(inode.size) {
            return None;
        }
        // Behind a disk that does not answer nobody waits.
        if table.filling_since.is_some_and(|since| since.elapsed() > PATIENCE) {
            return None;
        }
        let room = self.make_room(table, ino, size);
        if !room && let Some(inode) = table.inodes.get_mut(&ino) {
            inode.refused = Some(Instant::now());
        }
        room.then_some(Job { ino, size })
    }

    /// How much was read of a file by opens that were not passed, in bytes.
    fn read_of(&self, inode: &Inode<W>) -> u64 {
        let live = inode.counters.iter().filter_map(|at| self.counter(*at)).map(Counter::bytes);
        live.fold(inode.bytes, u64::saturating_add)
    }

    /// Makes room in the pool for a file, giving back those that nobody has open, the longest unused first; says whether that is enough.
    ///
    /// None of them is written to again: its pages may still lie in somebody's pipe, socket or direct write, which no lock and no count tells of.
    fn make_room(&self, table: &mut Table<W>, ino: Ino, size: u64) -> bool {
        let Some(pool) = self.pool().filter(|pool| size <= pool.limit()) else { return false };
        loop {
            if pool.has_room(size) {
                return true;
            }
            let idle = table.inodes.iter_mut().filter(|(other, inode)| **other != ino && inode.is_idle());
            match idle.min_by_key(|(_, inode)| inode.used) {
                Some((_, oldest)) => oldest.evict(),
                None => return false,
            }
        }
    }

    /// Answers without passing.
    fn answer(&self, inode: &mut Inode<W>, free: &mut Vec<u32>, waiter: W, unchanged: bool) {
        let may_be_filled = self.pool().is_some() && !inode.is_container && !inode.is_paused();
        // What the page cache cannot hold, or did not, is not put there.
        let too_large = inode.size > self.available.load(Ordering::Relaxed) / 2;
        let not_held = !inode.small && inode.kept_bytes >= inode.size.saturating_add(inode.size / 2);
        let direct = self.maps_direct.load(Ordering::Relaxed) && (may_be_filled || too_large || not_held);
        inode.unpassed = inode.unpassed.saturating_add(1);
        let counter = free.pop().unwrap_or(0);
        if let Some(counter) = self.counter(counter) {
            counter.reset();
        }
        if counter > 0 {
            inode.counters.push(counter);
        }
        if direct { waiter.direct(handle(Way::Direct, counter), unchanged) } else { waiter.kept(handle(Way::Kept, counter), unchanged) }
    }

    /// Answers by passing the open on; if the kernel takes no backing file, with another way.
    fn pass(&self, inode: &mut Inode<W>, free: &mut Vec<u32>, waiter: W, unchanged: bool) {
        if let State::Ready { backing, file } = &mut inode.state {
            let made = match (backing.take(), &file) {
                (Some(backing), _) => Ok(backing),
                (None, Some(file)) => waiter.back(file),
                (None, None) => Err(io::ErrorKind::NotFound.into()),
            };
            match made {
                Ok(made) => {
                    inode.passed = inode.passed.saturating_add(1);
                    inode.used = Instant::now();
                    return waiter.passed(handle(Way::Passed, 0), backing.insert(made));
                }
                Err(e) => self.refused(inode, &e),
            }
        }
        inode.state = State::Cold;
        self.answer(inode, free, waiter, unchanged);
    }

    /// Notes that the kernel takes no backing file of an inode.
    fn refused(&self, inode: &mut Inode<W>, error: &io::Error) {
        inode.refused = Some(Instant::now());
        match error.raw_os_error() {
            // Nobody but root of the whole machine may, and only where the kernel can.
            Some(libc::EPERM | libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS) => {
                log::info!("files are not passed on: {error}");
                self.cannot_pass();
            }
            // A container's file system may be unfit for it.
            _ => log::info!("a file is not passed on: {error}"),
        }
    }

    fn counter(&self, number: u32) -> Option<&Counter> {
        self.counters.get(number as usize).filter(|_| number > 0)
    }

    /// Notes a read; gives the part after it for which read-ahead should be asked, if it is one of many in a row.
    pub fn read(&self, handle: u64, offset: u64, size: u32) -> Option<(u64, u64)> {
        self.counter(handle as u32)?.read(offset, size)
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
            if inode.passed == 0 {
                inode.let_go();
            }
            return;
        }
        inode.unpassed = inode.unpassed.saturating_sub(1);
        let number = handle as u32;
        let Some(counter) = self.counter(number) else { return };
        inode.bytes = inode.bytes.saturating_add(counter.bytes());
        if handle >> WAY_SHIFT == Way::Kept as u64 {
            inode.kept_bytes = inode.kept_bytes.saturating_add(counter.bytes());
        } else {
            inode.small = counter.mean().is_some_and(|mean| mean < SMALL_READ);
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
        // Also if the thread that fills hangs on a disk that does not answer.
        self.answer_the_impatient();
        let now = self.memory.headroom();
        self.available.store(now.available, Ordering::Relaxed);
        let short = now.is_short();
        let mut table = self.table();
        for inode in table.inodes.values_mut().filter(|inode| inode.is_idle()) {
            if short || inode.used.elapsed() > IDLE {
                inode.evict();
            }
        }
    }

    /// Answers those who have waited long enough.
    fn answer_the_impatient(&self) {
        let now = Instant::now();
        let mut table = self.table();
        let Table { inodes, free, ended, .. } = &mut *table;
        for inode in inodes.values_mut() {
            let State::Filling(waiters) = &mut inode.state else { continue };
            let impatient: Vec<_> = waiters.extract_if(.., |waiting| *ended || waiting.until <= now).collect();
            for Waiting { waiter, unchanged, .. } in impatient {
                self.answer(inode, free, waiter, unchanged);
            }
        }
    }

    /// Fills files as they are asked for, until [`Opens::end`]. `fill` gives a file's bytes, `is_unchanged` whether they are still right.
    pub fn fill_files(&self, fill: &FillPart<'_>, is_unchanged: &dyn Fn(Ino) -> bool) {
        let Some(pool) = &self.pool else { return };
        while let Some(Job { ino, size }) = self.next_job() {
            // A bug in a decoder must not leave anybody waiting.
            let attempt = AssertUnwindSafe(|| {
                // Those that were filled meanwhile have taken their room.
                if !pool.has_room(size) {
                    return (None, is_unchanged(ino));
                }
                let started = Instant::now();
                let part: &Fill<'_> = &|offset, out| fill(ino, offset, out);
                let filled = pool.filled(size, part, &mut || {
                    self.answer_the_impatient();
                    !self.table().ended
                });
                match &filled {
                    Ok(_) => log::debug!("inode {ino}: {size} bytes put into huge pages in {} ms", started.elapsed().as_millis()),
                    Err(e) => log::info!("inode {ino}: not put into huge pages: {e}"),
                }
                (filled.ok(), is_unchanged(ino))
            });
            let (file, unchanged) = catch_unwind(attempt).unwrap_or((None, false));
            self.filled(ino, file, unchanged);
        }
    }

    /// The next file to be filled, when there is one; `None` at the end.
    fn next_job(&self) -> Option<Job> {
        let mut table = self.table();
        loop {
            if table.ended {
                return None;
            }
            match table.jobs.pop_front() {
                Some(job) => {
                    table.filling_since = Some(Instant::now());
                    return Some(job);
                }
                None => table = self.wake.wait(table).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Notes that a file was filled, or could not be, and answers those who wait for it. What they read before is right only if it is `unchanged` now.
    fn filled(&self, ino: Ino, file: Option<File>, unchanged: bool) {
        let mut table = self.table();
        table.filling_since = None;
        let Table { inodes, free, .. } = &mut *table;
        let Some(inode) = inodes.get_mut(&ino) else { return };
        let State::Filling(waiters) = std::mem::replace(&mut inode.state, State::Cold) else { return };
        let unchanged = unchanged && !std::mem::take(&mut inode.stale);
        inode.bytes = 0;
        inode.used = Instant::now();
        match file.filter(|_| unchanged) {
            Some(file) => inode.state = State::Ready { backing: None, file: Some(file) },
            None => inode.refused = Some(Instant::now()),
        }
        for waiting in waiters {
            let unchanged = unchanged && waiting.unchanged;
            if inode.unpassed == 0 && matches!(inode.state, State::Ready { .. }) {
                self.pass(inode, free, waiting.waiter, unchanged);
            } else {
                self.answer(inode, free, waiting.waiter, unchanged);
            }
        }
    }

    /// Lets [`Opens::fill_files`] return, and nobody wait any more.
    pub fn end(&self) {
        self.table().ended = true;
        self.wake.notify_all();
        self.answer_the_impatient();
    }
}

impl<W: Waiter> Inode<W> {
    fn new(size: u64) -> Self {
        Self {
            size,
            state: State::Cold,
            stale: false,
            is_container: false,
            unpassed: 0,
            passed: 0,
            counters: Vec::new(),
            bytes: 0,
            kept_bytes: 0,
            small: false,
            used: Instant::now(),
            refused: None,
        }
    }

    /// Whether it could not be passed a moment ago.
    fn is_paused(&self) -> bool {
        self.refused.is_some_and(|since| since.elapsed() <= PAUSE)
    }

    /// Whether it holds memory of the pool that nobody has open.
    fn is_idle(&self) -> bool {
        self.passed == 0 && matches!(self.state, State::Ready { file: Some(_), .. })
    }

    /// Has what was filled end with those who have it open.
    fn changed(&mut self) {
        self.stale = !matches!(self.state, State::Cold);
        if self.passed == 0 && matches!(self.state, State::Ready { .. }) {
            self.evict();
        }
    }

    /// Nobody has it open any more. The kernel is told again when somebody has: what it holds would outlive a server that is killed.
    fn let_go(&mut self) {
        match &mut self.state {
            State::Ready { backing, file: Some(_) } if !self.stale => *backing = None,
            _ => self.evict(),
        }
    }

    /// Forgets the file, which lives on for as long as somebody has it mapped.
    fn evict(&mut self) {
        if matches!(self.state, State::Ready { .. }) {
            self.state = State::Cold;
            self.stale = false;
        }
    }
}

fn handle(way: Way, counter: u32) -> u64 {
    (way as u64) << WAY_SHIFT | u64::from(counter)
}
