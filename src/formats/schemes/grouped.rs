//! Rows whose elements share scales in groups: the packed codes of a row, and for each group what turns a code into a value.

use std::io;

use super::bits::{Rows, Scratch};
use super::{Numbers, Rounding};
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

    /// The values of codes of the group with this number among those prepared, before they are rounded.
    fn values(&self, state: &State, group: usize, codes: &[u8], out: &mut [f32]);

    /// What is added to the rounded values of a group before they are rounded once more, where there is such a sum.
    fn sum(&self, _: &State, _: usize) -> Option<f32> {
        None
    }

    /// How values are rounded.
    fn rounding(&self) -> Rounding;
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
            let columns = part.chunks_mut(1).zip(scratch.codes.chunks(1)).zip(map.iter().skip(skip));
            columns.for_each(|((value, code), group)| groups.values(&state, *group as usize, code, value));
            groups.rounding().round_all(part);
            return Ok(());
        }
        let first_group = column.checked_div(division.group).unwrap_or(0);
        let last_group = column.saturating_add(part.len() as u64).div_ceil(division.group.max(1));
        let count = usize::try_from(last_group.saturating_sub(first_group)).unwrap_or(0);
        groups.prepare(inputs, row, first_group, count, &mut state)?;
        let mut codes = scratch.codes.as_slice();
        by_groups(column, division.group, part, &mut |group, values| {
            let (these, others) = codes.split_at_checked(values.len()).unwrap_or_default();
            groups.values(&state, group, these, values);
            codes = others;
        });
        groups.rounding().round_all(part);
        if groups.sum(&state, 0).is_some() {
            by_groups(column, division.group, part, &mut |group, values| {
                let sum = groups.sum(&state, group).unwrap_or(0.0);
                values.iter_mut().for_each(|value| *value += sum);
            });
            groups.rounding().round_all(part);
        }
        Ok(())
    })
}

/// Calls `each` with the parts of a run of columns that lie in one group, and with the number of the group among those that the run touches.
pub(super) fn by_groups(column: u64, group: u64, part: &mut [f32], each: &mut dyn FnMut(usize, &mut [f32])) {
    let size = usize::try_from(group).unwrap_or(usize::MAX).max(1);
    let mut left = size.saturating_sub(usize::try_from(column.checked_rem(group).unwrap_or(0)).unwrap_or(0));
    let mut rest = part;
    let mut number = 0usize;
    while !rest.is_empty() {
        let (values, after) = rest.split_at_mut_checked(left.min(rest.len())).unwrap_or_default();
        each(number, values);
        (rest, left, number) = (after, size, number.saturating_add(1));
    }
}

/// Fills `out` with the numbers of groups: a row of them each row, or one for the whole tensor.
pub(super) fn numbers(inputs: Inputs<'_>, numbers: Numbers, row: u64, groups_a_row: u64, first: u64, count: usize, out: &mut Vec<f32>) -> io::Result<()> {
    out.clear();
    out.resize(count, 0.0);
    numbers.read(inputs, row.saturating_mul(groups_a_row).saturating_add(first), out)
}
