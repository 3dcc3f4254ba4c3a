//! Floating-point elements: f64, f32, f16, bf16 and the 8-bit floats.
//!
//! | type | sign, exponent, mantissa bits | bias | infinities | NaN |
//! |---|---|---|---|---|
//! | f8_e4m3 | 1 4 3 | 7 | none | 0x7F, 0xFF |
//! | f8_e5m2 | 1 5 2 | 15 | 0x7C, 0xFC | above those |
//! | f8_e4m3fnuz | 1 4 3 | 8 | none | 0x80, so there is no -0 |
//! | f8_e5m2fnuz | 1 5 2 | 16 | none | 0x80, so there is no -0 |
//!
//! The first two are those of the OCP 8-bit Floating Point Specification 1.0, the last two those of <https://arxiv.org/abs/2206.02915>; ONNX
//! (<https://onnx.ai/onnx/technical/float8.html>) has all four.
#![expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tables of 256 entries are indexed by a byte, and shifts and sums of codes of at most 16 bits cannot overflow u32"
)]

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

use super::{Codec, Field, Kind, each_block};

/// IEEE binary64, rounded to the nearest f32, ties to even.
pub(super) const F64: Codec = Codec {
    name: "f64",
    elements: 1,
    bytes: 8,
    kind: Kind::Float,
    ggml: Some(28),
    swap: Some(&[Field { offset: 0, width: 8, count: 1 }]),
    decode: |blocks, out| {
        each_block(blocks, out, |block, [y]| *y = f64::from_le_bytes(*block) as f32);
    },
    fast: twin!(f64),
};

/// IEEE binary32, unchanged: a copy, which has no faster twin.
pub(super) const F32: Codec = Codec {
    name: "f32",
    elements: 1,
    bytes: 4,
    kind: Kind::Float,
    ggml: Some(0),
    swap: Some(&[Field { offset: 0, width: 4, count: 1 }]),
    decode: |blocks, out| each_block(blocks, out, |block, [y]| *y = f32::from_le_bytes(*block)),
    fast: None,
};

/// IEEE binary16. A signalling NaN becomes a quiet one, as in ggml and in hardware (VCVTPH2PS).
pub(super) const F16: Codec =
    Codec { name: "f16", elements: 1, bytes: 2, kind: Kind::Float, ggml: Some(1), swap: Some(&[Field::halves(0, 1)]), decode: f16, fast: twin!(f16) };

/// The upper half of an f32. A plain shift: a signalling NaN stays one, as in ggml (`half::bf16` would make it quiet).
pub(super) const BF16: Codec = Codec {
    name: "bf16",
    elements: 1,
    bytes: 2,
    kind: Kind::Float,
    ggml: Some(30),
    swap: Some(&[Field::halves(0, 1)]),
    decode: |blocks, out| {
        each_block(blocks, out, |block, [y]| {
            *y = f32::from_bits(u32::from(u16::from_le_bytes(*block)) << 16);
        });
    },
    fast: twin!(bf16),
};

/// E4M3 of OCP OFP8, which torch and ml_dtypes call e4m3fn.
pub(super) const F8_E4M3: Codec = Codec { name: "f8_e4m3", decode: |blocks, out| by_table(blocks, out, &E4M3), fast: twin!(f8_e4m3), ..F8 };

/// E5M2 of OCP OFP8: the upper half of an f16.
pub(super) const F8_E5M2: Codec = Codec { name: "f8_e5m2", decode: |blocks, out| by_table(blocks, out, &E5M2), fast: twin!(f8_e5m2), ..F8 };

/// E4M3 with bias 8, and one NaN in the place of -0.
pub(super) const F8_E4M3FNUZ: Codec = Codec { name: "f8_e4m3fnuz", decode: |blocks, out| by_table(blocks, out, &E4M3FNUZ), fast: twin!(f8_e4m3fnuz), ..F8 };

/// E5M2 with bias 16, and one NaN in the place of -0.
pub(super) const F8_E5M2FNUZ: Codec = Codec { name: "f8_e5m2fnuz", decode: |blocks, out| by_table(blocks, out, &E5M2FNUZ), fast: twin!(f8_e5m2fnuz), ..F8 };

/// What all 8-bit floats have in common; not registered itself.
const F8: Codec = Codec { name: "", elements: 1, bytes: 1, kind: Kind::Float, ggml: None, swap: Some(&[]), decode: |_, _| {}, fast: None };

static E4M3: [f32; 256] = {
    let mut table = minifloats(4, 3, 7);
    table[0x7F] = f32::NAN;
    table[0xFF] = f32::NAN;
    table
};

static E5M2: [f32; 256] = {
    let mut table = minifloats(5, 2, 15);
    let mut mantissa = 0;
    while mantissa < 4 {
        let special = if mantissa == 0 { f32::INFINITY } else { f32::NAN };
        table[0x7C + mantissa] = special;
        table[0xFC + mantissa] = -special;
        mantissa += 1;
    }
    table
};

static E4M3FNUZ: [f32; 256] = {
    let mut table = minifloats(4, 3, 8);
    table[0x80] = f32::NAN;
    table
};

static E5M2FNUZ: [f32; 256] = {
    let mut table = minifloats(5, 2, 16);
    table[0x80] = f32::NAN;
    table
};

/// Decodes one-byte codes through a table of all their values.
fn by_table(blocks: &[u8], out: &mut [f32], table: &[f32; 256]) {
    each_block(blocks, out, |&[code], [y]| *y = table[usize::from(code)]);
}

/// Returns the values of all codes of a format without special values, of which the first `2^(1 + exponent_bits + mantissa_bits)` are meant.
pub(super) const fn minifloats<const CODES: usize>(exponent_bits: u32, mantissa_bits: u32, bias: u32) -> [f32; CODES] {
    let mut table = [0.0; CODES];
    let mut code = 0;
    while code < CODES {
        table[code] = minifloat(code as u32, exponent_bits, mantissa_bits, bias);
        code += 1;
    }
    table
}

/// Returns the value of a code that has a sign bit, then an exponent, then a mantissa, and no special values.
const fn minifloat(code: u32, exponent_bits: u32, mantissa_bits: u32, bias: u32) -> f32 {
    let sign = (code >> (exponent_bits + mantissa_bits)) & 1;
    let exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1);
    let mantissa = code & ((1 << mantissa_bits) - 1);
    let magnitude = if exponent == 0 {
        // mantissa * 2^(1 - bias - mantissa_bits): a subnormal, exact in f32.
        mantissa as f32 * f32::from_bits((127 + 1 - bias - mantissa_bits) << 23)
    } else {
        f32::from_bits((exponent + 127 - bias) << 23 | mantissa << (23 - mantissa_bits))
    };
    f32::from_bits(sign << 31 | magnitude.to_bits())
}

/// Elements that are converted at a time, so that `half` chooses between F16C and software once for all of them.
const RUN: usize = 64;

fn f16(blocks: &[u8], out: &mut [f32]) {
    let (codes, _partial) = blocks.as_chunks::<2>();
    for (codes, out) in codes.chunks(RUN).zip(out.chunks_mut(RUN)) {
        let mut bits = [0; RUN];
        for (bits, code) in bits.iter_mut().zip(codes) {
            *bits = u16::from_le_bytes(*code);
        }
        let count = codes.len().min(out.len());
        let halves: &[f16] = bits[..count].reinterpret_cast();
        halves.convert_to_f32_slice(&mut out[..count]);
    }
}

/// Returns the value of an f16 given by its bits, without asking the CPU what it can do: for the one or two scales of a block.
///
/// The branch-free method of `ggml_compute_fp16_to_fp32` in `ggml-impl.h`, from <https://github.com/Maratyszcza/FP16>. A signalling NaN becomes quiet.
#[inline(always)]
pub(super) fn f16_to_f32(bits: u16) -> f32 {
    let word = u32::from(bits) << 16;
    let sign = word & 0x8000_0000;
    let magnitude = word << 1;
    // Exponent and mantissa put where f32 has them, 112 too high in the exponent's bias, which the product takes away; all ones stay all ones.
    let two_to_minus_112 = f32::from_bits((127 - 112) << 23);
    let normal = f32::from_bits((magnitude >> 4) + (0xE0 << 23)) * two_to_minus_112;
    // A subnormal as the low mantissa bits of a number between a half and one, whose last place is 2^-24.
    let subnormal = f32::from_bits((magnitude >> 17) | 0.5f32.to_bits()) - 0.5;
    let smallest_normal = 1 << 27;
    let value = if magnitude < smallest_normal { subnormal } else { normal };
    f32::from_bits(sign | value.to_bits())
}
