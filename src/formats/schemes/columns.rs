//! Integers that are packed down or across the columns of a transposed weight: GPTQ, and AWQ's gemm form.
//!
//! Both store the transpose [K, N] of the logical weight [N, K], so one logical row touches every stored row. Words are fetched for some logical rows at a
//! time and turned, so that decoding runs along the logical rows.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::bits::{low_bits, unpack};
use super::grouped::GroupIndex;
use super::{Numbers, Rounding};
use crate::recipe::{Inputs, Values};
use crate::source::Extent;

/// Where the columns of AWQ's words stand: logical column `j` of eight is nibble `AWQ[j]`.
const AWQ: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Logical rows of a tile: so many words of a stored row are fetched as cost little more than one.
const ROWS: u64 = 128;

/// Most bytes of tiles that are kept.
const KEPT_BYTES: usize = 16 << 20;

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
    /// Tells this weight from others; see [`number`].
    pub(super) number: u64,
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

/// Some logical rows of a weight as they are stored, turned.
struct Tile {
    /// First logical row, and how many.
    row: u64,
    rows: u64,
    /// For each stored column of words, the words from the first stored row to the last.
    words: Vec<u32>,
    /// How many these are.
    height: usize,
    /// For each logical row, one of each for every group.
    scales: Vec<f32>,
    zeros: Vec<f32>,
}

impl Tile {
    fn bytes(&self) -> usize {
        self.words.len().saturating_add(self.scales.len()).saturating_add(self.zeros.len()).saturating_mul(4)
    }
}

/// The tiles that were used last, of all weights, with the number of the weight. Alone of all recipes this one keeps what it has read: the next read of a
/// file in order needs the same tile, and fetching it takes thousands of small reads.
static TILES: Mutex<VecDeque<(u64, Arc<Tile>)>> = Mutex::new(VecDeque::new());

/// The number of the next weight.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A number for one weight among all.
pub(super) fn number() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Columns {
    fn bits(&self) -> u32 {
        match self.packing {
            Packing::Down { bits } => bits,
            Packing::Awq => 4,
        }
    }

    fn group_count(&self) -> u64 {
        self.columns.div_ceil(self.group.max(1))
    }

    /// The tile that holds a logical row.
    fn tile(&self, inputs: Inputs<'_>, row: u64) -> io::Result<Arc<Tile>> {
        let start = row.saturating_sub(row % ROWS);
        {
            let mut tiles = TILES.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(at) = tiles.iter().position(|(number, tile)| *number == self.number && tile.row == start)
                && let Some(found) = tiles.remove(at)
            {
                let tile = Arc::clone(&found.1);
                tiles.push_front(found);
                return Ok(tile);
            }
        }
        let mut tile =
            Tile { row: start, rows: ROWS.min(self.rows.saturating_sub(start)), words: Vec::new(), height: 0, scales: Vec::new(), zeros: Vec::new() };
        self.fetch(inputs, &mut tile)?;
        let count = usize::try_from(self.group_count()).unwrap_or(0);
        (tile.scales, tile.zeros) = self.groups(inputs, &tile, 0, count)?;
        let tile = Arc::new(tile);
        if tile.bytes() <= KEPT_BYTES / 4 {
            let mut tiles = TILES.lock().unwrap_or_else(PoisonError::into_inner);
            tiles.push_front((self.number, Arc::clone(&tile)));
            while tiles.iter().map(|(_, tile)| tile.bytes()).sum::<usize>() > KEPT_BYTES {
                tiles.pop_back();
            }
        }
        Ok(tile)
    }

    /// Reads the words of a tile.
    fn fetch(&self, inputs: Inputs<'_>, tile: &mut Tile) -> io::Result<()> {
        let end = tile.row.saturating_add(tile.rows);
        // Stored rows of words, the words of one, and which of them are wanted.
        let (count, width, from, to) = match self.packing {
            Packing::Down { bits } => {
                let bits = u64::from(bits);
                let (elements, words) = if bits == 3 { (32, bits) } else { (32u64.checked_div(bits).unwrap_or(1), 1) };
                (self.columns.div_ceil(elements).saturating_mul(words), self.rows, tile.row, end)
            }
            Packing::Awq => (self.columns, self.rows / 8, tile.row / 8, end.div_ceil(8)),
        };
        let whole = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let part = to.saturating_sub(from);
        tile.height = whole(count);
        tile.words = vec![0; tile.height.saturating_mul(whole(part))];
        let row_bytes = width.saturating_mul(4);
        // Rows are turned a line of the cache at a time: their words would else fall on the same places of it, over and over.
        const TURNED_AT_ONCE: u64 = 16;
        let (part_words, part_bytes) = (whole(part).max(1), whole(part.saturating_mul(4)).max(1));
        let mut bytes = Vec::new();
        let mut done = 0u64;
        while done < count {
            let now = TURNED_AT_ONCE.min(count.saturating_sub(done));
            bytes.resize(whole(now).saturating_mul(part_bytes), 0);
            let offset = done.saturating_mul(row_bytes).saturating_add(from.saturating_mul(4));
            if part == width {
                inputs.read(self.words, offset, &mut bytes)?;
            } else {
                for (row, bytes) in (0u64..).zip(bytes.chunks_exact_mut(part_bytes)) {
                    inputs.read(self.words, offset.saturating_add(row.saturating_mul(row_bytes)), bytes)?;
                }
            }
            let stored = bytes.as_chunks::<4>().0;
            for (column, turned) in tile.words.chunks_exact_mut(tile.height.max(1)).enumerate() {
                let line = turned.get_mut(whole(done)..).unwrap_or_default();
                let words = stored.get(column..).unwrap_or_default().iter().step_by(part_words);
                line.iter_mut().zip(words).for_each(|(slot, word)| *slot = u32::from_le_bytes(*word));
            }
            done = done.saturating_add(now);
        }
        Ok(())
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
        let map = match self.index {
            Some(index) => index.read(inputs)?,
            None => None,
        };
        let count = usize::try_from(self.group_count()).unwrap_or(0);
        let size = usize::try_from(self.group).unwrap_or(usize::MAX).max(1);
        let mut tile: Option<Arc<Tile>> = None;
        let mut codes = Vec::new();
        super::by_rows(first, self.columns, out, &mut |row, column, part| {
            let tile = match &tile {
                Some(tile) if row.checked_sub(tile.row).is_some_and(|within| within < tile.rows) => Arc::clone(tile),
                _ => Arc::clone(tile.insert(self.tile(inputs, row)?)),
            };
            let within = usize::try_from(row.saturating_sub(tile.row)).unwrap_or(usize::MAX);
            let start = usize::try_from(column).unwrap_or(usize::MAX);
            let words = |nth: usize| tile.words.get(nth.saturating_mul(tile.height)..).and_then(|words| words.get(..tile.height)).unwrap_or_default();
            match self.packing {
                Packing::Down { bits } => unpack_words(bits, words(within), &mut codes),
                Packing::Awq => {
                    let nibble = AWQ.get(within % 8).copied().unwrap_or(0);
                    let shift = nibble.saturating_mul(4);
                    codes.clear();
                    codes.extend(words(within / 8).iter().map(|word| (word.unbounded_shr(shift) & 15) as u8));
                }
            }
            let line = codes.get(start..).unwrap_or_default();
            let at = within.saturating_mul(count);
            let (scales, zeros) = (tile.scales.get(at..).unwrap_or_default(), tile.zeros.get(at..).unwrap_or_default());
            match &map {
                None => {
                    let skipped = start.checked_div(size).unwrap_or(0);
                    let mut left = size.saturating_sub(start.checked_rem(size).unwrap_or(0));
                    let (mut values, mut codes) = (&mut *part, line);
                    for (scale, zero) in scales.iter().zip(zeros).take(count).skip(skipped) {
                        let len = left.min(values.len());
                        let (these, others) = values.split_at_mut_checked(len).unwrap_or_default();
                        let (now, later) = codes.split_at_checked(len).unwrap_or_default();
                        these.iter_mut().zip(now).for_each(|(value, code)| *value = (f32::from(*code) - zero) * scale);
                        (values, codes, left) = (others, later, size);
                    }
                }
                Some(map) => {
                    for ((value, code), group) in part.iter_mut().zip(line).zip(map.get(start..).unwrap_or_default()) {
                        let (scale, zero) = (scales.get(*group as usize).copied().unwrap_or(0.0), zeros.get(*group as usize).copied().unwrap_or(0.0));
                        *value = (f32::from(*code) - zero) * scale;
                    }
                }
            }
            self.rounding.round_all(part);
            Ok(())
        })
    }
}

/// Replaces `codes` by the elements of words: a stream of bits.
fn unpack_words(bits: u32, words: &[u32], codes: &mut Vec<u8>) {
    let elements = words.len().saturating_mul(32).checked_div(bits as usize).unwrap_or(0);
    codes.clear();
    codes.resize(elements, 0);
    match bits {
        2 => unpack_each::<16>(words, codes, 2),
        4 => unpack_each::<8>(words, codes, 4),
        8 => codes.as_chunks_mut().0.iter_mut().zip(words).for_each(|(bytes, word)| *bytes = word.to_le_bytes()),
        _ => {
            for ([a, b, c], out) in words.as_chunks().0.iter().zip(codes.as_chunks_mut::<32>().0) {
                let mut window = u128::from(*a) | u128::from(*b) << 32 | u128::from(*c) << 64;
                for code in out {
                    *code = (window as u32 & 7) as u8;
                    window >>= 3;
                }
            }
        }
    }
}

/// Unpacks words of `N` elements of `bits` bits.
fn unpack_each<const N: usize>(words: &[u32], codes: &mut [u8], bits: u32) {
    for (word, out) in words.iter().zip(codes.as_chunks_mut::<N>().0) {
        let mut word = *word;
        for code in out {
            *code = (word & low_bits(bits)) as u8;
            word = word.unbounded_shr(bits);
        }
    }
}
