//! Twins of the types of `k.rs`.
#![expect(clippy::indexing_slicing, reason = "scales are numbered as the sub-blocks of a block of fixed size")]

use super::super::k;
use super::*;

twins! {
    q2_k(k::Q2_K) = |block: &[u8; 84], out: &mut [f32; 256]| {
        let (scales, mins) = nibbles(load(block, 0));
        let scales = products(scales, half(block, 80));
        let mins = products(mins, half(block, 82));
        for part in 0..2 {
            let mut codes = load_wide(block, 16 + 32 * part);
            for run in 0..4 {
                let s = 8 * part + 2 * run;
                let (left, right) = halves(_mm256_and_si256(codes, _mm256_set1_epi8(3)));
                lowered(out, 16 * s, left, scales[s], mins[s]);
                lowered(out, 16 * s + 16, right, scales[s + 1], mins[s + 1]);
                codes = _mm256_srli_epi16::<2>(codes);
            }
        }
    };
    q3_k(k::Q3_K) = |block: &[u8; 110], out: &mut [f32; 256]| {
        // Sixteen scales: the low four bits from eight bytes, the upper two from four.
        let (first, second, upper) = (u32_at(block, 96), u32_at(block, 100), u32_at(block, 104));
        let (low, high) = (0x0F0F_0F0F, 0x0303_0303);
        let scales: __m128i = bytemuck::cast([
            first & low | (upper & high) << 4,
            second & low | (upper >> 2 & high) << 4,
            first >> 4 & low | (upper >> 4 & high) << 4,
            second >> 4 & low | (upper >> 6 & high) << 4,
        ]);
        let scales = products(_mm_sub_epi8(scales, _mm_set1_epi8(32)), half(block, 108));
        let mut thirds = load_wide(block, 0);
        for part in 0..2 {
            let mut codes = load_wide(block, 32 + 32 * part);
            for run in 0..4 {
                let s = 8 * part + 2 * run;
                // A third bit that is clear leaves q - 4, which is q with all upper bits set.
                let clear = _mm256_cmpeq_epi8(_mm256_and_si256(thirds, _mm256_set1_epi8(1)), _mm256_setzero_si256());
                let q = _mm256_or_si256(_mm256_and_si256(codes, _mm256_set1_epi8(3)), _mm256_and_si256(clear, _mm256_set1_epi8(-4)));
                let (left, right) = halves(q);
                scaled(out, 16 * s, left, _mm256_set1_ps(scales[s]));
                scaled(out, 16 * s + 16, right, _mm256_set1_ps(scales[s + 1]));
                codes = _mm256_srli_epi16::<2>(codes);
                thirds = _mm256_srli_epi16::<1>(thirds);
            }
        }
    };
    q4_k(k::Q4_K) = |block: &[u8; 144], out: &mut [f32; 256]| {
        let (scales, mins) = scales_and_mins(block);
        for pair in 0..4 {
            let codes = load_wide(block, 16 + 32 * pair);
            for side in 0..2 {
                let run = 2 * pair + side;
                let q = if side == 0 { codes } else { _mm256_srli_epi16::<4>(codes) };
                let (left, right) = halves(_mm256_and_si256(q, _mm256_set1_epi8(15)));
                lowered(out, 32 * run, left, scales[run], mins[run]);
                lowered(out, 32 * run + 16, right, scales[run], mins[run]);
            }
        }
    };
    q5_k(k::Q5_K) = |block: &[u8; 176], out: &mut [f32; 256]| {
        let (scales, mins) = scales_and_mins(block);
        let mut fifths = load_wide(block, 16);
        for pair in 0..4 {
            let codes = load_wide(block, 48 + 32 * pair);
            for side in 0..2 {
                let run = 2 * pair + side;
                let q = if side == 0 { codes } else { _mm256_srli_epi16::<4>(codes) };
                let fifth = _mm256_slli_epi16::<4>(_mm256_and_si256(fifths, _mm256_set1_epi8(1)));
                let (left, right) = halves(_mm256_or_si256(_mm256_and_si256(q, _mm256_set1_epi8(15)), fifth));
                lowered(out, 32 * run, left, scales[run], mins[run]);
                lowered(out, 32 * run + 16, right, scales[run], mins[run]);
                fifths = _mm256_srli_epi16::<1>(fifths);
            }
        }
    };
    q6_k(k::Q6_K) = |block: &[u8; 210], out: &mut [f32; 256]| {
        let scales = products(load(block, 192), half(block, 208));
        for part in 0..2 {
            let (first, second) = (load_wide(block, 64 * part), load_wide(block, 64 * part + 32));
            let highs = load_wide(block, 128 + 32 * part);
            let runs = [
                (first, _mm256_slli_epi16::<4>(highs)),
                (second, _mm256_slli_epi16::<2>(highs)),
                (_mm256_srli_epi16::<4>(first), highs),
                (_mm256_srli_epi16::<4>(second), _mm256_srli_epi16::<2>(highs)),
            ];
            for (run, (low, high)) in runs.into_iter().enumerate() {
                let s = 8 * part + 2 * run;
                let q = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(15)), _mm256_and_si256(high, _mm256_set1_epi8(0x30)));
                let (left, right) = halves(_mm256_sub_epi8(q, _mm256_set1_epi8(32)));
                scaled(out, 16 * s, left, _mm256_set1_ps(scales[s]));
                scaled(out, 16 * s + 16, right, _mm256_set1_ps(scales[s + 1]));
            }
        }
    };
    q8_k(k::Q8_K) = |block: &[u8; 292], out: &mut [f32; 256]| {
        let d = _mm256_set1_ps(f32::from_bits(u32_at(block, 0)));
        for s in 0..16 {
            scaled(out, 16 * s, load(block, 4 + 16 * s), d);
        }
    };
}

/// The scales and minima of q4_k and q5_k, times d and dmin: eight of 6 bits each in twelve bytes after d and dmin.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn scales_and_mins<const BYTES: usize>(block: &[u8; BYTES]) -> ([f32; 8], [f32; 8]) {
    let (a, b, c) = (u32_at(block, 4), u32_at(block, 8), u32_at(block, 12));
    let (six, four, two) = (0x3F3F_3F3F, 0x0F0F_0F0F, 0x0303_0303);
    let bytes: __m128i = bytemuck::cast([a & six, c & four | (a >> 6 & two) << 4, b & six, c >> 4 & four | (b >> 6 & two) << 4]);
    let scales = _mm256_mul_ps(half(block, 0), floats(bytes));
    let mins = _mm256_mul_ps(half(block, 2), floats(upper(bytes)));
    (bytemuck::cast(scales), bytemuck::cast(mins))
}
