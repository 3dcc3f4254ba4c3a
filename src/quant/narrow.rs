//! Narrowing: the nearest f16, bf16 or f32, ties to even, from a value that is wider.
//!
//! Each conversion rounds once, from its input to its output. Overflow goes to infinity, a NaN stays a NaN and becomes quiet. Output is little-endian.
//! The slice functions stop where the shorter side ends.

/// Returns the bits of the f16 nearest to `value`.
pub fn f32_to_f16_bits(value: f32) -> u16 {
    const INFINITY: u32 = 0x7F80_0000;
    const OVERFLOW: u32 = 0x477F_F000; // 65520, halfway between the largest f16 and 2^16, and so to infinity
    const NORMAL: u32 = 0x3880_0000; // 2^-14
    let bits = value.to_bits();
    let sign = bits >> 16 & 0x8000;
    let magnitude = bits & 0x7FFF_FFFF;
    let half = if magnitude > INFINITY {
        0x7E00 | magnitude >> 13 & 0x03FF
    } else if magnitude >= OVERFLOW {
        0x7C00
    } else if magnitude >= NORMAL {
        // The exponent's bias falls by 112; 13 mantissa bits go, and a tie goes up only from an odd number.
        let odd = magnitude >> 13 & 1;
        let rounded = magnitude.wrapping_sub(112 << 23).wrapping_add(0xFFF).wrapping_add(odd);
        rounded >> 13
    } else {
        // The last place of the numbers from a half to one is that of subnormal f16, 2^-24: the sum rounds as wanted.
        let sum = f32::from_bits(magnitude) + 0.5;
        sum.to_bits().wrapping_sub(0.5f32.to_bits())
    };
    (sign | half) as u16
}

/// Returns the bits of the bf16 nearest to `value`; as `ggml_compute_fp32_to_bf16` in `ggml-impl.h`, NaN included.
pub fn f32_to_bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        // The quiet bit, lest a NaN whose payload lies in the lower half become an infinity.
        return (bits >> 16) as u16 | 0x40;
    }
    let odd = bits >> 16 & 1;
    (bits.wrapping_add(0x7FFF).wrapping_add(odd) >> 16) as u16
}

/// Returns the f32 nearest to `value`.
pub fn f64_to_f32(value: f64) -> f32 {
    value as f32
}

/// Returns the bits of the f16 nearest to `value`. Through the nearest f32 it would round twice, and `half::f16::from_f64` drops bits.
pub fn f64_to_f16_bits(value: f64) -> u16 {
    f32_to_f16_bits(to_odd_f32(value))
}

/// Returns the bits of the bf16 nearest to `value`.
pub fn f64_to_bf16_bits(value: f64) -> u16 {
    f32_to_bf16_bits(to_odd_f32(value))
}

/// Returns an f32 that rounds to any narrower format as `value` itself does.
///
/// It is `value` where that is an f32, else the one of its two neighbours whose last bit is set ("round to odd"). The set bit keeps it off the ties of every
/// format that is at least two bits shorter, on the side where `value` is. See Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved
/// algorithms using rounding to odd", 2008.
fn to_odd_f32(value: f64) -> f32 {
    let nearest = value as f32;
    let widened = f64::from(nearest);
    if value.is_nan() || widened == value {
        return nearest;
    }
    let away = widened.abs() > value.abs();
    let toward_zero = nearest.to_bits().wrapping_sub(u32::from(away));
    f32::from_bits(toward_zero | 1)
}

/// Writes each value as little-endian f16.
pub fn narrow_f16(values: &[f32], out: &mut [u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    super::x86::narrow_f16(values, out);
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    scalar::narrow_f16(values, out);
}

/// Writes each value as little-endian bf16.
pub fn narrow_bf16(values: &[f32], out: &mut [u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    super::x86::narrow_bf16(values, out);
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    scalar::narrow_bf16(values, out);
}

/// The definitions, for CPUs without anything better and for what does not fill a vector.
pub(super) mod scalar {
    /// Writes each value as little-endian f16.
    pub(in super::super) fn narrow_f16(values: &[f32], out: &mut [u8]) {
        for (value, out) in values.iter().zip(out.as_chunks_mut().0) {
            *out = super::f32_to_f16_bits(*value).to_le_bytes();
        }
    }

    /// Writes each value as little-endian bf16.
    pub(in super::super) fn narrow_bf16(values: &[f32], out: &mut [u8]) {
        for (value, out) in values.iter().zip(out.as_chunks_mut().0) {
            *out = super::f32_to_bf16_bits(*value).to_le_bytes();
        }
    }
}

/// Writes each value as little-endian f32, unchanged.
pub fn narrow_f32(values: &[f32], out: &mut [u8]) {
    for (value, out) in values.iter().zip(out.as_chunks_mut().0) {
        *out = value.to_le_bytes();
    }
}

/// Writes each value as little-endian f16, rounded once.
pub fn narrow_f64_to_f16(values: &[f64], out: &mut [u8]) {
    for (value, out) in values.iter().zip(out.as_chunks_mut().0) {
        *out = f64_to_f16_bits(*value).to_le_bytes();
    }
}

/// Writes each value as little-endian bf16, rounded once.
pub fn narrow_f64_to_bf16(values: &[f64], out: &mut [u8]) {
    for (value, out) in values.iter().zip(out.as_chunks_mut().0) {
        *out = f64_to_bf16_bits(*value).to_le_bytes();
    }
}
