//! What an open file has been asked for.

use std::sync::atomic::{AtomicU64, Ordering};

/// Read-ahead that is asked for a sequential reader, in bytes.
pub(super) const AHEAD: u64 = 8 << 20;

/// The counts of one open file; counted without a lock, since they decide about speed only.
#[derive(Default)]
pub(super) struct Counter {
    bytes: AtomicU64,
    requests: AtomicU64,
    /// The end of the last read.
    next: AtomicU64,
    /// How far read-ahead was asked for.
    ahead: AtomicU64,
}

impl Counter {
    /// Begins anew, for another open file.
    pub(super) fn reset(&self) {
        self.bytes.store(0, Ordering::Relaxed);
        self.requests.store(0, Ordering::Relaxed);
        self.next.store(0, Ordering::Relaxed);
        self.ahead.store(0, Ordering::Relaxed);
    }

    /// Bytes that were asked for.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Mean length of a read, in bytes; `None` if there was none.
    pub(super) fn mean(&self) -> Option<u64> {
        self.bytes().checked_div(self.requests.load(Ordering::Relaxed))
    }

    /// Notes a read; gives the part after it (offset and length) for which read-ahead should be asked, if it is one of many in a row.
    pub(super) fn read(&self, offset: u64, size: u32) -> Option<(u64, u64)> {
        let end = offset.saturating_add(size.into());
        let before = self.bytes.fetch_add(size.into(), Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        let last = self.next.swap(end, Ordering::Relaxed);
        // The kernel asks for neighbouring parts at once, so they may arrive in another order.
        if offset > last.saturating_add(AHEAD / 8) || end.saturating_add(AHEAD / 8) < last {
            self.ahead.store(end, Ordering::Relaxed);
            return None;
        }
        let ahead = self.ahead.load(Ordering::Relaxed).max(end);
        // Whoever glances at a file has not read so much of it.
        if before < AHEAD / 8 || ahead.saturating_sub(end) > AHEAD / 2 {
            return None;
        }
        let wanted = end.saturating_add(AHEAD);
        self.ahead.store(wanted, Ordering::Relaxed);
        Some((ahead, wanted.saturating_sub(ahead)))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::indexing_slicing, reason = "tests")]

    use super::*;

    #[test]
    fn read_ahead_follows_those_who_read_in_order() {
        let counter = Counter::default();
        let part = 512 << 10;
        let asked: Vec<_> = (0..40).filter_map(|n| counter.read(n * part, part as u32)).collect();
        assert_eq!(asked[0], (3 * part, AHEAD), "after the first megabyte");
        assert!(asked.len() < 8, "not at every read: {asked:?}");
        for (one, next) in asked.iter().zip(&asked[1..]) {
            assert_eq!(one.0 + one.1, next.0, "no gap, nothing twice");
        }
        let jumps = [90, 3, 50, 20, 70].map(|at| counter.read(at << 20, 4096));
        assert_eq!(jumps, [None; 5]);
        assert_eq!((counter.bytes(), counter.mean()), (40 * part + 5 * 4096, Some((40 * part + 5 * 4096) / 45)));
        counter.reset();
        assert_eq!((counter.bytes(), counter.mean()), (0, None));
    }
}
