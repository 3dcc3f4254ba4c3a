//! ggml's simple blocks: one scale, and an offset in some, for 32, 64 or 128 elements.
//!
//! | type | bytes | layout | element |
//! |---|---|---|---|
//! | q1_0 | 18 | d f16, 128 bits | d or -d |
//! | q2_0 | 18 | d f16, 64 codes of 2 bits | (q - 1) d |
//! | q4_0 | 18 | d f16, 32 nibbles | (q - 8) d |
//! | q4_1 | 20 | d f16, m f16, 32 nibbles | q d + m |
//! | q5_0 | 22 | d f16, fifth bits u32, 32 nibbles | (q - 16) d |
//! | q5_1 | 24 | d f16, m f16, fifth bits u32, 32 nibbles | q d + m |
//! | q8_0 | 34 | d f16, 32 i8 | q d |
//! | q8_1 | 36 | d f16, s f16, 32 i8 | q d |
//!
//! Nibbles do not interleave: byte j holds element j in its low half and element j + 16 in its high half. Bits and 2-bit codes lie in order, from the
//! least significant bits of the first byte up.
#![expect(clippy::arithmetic_side_effects, reason = "codes of at most 8 bits cannot overflow i32, and shift counts are positions in a byte or a word")]

use super::{Codec, Field, Kind, each_block, f16_at, part, u32_at};

/// `block_q1_0`: signs.
pub(super) const Q1_0: Codec = Codec {
    name: "q1_0",
    elements: 128,
    bytes: 18,
    kind: Kind::Float,
    ggml: Some(41),
    swap: Some(&[Field::halves(0, 1)]),
    decode: |blocks, out| each_block(blocks, out, q1_0),
    fast: twin!(q1_0),
};

/// `block_q2_0`: -1, 0, 1 and 2.
pub(super) const Q2_0: Codec = Codec {
    name: "q2_0",
    elements: 64,
    bytes: 18,
    kind: Kind::Float,
    ggml: Some(42),
    swap: Some(&[Field::halves(0, 1)]),
    decode: |blocks, out| each_block(blocks, out, q2_0),
    fast: twin!(q2_0),
};

/// `block_q4_0`.
pub(super) const Q4_0: Codec = Codec {
    name: "q4_0",
    elements: 32,
    bytes: 18,
    kind: Kind::Float,
    ggml: Some(2),
    swap: Some(&[Field::halves(0, 1)]),
    decode: |blocks, out| each_block(blocks, out, q4_0),
    fast: twin!(q4_0),
};

/// `block_q4_1`.
pub(super) const Q4_1: Codec = Codec {
    name: "q4_1",
    elements: 32,
    bytes: 20,
    kind: Kind::Float,
    ggml: Some(3),
    swap: Some(&[Field::halves(0, 2)]),
    decode: |blocks, out| each_block(blocks, out, q4_1),
    fast: twin!(q4_1),
};

/// `block_q5_0`.
pub(super) const Q5_0: Codec = Codec {
    name: "q5_0",
    elements: 32,
    bytes: 22,
    kind: Kind::Float,
    ggml: Some(6),
    swap: Some(&[Field::halves(0, 1), Field { offset: 2, width: 4, count: 1 }]),
    decode: |blocks, out| each_block(blocks, out, q5_0),
    fast: twin!(q5_0),
};

/// `block_q5_1`.
pub(super) const Q5_1: Codec = Codec {
    name: "q5_1",
    elements: 32,
    bytes: 24,
    kind: Kind::Float,
    ggml: Some(7),
    swap: Some(&[Field::halves(0, 2), Field { offset: 4, width: 4, count: 1 }]),
    decode: |blocks, out| each_block(blocks, out, q5_1),
    fast: twin!(q5_1),
};

/// `block_q8_0`.
pub(super) const Q8_0: Codec = Codec {
    name: "q8_0",
    elements: 32,
    bytes: 34,
    kind: Kind::Float,
    ggml: Some(8),
    swap: Some(&[Field::halves(0, 1)]),
    decode: |blocks, out| each_block(blocks, out, q8_0),
    fast: twin!(q8_0),
};

/// `block_q8_1`: an intermediate of ggml's products, which has no decoder there; `s`, d times the sum of the codes, adds nothing to the elements.
/// (gguf-py 0.19 gives it 40 bytes, from when d and s were f32.)
pub(super) const Q8_1: Codec = Codec {
    name: "q8_1",
    elements: 32,
    bytes: 36,
    kind: Kind::Float,
    ggml: Some(9),
    swap: Some(&[Field::halves(0, 2)]),
    decode: |blocks, out| each_block(blocks, out, q8_1),
    fast: twin!(q8_1),
};

fn q1_0(block: &[u8; 18], out: &mut [f32; 128]) {
    let d = f16_at(block, 0);
    let bits: [u8; 16] = part(block, 2);
    for (bits, out) in bits.iter().zip(out.as_chunks_mut::<8>().0) {
        for (position, y) in out.iter_mut().enumerate() {
            // -d where the bit is clear, so that d = 0 gives -0 as in C.
            let clear = u32::from(!bits >> position & 1);
            *y = f32::from_bits(d.to_bits() ^ clear << 31);
        }
    }
}

fn q2_0(block: &[u8; 18], out: &mut [f32; 64]) {
    let d = f16_at(block, 0);
    let codes: [u8; 16] = part(block, 2);
    for (codes, out) in codes.iter().zip(out.as_chunks_mut::<4>().0) {
        for (position, y) in out.iter_mut().enumerate() {
            *y = (i32::from(codes >> (2 * position) & 3) - 1) as f32 * d;
        }
    }
}

fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for (q, y) in nibbles(part(block, 2)).iter().zip(out) {
        *y = (i32::from(*q) - 8) as f32 * d;
    }
}

fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    let m = f16_at(block, 2);
    for (q, y) in nibbles(part(block, 4)).iter().zip(out) {
        *y = f32::from(*q) * d + m;
    }
}

fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    let fifths = u32_at(block, 2);
    for (k, (q, y)) in nibbles(part(block, 6)).iter().zip(out).enumerate() {
        *y = (i32::from(q | fifth_bit(fifths, k)) - 16) as f32 * d;
    }
}

fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    let m = f16_at(block, 2);
    let fifths = u32_at(block, 4);
    for (k, (q, y)) in nibbles(part(block, 8)).iter().zip(out).enumerate() {
        *y = f32::from(q | fifth_bit(fifths, k)) * d + m;
    }
}

fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for (q, y) in part::<32, _>(block, 2).iter().zip(out) {
        *y = f32::from(q.cast_signed()) * d;
    }
}

fn q8_1(block: &[u8; 36], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for (q, y) in part::<32, _>(block, 4).iter().zip(out) {
        *y = f32::from(q.cast_signed()) * d;
    }
}

/// Returns the low nibbles of 16 bytes, then their high nibbles.
#[inline(always)]
fn nibbles(bytes: [u8; 16]) -> [u8; 32] {
    let mut nibbles = [0; 32];
    let (low, high) = nibbles.split_at_mut(16);
    for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
        *low = byte & 15;
        *high = byte >> 4;
    }
    nibbles
}

/// Returns bit k of the word in the place of a nibble's fifth bit.
#[inline(always)]
fn fifth_bit(fifths: u32, k: usize) -> u8 {
    (((fifths >> k) & 1) << 4) as u8
}
