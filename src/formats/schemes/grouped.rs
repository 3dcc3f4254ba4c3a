//! Rows whose elements share scales in groups: the packed codes of a row, and for each group what turns a code into a value.

use std::io;

use super::Numbers;
use super::bits::{Rows, Scratch};
use crate::recipe::Inputs;
use crate::source::Extent;

/// Numbers that were read for the groups of a row; which is which is the layout's affair.
#[derive(Default)]
pub(super) struct State {
    pub(super) scales: Vec<f32>,
    pub(super) offsets: Vec<f32>,
    pub(super) scratch: Scratch,
}

/// What the elements of a group have in common.
pub(super) trait Groups {
    /// Reads what groups `first` to `first + count` of a row need.
    fn prepare(&self, inputs: Inputs<'_>, row: u64, first: u64, count: usize, state: &mut State) -> io::Result<()>;

    /// The value of a code in the group with this number among those prepared.
    fn value(&self, state: &State, group: usize, code: u8) -> f32;
}

/// How the elements of a row are divided.
#[derive(Clone, Copy)]
pub(super) struct Division {
    pub(super) columns: u64,
    /// Columns of a group.
    pub(super) group: u64,
    /// The number of the group of each column, where they do not follow each other.
    pub(super) index: Option<GroupIndex>,
}

/// A tensor `g_idx`: the group of each column.
#[derive(Clone, Copy)]
pub(super) struct GroupIndex {
    /// Its numbers, of 32 bits.
    pub(super) extent: Extent,
    pub(super) columns: u64,
    /// How many groups there are.
    pub(super) groups: u64,
}

impl GroupIndex {
    /// The group of each column; `None` if the tensor says nothing, which is what all zeros or a -1 stand for.
    ///
    /// # Errors
    /// A number is none of a group.
    pub(super) fn read(self, inputs: Inputs<'_>) -> io::Result<Option<Vec<u32>>> {
        let mut bytes = vec![0; usize::try_from(self.columns.saturating_mul(4)).unwrap_or(usize::MAX)];
        inputs.read(self.extent, 0, &mut bytes)?;
        let numbers: Vec<i32> = bytes.as_chunks().0.iter().map(|number| i32::from_le_bytes(*number)).collect();
        if numbers.contains(&-1) || self.groups > 1 && numbers.iter().all(|number| *number == 0) {
            return Ok(None);
        }
        let checked = numbers.iter().map(|number| u32::try_from(*number).ok().filter(|number| u64::from(*number) < self.groups));
        match checked.collect() {
            Some(map) => Ok(Some(map)),
            None => Err(io::Error::new(io::ErrorKind::InvalidData, format!("g_idx names a group outside of 0 to {}", self.groups.saturating_sub(1)))),
        }
    }
}

/// Fills `out` with the values from element `first` on.
pub(super) fn read<G: Groups>(inputs: Inputs<'_>, rows: Rows, division: Division, groups: &G, first: u64, out: &mut [f32]) -> io::Result<()> {
    let map = match division.index {
        Some(index) => index.read(inputs)?.map(|map| (map, index.groups)),
        None => None,
    };
    let mut scratch = Scratch::default();
    let mut state = State::default();
    super::by_rows(first, division.columns, out, &mut |row, column, part| {
        rows.read(inputs, row, column, part.len(), &mut scratch)?;
        if let Some((map, count)) = &map {
            groups.prepare(inputs, row, 0, usize::try_from(*count).unwrap_or(0), &mut state)?;
            let skip = usize::try_from(column).unwrap_or(usize::MAX);
            for ((value, code), group) in part.iter_mut().zip(&scratch.codes).zip(map.iter().skip(skip)) {
                *value = groups.value(&state, *group as usize, *code);
            }
            return Ok(());
        }
        let size = usize::try_from(division.group).unwrap_or(usize::MAX).max(1);
        let first_group = column.checked_div(division.group).unwrap_or(0);
        let last_group = column.saturating_add(part.len() as u64).div_ceil(division.group.max(1));
        let count = usize::try_from(last_group.saturating_sub(first_group)).unwrap_or(0);
        groups.prepare(inputs, row, first_group, count, &mut state)?;
        let mut left = size.saturating_sub(usize::try_from(column.checked_rem(division.group).unwrap_or(0)).unwrap_or(0));
        let (mut part, mut codes) = (part, scratch.codes.as_slice());
        for group in 0..count {
            let len = left.min(part.len());
            let (values, rest) = part.split_at_mut_checked(len).unwrap_or_default();
            let (these, others) = codes.split_at_checked(len).unwrap_or_default();
            decode(rows.bits, these, values, |code| groups.value(&state, group, code));
            (part, codes, left) = (rest, others, size);
        }
        Ok(())
    })
}

/// The values of codes of a group: where there are more elements than codes, each code's value is computed once.
pub(super) fn decode(bits: u32, codes: &[u8], out: &mut [f32], value: impl Fn(u8) -> f32) {
    let kinds = 1usize.unbounded_shl(bits);
    if bits > 4 || out.len() <= kinds {
        codes.iter().zip(out).for_each(|(code, out)| *out = value(*code));
        return;
    }
    let mut table = [0.0f32; 16];
    for (code, slot) in (0u8..).zip(table.iter_mut().take(kinds)) {
        *slot = value(code);
    }
    for (code, out) in codes.iter().zip(out) {
        *out = table.get(usize::from(code & 15)).copied().unwrap_or(0.0);
    }
}

/// Fills `out` with the numbers of groups: a row of them each row, or one for the whole tensor.
pub(super) fn numbers(inputs: Inputs<'_>, numbers: Numbers, row: u64, groups_a_row: u64, first: u64, count: usize, out: &mut Vec<f32>) -> io::Result<()> {
    out.clear();
    out.resize(count, 0.0);
    numbers.read(inputs, row.saturating_mul(groups_a_row).saturating_add(first), out)
}
