//! Microscaling: 4- and 6-bit floats, powers of two, and the blocks that ggml makes of them.
//!
//! The elements are those of the OCP Microscaling Formats (MX) Specification 1.0, section 5.3; they have neither infinities nor NaN.
//!
//! | type | sign, exponent, mantissa bits | bias | largest |
//! |---|---|---|---|
//! | f6_e2m3 | 1 2 3 | 1 | 7.5 |
//! | f6_e3m2 | 1 3 2 | 3 | 28 |
//! | f4 | 1 2 1 | 1 | 6 |
//! | f8_e8m0 | 0 8 0 | 127 | 2^127; 0xFF is NaN |
//!
//! Packing is by ONNX, which safetensors shares for f4: from the least significant bits up, so that four 6-bit codes fill three bytes.
#![expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tables are indexed by codes masked to their length, and sums of offsets and of exponents of at most 8 bits cannot overflow"
)]

use super::float::minifloats;
use super::{Codec, Kind, each_block, part};

/// A power of two, the scale of an MX block: 2^(code - 127).
pub(super) const F8_E8M0: Codec = Codec {
    name: "f8_e8m0",
    elements: 1,
    bytes: 1,
    kind: Kind::Float,
    ggml: None,
    swap: Some(&[]),
    decode: |blocks, out| each_block(blocks, out, |&[code], [y]| *y = e8m0(code)),
    fast: twin!(f8_e8m0),
};

/// E2M3, four codes in three bytes.
pub(super) const F6_E2M3: Codec = Codec {
    name: "f6_e2m3",
    elements: 4,
    bytes: 3,
    kind: Kind::Float,
    ggml: None,
    swap: Some(&[]),
    decode: |blocks, out| each_block(blocks, out, |block, out| f6(block, out, &E2M3)),
    fast: twin!(f6_e2m3),
};

/// E3M2, four codes in three bytes.
pub(super) const F6_E3M2: Codec = Codec {
    name: "f6_e3m2",
    elements: 4,
    bytes: 3,
    kind: Kind::Float,
    ggml: None,
    swap: Some(&[]),
    decode: |blocks, out| each_block(blocks, out, |block, out| f6(block, out, &E3M2)),
    fast: twin!(f6_e3m2),
};

/// E2M1, the first of two elements in the low nibble. Code 8 is -0.
pub(super) const F4: Codec = Codec {
    name: "f4",
    elements: 2,
    bytes: 1,
    kind: Kind::Float,
    ggml: None,
    swap: Some(&[]),
    decode: |blocks, out| {
        each_block(blocks, out, |&[codes], [low, high]| {
            *low = E2M1[usize::from(codes & 15)];
            *high = E2M1[usize::from(codes >> 4)];
        });
    },
    fast: twin!(f4),
};

/// `block_mxfp4`: a power of two, then 32 E2M1 codes.
pub(super) const MXFP4: Codec = Codec {
    name: "mxfp4",
    elements: 32,
    bytes: 17,
    kind: Kind::Float,
    ggml: Some(39),
    swap: Some(&[]),
    decode: |blocks, out| each_block(blocks, out, mxfp4),
    fast: twin!(mxfp4),
};

/// `block_nvfp4`: four unsigned E4M3 scales, then 16 E2M1 codes for each. The scale of the whole tensor, where there is one, is another tensor.
pub(super) const NVFP4: Codec = Codec {
    name: "nvfp4",
    elements: 64,
    bytes: 36,
    kind: Kind::Float,
    ggml: Some(40),
    swap: Some(&[]),
    decode: |blocks, out| each_block(blocks, out, nvfp4),
    fast: twin!(nvfp4),
};

static E2M3: [f32; 64] = minifloats(2, 3, 1);
static E3M2: [f32; 64] = minifloats(3, 2, 3);
pub(super) static E2M1: [f32; 16] = minifloats(2, 1, 1);

/// Twice the values of E2M1 as integers, `kvalues_mxfp4` in `ggml-common.h`. Unlike in [`E2M1`], code 8 is +0.
pub(super) static E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// 2^(code - 127), of which 2^-127 is subnormal in f32.
fn e8m0(code: u8) -> f32 {
    f32::from_bits(match code {
        0 => 0x0040_0000,
        0xFF => f32::NAN.to_bits(),
        _ => u32::from(code) << 23,
    })
}

/// Half the value of an E8M0 scale, for the doubled elements: `ggml_e8m0_to_fp32_half` in `ggml-impl.h`, which knows no NaN: 0xFF is 2^127.
#[inline(always)]
pub(super) const fn e8m0_half(code: u8) -> f32 {
    f32::from_bits(match code {
        0 | 1 => 0x0020_0000 << code, // 2^-128 and 2^-127, subnormal
        _ => (code as u32 - 1) << 23,
    })
}

/// Half the value of an unsigned E4M3 scale: `ggml_ue4m3_to_fp32` in `ggml-impl.h`.
///
/// Only the code 0x7F is taken for NaN, and gives 0; apart from that the top bit is ignored, so that 0xFF is 240.
#[inline(always)]
pub(super) const fn ue4m3_half(code: u8) -> f32 {
    let exponent = (code >> 3) as u32 & 15;
    let mantissa = (code & 7) as u32;
    if code == 0x7F {
        0.0
    } else if exponent == 0 {
        mantissa as f32 * f32::from_bits((127 - 10) << 23) // mantissa * 2^-10
    } else {
        f32::from_bits((exponent + 127 - 8) << 23 | mantissa << 20)
    }
}

#[inline(always)]
fn f6(&[a, b, c]: &[u8; 3], out: &mut [f32; 4], values: &[f32; 64]) {
    let stream = u32::from_le_bytes([a, b, c, 0]);
    for (position, y) in out.iter_mut().enumerate() {
        *y = values[(stream >> (6 * position)) as usize & 63];
    }
}

fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let scale = e8m0_half(block[0]);
    let (low, high) = out.split_at_mut(16);
    for ((&codes, low), high) in block[1..].iter().zip(low).zip(high) {
        *low = f32::from(E2M1_DOUBLED[usize::from(codes & 15)]) * scale;
        *high = f32::from(E2M1_DOUBLED[usize::from(codes >> 4)]) * scale;
    }
}

fn nvfp4(block: &[u8; 36], out: &mut [f32; 64]) {
    for (s, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = ue4m3_half(block[s]);
        let codes: [u8; 8] = part(block, 4 + 8 * s);
        let (low, high) = out.split_at_mut(8);
        for ((codes, low), high) in codes.iter().zip(low).zip(high) {
            *low = f32::from(E2M1_DOUBLED[usize::from(codes & 15)]) * scale;
            *high = f32::from(E2M1_DOUBLED[usize::from(codes >> 4)]) * scale;
        }
    }
}
