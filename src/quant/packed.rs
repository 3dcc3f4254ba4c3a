//! Integers of less than a byte, packed from the least significant bits up, as ONNX and safetensors store them
//! (<https://onnx.ai/onnx/technical/int4.html>).
//!
//! | type | elements a byte | values |
//! |---|---|---|
//! | i4, u4 | 2, the first in the low nibble | -8 to 7, 0 to 15 |
//! | i2, u2 | 4 | -2 to 1, 0 to 3 |
//! | u1 | 8 | 0, 1 |
#![expect(clippy::arithmetic_side_effects, reason = "shift counts are positions in an array that is one byte long in bits")]

use super::{Codec, Kind, each_block};

/// Signed 4-bit integers in two's complement.
pub(super) const I4: Codec =
    Codec { name: "i4", elements: 2, kind: Kind::Signed, decode: |blocks, out| each_block::<1, 2>(blocks, out, signed), fast: twin!(i4), ..PACKED };

/// Unsigned 4-bit integers.
pub(super) const U4: Codec = Codec { name: "u4", elements: 2, decode: |blocks, out| each_block::<1, 2>(blocks, out, unsigned), fast: twin!(u4), ..PACKED };

/// Signed 2-bit integers in two's complement.
pub(super) const I2: Codec =
    Codec { name: "i2", elements: 4, kind: Kind::Signed, decode: |blocks, out| each_block::<1, 4>(blocks, out, signed), fast: twin!(i2), ..PACKED };

/// Unsigned 2-bit integers.
pub(super) const U2: Codec = Codec { name: "u2", elements: 4, decode: |blocks, out| each_block::<1, 4>(blocks, out, unsigned), fast: twin!(u2), ..PACKED };

/// Single bits.
pub(super) const U1: Codec = Codec { name: "u1", elements: 8, decode: |blocks, out| each_block::<1, 8>(blocks, out, unsigned), fast: twin!(u1), ..PACKED };

/// What all packed integers have in common; not registered itself.
const PACKED: Codec = Codec { name: "", elements: 0, bytes: 1, kind: Kind::Unsigned, ggml: None, swap: Some(&[]), decode: |_, _| {}, fast: None };

/// Splits a byte into `N` equal unsigned fields.
#[inline(always)]
fn unsigned<const N: usize>(&[byte]: &[u8; 1], out: &mut [f32; N]) {
    let width = 8 / N;
    for (position, y) in out.iter_mut().enumerate() {
        let above = 8 - width * (position + 1);
        *y = f32::from((byte << above) >> (8 - width));
    }
}

/// Splits a byte into `N` equal fields in two's complement.
#[inline(always)]
fn signed<const N: usize>(&[byte]: &[u8; 1], out: &mut [f32; N]) {
    let width = 8 / N;
    for (position, y) in out.iter_mut().enumerate() {
        let above = 8 - width * (position + 1);
        // The shift down of a signed byte repeats its top bit: the field's sign.
        *y = f32::from((byte << above).cast_signed() >> (8 - width));
    }
}
