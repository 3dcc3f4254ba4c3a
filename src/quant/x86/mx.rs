//! Twins of the types of `mx.rs`.
#![expect(clippy::indexing_slicing, reason = "tables of 256 entries are indexed by a byte, and offsets are inside a block")]

use super::super::mx::{self, E2M1, E2M1_DOUBLED, e8m0_half, ue4m3_half};
use super::*;

static E8M0_HALF: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = e8m0_half(code as u8);
        code += 1;
    }
    table
};

static UE4M3_HALF: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = ue4m3_half(code as u8);
        code += 1;
    }
    table
};

twins! {
    mxfp4(mx::MXFP4) = |block: &[u8; 17], out: &mut [f32; 32]| {
        let table: __m128i = bytemuck::cast(E2M1_DOUBLED);
        let scale = _mm256_set1_ps(E8M0_HALF[usize::from(block[0])]);
        let (low, high) = nibbles(load(block, 1));
        scaled(out, 0, _mm_shuffle_epi8(table, low), scale);
        scaled(out, 16, _mm_shuffle_epi8(table, high), scale);
    };
    nvfp4(mx::NVFP4) = |block: &[u8; 36], out: &mut [f32; 64]| {
        let table: __m128i = bytemuck::cast(E2M1_DOUBLED);
        for pair in 0..2 {
            let (low, high) = nibbles(load(block, 4 + 16 * pair));
            let (low, high) = (_mm_shuffle_epi8(table, low), _mm_shuffle_epi8(table, high));
            // Low and high nibbles of the same eight bytes lie together.
            for (side, codes) in [_mm_unpacklo_epi64(low, high), _mm_unpackhi_epi64(low, high)].into_iter().enumerate() {
                let s = 2 * pair + side;
                scaled(out, 16 * s, codes, _mm256_set1_ps(UE4M3_HALF[usize::from(block[s])]));
            }
        }
    };
    f4(mx::F4) = |block: &[u8; 4], out: &mut [f32; 8]| {
        let codes = _mm256_srlv_epi32(word(block, 0), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
        // The three low bits of each lane pick a magnitude, the fourth is the sign.
        let magnitudes: __m256 = bytemuck::cast(*E2M1.first_chunk::<8>().unwrap_or(&[0.0; 8]));
        let sign = _mm256_and_ps(_mm256_castsi256_ps(_mm256_slli_epi32::<28>(codes)), _mm256_set1_ps(-0.0));
        put(out, 0, _mm256_or_ps(_mm256_permutevar8x32_ps(magnitudes, codes), sign));
    };
    f6_e2m3(mx::F6_E2M3) = |block: &[u8; 24], out: &mut [f32; 32]| sixes::<3, 1>(block, out);
    f6_e3m2(mx::F6_E3M2) = |block: &[u8; 24], out: &mut [f32; 32]| sixes::<2, 3>(block, out);
    f8_e8m0(mx::F8_E8M0) = |block: &[u8; 8], out: &mut [f32; 8]| {
        let codes = _mm256_cvtepu8_epi32(low64(u64::from_le_bytes(*block)));
        // 2^-127 is subnormal, and all ones are NaN: both have the first mantissa bit.
        let ends = _mm256_or_si256(_mm256_cmpeq_epi32(codes, _mm256_setzero_si256()), _mm256_cmpeq_epi32(codes, _mm256_set1_epi32(255)));
        let mantissa = _mm256_and_si256(ends, _mm256_set1_epi32(0x0040_0000));
        put(out, 0, _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32::<23>(codes), mantissa)));
    };
}

/// Writes the values of 6-bit floats, of which the lowest `MANTISSA` bits are the mantissa.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn sixes<const MANTISSA: i32, const BIAS: i32>(block: &[u8; 24], out: &mut [f32; 32]) {
    // The three bytes of four codes in each of their lanes: codes 0 to 3 in the lower half, 4 to 7 in the upper.
    let places = _mm256_setr_epi8(0, 1, 2, -1, 0, 1, 2, -1, 0, 1, 2, -1, 0, 1, 2, -1, 3, 4, 5, -1, 3, 4, 5, -1, 3, 4, 5, -1, 3, 4, 5, -1);
    let counts = _mm256_setr_epi32(0, 6, 12, 18, 0, 6, 12, 18);
    for i in 0..4 {
        // Six bytes from 6 i on, of which two loads of sixteen have all.
        let from = if i < 2 { 0 } else { 8 };
        let bytes = _mm256_broadcastsi128_si256(load(block, from));
        let places = _mm256_add_epi8(places, _mm256_set1_epi32((6 * i - from) as i32 * 0x0001_0101));
        let codes = _mm256_srlv_epi32(_mm256_shuffle_epi8(bytes, places), counts);
        let magnitude = _mm256_and_si256(codes, _mm256_set1_epi32(31));
        let placed = _mm256_sll_epi32(magnitude, _mm_cvtsi32_si128(23 - MANTISSA));
        let normal = _mm256_add_epi32(placed, _mm256_set1_epi32((127 - BIAS) << 23));
        let last_place = _mm256_castsi256_ps(_mm256_set1_epi32((127 + 1 - BIAS - MANTISSA) << 23));
        let subnormal = _mm256_mul_ps(_mm256_cvtepi32_ps(magnitude), last_place);
        let is_normal = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32((1 << MANTISSA) - 1));
        let value = _mm256_blendv_ps(subnormal, _mm256_castsi256_ps(normal), _mm256_castsi256_ps(is_normal));
        let sign = _mm256_and_ps(_mm256_castsi256_ps(_mm256_slli_epi32::<26>(codes)), _mm256_set1_ps(-0.0));
        put(out, 8 * i, _mm256_or_ps(value, sign));
    }
}
