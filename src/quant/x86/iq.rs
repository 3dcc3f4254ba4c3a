//! Twins of the types of `iq.rs`.
#![expect(
    clippy::indexing_slicing,
    reason = "code books are indexed by numbers masked to their length, scales by the number of a group in a block of fixed size"
)]

use super::super::iq;
use super::super::iq_tables::{IQ1S_GRID, IQ2S_GRID, IQ2XS_GRID, IQ2XXS_GRID, IQ3S_GRID, IQ3XXS_GRID, IQ4NL_VALUES};
use super::*;

/// For each byte of signs, eight bytes that are -1 where its bit is set and 1 where not.
static SIGNS: [u64; 256] = {
    let mut table = [0; 256];
    let mut signs = 0;
    while signs < 256 {
        table[signs] = spread(signs as u64);
        signs += 1;
    }
    table
};

/// The same for seven bits, whose eighth makes the number of ones even.
static EVEN_SIGNS: [u64; 128] = {
    let mut table = [0; 128];
    let mut signs = 0;
    while signs < 128 {
        table[signs] = spread(signs as u64 | (signs.count_ones() as u64 & 1) << 7);
        signs += 1;
    }
    table
};

const fn spread(signs: u64) -> u64 {
    let mut bytes = 0;
    let mut bit = 0;
    while bit < 8 {
        bytes |= (if signs >> bit & 1 == 1 { 0xFF } else { 0x01 }) << (8 * bit);
        bit += 1;
    }
    bytes
}

twins! {
    iq2_xxs(iq::IQ2_XXS) = |block: &[u8; 66], out: &mut [f32; 256]| {
        let d = half(block, 0);
        for run in 0..8 {
            let indices: [u8; 4] = part(block, 2 + 8 * run);
            let word = u32_at(block, 6 + 8 * run);
            let scale = quarter(d, 0.5 + (word >> 28) as f32);
            for l in 0..4 {
                let signs = EVEN_SIGNS[(word >> (7 * l)) as usize & 127];
                signed(out, 32 * run + 8 * l, low64(IQ2XXS_GRID[usize::from(indices[l])]), signs, scale);
            }
        }
    };
    iq2_xs(iq::IQ2_XS) = |block: &[u8; 74], out: &mut [f32; 256]| {
        let scales = scales_of_16(part(block, 66), half(block, 0));
        for run in 0..8 {
            for l in 0..4 {
                let word = usize::from(u16_at(block, 2 + 8 * run + 2 * l));
                let scale = _mm256_set1_ps(scales[2 * run + l / 2]);
                signed(out, 32 * run + 8 * l, low64(IQ2XS_GRID[word & 511]), EVEN_SIGNS[word >> 9], scale);
            }
        }
    };
    iq2_s(iq::IQ2_S) = |block: &[u8; 82], out: &mut [f32; 256]| {
        let scales = scales_of_16(part(block, 74), half(block, 0));
        for run in 0..8 {
            let lows: [u8; 4] = part(block, 2 + 4 * run);
            let signs: [u8; 4] = part(block, 34 + 4 * run);
            let highs = usize::from(block[66 + run]);
            for l in 0..4 {
                let grid = IQ2S_GRID[usize::from(lows[l]) | (highs >> (2 * l) & 3) << 8];
                let scale = _mm256_set1_ps(scales[2 * run + l / 2]);
                signed(out, 32 * run + 8 * l, low64(grid), SIGNS[usize::from(signs[l])], scale);
            }
        }
    };
    iq3_xxs(iq::IQ3_XXS) = |block: &[u8; 98], out: &mut [f32; 256]| {
        let d = half(block, 0);
        for run in 0..8 {
            let indices: [u8; 8] = part(block, 2 + 8 * run);
            let word = u32_at(block, 66 + 4 * run);
            let scale = _mm256_mul_ps(_mm256_mul_ps(d, _mm256_set1_ps(0.5 + (word >> 28) as f32)), _mm256_set1_ps(0.5));
            for l in 0..4 {
                let grid = pair(IQ3XXS_GRID[usize::from(indices[2 * l])], IQ3XXS_GRID[usize::from(indices[2 * l + 1])]);
                signed(out, 32 * run + 8 * l, grid, EVEN_SIGNS[(word >> (7 * l)) as usize & 127], scale);
            }
        }
    };
    iq3_s(iq::IQ3_S) = |block: &[u8; 110], out: &mut [f32; 256]| {
        let (low, high) = nibbles(_mm_cvtsi32_si128(u32_at(block, 106).cast_signed()));
        let scales = _mm_unpacklo_epi8(low, high);
        let odd = _mm_or_si128(_mm_add_epi8(scales, scales), _mm_set1_epi8(1));
        let scales = products(odd, half(block, 0));
        for run in 0..8 {
            let lows: [u8; 8] = part(block, 2 + 8 * run);
            let highs = usize::from(block[66 + run]);
            let signs: [u8; 4] = part(block, 74 + 4 * run);
            let scale = _mm256_set1_ps(scales[run]);
            for l in 0..4 {
                let first = IQ3S_GRID[usize::from(lows[2 * l]) | (highs >> (2 * l) & 1) << 8];
                let second = IQ3S_GRID[usize::from(lows[2 * l + 1]) | (highs >> (2 * l + 1) & 1) << 8];
                signed(out, 32 * run + 8 * l, pair(first, second), SIGNS[usize::from(signs[l])], scale);
            }
        }
    };
    iq1_s(iq::IQ1_S) = |block: &[u8; 50], out: &mut [f32; 256]| {
        let d = half(block, 0);
        for run in 0..8 {
            let lows: [u8; 4] = part(block, 2 + 4 * run);
            let word = u16_at(block, 34 + 2 * run);
            let scale = _mm256_mul_ps(d, _mm256_set1_ps(f32::from(2 * (word >> 12 & 7) + 1)));
            let delta = delta(word >> 15);
            for l in 0..4 {
                let grid = IQ1S_GRID[usize::from(lows[l]) | usize::from(word >> (3 * l) & 7) << 8];
                put(out, 32 * run + 8 * l, _mm256_mul_ps(scale, _mm256_add_ps(floats(low64(grid)), delta)));
            }
        }
    };
    iq1_m(iq::IQ1_M) = |block: &[u8; 56], out: &mut [f32; 256]| {
        let words: [u16; 4] = std::array::from_fn(|i| u16_at(block, 48 + 2 * i));
        let d = widened(words[0] >> 12 | words[1] >> 8 & 0x00F0 | words[2] >> 4 & 0x0F00 | words[3] & 0xF000);
        // Sixteen scales of three bits, four in each word.
        let scales: [u8; 16] = std::array::from_fn(|s| (2 * (words[s / 4] >> (3 * (s % 4)) & 7) + 1) as u8);
        let scales = products(bytemuck::cast(scales), d);
        for run in 0..8 {
            let lows: [u8; 4] = part(block, 4 * run);
            let highs = u16_at(block, 32 + 2 * run);
            for l in 0..4 {
                let high = highs >> (4 * l);
                let grid = IQ1S_GRID[usize::from(lows[l]) | usize::from(high & 7) << 8];
                let scale = _mm256_set1_ps(scales[2 * run + l / 2]);
                put(out, 32 * run + 8 * l, _mm256_mul_ps(scale, _mm256_add_ps(floats(low64(grid)), delta(high >> 3 & 1))));
            }
        }
    };
    iq4_nl(iq::IQ4_NL) = |block: &[u8; 18], out: &mut [f32; 32]| {
        levels(out, 0, load(block, 2), half(block, 0));
    };
    iq4_xs(iq::IQ4_XS) = |block: &[u8; 136], out: &mut [f32; 256]| {
        let d = half(block, 0);
        let (lows, highs) = (u32_at(block, 4), u16_at(block, 2));
        for run in 0..8 {
            let scale = (lows >> (4 * run) & 15) as i32 | i32::from(highs >> (2 * run) & 3) << 4;
            levels(out, 32 * run, load(block, 8 + 16 * run), _mm256_mul_ps(d, _mm256_set1_ps((scale - 32) as f32)));
        }
    };
}

/// Eight bytes, of two entries of a code book.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn pair(first: u32, second: u32) -> __m128i {
    _mm_insert_epi32::<1>(_mm_cvtsi32_si128(first.cast_signed()), second.cast_signed())
}

/// d times the number, then times a quarter.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn quarter(d: __m256, number: f32) -> __m256 {
    _mm256_mul_ps(_mm256_mul_ps(d, _mm256_set1_ps(number)), _mm256_set1_ps(0.25))
}

/// The sixteen scales of iq2_xs and iq2_s: nibbles x as d (0.5 + x) 0.25.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn scales_of_16(bytes: [u8; 8], d: __m256) -> [f32; 16] {
    let (low, high) = nibbles(low64(u64::from_le_bytes(bytes)));
    let codes = _mm_unpacklo_epi8(low, high);
    let mut scales = [0.0; 16];
    for (at, codes) in [(0, codes), (8, upper(codes))] {
        let number = _mm256_add_ps(_mm256_set1_ps(0.5), floats(codes));
        put(&mut scales, at, _mm256_mul_ps(_mm256_mul_ps(d, number), _mm256_set1_ps(0.25)));
    }
    scales
}

/// Writes eight magnitudes times the scale, with their signs. No magnitude is zero, so that the sign may be given to the integer.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn signed(out: &mut [f32; 256], at: usize, grid: __m128i, signs: u64, scale: __m256) {
    put(out, at, _mm256_mul_ps(scale, floats(_mm_sign_epi8(grid, low64(signs)))));
}

/// An eighth, negative if the bit is set.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn delta(negative: u16) -> __m256 {
    _mm256_set1_ps(f32::from_bits(0.125f32.to_bits() | u32::from(negative) << 31))
}

/// Writes the levels of the low nibbles of 16 bytes, then those of the high ones.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn levels<const ELEMENTS: usize>(out: &mut [f32; ELEMENTS], at: usize, codes: __m128i, scale: __m256) {
    let table: __m128i = bytemuck::cast(IQ4NL_VALUES);
    let (low, high) = nibbles(codes);
    scaled(out, at, _mm_shuffle_epi8(table, low), scale);
    scaled(out, at + 16, _mm_shuffle_epi8(table, high), scale);
}
