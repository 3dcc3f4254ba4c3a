//! Opens and releases without a kernel: the answers that callers get.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::pool::Budget;

/// An answer: the way, the handle, and whether the cache may stay.
type Answer = (&'static str, u64, bool);

struct Caller {
    tell: Sender<Answer>,
    backs: bool,
}

impl Waiter for Caller {
    type Backing = ();

    fn back(&self, _: &File) -> io::Result<()> {
        if self.backs { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EPERM)) }
    }

    fn kept(self, handle: u64, unchanged: bool) {
        self.tell.send(("kept", handle, unchanged)).unwrap();
    }

    fn direct(self, handle: u64) {
        self.tell.send(("direct", handle, true)).unwrap();
    }

    fn passed(self, handle: u64, (): &()) {
        self.tell.send(("passed", handle, true)).unwrap();
    }
}

struct Bench {
    opens: Opens<Caller>,
    tell: Sender<Answer>,
    told: Receiver<Answer>,
    backs: bool,
}

impl Bench {
    fn new(setting: Setting, pool: Option<Pool>) -> Self {
        let (tell, told) = channel();
        Self { opens: Opens::new(setting, pool, true), tell, told, backs: true }
    }

    /// Has the next first opens not be filled at once: the readers are known to glance.
    fn glances(&self) {
        self.opens.table().habit = Habit { bulk: Some(false), sample: None, since: 0 };
    }

    fn ask(&self, ino: Ino, opened: Opened<'_>) {
        self.opens.open(ino, opened, Caller { tell: self.tell.clone(), backs: self.backs });
    }

    fn open(&self, ino: Ino, size: u64, nature: Nature<'_>) -> Answer {
        self.ask(ino, Opened { unchanged: true, size, nature });
        self.told.recv_timeout(Duration::from_secs(20)).unwrap()
    }

    /// Opens a tensor, reads all of it in parts of this size, and closes it.
    fn pass_over(&self, ino: Ino, size: u64, part: u32) -> &'static str {
        let (way, handle, _) = self.open(ino, size, Nature::Part);
        (0..size).step_by(part as usize).for_each(|at| _ = self.opens.read(handle, at, part));
        self.opens.release(ino, handle);
        way
    }
}

const MIB: u64 = 1 << 20;

#[test]
fn the_user_may_fix_the_way() {
    for (setting, way) in [(Setting::Always, "kept"), (Setting::Never, "direct")] {
        let bench = Bench::new(setting, None);
        let file = File::open("/proc/self/exe").unwrap();
        for nature in [Nature::Part, Nature::Whole(&file)] {
            assert_eq!(bench.open(7, 100 * MIB, nature), (way, 0, true));
            assert_eq!(bench.open(8, 1, nature), (way, 0, true));
        }
        assert_eq!(bench.open(9, 0, Nature::Text), ("kept", 0, true));
    }
}

#[test]
fn without_a_pool_files_are_kept_until_the_cache_is_seen_not_to_hold_them() {
    let bench = Bench::new(Setting::Auto, None);
    bench.opens.available.store(1000 * MIB, Ordering::Relaxed);
    assert_eq!(bench.open(1, 1, Nature::Part), ("kept", 0, true));
    assert_eq!(bench.pass_over(2, 100 * MIB, 128 << 10), "kept");
    // Asked for only half of it again: it was in the cache.
    let (_, handle, _) = bench.open(2, 100 * MIB, Nature::Part);
    (0..40).for_each(|n| _ = bench.opens.read(handle, n * MIB, 1 << 20));
    bench.opens.release(2, handle);
    assert_eq!(bench.pass_over(2, 100 * MIB, 128 << 10), "kept");
    // By now it was read more than one and a half times.
    assert_eq!(bench.pass_over(2, 100 * MIB, 1 << 20), "direct");
    assert_eq!(bench.pass_over(2, 100 * MIB, 10 << 10), "direct");
    assert_eq!(bench.pass_over(2, 100 * MIB, 10 << 10), "kept", "small reads suit the cache better");
    assert_eq!(bench.pass_over(3, 600 * MIB, 1 << 20), "direct", "it would take more than half of what is free");
}

#[test]
fn a_whole_container_is_passed_unless_the_kernel_says_no() {
    let file = File::open("/proc/self/exe").unwrap();
    let mut bench = Bench::new(Setting::Auto, None);
    let whole = Nature::Whole(&file);
    let (way, handle, _) = bench.open(5, 10, whole);
    assert_eq!((way, bench.open(5, 10, whole).0), ("passed", "passed"));
    bench.opens.release(5, handle);
    bench.backs = false;
    assert_eq!(bench.open(5, 10, whole).0, "passed", "its backing is known already");
    assert_eq!(bench.open(6, 10, whole).0, "kept");
    bench.backs = true;
    assert_eq!(bench.open(8, 10, whole).0, "kept", "a user who may not is not asked again");
    let bench = Bench::new(Setting::Auto, None);
    bench.ask(5, Opened { unchanged: false, size: 10, nature: whole });
    let (way, _, unchanged) = bench.told.recv().unwrap();
    assert_eq!((way, unchanged), ("kept", false));
}

/// A bench with a pool, or a word that there is none here.
fn with_pool(budget: u64, test: impl FnOnce(&Bench)) {
    let pool = match Pool::new(Budget::Bytes(budget)) {
        Ok(pool) => pool,
        Err(e) => return eprintln!("skipped: no tmpfs of huge pages here ({e})"),
    };
    let bench = Bench::new(Setting::Auto, Some(pool));
    let fill = |ino, offset: u64, out: &mut [u8]| match ino {
        666 => Err(io::Error::other("damaged")),
        _ => {
            out.fill((offset >> 20) as u8);
            Ok(())
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| bench.opens.fill_files(&fill, &|ino| ino != 999));
        // The scope waits for the thread, also if the test fails.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(&bench)));
        bench.opens.end();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn what_was_read_in_bulk_and_is_opened_again_is_passed() {
    with_pool(64 * MIB, |bench| {
        bench.glances();
        assert_eq!(bench.pass_over(1, 20 * MIB, 1 << 20), "direct");
        assert_eq!(bench.pass_over(1, 20 * MIB, 1 << 20), "passed");
        bench.glances();
        // A glance is no evidence.
        for _ in 0..50 {
            let (way, handle, _) = bench.open(2, 20 * MIB, Nature::Part);
            assert_eq!(way, "direct");
            bench.opens.read(handle, 0, 4096);
            bench.opens.release(2, handle);
        }
        assert_eq!(bench.pass_over(3, 3 * MIB, 1 << 20), "kept", "small files always are");
    });
}

#[test]
fn readers_who_read_everything_find_it_filled_and_those_who_glance_do_not() {
    with_pool(64 * MIB, |bench| {
        let ways: Vec<_> = (10..30).map(|ino| bench.pass_over(ino, 8 * MIB, 1 << 20)).collect();
        let direct: Vec<usize> = (0..ways.len()).filter(|i| ways[*i] == "direct").collect();
        assert_eq!(direct, [8, 17], "one of a few: {ways:?}");
        let held = || bench.opens.table().inodes.values().filter(|inode| inode.is_idle()).count();
        assert!(held() <= ONCE + 1, "{} files are held", held());
        let glance = |ino| {
            let (way, handle, _) = bench.open(ino, 8 * MIB, Nature::Part);
            bench.opens.read(handle, 0, 4096);
            bench.opens.release(ino, handle);
            way
        };
        let ways: Vec<_> = (100..200).map(glance).collect();
        assert!(ways[SAMPLE as usize + 2..].iter().all(|way| *way == "direct"), "{ways:?}");
    });
}

#[test]
fn a_large_file_is_filled_for_its_first_reader_only_where_others_were_read_whole() {
    with_pool(120 * MIB, |bench| {
        assert_eq!(bench.pass_over(1, 50 * MIB, 1 << 20), "direct", "nobody was seen yet");
        assert_eq!(bench.pass_over(2, 50 * MIB, 1 << 20), "passed");
        bench.glances();
        assert_eq!(bench.pass_over(3, 5 * MIB, 1 << 20), "direct");
    });
}

#[test]
fn nobody_is_passed_while_another_is_not() {
    with_pool(64 * MIB, |bench| {
        bench.glances();
        let (_, first, _) = bench.open(1, 20 * MIB, Nature::Part);
        (0..20).for_each(|n| _ = bench.opens.read(first, n * MIB, 1 << 20));
        // It is filled now, but the first open is still alive.
        let (way, second, _) = bench.open(1, 20 * MIB, Nature::Part);
        assert_eq!(way, "direct");
        let ready = || matches!(bench.opens.table().inodes.get(&1).unwrap().state, State::Ready { .. });
        while !ready() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (way, third, _) = bench.open(1, 20 * MIB, Nature::Part);
        assert_eq!(way, "direct");
        [first, second, third].into_iter().for_each(|handle| bench.opens.release(1, handle));
        let (way, passed, _) = bench.open(1, 20 * MIB, Nature::Part);
        assert_eq!(way, "passed");
        // A change is for new readers, not for those that read a whole copy.
        bench.opens.changed(1);
        assert_eq!(bench.open(1, 20 * MIB, Nature::Part).0, "passed");
        bench.opens.release(1, passed);
        bench.opens.release(1, passed);
        bench.ask(1, Opened { unchanged: false, size: 20 * MIB, nature: Nature::Part });
        assert_eq!(bench.told.recv().unwrap().0, "direct");
    });
}

/// The server may not have looked at the source since it changed.
#[test]
fn an_open_that_sees_a_change_gets_nothing_from_before() {
    with_pool(64 * MIB, |bench| {
        bench.glances();
        assert_eq!(bench.pass_over(1, 20 * MIB, 1 << 20), "direct");
        assert_eq!(bench.pass_over(1, 20 * MIB, 1 << 20), "passed");
        bench.ask(1, Opened { unchanged: false, size: 20 * MIB, nature: Nature::Part });
        assert_eq!(bench.told.recv().unwrap().0, "direct");
    });
}

#[test]
fn what_cannot_be_filled_is_served_all_the_same() {
    with_pool(32 * MIB, |bench| {
        for ino in [666, 999] {
            bench.glances();
            assert_eq!(bench.pass_over(ino, 8 * MIB, 1 << 20), "direct");
            assert_eq!(bench.pass_over(ino, 8 * MIB, 1 << 20), "kept", "{ino}");
        }
        // Too large for the budget.
        bench.glances();
        assert_eq!(bench.pass_over(1, 40 * MIB, 1 << 20), "direct");
        assert_eq!(bench.pass_over(1, 40 * MIB, 1 << 20), "kept");
        // The budget holds three of these; those that nobody has open make room.
        let passes = |ino| {
            bench.glances();
            (bench.pass_over(ino, 10 * MIB, 1 << 20), bench.pass_over(ino, 10 * MIB, 1 << 20))
        };
        for ino in 10..20 {
            assert_eq!(passes(ino), ("direct", "passed"), "{ino}");
        }
        let handles: Vec<u64> = (17..20).map(|ino| bench.open(ino, 10 * MIB, Nature::Part).1).collect();
        assert_eq!(passes(20), ("direct", "kept"), "all of it is in use");
        (17..20).zip(handles).for_each(|(ino, handle)| bench.opens.release(ino, handle));
    });
}

#[test]
fn read_ahead_follows_those_who_read_in_order() {
    let bench = Bench::new(Setting::Auto, None);
    let (_, handle, _) = bench.open(1, 100 * MIB, Nature::Part);
    let part = 512 << 10;
    let asked: Vec<_> = (0..40).filter_map(|n| bench.opens.read(handle, n * part, part as u32)).collect();
    assert_eq!(asked[0], (3 * part, AHEAD), "after the first megabyte");
    assert!(asked.len() < 8, "not at every read: {asked:?}");
    for (one, next) in asked.iter().zip(&asked[1..]) {
        assert_eq!(one.0 + one.1, next.0, "no gap, nothing twice");
    }
    let jumps = [90, 3, 50, 20, 70].map(|at| bench.opens.read(handle, at * MIB, 4096));
    assert_eq!(jumps, [None; 5]);
    assert_eq!(bench.opens.read(0, 0, 4096), None);
}
