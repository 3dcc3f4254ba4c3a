//! ggml's IQ blocks: groups of elements are entries of a code book, or nibbles are entries of a table of uneven levels.
//!
//! | type | bytes | layout | a group of eight is |
//! |---|---|---|---|
//! | iq2_xxs | 66 | d, 8 x (4 indices of 8 bits, 4 x 7 sign bits, scale 4 bits) | one entry of 256 |
//! | iq2_xs | 74 | d, 32 x (index 9 bits, 7 sign bits), scales 16 x 4 bits | one entry of 512 |
//! | iq2_s | 82 | d, index bytes, 8 sign bits each, upper index bits, scales 16 x 4 bits | one entry of 1024 |
//! | iq3_xxs | 98 | d, index bytes, 8 x (4 x 7 sign bits, scale 4 bits) | two entries of 256 |
//! | iq3_s | 110 | d, index bytes, upper index bits, 8 sign bits each, scales 8 x 4 bits | two entries of 512 |
//! | iq1_s | 50 | d, index bytes, 8 x (upper index bits, scale 3 bits, sign of delta) | one entry of 2048, plus delta |
//! | iq1_m | 56 | index bytes, upper index bits and sign of delta, scales 16 x 3 bits, d between them | one entry of 2048, plus delta |
//! | iq4_nl | 18 | d, 32 nibbles | |
//! | iq4_xs | 136 | d, scales 8 x 6 bits, 256 nibbles | |
//!
//! In the loops, `run` counts runs of 32 elements (ib32 in the C code) and `l` the groups of eight in one. The factors 0.5 + scale and 1 + 2 scale are the
//! C code's, in its order. No byte order but little-endian is defined for IQ1, IQ2 and IQ3: the C code reads the same bytes as words of several widths.
#![expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "code books are indexed by numbers masked to their length, offsets are computed from the number of a run of at most 8 inside blocks of fixed size"
)]

use super::iq_tables::{IQ1S_GRID, IQ2S_GRID, IQ2XS_GRID, IQ2XXS_GRID, IQ3S_GRID, IQ3XXS_GRID, IQ4NL_VALUES};
use super::{Codec, Field, Kind, each_block, f16_at, float::f16_to_f32, part, u16_at, u32_at};

/// `block_iq1_s`.
pub(super) const IQ1_S: Codec = Codec {
    name: "iq1_s",
    elements: 256,
    bytes: 50,
    kind: Kind::Float,
    ggml: Some(19),
    swap: None,
    decode: |blocks, out| each_block(blocks, out, iq1_s),
    fast: twin!(iq1_s),
};

/// `block_iq1_m`.
pub(super) const IQ1_M: Codec = Codec {
    name: "iq1_m",
    elements: 256,
    bytes: 56,
    kind: Kind::Float,
    ggml: Some(29),
    swap: None,
    decode: |blocks, out| each_block(blocks, out, iq1_m),
    fast: twin!(iq1_m),
};

/// `block_iq2_xxs`.
pub(super) const IQ2_XXS: Codec = Codec {
    name: "iq2_xxs",
    elements: 256,
    bytes: 66,
    kind: Kind::Float,
    ggml: Some(16),
    swap: None,
    decode: |blocks, out| each_block(blocks, out, iq2_xxs),
    fast: twin!(iq2_xxs),
};

/// `block_iq2_xs`.
pub(super) const IQ2_XS: Codec = Codec {
    name: "iq2_xs",
    elements: 256,
    bytes: 74,
    kind: Kind::Float,
    ggml: Some(17),
    swap: None,
    decode: |blocks, out| each_block(blocks, out, iq2_xs),
    fast: twin!(iq2_xs),
};

/// `block_iq2_s`.
pub(super) const IQ2_S: Codec = Codec {
    name: "iq2_s",
    elements: 256,
    bytes: 82,
    kind: Kind::Float,
    ggml: Some(22),
    swap: None,
    decode: |blocks, out| each_block(blocks, out, iq2_s),
    fast: twin!(iq2_s),
};

/// `block_iq3_xxs`.
pub(super) const IQ3_XXS: Codec = Codec {
    name: "iq3_xxs",
    elements: 256,
    bytes: 98,
    kind: Kind::Float,
    ggml: Some(18),
    swap: None,
    decode: |blocks, out| each_block(blocks, out, iq3_xxs),
    fast: twin!(iq3_xxs),
};

/// `block_iq3_s`.
pub(super) const IQ3_S: Codec = Codec {
    name: "iq3_s",
    elements: 256,
    bytes: 110,
    kind: Kind::Float,
    ggml: Some(21),
    swap: None,
    decode: |blocks, out| each_block(blocks, out, iq3_s),
    fast: twin!(iq3_s),
};

/// `block_iq4_nl`.
pub(super) const IQ4_NL: Codec = Codec {
    name: "iq4_nl",
    elements: 32,
    bytes: 18,
    kind: Kind::Float,
    ggml: Some(20),
    swap: Some(&[Field::halves(0, 1)]),
    decode: |blocks, out| {
        each_block::<18, 32>(blocks, out, |block, out| {
            levels(part(block, 2), f16_at(block, 0), out);
        });
    },
    fast: twin!(iq4_nl),
};

/// `block_iq4_xs`. Its second field with a byte order holds the upper bits of the scales.
pub(super) const IQ4_XS: Codec = Codec {
    name: "iq4_xs",
    elements: 256,
    bytes: 136,
    kind: Kind::Float,
    ggml: Some(23),
    swap: Some(&[Field::halves(0, 2)]),
    decode: |blocks, out| each_block(blocks, out, iq4_xs),
    fast: twin!(iq4_xs),
};

fn iq2_xxs(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (run, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let indices: [u8; 4] = part(block, 2 + 8 * run);
        let word = u32_at(block, 6 + 8 * run);
        let scale = d * (0.5 + (word >> 28) as f32) * 0.25;
        for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let grid = IQ2XXS_GRID[usize::from(indices[l])];
            signed(grid, even_signs(word >> (7 * l)), scale, out);
        }
    }
}

fn iq2_xs(block: &[u8; 74], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (run, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let word = u16_at(block, 2 + 8 * run + 2 * l);
            let grid = IQ2XS_GRID[usize::from(word & 511)];
            let scale = scale_of_16(block[66 + run], l, d);
            signed(grid, even_signs(u32::from(word >> 9)), scale, out);
        }
    }
}

fn iq2_s(block: &[u8; 82], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (run, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let lows: [u8; 4] = part(block, 2 + 4 * run);
        let signs: [u8; 4] = part(block, 34 + 4 * run);
        let highs = usize::from(block[66 + run]);
        for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let grid = IQ2S_GRID[usize::from(lows[l]) | (highs >> (2 * l) & 3) << 8];
            let scale = scale_of_16(block[74 + run], l, d);
            signed(grid, signs[l], scale, out);
        }
    }
}

fn iq3_xxs(block: &[u8; 98], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (run, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let indices: [u8; 8] = part(block, 2 + 8 * run);
        let word = u32_at(block, 66 + 4 * run);
        let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
        for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let first = IQ3XXS_GRID[usize::from(indices[2 * l])];
            let second = IQ3XXS_GRID[usize::from(indices[2 * l + 1])];
            signed(pair(first, second), even_signs(word >> (7 * l)), scale, out);
        }
    }
}

fn iq3_s(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (run, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let lows: [u8; 8] = part(block, 2 + 8 * run);
        let highs = usize::from(block[66 + run]);
        let signs: [u8; 4] = part(block, 74 + 4 * run);
        let scale = block[106 + run / 2] >> (4 * (run % 2)) & 15;
        let scale = d * f32::from(1 + 2 * scale);
        let entry = |i: usize| IQ3S_GRID[usize::from(lows[i]) | (highs >> i & 1) << 8];
        for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            signed(pair(entry(2 * l), entry(2 * l + 1)), signs[l], scale, out);
        }
    }
}

fn iq1_s(block: &[u8; 50], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (run, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let lows: [u8; 4] = part(block, 2 + 4 * run);
        let word = u16_at(block, 34 + 2 * run);
        let scale = d * f32::from(2 * (word >> 12 & 7) + 1);
        let delta = delta(word & 0x8000 != 0);
        for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let grid = IQ1S_GRID[usize::from(lows[l]) | usize::from(word >> (3 * l) & 7) << 8];
            shifted(grid, delta, scale, out);
        }
    }
}

fn iq1_m(block: &[u8; 56], out: &mut [f32; 256]) {
    // Four words of four 3-bit scales; their top nibbles together are d.
    let words: [u16; 4] = std::array::from_fn(|i| u16_at(block, 48 + 2 * i));
    let d = f16_to_f32(words[0] >> 12 | words[1] >> 8 & 0x00F0 | words[2] >> 4 & 0x0F00 | words[3] & 0xF000);
    for (run, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let lows: [u8; 4] = part(block, 4 * run);
        let highs: [u8; 2] = part(block, 32 + 2 * run);
        let scales = words[run / 2] >> (6 * (run % 2));
        for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let high = highs[l / 2] >> (4 * (l % 2));
            let grid = IQ1S_GRID[usize::from(lows[l]) | usize::from(high & 7) << 8];
            let scale = d * f32::from(2 * (scales >> (3 * (l / 2)) & 7) + 1);
            shifted(grid, delta(high & 8 != 0), scale, out);
        }
    }
}

fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    let highs = u16_at(block, 2);
    for (run, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let low = block[4 + run / 2] >> (4 * (run % 2)) & 15;
        let high = (highs >> (2 * run) & 3) as u8;
        let scale = d * (i32::from(low | high << 4) - 32) as f32;
        levels(part(block, 8 + 16 * run), scale, out);
    }
}

/// Returns the scale of a group in iq2_xs and iq2_s: a nibble for two groups each.
#[inline(always)]
fn scale_of_16(nibbles: u8, l: usize, d: f32) -> f32 {
    d * (0.5 + f32::from(nibbles >> (4 * (l / 2)) & 15)) * 0.25
}

/// Completes the lowest seven bits to eight signs of which an even number is set: `ksigns_iq2xs` in `ggml-common.h`.
#[inline(always)]
fn even_signs(bits: u32) -> u8 {
    let seven = bits as u8 & 127;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// Joins two entries of four elements.
#[inline(always)]
fn pair(first: u32, second: u32) -> u64 {
    u64::from(first) | u64::from(second) << 32
}

/// Writes eight unsigned magnitudes times the scale, negative where the sign bit is set.
#[inline(always)]
fn signed(grid: u64, signs: u8, scale: f32, out: &mut [f32; 8]) {
    for (j, (magnitude, y)) in grid.to_le_bytes().iter().zip(out).enumerate() {
        let sign = u32::from(signs >> j & 1) << 31;
        *y = f32::from_bits((scale * f32::from(*magnitude)).to_bits() ^ sign);
    }
}

/// Writes eight values of -1, 0 or 1, moved by delta and then scaled.
#[inline(always)]
fn shifted(grid: u64, delta: f32, scale: f32, out: &mut [f32; 8]) {
    for (value, y) in grid.to_le_bytes().iter().zip(out) {
        *y = scale * (f32::from(value.cast_signed()) + delta);
    }
}

/// `IQ1S_DELTA` in `ggml-common.h`, with its sign.
#[inline(always)]
fn delta(negative: bool) -> f32 {
    if negative { -0.125 } else { 0.125 }
}

/// Writes the levels of the low nibbles of 16 bytes, then those of the high nibbles.
#[inline(always)]
fn levels(codes: [u8; 16], scale: f32, out: &mut [f32; 32]) {
    let (low, high) = out.split_at_mut(16);
    for ((codes, low), high) in codes.iter().zip(low).zip(high) {
        *low = scale * f32::from(IQ4NL_VALUES[usize::from(codes & 15)]);
        *high = scale * f32::from(IQ4NL_VALUES[usize::from(codes >> 4)]);
    }
}
