//! Decoding speed of this program and of candle-core, in turn and in one process: see `benches/quant.rs`, whose method this is.
//!
//! `cargo run --release --manifest-path benches/peers/Cargo.toml [-- NAME...]`. candle chooses AVX2 when it is built: for its best, set
//! `RUSTFLAGS="-C target-cpu=native"`. Both decode the same blocks, and the results are compared.

use std::hint::black_box;
use std::time::Instant;

use candle_core::quantized::GgmlType;
use candle_core::quantized::k_quants::{BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K, BlockQ6K, BlockQ8_0};
use mount_tensors::quant::{self, Codec};

/// Elements of a whole pass, and of the buffer that is reused.
const TOTAL: usize = 16 << 20;
const BUFFER: usize = 256 << 10;
/// Passes, of which the median counts.
const PASSES: usize = 7;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    println!("GB/s of f32, median of {PASSES} passes\n\n| type | ours | candle | ours / candle | values |\n|---|---|---|---|---|");
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str()));
    // The type, and where in a block its f16 scales are.
    type Row = (&'static str, fn(&Codec, &[usize]), &'static [usize]);
    let rows: [Row; 10] = [
        ("q4_0", compare::<BlockQ4_0>, &[0]),
        ("q4_1", compare::<BlockQ4_1>, &[0, 2]),
        ("q5_0", compare::<BlockQ5_0>, &[0]),
        ("q5_1", compare::<BlockQ5_1>, &[0, 2]),
        ("q8_0", compare::<BlockQ8_0>, &[0]),
        ("q2_k", compare::<BlockQ2K>, &[80, 82]),
        ("q3_k", compare::<BlockQ3K>, &[108]),
        ("q4_k", compare::<BlockQ4K>, &[0, 2]),
        ("q5_k", compare::<BlockQ5K>, &[0, 2]),
        ("q6_k", compare::<BlockQ6K>, &[208]),
    ];
    for (name, compare, scales) in rows.into_iter().filter(|row| is_wanted(row.0)) {
        compare(quant::by_name(name).expect("a type of ours"), scales);
    }
}

/// Measures both and prints a row.
fn compare<Block: GgmlType>(codec: &Codec, scales: &[usize]) {
    assert_eq!((size_of::<Block>(), Block::BLCK_SIZE), (codec.bytes, codec.elements), "{}", codec.name);
    let count = TOTAL / codec.elements;
    let mut blocks: Vec<Block> = vec![Block::zeros(); count];
    // SAFETY: the blocks are plain C structs of integers and halves without padding (their size is that of the packed layout): any bytes are valid.
    let bytes = unsafe { std::slice::from_raw_parts_mut(blocks.as_mut_ptr().cast::<u8>(), count * codec.bytes) };
    let mut state = 20260917u64;
    for byte in bytes.iter_mut() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *byte = (state >> 56) as u8;
    }
    // Scales that are ordinary numbers.
    bytes.chunks_exact_mut(codec.bytes).for_each(|block| scales.iter().for_each(|at| block[at + 1] = 0x20 | block[at + 1] & 0x87));
    let bytes: &[u8] = bytes;
    // SAFETY: as above; the mutable view is not used any more, and the blocks are only read.
    let typed = unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<Block>(), count) };
    let decode = codec.decoder();
    let per_part = BUFFER / codec.elements;
    let (mut ours, mut theirs) = (vec![0f32; BUFFER], vec![0f32; BUFFER]);
    let mut times = [Vec::new(), Vec::new()];
    let mut different = 0;
    for pass in 0..=PASSES {
        for (part, typed) in bytes.chunks_exact(per_part * codec.bytes).zip(typed.chunks_exact(per_part)) {
            let start = Instant::now();
            decode(part, black_box(&mut ours));
            let middle = Instant::now();
            Block::to_float(typed, black_box(&mut theirs));
            let end = Instant::now();
            if pass == 0 {
                different += ours.iter().zip(&theirs).filter(|(a, b)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan())).count();
            } else {
                times[0].push((middle - start).as_secs_f64());
                times[1].push((end - middle).as_secs_f64());
            }
        }
    }
    let [ours, theirs] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        (BUFFER * 4) as f64 / times[times.len() / 2] / 1e9
    });
    let values = if different == 0 { "the same bits".to_string() } else { format!("{different} of {TOTAL} differ") };
    println!("| {} | {ours:.1} | {theirs:.1} | {:.2} | {values} |", codec.name, ours / theirs);
}
