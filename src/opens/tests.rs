//! Opens and releases without a kernel: the answers that callers get.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

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

    fn direct(self, handle: u64, unchanged: bool) {
        self.tell.send(("direct", handle, unchanged)).unwrap();
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
    let Some(pool) = crate::pool::tests::pool(budget) else { return };
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
        assert_eq!(bench.pass_over(1, 20 * MIB, 1 << 20), "direct");
        assert_eq!(bench.pass_over(1, 20 * MIB, 1 << 20), "passed");
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
fn nobody_is_passed_while_another_is_not() {
    with_pool(64 * MIB, |bench| {
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
            assert_eq!(bench.pass_over(ino, 8 * MIB, 1 << 20), "direct");
            assert_eq!(bench.pass_over(ino, 8 * MIB, 1 << 20), "kept", "{ino}");
        }
        // Too large for the budget.
        assert_eq!(bench.pass_over(1, 40 * MIB, 1 << 20), "direct");
        assert_eq!(bench.pass_over(1, 40 * MIB, 1 << 20), "kept");
        // The budget holds three of these; those that nobody has open make room.
        let passes = |ino| (bench.pass_over(ino, 10 * MIB, 1 << 20), bench.pass_over(ino, 10 * MIB, 1 << 20));
        for ino in 10..20 {
            assert_eq!(passes(ino), ("direct", "passed"), "{ino}");
        }
        let handles: Vec<u64> = (17..20).map(|ino| bench.open(ino, 10 * MIB, Nature::Part).1).collect();
        assert_eq!(passes(20), ("direct", "kept"), "all of it is in use");
        (17..20).zip(handles).for_each(|(ino, handle)| bench.opens.release(ino, handle));
    });
}

/// Whoever waits is answered, whatever has become of the thread that fills.
#[test]
fn nobody_waits_for_ever() {
    let Some(pool) = crate::pool::tests::pool(64 * MIB) else { return };
    let bench = Bench::new(Setting::Auto, Some(pool));
    // There is no thread that fills.
    assert_eq!([1, 2].map(|ino| bench.pass_over(ino, 8 * MIB, 1 << 20)), ["direct"; 2]);
    bench.ask(1, Opened { unchanged: true, size: 8 * MIB, nature: Nature::Part });
    assert!(bench.told.recv_timeout(Duration::from_millis(50)).is_err(), "it waits to be filled");
    std::thread::sleep(PATIENCE);
    bench.opens.tick();
    assert_eq!(bench.told.recv_timeout(Duration::from_secs(1)).unwrap().0, "direct");
    bench.ask(2, Opened { unchanged: true, size: 8 * MIB, nature: Nature::Part });
    bench.opens.end();
    assert_eq!(bench.told.recv_timeout(Duration::from_secs(1)).unwrap().0, "direct");
    assert_eq!(bench.open(3, 8 * MIB, Nature::Part).0, "direct");
}

#[test]
fn a_bug_in_a_decoder_costs_the_file_it_is_in_and_no_more() {
    let Some(pool) = crate::pool::tests::pool(64 * MIB) else { return };
    let bench = Bench::new(Setting::Auto, Some(pool));
    let unchanged = |ino| {
        assert!(ino != 13, "a bug");
        true
    };
    std::thread::scope(|scope| {
        scope.spawn(|| bench.opens.fill_files(&|_, _, _| Ok(()), &unchanged));
        assert_eq!([13, 14].map(|ino| bench.pass_over(ino, 8 * MIB, 1 << 20)), ["direct"; 2]);
        let ways = [13, 14].map(|ino| bench.open(ino, 8 * MIB, Nature::Part).0);
        bench.opens.end();
        assert_eq!(ways, ["kept", "passed"]);
    });
}

#[test]
fn files_that_do_not_fit_together_are_not_filled_together() {
    let Some(pool) = crate::pool::tests::pool(20 * MIB) else { return };
    let bench = Bench::new(Setting::Auto, Some(pool));
    for ino in 1..=3 {
        bench.pass_over(ino, 9 * MIB, 1 << 20);
        bench.ask(ino, Opened { unchanged: true, size: 9 * MIB, nature: Nature::Part });
    }
    std::thread::scope(|scope| {
        scope.spawn(|| bench.opens.fill_files(&|_, _, _| Ok(()), &|_| true));
        let mut ways: Vec<_> = (0..3).map(|_| bench.told.recv_timeout(Duration::from_secs(20)).unwrap().0).collect();
        bench.opens.end();
        ways.sort_unstable();
        assert_eq!(ways, ["kept", "passed", "passed"]);
    });
}

#[test]
fn where_direct_files_cannot_be_mapped_none_is_opened_so_by_itself() {
    let bench = Bench::new(Setting::Auto, None);
    bench.opens.available.store(MIB, Ordering::Relaxed);
    assert_eq!(bench.open(1, 100 * MIB, Nature::Part).0, "direct");
    bench.opens.cannot_map_direct();
    assert_eq!(bench.open(2, 100 * MIB, Nature::Part).0, "kept");
    let bench = Bench::new(Setting::Never, None);
    bench.opens.cannot_map_direct();
    assert_eq!(bench.open(1, 100 * MIB, Nature::Part).0, "direct");
}
