//! ggml's K blocks: 256 elements, an f16 scale, and a smaller scale for each 16 or 32 of them.
//!
//! | type | bytes | layout | element |
//! |---|---|---|---|
//! | q2_k | 84 | scales 16 x (4, 4 bits), q 2 bits, d, dmin | (d sc) q - (dmin m) |
//! | q3_k | 110 | third bits, q 2 bits, scales 16 x 6 bits, d | (d (sc - 32)) q |
//! | q4_k | 144 | d, dmin, scales 8 x (6, 6 bits), q 4 bits | (d sc) q - (dmin m) |
//! | q5_k | 176 | d, dmin, scales 8 x (6, 6 bits), fifth bits, q 4 bits | (d sc) q - (dmin m) |
//! | q6_k | 210 | q 4 bits, q upper 2 bits, scales 16 x i8, d | (d sc) (q - 32) |
//! | q8_k | 292 | d f32, q i8, sums 16 x i16 | d q |
//!
//! A byte holds codes of elements that are 32 apart: in the loops, run r is elements 32 r to 32 r + 31, and the bytes of several runs are the same with
//! other bits. `s` counts the sub-blocks of 16 elements, two a run.
#![expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "offsets are computed from the number of a sub-block of at most 16, inside blocks of fixed size, and codes of 8 bits cannot overflow i32"
)]

use super::{Codec, Field, Kind, each_block, f16_at, part};

/// `block_q2_K`.
pub(super) const Q2_K: Codec = Codec {
    name: "q2_k",
    elements: 256,
    bytes: 84,
    kind: Kind::Float,
    ggml: Some(10),
    swap: Some(&[Field::halves(80, 2)]),
    decode: |blocks, out| each_block(blocks, out, q2_k),
    fast: twin!(q2_k),
};

/// `block_q3_K`. Its scales are bytes, so only d has a byte order.
pub(super) const Q3_K: Codec = Codec {
    name: "q3_k",
    elements: 256,
    bytes: 110,
    kind: Kind::Float,
    ggml: Some(11),
    swap: Some(&[Field::halves(108, 1)]),
    decode: |blocks, out| each_block(blocks, out, q3_k),
    fast: twin!(q3_k),
};

/// `block_q4_K`.
pub(super) const Q4_K: Codec = Codec {
    name: "q4_k",
    elements: 256,
    bytes: 144,
    kind: Kind::Float,
    ggml: Some(12),
    swap: Some(&[Field::halves(0, 2)]),
    decode: |blocks, out| each_block(blocks, out, q4_k),
    fast: twin!(q4_k),
};

/// `block_q5_K`.
pub(super) const Q5_K: Codec = Codec {
    name: "q5_k",
    elements: 256,
    bytes: 176,
    kind: Kind::Float,
    ggml: Some(13),
    swap: Some(&[Field::halves(0, 2)]),
    decode: |blocks, out| each_block(blocks, out, q5_k),
    fast: twin!(q5_k),
};

/// `block_q6_K`.
pub(super) const Q6_K: Codec = Codec {
    name: "q6_k",
    elements: 256,
    bytes: 210,
    kind: Kind::Float,
    ggml: Some(14),
    swap: Some(&[Field::halves(208, 1)]),
    decode: |blocks, out| each_block(blocks, out, q6_k),
    fast: twin!(q6_k),
};

/// `block_q8_K`: an intermediate of ggml's products, decoded by `dequantize_row_q8_K`. The sums add nothing to the elements.
pub(super) const Q8_K: Codec = Codec {
    name: "q8_k",
    elements: 256,
    bytes: 292,
    kind: Kind::Float,
    ggml: Some(15),
    swap: Some(&[Field { offset: 0, width: 4, count: 1 }, Field::halves(260, 16)]),
    decode: |blocks, out| each_block(blocks, out, q8_k),
    fast: twin!(q8_k),
};

fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let d = f16_at(block, 80);
    let dmin = f16_at(block, 82);
    for (s, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let run = s / 2;
        let scale = d * f32::from(block[s] & 15);
        let min = dmin * f32::from(block[s] >> 4);
        // 32 bytes hold four runs, a pair of bits for each.
        let codes: [u8; 16] = part(block, 16 + 32 * (run / 4) + 16 * (s % 2));
        let shift = 2 * (run % 4);
        for (codes, y) in codes.iter().zip(out) {
            *y = scale * f32::from(codes >> shift & 3) - min;
        }
    }
}

fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = f16_at(block, 108);
    let scales: [u8; 12] = part(block, 96);
    for (s, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let run = s / 2;
        // The low four bits of the scales are nibbles of the first eight bytes, the upper two are pairs of bits of the last four.
        let low = scales[s % 8] >> (4 * (s / 8)) & 15;
        let high = scales[8 + s % 4] >> (2 * (s / 4)) & 3;
        let scale = d * (i32::from(low | high << 4) - 32) as f32;
        let thirds: [u8; 16] = part(block, 16 * (s % 2));
        let codes: [u8; 16] = part(block, 32 + 32 * (run / 4) + 16 * (s % 2));
        let shift = 2 * (run % 4);
        for ((codes, thirds), y) in codes.iter().zip(thirds).zip(out) {
            // A third bit that is set means that nothing is subtracted.
            let q = codes >> shift & 3 | (thirds >> run & 1) << 2;
            *y = scale * (i32::from(q) - 4) as f32;
        }
    }
}

fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    let dmin = f16_at(block, 2);
    let scales: [u8; 12] = part(block, 4);
    for (run, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(&scales, run);
        let scale = d * f32::from(scale);
        let min = dmin * f32::from(min);
        let codes: [u8; 32] = part(block, 16 + 32 * (run / 2));
        let shift = 4 * (run % 2);
        for (codes, y) in codes.iter().zip(out) {
            *y = scale * f32::from(codes >> shift & 15) - min;
        }
    }
}

fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    let dmin = f16_at(block, 2);
    let scales: [u8; 12] = part(block, 4);
    let fifths: [u8; 32] = part(block, 16);
    for (run, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(&scales, run);
        let scale = d * f32::from(scale);
        let min = dmin * f32::from(min);
        let codes: [u8; 32] = part(block, 48 + 32 * (run / 2));
        let shift = 4 * (run % 2);
        for ((codes, fifths), y) in codes.iter().zip(fifths).zip(out) {
            let q = codes >> shift & 15 | (fifths >> run & 1) << 4;
            *y = scale * f32::from(q) - min;
        }
    }
}

/// Returns scale and minimum of a run in q4_k and q5_k, 6 bits each: `get_scale_min_k4` in `ggml-quants.c`.
#[inline(always)]
fn scale_and_min(scales: &[u8; 12], run: usize) -> (u8, u8) {
    if run < 4 {
        (scales[run] & 63, scales[run + 4] & 63)
    } else {
        // The low four bits lie together in the last four bytes, the upper two are what the first eight bytes have left.
        let low = scales[run + 4];
        (low & 15 | scales[run - 4] >> 6 << 4, low >> 4 | scales[run] >> 6 << 4)
    }
}

fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = f16_at(block, 208);
    for (s, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let (half, run, side) = (s / 8, s / 2 % 4, s % 2);
        let scale = d * f32::from(block[192 + s].cast_signed());
        // In each half of the block, the first two runs have the low nibbles of 64 bytes, the last two the high ones; their upper bits share 32 bytes.
        let lows: [u8; 16] = part(block, 64 * half + 32 * (run % 2) + 16 * side);
        let highs: [u8; 16] = part(block, 128 + 32 * half + 16 * side);
        let low_shift = 4 * (run / 2);
        let high_shift = 2 * run;
        for ((low, high), y) in lows.iter().zip(highs).zip(out) {
            let q = low >> low_shift & 15 | (high >> high_shift & 3) << 4;
            *y = scale * (i32::from(q) - 32) as f32;
        }
    }
}

fn q8_k(block: &[u8; 292], out: &mut [f32; 256]) {
    let d = f32::from_le_bytes(part(block, 0));
    for (q, y) in part::<256, _>(block, 4).iter().zip(out) {
        *y = d * f32::from(q.cast_signed());
    }
}
