//! Twins of the types of `float.rs` and `packed.rs`, and of the functions of `narrow.rs`.

use super::super::{float, narrow, packed};
use super::*;

twins! {
    f64(float::F64) = |block: &[u8; 64], out: &mut [f32; 8]| {
        let [low, high]: [[f64; 4]; 2] = bytemuck::cast(*block);
        put(out, 0, _mm256_set_m128(_mm256_cvtpd_ps(bytemuck::cast(high)), _mm256_cvtpd_ps(bytemuck::cast(low))));
    };
    f16(float::F16) = |block: &[u8; 16], out: &mut [f32; 8]| put(out, 0, _mm256_cvtph_ps(load(block, 0)));
    bf16(float::BF16) = |block: &[u8; 16], out: &mut [f32; 8]| {
        put(out, 0, _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(load(block, 0)))));
    };
    f8_e4m3(float::F8_E4M3) = |block: &[u8; 16], out: &mut [f32; 16]| {
        let codes = _mm256_cvtepi8_epi16(load(block, 0));
        let magnitude = magnitude_of_e4m3(codes);
        let nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7F << 7));
        widen(out, or_nan(with_sign(magnitude, codes), nan), 256.0);
    };
    f8_e5m2(float::F8_E5M2) = |block: &[u8; 16], out: &mut [f32; 16]| {
        let codes = _mm256_cvtepi8_epi16(load(block, 0));
        let magnitude = magnitude_of_e5m2(codes);
        let nan = _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(0x7C00));
        widen(out, with_sign(or_nan(magnitude, nan), codes), 1.0);
    };
    f8_e4m3fnuz(float::F8_E4M3FNUZ) = |block: &[u8; 16], out: &mut [f32; 16]| {
        let codes = _mm256_cvtepi8_epi16(load(block, 0));
        let nan = _mm256_cmpeq_epi16(codes, _mm256_set1_epi16(-0x80));
        widen(out, or_nan(with_sign(magnitude_of_e4m3(codes), codes), nan), 128.0);
    };
    f8_e5m2fnuz(float::F8_E5M2FNUZ) = |block: &[u8; 16], out: &mut [f32; 16]| {
        let codes = _mm256_cvtepi8_epi16(load(block, 0));
        // Half of what the bits are as an f16: one less in the exponent, or a shift where the result is subnormal. The greater of the two is the right one.
        let whole = magnitude_of_e5m2(codes);
        let halved = _mm256_max_epi16(_mm256_srli_epi16::<1>(whole), _mm256_sub_epi16(whole, _mm256_set1_epi16(0x0400)));
        let nan = _mm256_cmpeq_epi16(codes, _mm256_set1_epi16(-0x80));
        widen(out, or_nan(with_sign(halved, codes), nan), 1.0);
    };
    i4(packed::I4) = |block: &[u8; 4], out: &mut [f32; 8]| fields::<4, true, 8>(block, out);
    u4(packed::U4) = |block: &[u8; 4], out: &mut [f32; 8]| fields::<4, false, 8>(block, out);
    i2(packed::I2) = |block: &[u8; 4], out: &mut [f32; 16]| fields::<2, true, 16>(block, out);
    u2(packed::U2) = |block: &[u8; 4], out: &mut [f32; 16]| fields::<2, false, 16>(block, out);
    u1(packed::U1) = |block: &[u8; 4], out: &mut [f32; 32]| fields::<1, false, 32>(block, out);
}

/// Splits four bytes into fields of `WIDTH` bits, from the least significant bits up.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn fields<const WIDTH: i32, const SIGNED: bool, const ELEMENTS: usize>(block: &[u8; 4], out: &mut [f32; ELEMENTS]) {
    let word = word(block, 0);
    let ends = _mm256_mullo_epi32(_mm256_setr_epi32(1, 2, 3, 4, 5, 6, 7, 8), _mm256_set1_epi32(WIDTH));
    let down = _mm_cvtsi32_si128(32 - WIDTH);
    for i in 0..ELEMENTS / 8 {
        // The field goes to the top of its lane, and down again with or without its sign.
        let counts = _mm256_sub_epi32(_mm256_set1_epi32(32 - 8 * WIDTH * i as i32), ends);
        let top = _mm256_sllv_epi32(word, counts);
        let codes = if SIGNED { _mm256_sra_epi32(top, down) } else { _mm256_srl_epi32(top, down) };
        put(out, 8 * i, _mm256_cvtepi32_ps(codes));
    }
}

/// The seven bits below the sign of an E4M3 code in the place where f16 has them, its exponent's upper bit being zero.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn magnitude_of_e4m3(codes: __m256i) -> __m256i {
    _mm256_and_si256(_mm256_slli_epi16::<7>(codes), _mm256_set1_epi16(0x7F << 7))
}

/// The seven bits below the sign of an E5M2 code in the place where f16 has them.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn magnitude_of_e5m2(codes: __m256i) -> __m256i {
    _mm256_and_si256(_mm256_slli_epi16::<8>(codes), _mm256_set1_epi16(0x7F << 8))
}

/// The magnitudes of f16 with the signs of the codes.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn with_sign(magnitudes: __m256i, codes: __m256i) -> __m256i {
    _mm256_or_si256(magnitudes, _mm256_and_si256(codes, _mm256_set1_epi16(i16::MIN)))
}

/// The bits of f16, or those of the NaN that the scalar tables have: a read must not see where runs of sixteen end and single codes begin.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn or_nan(bits: __m256i, nan: __m256i) -> __m256i {
    _mm256_blendv_epi8(bits, _mm256_set1_epi16(0x7E00), nan)
}

/// Writes sixteen f16 times a power of two.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn widen(out: &mut [f32; 16], bits: __m256i, power: f32) {
    let (low, high) = halves(bits);
    put(out, 0, _mm256_mul_ps(_mm256_cvtph_ps(low), _mm256_set1_ps(power)));
    put(out, 8, _mm256_mul_ps(_mm256_cvtph_ps(high), _mm256_set1_ps(power)));
}

/// Defines the twins of the functions of `narrow.rs`: name, and the closure that narrows sixteen values.
macro_rules! narrowing {
    ($($name:ident = $narrow:expr;)*) => {$(
        pub(in crate::quant) fn $name(values: &[f32], out: &mut [u8]) {
            #[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
            fn twin(values: &[[f32; 16]], out: &mut [[u8; 32]]) {
                let narrow = $narrow;
                for (values, out) in values.iter().zip(out) {
                    *out = narrow(values);
                }
            }
            if !available() {
                return narrow::scalar::$name(values, out);
            }
            let ((runs, _), (out_runs, _)) = (values.as_chunks(), out.as_chunks_mut());
            let whole = runs.len().min(out_runs.len());
            // SAFETY: the CPU has the features that `twin` is compiled for, as `available` has just said.
            unsafe { twin(runs, out_runs) };
            if let (Some(values), Some(out)) = (values.get(16 * whole..), out.get_mut(32 * whole..)) {
                narrow::scalar::$name(values, out);
            }
        }
    )*};
}

narrowing! {
    narrow_f16 = |values: &[f32; 16]| -> [u8; 32] {
        let [low, high]: [__m256; 2] = bytemuck::cast(*values);
        bytemuck::cast([_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(low), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(high)])
    };
    narrow_bf16 = |values: &[f32; 16]| -> [u8; 32] {
        let [low, high]: [__m256; 2] = bytemuck::cast(*values);
        // Packing works within the halves of a vector, whose middle quarters then change places.
        bytemuck::cast(_mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(nearest_bf16(low), nearest_bf16(high))))
    };
}

/// The bits of the nearest bf16 of each value, in the low half of its lane.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn nearest_bf16(values: __m256) -> __m256i {
    let bits = _mm256_castps_si256(values);
    let cut = _mm256_srli_epi32::<16>(bits);
    let odd = _mm256_and_si256(cut, _mm256_set1_epi32(1));
    let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd));
    let quiet = _mm256_or_si256(cut, _mm256_set1_epi32(0x40));
    let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(values, values));
    _mm256_blendv_epi8(rounded, quiet, nan)
}
