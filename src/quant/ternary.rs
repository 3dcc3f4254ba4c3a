//! ggml's ternary blocks of BitNet and TriLM models: 256 values of -d, 0 and d.
//!
//! | type | bytes | layout |
//! |---|---|---|
//! | tq1_0 | 54 | 48 bytes of five base-3 digits, 4 bytes of four, d f16 |
//! | tq2_0 | 66 | 64 bytes of four 2-bit codes, d f16 |
#![expect(clippy::arithmetic_side_effects, reason = "digits and offsets inside a block of at most 66 bytes cannot overflow")]

use super::{Codec, Field, Kind, each_block, f16_at, part};

/// `block_tq1_0`: 1.69 bits an element.
pub(super) const TQ1_0: Codec = Codec {
    name: "tq1_0",
    elements: 256,
    bytes: 54,
    kind: Kind::Float,
    ggml: Some(34),
    swap: Some(&[Field::halves(52, 1)]),
    decode: |blocks, out| each_block(blocks, out, tq1_0),
    fast: twin!(tq1_0),
};

/// `block_tq2_0`: 2.06 bits an element.
pub(super) const TQ2_0: Codec = Codec {
    name: "tq2_0",
    elements: 256,
    bytes: 66,
    kind: Kind::Float,
    ggml: Some(35),
    swap: Some(&[Field::halves(64, 1)]),
    decode: |blocks, out| each_block(blocks, out, tq2_0),
    fast: twin!(tq2_0),
};

/// Three runs of bytes; in each, all first digits come first, then all second digits, and so on.
fn tq1_0(block: &[u8; 54], out: &mut [f32; 256]) {
    let d = f16_at(block, 52);
    let (five_of_32, rest) = out.split_at_mut(5 * 32);
    let (five_of_16, four_of_4) = rest.split_at_mut(5 * 16);
    digits::<32>(part(block, 0), d, five_of_32);
    digits::<16>(part(block, 32), d, five_of_16);
    digits::<4>(part(block, 48), d, four_of_4);
}

/// Writes the digits of `N` bytes, `N` elements for each place.
///
/// A byte is a fixed-point fraction of 1: times 3^n modulo 256 leaves the part after digit n, and times 3 over 256 is its first digit.
#[inline(always)]
fn digits<const N: usize>(bytes: [u8; N], d: f32, out: &mut [f32]) {
    for (out, power) in out.as_chunks_mut::<N>().0.iter_mut().zip([1u8, 3, 9, 27, 81]) {
        for (byte, y) in bytes.iter().zip(out) {
            let digit = (u16::from(byte.wrapping_mul(power)) * 3) >> 8;
            *y = (i32::from(digit) - 1) as f32 * d;
        }
    }
}

fn tq2_0(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = f16_at(block, 64);
    for (run, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        // Each 32 bytes hold four runs of 32 elements, one for each pair of bits.
        let codes: [u8; 32] = part(block, 32 * (run / 4));
        let shift = 2 * (run % 4);
        for (codes, y) in codes.iter().zip(out) {
            *y = (i32::from(codes >> shift & 3) - 1) as f32 * d;
        }
    }
}
