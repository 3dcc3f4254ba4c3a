//! Decoding speed of every codec: the scalar definition, the fast twin, and a copy of the same bytes, in turn and in one process.
//!
//! As a file server decodes: 64 MiB of elements from input that does not repeat, 1 MiB at a time into one buffer that stays in the cache. One thread, GB/s
//! of output, the median over all megabytes of all passes: a megabyte takes less than a time slice, so that other processes spoil few of the samples.
//! "limit" is what a decoder could do that spends the time of writing its output (measured: a fill of the same buffer) and of reading its input (measured:
//! what the copy takes longer than the fill). The fast decoder's output is compared with the scalar one's.
//!
//! `cargo bench --bench quant --no-default-features [-- NAME...]` (a name may be a part of one).
#![expect(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::print_stdout, reason = "a benchmark reports on stdout, and a panic ends it")]

use std::hint::black_box;
use std::time::Instant;

use mount_tensors::quant::{self, CODECS, Codec, narrow};

/// Elements of a whole pass, and of the buffer that is reused.
const TOTAL: usize = 16 << 20;
const BUFFER: usize = 256 << 10;

/// Passes, of which the median counts.
const PASSES: usize = 7;

/// Where a block has f16 scales, which random bytes would make infinities of, or NaN.
const SCALES: &[(&str, &[usize])] = &[
    ("q2_k", &[80, 82]),
    ("q3_k", &[108]),
    ("q4_k", &[0, 2]),
    ("q5_k", &[0, 2]),
    ("q6_k", &[208]),
    ("tq1_0", &[52]),
    ("tq2_0", &[64]),
    ("q4_1", &[0, 2]),
    ("q5_1", &[0, 2]),
];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str()));
    if !quant::has_fast() {
        println!("This CPU has no AVX2: fast is the scalar decoder.");
    }
    println!("GB/s of output, median of {PASSES} passes\n");
    println!("| type | scalar | fast | copy | fill | limit | fast / limit |\n|---|---|---|---|---|---|---|");
    for codec in CODECS.iter().filter(|codec| is_wanted(codec.name)) {
        decode(codec);
    }
    println!("\n| elements, through f32 | GB/s of f32 read and converted |\n|---|---|");
    type Narrow = fn(&[f32], &mut [u8]);
    let narrowings: [(&str, Narrow); 2] = [("narrow_f16", narrow::narrow_f16), ("narrow_bf16", narrow::narrow_bf16)];
    for (name, convert) in narrowings.into_iter().filter(|(name, _)| is_wanted(name)) {
        // In the steps in which a view is decoded: the f32 are in the first-level cache.
        let values: Vec<f32> = random(8192 * 4).as_chunks().0.iter().map(|b| f32::from_bits(u32::from_le_bytes(*b) & 0x3FFF_FFFF)).collect();
        let mut out = vec![0; 2 * values.len()];
        let mut times = Vec::new();
        for _ in 0..PASSES * TOTAL / BUFFER {
            times.push(seconds(|| {
                for _ in 0..BUFFER / values.len() {
                    convert(black_box(&values), black_box(&mut out));
                }
            }));
        }
        println!("| {name} | {:.1} |", rate(median(&mut times)));
    }
}

/// Measures a codec and prints its row.
fn decode(codec: &Codec) {
    let blocks = blocks(codec);
    let copied = random(TOTAL * 4);
    let (mut out, mut expected, mut bytes) = (vec![0f32; BUFFER], vec![0f32; BUFFER], vec![0u8; BUFFER * 4]);
    let part = BUFFER / codec.elements * codec.bytes;
    let fast = codec.decoder();
    let mut times = [const { Vec::new() }; 4];
    for pass in 0..=PASSES {
        for blocks in blocks.chunks(part) {
            times[0].push(seconds(|| (codec.decode)(blocks, black_box(&mut out))));
        }
        for blocks in blocks.chunks(part) {
            times[1].push(seconds(|| fast(blocks, black_box(&mut out))));
        }
        for part in copied.chunks(BUFFER * 4) {
            times[2].push(seconds(|| black_box(&mut bytes).copy_from_slice(part)));
            times[3].push(seconds(|| black_box(&mut bytes).fill(pass as u8)));
        }
        if pass == 0 {
            // It warms up.
            times.iter_mut().for_each(Vec::clear);
        }
    }
    for blocks in blocks.chunks(part) {
        (codec.decode)(blocks, &mut expected);
        fast(blocks, &mut out);
        let same = out.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan());
        assert!(same, "{}: the fast decoder differs from the scalar one", codec.name);
    }
    let [scalar, fast, copy, fill] = times.map(|mut times| median(&mut times));
    let read = (copy - fill).max(0.0) * codec.bytes as f64 / (codec.elements * 4) as f64;
    let limit = fill + read;
    let [a, b, c, d, e] = [scalar, fast, copy, fill, limit].map(rate);
    println!("| {} | {a:.1} | {b:.1} | {c:.1} | {d:.1} | {e:.1} | {:.2} |", codec.name, limit / fast);
}

/// Random blocks of a codec, with scales that are ordinary numbers.
fn blocks(codec: &Codec) -> Vec<u8> {
    let mut blocks = random(TOTAL / codec.elements * codec.bytes);
    let scales = SCALES.iter().find(|entry| entry.0 == codec.name).map_or(&[0][..], |entry| entry.1);
    for block in blocks.chunks_exact_mut(codec.bytes).filter(|_| codec.elements > 8) {
        match codec.name {
            "mxfp4" => block[0] = 100 + block[0] % 40,
            "q8_k" => block[3] = 0x38,
            "iq1_m" => block[55] = block[55] & 15 | 0x20,
            _ => scales.iter().for_each(|at| block[at + 1] = 0x20 | block[at + 1] & 0x87),
        }
    }
    blocks
}

fn seconds(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn rate(seconds: f64) -> f64 {
    (BUFFER * 4) as f64 / seconds / 1e9
}

/// Bytes that are always the same (SplitMix64).
fn random(length: usize) -> Vec<u8> {
    let mut state = 20260917_u64;
    let word = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    };
    let mut bytes: Vec<u8> = std::iter::repeat_with(word).take(length.div_ceil(8)).flat_map(u64::to_le_bytes).collect();
    bytes.truncate(length);
    bytes
}
