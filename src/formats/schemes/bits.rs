//! Rows of packed integers: a stream of bits, least significant first.

use std::io;

use crate::recipe::Inputs;
use crate::source::Extent;

/// Packed unsigned integers of 1 to 8 bits. Element `i` of a row is bits `i * bits` to `(i + 1) * bits` of the row's bytes, least significant bit first;
/// for 2, 4 and 8 bits that is the order within little-endian words as well.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) extent: Extent,
    pub(super) bits: u32,
    /// Bytes of a row, with what pads it.
    pub(super) row_bytes: u64,
}

impl Rows {
    /// Calls `each(index in the part, code)` for `count` elements of a row from `column` on.
    pub(super) fn read(self, inputs: Inputs<'_>, row: u64, column: u64, count: usize, mut each: impl FnMut(usize, u32)) -> io::Result<()> {
        let bits = u64::from(self.bits);
        let first_bit = column.saturating_mul(bits);
        let last_bit = first_bit.saturating_add((count as u64).saturating_mul(bits));
        let (start, end) = (first_bit / 8, last_bit.div_ceil(8));
        let mut bytes = vec![0; usize::try_from(end.saturating_sub(start)).unwrap_or(0)];
        inputs.read(self.extent, row.saturating_mul(self.row_bytes).saturating_add(start), &mut bytes)?;
        // One byte more, so that an element that ends in the last byte is read like the others.
        bytes.push(0);
        let mask = (1u32 << self.bits).wrapping_sub(1);
        let mut bit = usize::try_from(first_bit % 8).unwrap_or(0);
        for index in 0..count {
            let at = bit / 8;
            let pair = match bytes.get(at..at.saturating_add(2)) {
                Some([low, high]) => u32::from(*low) | u32::from(*high) << 8,
                _ => 0,
            };
            each(index, pair >> (bit % 8) & mask);
            bit = bit.saturating_add(self.bits as usize);
        }
        Ok(())
    }
}
