//! The decoders in AVX2 and F16C, for x86-64.
//!
//! Every function is a safe twin of a codec's `decode`, chosen by what the CPU has, once for each call: where AVX2, F16C or BMI is missing it calls the
//! scalar one. Each computes the same products and sums in the same order, so the results are equal bit for bit, except that any NaN of a block stands for
//! any NaN (those of types without blocks are equal too).
//! Nothing is fused: FMA is not enabled.
//!
//! Kernels take and return vectors by value, and come to memory only through arrays of the right size ([`load`], [`put`]). What is left of unsafe is to
//! enter code that needs AVX2, in [`twins`], and a prefetch.
//!
//! A trap to know: features belong to the function they are written on. A function item or a closure made elsewhere and passed into a `#[target_feature]`
//! function is compiled without them, works, and is slow. Therefore each twin contains its closure, and what the closure calls either has the attribute
//! itself or is `#[inline(always)]`.
#![expect(unsafe_code, reason = "code that needs AVX2 is entered after asking whether this CPU has it, and a prefetch takes a pointer")]
#![expect(clippy::arithmetic_side_effects, reason = "positions in a block")]

mod iq;
mod k;
mod legacy;
mod mx;
mod plain;

use std::arch::x86_64::*;

use super::{Codec, each_block, part, u16_at, u32_at};

pub(super) use iq::*;
pub(super) use k::*;
pub(super) use legacy::*;
pub(super) use mx::*;
pub(super) use plain::*;

/// Whether this CPU has what the twins are compiled for. `std` asks once and remembers.
#[inline]
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") && is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2")
}

/// Defines the twins of codecs: name, codec, and the closure that decodes a block, or, after `runs of`, several blocks of a type with small ones.
macro_rules! twins {
    ($($name:ident($codec:expr) = $decode:expr;)*) => {$(
        pub(in crate::quant) fn $name(blocks: &[u8], out: &mut [f32]) {
            #[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
            fn twin(blocks: &[u8], out: &mut [f32]) {
                runs(&$codec, blocks, out, $decode);
            }
            if available() {
                // SAFETY: the CPU has the features that `twin` is compiled for, as `available` has just said.
                unsafe { twin(blocks, out) }
            } else {
                ($codec.decode)(blocks, out);
            }
        }
    )*};
}
use twins;

/// Calls `decode` for each run of `BYTES` bytes, which is one block or several, and the codec's own decoder for the blocks that do not fill a run.
#[inline(always)]
fn runs<const BYTES: usize, const ELEMENTS: usize>(codec: &Codec, blocks: &[u8], out: &mut [f32], decode: impl Fn(&[u8; BYTES], &mut [f32; ELEMENTS])) {
    each_block(blocks, out, |block: &[u8; BYTES], out: &mut [f32; ELEMENTS]| {
        prefetch(block);
        decode(block, out);
    });
    if BYTES > codec.bytes {
        let whole = (blocks.len() / BYTES).min(out.len() / ELEMENTS);
        let (Some(blocks), Some(out)) = (blocks.get(whole * BYTES..), out.get_mut(whole * ELEMENTS..)) else {
            return;
        };
        (codec.decode)(blocks, out);
    }
}

/// Asks for the input that will be needed soon.
///
/// The hardware's own prefetcher falls behind: a line of input lasts for several lines of output, and those fill its queue. Measured with 16 MiB of f8 and
/// 64 MiB of output: 14 GB/s without, 20 at 512 bytes ahead, 28 from 1024 to 4096; q5_0 26 and 38.
#[inline(always)]
fn prefetch<const BYTES: usize>(block: &[u8; BYTES]) {
    const AHEAD: usize = 2048;
    for line in (0..BYTES).step_by(64) {
        let address = block.as_ptr().wrapping_add(AHEAD + line);
        // SAFETY: a prefetch is a hint that reads nothing and faults nowhere, whatever the address, and x86-64 always has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
}

/// The 16 bytes at `offset` of a block.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn load<const BYTES: usize>(block: &[u8; BYTES], offset: usize) -> __m128i {
    bytemuck::cast(part::<16, BYTES>(block, offset))
}

/// The 32 bytes at `offset` of a block.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn load_wide<const BYTES: usize>(block: &[u8; BYTES], offset: usize) -> __m256i {
    bytemuck::cast(part::<32, BYTES>(block, offset))
}

/// Eight bytes, the first lowest.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn low64(bytes: u64) -> __m128i {
    _mm_cvtsi64_si128(bytes.cast_signed())
}

/// The u32 at `offset` of a block, eight times.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn word<const BYTES: usize>(block: &[u8; BYTES], offset: usize) -> __m256i {
    _mm256_set1_epi32(u32_at(block, offset).cast_signed())
}

/// The f16 at `offset` of a block, eight times.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn half<const BYTES: usize>(block: &[u8; BYTES], offset: usize) -> __m256 {
    widened(u16_at(block, offset))
}

/// An f16 given by its bits, eight times.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn widened(bits: u16) -> __m256 {
    _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits))))
}

/// Writes eight elements from `at` on; the kernels ask only for what is inside their block, which the compiler sees.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn put<const ELEMENTS: usize>(out: &mut [f32; ELEMENTS], at: usize, values: __m256) {
    let slot = out.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<8>());
    debug_assert!(slot.is_some(), "a decoder writes past its block");
    if let Some(slot) = slot {
        *slot = bytemuck::cast(values);
    }
}

/// The low eight bytes as signed numbers.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn floats(bytes: __m128i) -> __m256 {
    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))
}

/// The upper eight bytes in the place of the low ones.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn upper(bytes: __m128i) -> __m128i {
    _mm_unpackhi_epi64(bytes, bytes)
}

/// The two halves of 32 bytes.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn halves(bytes: __m256i) -> (__m128i, __m128i) {
    (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes))
}

/// Sixteen signed bytes times the factor, as an array whose elements can be broadcast from memory.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn products(bytes: __m128i, factor: __m256) -> [f32; 16] {
    let mut array = [0.0; 16];
    scaled(&mut array, 0, bytes, factor);
    array
}

/// Writes sixteen signed codes times the scale.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn scaled<const ELEMENTS: usize>(out: &mut [f32; ELEMENTS], at: usize, codes: __m128i, scale: __m256) {
    put(out, at, _mm256_mul_ps(floats(codes), scale));
    put(out, at + 8, _mm256_mul_ps(floats(upper(codes)), scale));
}

/// Writes 32 signed codes times the scale.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn scaled_wide<const ELEMENTS: usize>(out: &mut [f32; ELEMENTS], at: usize, codes: __m256i, scale: __m256) {
    let (low, high) = halves(codes);
    scaled(out, at, low, scale);
    scaled(out, at + 16, high, scale);
}

/// Writes sixteen codes times the scale, plus the offset.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn moved<const ELEMENTS: usize>(out: &mut [f32; ELEMENTS], at: usize, codes: __m128i, scale: __m256, offset: __m256) {
    put(out, at, _mm256_add_ps(_mm256_mul_ps(floats(codes), scale), offset));
    put(out, at + 8, _mm256_add_ps(_mm256_mul_ps(floats(upper(codes)), scale), offset));
}

/// Writes sixteen codes times the scale, less the minimum.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn lowered<const ELEMENTS: usize>(out: &mut [f32; ELEMENTS], at: usize, codes: __m128i, scale: f32, min: f32) {
    let (scale, min) = (_mm256_set1_ps(scale), _mm256_set1_ps(min));
    put(out, at, _mm256_sub_ps(_mm256_mul_ps(floats(codes), scale), min));
    put(out, at + 8, _mm256_sub_ps(_mm256_mul_ps(floats(upper(codes)), scale), min));
}

/// The low nibbles of 16 bytes and their high ones.
#[inline]
#[target_feature(enable = "avx2,f16c,bmi1,bmi2")]
fn nibbles(bytes: __m128i) -> (__m128i, __m128i) {
    let mask = _mm_set1_epi8(15);
    (_mm_and_si128(bytes, mask), _mm_and_si128(_mm_srli_epi16::<4>(bytes), mask))
}
