//! Integers that are packed down or across the columns of a transposed weight: GPTQ, and AWQ's gemm form.
//!
//! Both store the transpose [K, N] of the logical weight [N, K], so one logical row touches every stored row. What a read needs of the stored words is
//! fetched column by column group and turned, so that decoding runs along the logical rows.

use std::io;

use super::bits::{low_bits, unpack};
use super::grouped::GroupIndex;
use super::{Numbers, Rounding};
use crate::recipe::{Inputs, Values};
use crate::source::Extent;

/// Where the columns of AWQ's words stand: logical column `j` of eight is nibble `AWQ[j]`.
const AWQ: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// How far apart parts of stored rows may lie to be fetched in one read with what is between, in bytes.
const GAP_BYTES: u64 = 1024;
/// Most bytes that are fetched in one read.
const FETCH_BYTES: u64 = 1 << 20;

/// What a word holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// Elements of one column, a stream of bits down its words.
    Down { bits: u32 },
    /// Eight columns of one row, in AWQ's order.
    Awq,
}

/// A weight as its library dequantises it: scale * (code - zero), rounded once.
pub(super) struct Columns {
    pub(super) packing: Packing,
    pub(super) words: Extent,
    /// Logical rows: N.
    pub(super) rows: u64,
    /// Logical columns: K.
    pub(super) columns: u64,
    /// Stored as [groups, N].
    pub(super) scales: Numbers,
    /// Packed along N in the same way as the words, but always across.
    pub(super) zeros: Extent,
    /// What is added to a stored zero point.
    pub(super) zero_bias: f32,
    pub(super) group: u64,
    pub(super) index: Option<GroupIndex>,
    pub(super) rounding: Rounding,
}

/// The part of the weight that a read needs.
struct Tile {
    /// First logical row, and how many.
    row: u64,
    rows: u64,
    /// First logical column, and how many.
    column: u64,
    columns: u64,
}

impl Columns {
    fn bits(&self) -> u32 {
        match self.packing {
            Packing::Down { bits } => bits,
            Packing::Awq => 4,
        }
    }

    /// The stored words of a tile, turned: for each stored column of words the words from the tile's first to its last row, and how many these are; and
    /// the logical column at which the first of them starts.
    fn fetch(&self, inputs: Inputs<'_>, tile: &Tile) -> io::Result<(Vec<u32>, usize, u64)> {
        let end_row = tile.row.saturating_add(tile.rows);
        let end_column = tile.column.saturating_add(tile.columns);
        // Stored rows and columns of words, and the words of a stored row.
        let (first, last, from, to, width, start) = match self.packing {
            Packing::Down { bits } => {
                let bits = u64::from(bits);
                // Elements start at a whole word every 32; without elements that lie across words, in every word.
                let (elements, words) = if bits == 3 { (32, bits) } else { (32u64.checked_div(bits).unwrap_or(1), 1) };
                let unit = tile.column.checked_div(elements).unwrap_or(0);
                (unit.saturating_mul(words), end_column.div_ceil(elements).saturating_mul(words), tile.row, end_row, self.rows, unit.saturating_mul(elements))
            }
            Packing::Awq => (tile.column, end_column, tile.row / 8, end_row.div_ceil(8), self.rows / 8, tile.column),
        };
        let (count, part) = (last.saturating_sub(first), to.saturating_sub(from));
        let height = usize::try_from(count).unwrap_or(0);
        let mut turned = vec![0u32; height.saturating_mul(usize::try_from(part).unwrap_or(0))];
        let row_bytes = width.saturating_mul(4);
        let part_bytes = part.saturating_mul(4);
        let gap = row_bytes.saturating_sub(part_bytes);
        // Stored rows that one read fetches.
        let at_once = if gap <= GAP_BYTES { FETCH_BYTES.checked_div(row_bytes).unwrap_or(1).max(1) } else { 1 };
        let mut bytes = Vec::new();
        let mut done = 0u64;
        while done < count {
            let now = at_once.min(count.saturating_sub(done));
            let span = now.saturating_sub(1).saturating_mul(row_bytes).saturating_add(part_bytes);
            bytes.clear();
            bytes.resize(usize::try_from(span).unwrap_or(usize::MAX), 0);
            let offset = first.saturating_add(done).saturating_mul(row_bytes).saturating_add(from.saturating_mul(4));
            inputs.read(self.words, offset, &mut bytes)?;
            let (words, step) = (bytes.as_chunks::<4>().0, usize::try_from(width).unwrap_or(usize::MAX).max(1));
            let done_before = usize::try_from(done).unwrap_or(usize::MAX);
            for (stored_row, words) in words.chunks(step).enumerate() {
                let slots = turned.iter_mut().skip(done_before.saturating_add(stored_row)).step_by(height.max(1));
                for (slot, word) in slots.zip(words) {
                    *slot = u32::from_le_bytes(*word);
                }
            }
            done = done.saturating_add(now);
        }
        Ok((turned, height, start))
    }

    /// Scales and zero points of groups `first` to `first + count` for the rows of a tile: each row's groups follow each other.
    fn groups(&self, inputs: Inputs<'_>, tile: &Tile, first: u64, count: usize) -> io::Result<(Vec<f32>, Vec<f32>)> {
        let rows = usize::try_from(tile.rows).unwrap_or(0);
        let (mut scales, mut zeros) = (vec![0.0; rows.saturating_mul(count)], vec![0.0; rows.saturating_mul(count)]);
        let (mut line, mut codes) = (vec![0.0; rows], Vec::new());
        let bits = self.bits();
        // Zero points are fetched from one whole unit of words to another.
        let (unit_elements, unit_bytes) = if bits == 3 { (32, 12) } else { (32u64.checked_div(u64::from(bits)).unwrap_or(1), 4) };
        let zero_row_bytes = self.rows.saturating_mul(u64::from(bits)).div_ceil(32).saturating_mul(4);
        let unit = tile.row.checked_div(unit_elements).unwrap_or(0);
        let units = tile.row.saturating_add(tile.rows).div_ceil(unit_elements).saturating_sub(unit);
        let start = unit.saturating_mul(unit_bytes);
        let len = units.saturating_mul(unit_bytes).min(zero_row_bytes.saturating_sub(start));
        let mut packed = vec![0u8; usize::try_from(len).unwrap_or(0)];
        let whole = usize::try_from(units.saturating_mul(unit_bytes)).unwrap_or(0);
        let skip = usize::try_from(tile.row.saturating_sub(unit.saturating_mul(unit_elements))).unwrap_or(0);
        for number in 0..count {
            let group = first.saturating_add(number as u64);
            self.scales.read(inputs, group.saturating_mul(self.rows).saturating_add(tile.row), &mut line)?;
            packed.truncate(usize::try_from(len).unwrap_or(0));
            inputs.read(self.zeros, group.saturating_mul(zero_row_bytes).saturating_add(start), &mut packed)?;
            packed.resize(whole, 0);
            codes.clear();
            codes.resize(usize::try_from(units.saturating_mul(unit_elements)).unwrap_or(0), 0u8);
            match self.packing {
                Packing::Down { bits } => unpack(bits, &packed, &mut codes),
                Packing::Awq => {
                    for (word, out) in packed.as_chunks().0.iter().zip(codes.as_chunks_mut::<8>().0) {
                        let word = u32::from_le_bytes(*word);
                        for (nibble, code) in AWQ.iter().zip(out) {
                            *code = (word.unbounded_shr(nibble.saturating_mul(4)) & 15) as u8;
                        }
                    }
                }
            }
            let places = |of: &mut Vec<f32>, value: &mut dyn Iterator<Item = f32>| {
                of.iter_mut().skip(number).step_by(count.max(1)).zip(value).for_each(|(slot, value)| *slot = value);
            };
            places(&mut scales, &mut line.iter().copied());
            places(&mut zeros, &mut codes.iter().skip(skip).map(|code| f32::from(*code) + self.zero_bias));
        }
        Ok((scales, zeros))
    }
}

impl Values for Columns {
    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [f32]) -> io::Result<()> {
        let Some(last) = first.checked_add(out.len() as u64).and_then(|end| end.checked_sub(1)) else { return Ok(()) };
        let (Some(row), Some(last_row)) = (first.checked_div(self.columns), last.checked_div(self.columns)) else { return Ok(()) };
        if out.is_empty() {
            return Ok(());
        }
        let within = first.checked_rem(self.columns).unwrap_or(0);
        let (column, columns) = if row == last_row { (within, out.len() as u64) } else { (0, self.columns) };
        let tile = Tile { row, rows: last_row.saturating_sub(row).saturating_add(1), column, columns };

        let map = match self.index {
            Some(index) => index.read(inputs)?,
            None => None,
        };
        let (first_group, count) = match (&map, self.index) {
            (Some(_), Some(index)) => (0, index.groups),
            _ => {
                let first_group = column.checked_div(self.group).unwrap_or(0);
                (first_group, column.saturating_add(columns).div_ceil(self.group.max(1)).saturating_sub(first_group))
            }
        };
        let count = usize::try_from(count).unwrap_or(0);
        let (words, height, start) = self.fetch(inputs, &tile)?;
        let (scales, zeros) = self.groups(inputs, &tile, first_group, count)?;

        let skip = usize::try_from(column.saturating_sub(start)).unwrap_or(0);
        let group = usize::try_from(self.group).unwrap_or(usize::MAX).max(1);
        let into_group = usize::try_from(column.checked_rem(self.group).unwrap_or(0)).unwrap_or(0);
        let (mut codes, mut table) = (Vec::new(), Vec::new());
        let mut rest = out;
        for number in 0..tile.rows {
            let number_of_row = usize::try_from(number).unwrap_or(usize::MAX);
            let line = match self.packing {
                Packing::Down { bits } => {
                    let words = words.chunks_exact(height.max(1)).nth(number_of_row).unwrap_or_default();
                    unpack_words(bits, words, &mut codes);
                    codes.get(skip..).unwrap_or_default()
                }
                Packing::Awq => {
                    let place = tile.row.saturating_add(number);
                    let nibble = AWQ.get(usize::try_from(place % 8).unwrap_or(0)).copied().unwrap_or(0);
                    let nth = usize::try_from((place / 8).saturating_sub(tile.row / 8)).unwrap_or(usize::MAX);
                    let shift = nibble.saturating_mul(4);
                    codes.clear();
                    codes.extend(words.chunks_exact(height.max(1)).nth(nth).unwrap_or_default().iter().map(|word| (word.unbounded_shr(shift) & 15) as u8));
                    codes.as_slice()
                }
            };
            // The part of this row that is wanted.
            let from = if number == 0 && tile.rows > 1 { usize::try_from(within).unwrap_or(0) } else { 0 };
            let line = line.get(from..).unwrap_or_default();
            let len = usize::try_from(columns).unwrap_or(usize::MAX).saturating_sub(from).min(rest.len());
            let (values, after) = rest.split_at_mut_checked(len).unwrap_or_default();
            rest = after;
            let at = number_of_row.saturating_mul(count);
            let end = at.saturating_add(count);
            let (scales, zeros) = (scales.get(at..end).unwrap_or_default(), zeros.get(at..end).unwrap_or_default());
            let value = |scale: f32, zero: f32, code: u8| self.rounding.round(scale * (f32::from(code) - zero));
            match &map {
                None => {
                    let mut left = group.saturating_sub(into_group.saturating_add(from).checked_rem(group).unwrap_or(0));
                    let skipped = into_group.saturating_add(from).checked_div(group).unwrap_or(0);
                    let (mut values, mut codes) = (values, line);
                    for (scale, zero) in scales.iter().zip(zeros).skip(skipped) {
                        let len = left.min(values.len());
                        let (these, others) = values.split_at_mut_checked(len).unwrap_or_default();
                        let (now, later) = codes.split_at_checked(len).unwrap_or_default();
                        super::grouped::decode(self.bits(), now, these, |code| value(*scale, *zero, code));
                        (values, codes, left) = (others, later, group);
                    }
                }
                Some(map) => {
                    let map = map.iter().skip(usize::try_from(column).unwrap_or(usize::MAX).saturating_add(from));
                    let kinds = 1usize.unbounded_shl(self.bits());
                    if count.saturating_mul(kinds) <= values.len() {
                        table.clear();
                        for (scale, zero) in scales.iter().zip(zeros) {
                            table.extend((0..=low_bits(self.bits()) as u8).map(|code| value(*scale, *zero, code)));
                        }
                        for ((slot, code), group) in values.iter_mut().zip(line).zip(map) {
                            let entry = (*group as usize).saturating_mul(kinds).saturating_add(usize::from(*code));
                            *slot = table.get(entry).copied().unwrap_or(0.0);
                        }
                    } else {
                        for ((slot, code), group) in values.iter_mut().zip(line).zip(map) {
                            let group = *group as usize;
                            *slot = value(scales.get(group).copied().unwrap_or(0.0), zeros.get(group).copied().unwrap_or(0.0), *code);
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// Replaces `codes` by the elements of words: a stream of bits.
fn unpack_words(bits: u32, words: &[u32], codes: &mut Vec<u8>) {
    codes.clear();
    let mask = low_bits(bits);
    if bits == 3 {
        for [a, b, c] in words.as_chunks().0 {
            let mut window = u128::from(*a) | u128::from(*b) << 32 | u128::from(*c) << 64;
            codes.extend(
                std::iter::repeat_with(|| {
                    let code = (window as u32 & mask) as u8;
                    window >>= 3;
                    code
                })
                .take(32),
            );
        }
        return;
    }
    for word in words {
        let word = *word;
        match bits {
            2 => codes.extend(std::array::from_fn::<u8, 16, _>(|i| (word.unbounded_shr((i as u32).saturating_mul(2)) & 3) as u8)),
            4 => codes.extend(std::array::from_fn::<u8, 8, _>(|i| (word.unbounded_shr((i as u32).saturating_mul(4)) & 15) as u8)),
            _ => codes.extend(word.to_le_bytes()),
        }
    }
}
