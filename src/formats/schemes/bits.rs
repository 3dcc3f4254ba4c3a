//! Rows of packed integers.

use std::io;

use crate::recipe::Inputs;
use crate::source::Extent;

/// Packed unsigned integers of 1 to 8 bits, in rows of whole bytes. Element `i` of a row is bits `i * bits` to `(i + 1) * bits` of the row's bytes, least
/// significant bit first; for 1, 2, 4 and 8 bits that is the order within little-endian words as well.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) extent: Extent,
    pub(super) bits: u32,
    /// Bytes of a row, with what pads it.
    pub(super) row_bytes: u64,
    /// Elements in a word of 32 bits that leaves its last bits unused; `None` where elements follow each other without a gap.
    pub(super) a_word: Option<u64>,
}

impl Rows {
    /// Packed without gaps.
    pub(super) fn dense(extent: Extent, bits: u32, row_bytes: u64) -> Self {
        Self { extent, bits, row_bytes, a_word: None }
    }

    /// Replaces `codes` by `count` elements of a row from `column` on.
    pub(super) fn read(self, inputs: Inputs<'_>, row: u64, column: u64, count: usize, scratch: &mut Scratch) -> io::Result<()> {
        let Scratch { bytes, codes } = scratch;
        // Units after which elements start at a whole byte: 8 elements are `bits` bytes, or a word.
        let (elements, unit) = match self.a_word {
            None => (8, u64::from(self.bits)),
            Some(a_word) => (a_word.max(1), 4),
        };
        let first = column.checked_div(elements).unwrap_or(0);
        let last = column.saturating_add(count as u64).div_ceil(elements);
        let start = first.saturating_mul(unit);
        let end = last.saturating_mul(unit).min(self.row_bytes);
        let whole = |units: u64, size: u64| usize::try_from(units.saturating_mul(size)).unwrap_or(usize::MAX);
        let units = last.saturating_sub(first);
        bytes.clear();
        bytes.resize(whole(end.saturating_sub(start), 1), 0);
        inputs.read(self.extent, row.saturating_mul(self.row_bytes).saturating_add(start), bytes)?;
        // The last unit of a row may be stored in part.
        bytes.resize(whole(units, unit), 0);
        codes.clear();
        codes.resize(whole(units, elements), 0);
        match self.a_word {
            None => unpack(self.bits, bytes, codes),
            Some(a_word) => {
                let mask = low_bits(self.bits);
                let size = usize::try_from(a_word).unwrap_or(1).max(1);
                for (word, out) in bytes.as_chunks().0.iter().zip(codes.chunks_exact_mut(size)) {
                    let mut word = u32::from_le_bytes(*word);
                    for code in out {
                        *code = (word & mask) as u8;
                        word = word.unbounded_shr(self.bits);
                    }
                }
            }
        }
        let skip = usize::try_from(column.checked_rem(elements).unwrap_or(0)).unwrap_or(0);
        codes.drain(..skip.min(codes.len()));
        codes.truncate(count);
        Ok(())
    }
}

/// What reading rows works in: bytes as stored, and the elements of the last row that was read.
#[derive(Default)]
pub(super) struct Scratch {
    bytes: Vec<u8>,
    pub(super) codes: Vec<u8>,
}

/// The lowest bits of a word.
pub(super) fn low_bits(bits: u32) -> u32 {
    u32::MAX.unbounded_shr(32u32.saturating_sub(bits))
}

/// Unpacks a stream of elements that starts at a whole byte, eight elements from `bits` bytes.
pub(super) fn unpack(bits: u32, bytes: &[u8], codes: &mut [u8]) {
    match bits {
        8 => codes.iter_mut().zip(bytes).for_each(|(code, byte)| *code = *byte),
        4 => codes.as_chunks_mut::<2>().0.iter_mut().zip(bytes).for_each(|(pair, byte)| *pair = [byte & 15, byte >> 4]),
        _ => {
            let mask = u64::from(low_bits(bits));
            for (eight, out) in bytes.chunks_exact(bits.max(1) as usize).zip(codes.as_chunks_mut::<8>().0) {
                let mut window = eight.iter().rev().fold(0u64, |window, byte| window << 8 | u64::from(*byte));
                for code in out {
                    *code = (window & mask) as u8;
                    window = window.unbounded_shr(bits);
                }
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use super::*;
    use crate::source::Source;

    #[test]
    fn every_part_of_a_row_equals_the_slow_way() {
        let bytes: Vec<u8> = (0..400u32).map(|i| (i * 37 + i / 7) as u8).collect();
        let source = Source::from_bytes("rows", bytes.clone());
        let extent = Extent::new(0, &source, 0, 400).unwrap();
        let sources = [source];
        let bit = |row: usize, at: usize| bytes[row * 100 + at / 8] >> (at % 8) & 1;
        let mut scratch = Scratch::default();
        for bits in 1..=8usize {
            for a_word in [None, Some(32 / bits)] {
                let rows = Rows { extent, bits: bits as u32, row_bytes: 100, a_word: a_word.map(|n| n as u64) };
                let elements = a_word.map_or(800 / bits, |n| 25 * n);
                let start = |i: usize| a_word.map_or(i * bits, |n| i / n * 32 + i % n * bits);
                let code = |row: usize, i: usize| (0..bits).fold(0u8, |code, b| code | bit(row, start(i) + b) << b);
                for (row, column, count) in [(0, 0, elements), (1, 1, 5), (3, elements - 3, 3), (2, 13, elements - 13), (2, 8, 8), (1, 9, 0)] {
                    rows.read(Inputs::new(&sources), row as u64, column as u64, count, &mut scratch).unwrap();
                    let expected: Vec<u8> = (column..column + count).map(|i| code(row, i)).collect();
                    assert_eq!(scratch.codes, expected, "{bits} bits, {a_word:?}, row {row}, {column} + {count}");
                }
            }
        }
    }
}
