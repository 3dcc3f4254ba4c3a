//! Twins of the types of `legacy.rs` and `ternary.rs`.

use super::super::{legacy, ternary};
use super::*;

twins! {
    q1_0(legacy::Q1_0) = |block: &[u8; 18], out: &mut [f32; 128]| {
        // -d where the bit is clear, by moving each bit to the place of the sign.
        let negative = _mm256_xor_ps(half(block, 0), _mm256_set1_ps(-0.0));
        for i in 0..4 {
            let bits = word(block, 2 + 4 * i);
            for k in 0..4 {
                let counts = _mm256_sub_epi32(_mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24), _mm256_set1_epi32(8 * k));
                let sign = _mm256_and_ps(_mm256_castsi256_ps(_mm256_sllv_epi32(bits, counts)), _mm256_set1_ps(-0.0));
                put(out, 32 * i + 8 * k as usize, _mm256_xor_ps(negative, sign));
            }
        }
    };
    q2_0(legacy::Q2_0) = |block: &[u8; 18], out: &mut [f32; 64]| {
        // The four products, from which a permutation picks by the two low bits of each lane.
        let levels = _mm256_mul_ps(_mm256_setr_ps(-1.0, 0.0, 1.0, 2.0, -1.0, 0.0, 1.0, 2.0), half(block, 0));
        for i in 0..4 {
            let codes = word(block, 2 + 4 * i);
            put(out, 16 * i, _mm256_permutevar_ps(levels, _mm256_srlv_epi32(codes, _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14))));
            put(out, 16 * i + 8, _mm256_permutevar_ps(levels, _mm256_srlv_epi32(codes, _mm256_setr_epi32(16, 18, 20, 22, 24, 26, 28, 30))));
        }
    };
    q4_0(legacy::Q4_0) = |block: &[u8; 18], out: &mut [f32; 32]| {
        let d = half(block, 0);
        let (low, high) = nibbles(load(block, 2));
        scaled(out, 0, _mm_sub_epi8(low, _mm_set1_epi8(8)), d);
        scaled(out, 16, _mm_sub_epi8(high, _mm_set1_epi8(8)), d);
    };
    q4_1(legacy::Q4_1) = |block: &[u8; 20], out: &mut [f32; 32]| {
        let (d, m) = (half(block, 0), half(block, 2));
        let (low, high) = nibbles(load(block, 4));
        moved(out, 0, low, d, m);
        moved(out, 16, high, d, m);
    };
    q5_0(legacy::Q5_0) = |block: &[u8; 22], out: &mut [f32; 32]| {
        let d = half(block, 0);
        let (low, high) = nibbles(load(block, 6));
        let (low_clear, high_clear) = clear_bits(u32_at(block, 2));
        // A fifth bit that is clear leaves q - 16, which is q with the upper four bits set.
        let above = _mm_set1_epi8(-16);
        scaled(out, 0, _mm_or_si128(low, _mm_and_si128(low_clear, above)), d);
        scaled(out, 16, _mm_or_si128(high, _mm_and_si128(high_clear, above)), d);
    };
    q5_1(legacy::Q5_1) = |block: &[u8; 24], out: &mut [f32; 32]| {
        let (d, m) = (half(block, 0), half(block, 2));
        let (low, high) = nibbles(load(block, 8));
        let (low_clear, high_clear) = clear_bits(u32_at(block, 4));
        let fifth = _mm_set1_epi8(16);
        moved(out, 0, _mm_or_si128(low, _mm_andnot_si128(low_clear, fifth)), d, m);
        moved(out, 16, _mm_or_si128(high, _mm_andnot_si128(high_clear, fifth)), d, m);
    };
    q8_0(legacy::Q8_0) = |block: &[u8; 34], out: &mut [f32; 32]| {
        let d = half(block, 0);
        scaled(out, 0, load(block, 2), d);
        scaled(out, 16, load(block, 18), d);
    };
    q8_1(legacy::Q8_1) = |block: &[u8; 36], out: &mut [f32; 32]| {
        let d = half(block, 0);
        scaled(out, 0, load(block, 4), d);
        scaled(out, 16, load(block, 20), d);
    };
    tq1_0(ternary::TQ1_0) = |block: &[u8; 54], out: &mut [f32; 256]| {
        let d = half(block, 52);
        let mut bytes = load_wide(block, 0);
        for place in 0..5 {
            scaled_wide(out, 32 * place, first_digits(bytes), d);
            bytes = thrice(bytes);
        }
        let mut bytes = load(block, 32);
        for place in 0..5 {
            scaled(out, 160 + 16 * place, _mm256_castsi256_si128(first_digits(_mm256_castsi128_si256(bytes))), d);
            bytes = _mm256_castsi256_si128(thrice(_mm256_castsi128_si256(bytes)));
        }
        // The last four bytes, times 1, 3, 9 and 27 side by side.
        let first = _mm256_castsi128_si256(_mm_cvtsi32_si128(u32_at(block, 48).cast_signed()));
        let second = thrice(first);
        let pair = _mm256_unpacklo_epi32(first, second);
        let four = _mm256_unpacklo_epi64(pair, thrice(thrice(pair)));
        scaled(out, 240, _mm256_castsi256_si128(first_digits(four)), d);
    };
    tq2_0(ternary::TQ2_0) = |block: &[u8; 66], out: &mut [f32; 256]| {
        let d = half(block, 64);
        for part in 0..2 {
            let mut codes = load_wide(block, 32 * part);
            for run in 0..4 {
                let q = _mm256_and_si256(codes, _mm256_set1_epi8(3));
                scaled_wide(out, 128 * part + 32 * run, _mm256_sub_epi8(q, _mm256_set1_epi8(1)), d);
                codes = _mm256_srli_epi16::<2>(codes);
            }
        }
    };
}

/// A byte for each bit of the word, all ones where the bit is clear: of bits 0 to 15 and of bits 16 to 31.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn clear_bits(word: u32) -> (__m128i, __m128i) {
    let word = _mm_cvtsi32_si128(word.cast_signed());
    let each = _mm_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
    let low = _mm_shuffle_epi8(word, _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
    let high = _mm_shuffle_epi8(word, _mm_setr_epi8(2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3));
    let zero = _mm_setzero_si128();
    (_mm_cmpeq_epi8(_mm_and_si128(low, each), zero), _mm_cmpeq_epi8(_mm_and_si128(high, each), zero))
}

/// Each byte times 3, modulo 256.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn thrice(bytes: __m256i) -> __m256i {
    _mm256_add_epi8(bytes, _mm256_add_epi8(bytes, bytes))
}

/// The first base-3 digit of each byte, 3 x / 256, less one: x is at least 86 for a digit of one and 171 for two.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn first_digits(bytes: __m256i) -> __m256i {
    let (one, two) = (_mm256_set1_epi8(86), _mm256_set1_epi8(171_u8.cast_signed()));
    let at_least_one = _mm256_cmpeq_epi8(_mm256_max_epu8(bytes, one), bytes);
    let at_least_two = _mm256_cmpeq_epi8(_mm256_max_epu8(bytes, two), bytes);
    // A comparison that holds is -1.
    _mm256_sub_epi8(_mm256_sub_epi8(_mm256_set1_epi8(-1), at_least_one), at_least_two)
}
