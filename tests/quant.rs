//! The codecs against the values of the reference implementations, and the conversions against slow statements of what they should be.
//!
//! `MOUNT_TENSORS_VECTORS=DIR` adds a directory of vectors with the layout of `fixtures/quant` (see `scripts/make-quant-vectors`).
#![expect(clippy::unwrap_used, clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "in a test, a panic is the report of a failure")]

use std::collections::HashSet;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use mount_tensors::quant::{CODECS, Codec, Kind, by_ggml, by_name, narrow, swap_fields};
use sha2::{Digest, Sha256};

/// Name, elements, bytes and ggml number of each type, written down from ggml's type table and the OCP and ONNX documents.
const SIZES: &[(&str, usize, usize, Option<u32>)] = &[
    ("f64", 1, 8, Some(28)),
    ("f32", 1, 4, Some(0)),
    ("f16", 1, 2, Some(1)),
    ("bf16", 1, 2, Some(30)),
    ("f8_e4m3", 1, 1, None),
    ("f8_e5m2", 1, 1, None),
    ("f8_e4m3fnuz", 1, 1, None),
    ("f8_e5m2fnuz", 1, 1, None),
    ("f8_e8m0", 1, 1, None),
    ("f6_e2m3", 4, 3, None),
    ("f6_e3m2", 4, 3, None),
    ("f4", 2, 1, None),
    ("i4", 2, 1, None),
    ("u4", 2, 1, None),
    ("i2", 4, 1, None),
    ("u2", 4, 1, None),
    ("u1", 8, 1, None),
    ("q1_0", 128, 18, Some(41)),
    ("q2_0", 64, 18, Some(42)),
    ("q4_0", 32, 18, Some(2)),
    ("q4_1", 32, 20, Some(3)),
    ("q5_0", 32, 22, Some(6)),
    ("q5_1", 32, 24, Some(7)),
    ("q8_0", 32, 34, Some(8)),
    ("q8_1", 32, 36, Some(9)),
    ("q2_k", 256, 84, Some(10)),
    ("q3_k", 256, 110, Some(11)),
    ("q4_k", 256, 144, Some(12)),
    ("q5_k", 256, 176, Some(13)),
    ("q6_k", 256, 210, Some(14)),
    ("q8_k", 256, 292, Some(15)),
    ("iq1_s", 256, 50, Some(19)),
    ("iq1_m", 256, 56, Some(29)),
    ("iq2_xxs", 256, 66, Some(16)),
    ("iq2_xs", 256, 74, Some(17)),
    ("iq2_s", 256, 82, Some(22)),
    ("iq3_xxs", 256, 98, Some(18)),
    ("iq3_s", 256, 110, Some(21)),
    ("iq4_nl", 32, 18, Some(20)),
    ("iq4_xs", 256, 136, Some(23)),
    ("tq1_0", 256, 54, Some(34)),
    ("tq2_0", 256, 66, Some(35)),
    ("mxfp4", 32, 17, Some(39)),
    ("nvfp4", 64, 36, Some(40)),
];

/// Offset and width of the fields that have a byte order, from ggml's structs and `gguf_convert_endian.py`. Absent: types of single bytes, and IQ1 to IQ3.
const BIG_ENDIAN: &[(&str, &[(usize, usize)])] = &[
    ("f64", &[(0, 8)]),
    ("f32", &[(0, 4)]),
    ("f16", &[(0, 2)]),
    ("bf16", &[(0, 2)]),
    ("q1_0", &[(0, 2)]),
    ("q2_0", &[(0, 2)]),
    ("q4_0", &[(0, 2)]),
    ("q4_1", &[(0, 2), (2, 2)]),
    ("q5_0", &[(0, 2), (2, 4)]),
    ("q5_1", &[(0, 2), (2, 2), (4, 4)]),
    ("q8_0", &[(0, 2)]),
    ("q8_1", &[(0, 2), (2, 2)]),
    ("q2_k", &[(80, 2), (82, 2)]),
    ("q3_k", &[(108, 2)]),
    ("q4_k", &[(0, 2), (2, 2)]),
    ("q5_k", &[(0, 2), (2, 2)]),
    ("q6_k", &[(208, 2)]),
    (
        "q8_k",
        &[
            (0, 4),
            (260, 2),
            (262, 2),
            (264, 2),
            (266, 2),
            (268, 2),
            (270, 2),
            (272, 2),
            (274, 2),
            (276, 2),
            (278, 2),
            (280, 2),
            (282, 2),
            (284, 2),
            (286, 2),
            (288, 2),
            (290, 2),
        ],
    ),
    ("iq4_nl", &[(0, 2)]),
    ("iq4_xs", &[(0, 2), (2, 2)]),
    ("tq1_0", &[(52, 2)]),
    ("tq2_0", &[(64, 2)]),
];

#[test]
fn every_codec_keeps_the_rules_of_the_table() {
    let mut names = HashSet::new();
    let mut numbers = HashSet::new();
    for codec in CODECS {
        let name = codec.name;
        assert!(names.insert(name), "{name} is registered twice");
        assert!(codec.ggml.is_none_or(|id| numbers.insert(id)), "{name}: its ggml number is taken");
        assert!(codec.bytes > 0 && codec.elements > 0, "{name} is empty");
        let sizes = (name, codec.elements, codec.bytes, codec.ggml);
        assert!(SIZES.contains(&sizes), "{name}: {sizes:?} is not what was written down");
        let kind = match name {
            "i4" | "i2" => Kind::Signed,
            "u4" | "u2" | "u1" => Kind::Unsigned,
            _ => Kind::Float,
        };
        assert_eq!(codec.kind, kind, "{name}");
        assert!(std::ptr::eq(by_name(name).unwrap(), codec), "{name}");
        if let Some(id) = codec.ggml {
            assert!(std::ptr::eq(by_ggml(id).unwrap(), codec), "{name}");
        }
        for field in codec.swap.unwrap_or_default() {
            let end = field.offset + field.width * field.count;
            assert!(end <= codec.bytes && [2, 4, 8].contains(&field.width), "{name}: {field:?}");
        }
    }
    assert_eq!(CODECS.len(), SIZES.len());
    assert!(by_name("q4_2").is_none() && by_name("").is_none());
    // Removed numbers, NumPy's own integers, and what comes after the last one.
    for id in [4, 5, 24, 25, 26, 27, 31, 32, 33, 36, 37, 38, 43, u32::MAX] {
        assert!(by_ggml(id).is_none(), "{id}");
    }
}

#[test]
fn our_vectors_are_reproduced() {
    let types = check_vectors(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/quant"));
    for codec in CODECS {
        assert!(types.contains(codec.name), "fixtures/quant has no vectors for {}", codec.name);
    }
}

#[test]
fn given_vectors_are_reproduced() {
    // Past the test harness, which keeps what a passing test prints.
    let mut stderr = std::io::stderr();
    match std::env::var_os("MOUNT_TENSORS_VECTORS") {
        None => writeln!(stderr, "skipped: no extra vectors, MOUNT_TENSORS_VECTORS is not set"),
        Some(directory) => {
            let types = check_vectors(Path::new(&directory));
            writeln!(stderr, "{} types of {} are reproduced", types.len(), directory.display())
        }
    }
    .unwrap();
}

/// Checks every type that the directory's index names, and returns their names.
fn check_vectors(directory: &Path) -> HashSet<String> {
    let index = fs::read(directory.join("index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    let mut checked = HashSet::new();
    for (file_name, entry) in index["types"].as_object().unwrap() {
        let name = file_name.to_lowercase();
        let codec = by_name(&name).unwrap_or_else(|| unreachable!("no codec {name}"));
        assert_eq!(codec.ggml.map(u64::from), entry["id"].as_u64(), "{name}");
        assert_eq!(Some(codec.elements as u64), entry["block_size"].as_u64(), "{name}");
        assert_eq!(Some(codec.bytes as u64), entry["type_size"].as_u64(), "{name}");
        for (part, middle) in [("main", ""), ("edge", ".edge")] {
            let about = &entry[part];
            let read = |ending| fs::read(directory.join(format!("{file_name}{middle}.{ending}"))).unwrap();
            let (stored, expected) = (read("in.bin"), read("out.f32.bin"));
            let context = format!("{name} {part}");
            assert_digest(&context, &stored, &about["in_sha256"]);
            assert_digest(&context, &expected, &about["out_f32_sha256"]);
            let blocks = stored.len() / codec.bytes;
            assert_eq!(Some(blocks as u64), about["blocks"].as_u64(), "{context}");
            let values = decode(codec, &stored);
            assert_same(&format!("{context}, fast"), &decode_fast(codec, &stored), &values);
            let expected: Vec<f32> = expected.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            assert_same(&context, &values, &expected);
            if part == "main" {
                assert!(!values.iter().any(|value| value.is_nan()), "{context} has NaN");
                let mut narrowed = vec![0; 2 * values.len()];
                narrow::narrow_f16(&values, &mut narrowed);
                assert_digest(&format!("{context} as f16"), &narrowed, &about["out_f16_sha256"]);
                narrow::narrow_bf16(&values, &mut narrowed);
                assert_digest(&format!("{context} as bf16"), &narrowed, &about["out_bf16_sha256"]);
            }
        }
        checked.insert(name);
    }
    checked
}

#[test]
fn every_code_of_the_floats_has_the_value_of_its_bits() {
    // Name, exponent bits, mantissa bits, bias, width in bits.
    for (name, exponent_bits, mantissa_bits, bias, width) in [
        ("f16", 5, 10, 15, 16),
        ("bf16", 8, 7, 127, 16),
        ("f8_e4m3", 4, 3, 7, 8),
        ("f8_e5m2", 5, 2, 15, 8),
        ("f8_e4m3fnuz", 4, 3, 8, 8),
        ("f8_e5m2fnuz", 5, 2, 16, 8),
        ("f6_e2m3", 2, 3, 1, 6),
        ("f6_e3m2", 3, 2, 3, 6),
        ("f4", 2, 1, 1, 4),
    ] {
        let codec = by_name(name).unwrap();
        let codes: Vec<u32> = (0..1 << width).collect();
        let values = decode(codec, &pack(&codes, width));
        assert_eq!(values.len(), codes.len());
        for (&code, value) in codes.iter().zip(values) {
            let all_ones = code >> mantissa_bits & ((1 << exponent_bits) - 1) == (1 << exponent_bits) - 1;
            let mantissa = code & ((1 << mantissa_bits) - 1);
            let negative = code >> (width - 1) == 1;
            let expected = match name {
                "f16" | "bf16" | "f8_e5m2" if all_ones && mantissa == 0 => {
                    if negative {
                        f64::NEG_INFINITY
                    } else {
                        f64::INFINITY
                    }
                }
                "f16" | "bf16" | "f8_e5m2" if all_ones => f64::NAN,
                "f8_e4m3" if all_ones && mantissa == 7 => f64::NAN,
                "f8_e4m3fnuz" | "f8_e5m2fnuz" if code == 0x80 => f64::NAN,
                _ => value_of(code, exponent_bits, mantissa_bits, bias),
            };
            let context = format!("{name} {code:#x}: {value} is not {expected}");
            assert_eq!(value.is_nan(), expected.is_nan(), "{context}");
            if !expected.is_nan() {
                assert_eq!(f64::from(value).to_bits(), expected.to_bits(), "{context}");
            } else if name == "f16" {
                // As VCVTPH2PS: payload kept, quiet bit set.
                let quiet = (code & 0x8000) << 16 | 0x7FC0_0000 | mantissa << 13;
                assert_eq!(value.to_bits(), quiet, "{context}");
                assert_eq!(half::f16::from_bits(code as u16).to_f32_const().to_bits(), quiet, "{context}, in software");
            } else if name == "bf16" {
                assert_eq!(value.to_bits(), code << 16, "{context}");
            }
        }
    }
    let every: Vec<u8> = (0..=255).collect();
    let powers = decode(by_name("f8_e8m0").unwrap(), &every);
    assert!(powers[255].is_nan());
    for (code, power) in powers[..255].iter().enumerate() {
        assert_eq!(f64::from(*power), 2f64.powi(code as i32 - 127), "f8_e8m0 {code:#x}");
    }
}

#[test]
fn f16_is_the_same_in_runs_of_any_length() {
    let codec = by_name("f16").unwrap();
    let stored = random_bytes(1, 2 * 300);
    let single: Vec<f32> = stored.chunks(2).flat_map(|code| decode(codec, code)).collect();
    for length in 0..300 {
        assert_same("f16", &decode(codec, &stored[..2 * length]), &single[..length]);
    }
}

#[test]
fn partial_blocks_are_left_alone() {
    for codec in CODECS {
        let (name, bytes, elements) = (codec.name, codec.bytes, codec.elements);
        let stored = random_bytes(2, 3 * bytes);
        let whole = decode(codec, &stored);
        for stored_length in 0..=3 * bytes {
            for out_length in [0, 1, elements - 1, elements, elements + 1, 3 * elements - 1, 3 * elements, 3 * elements + 1] {
                let blocks = (stored_length / bytes).min(out_length / elements);
                let mut out = vec![12345.0; out_length];
                (codec.decode)(&stored[..stored_length], &mut out);
                assert_same(name, &out[..blocks * elements], &whole[..blocks * elements]);
                assert!(out[blocks * elements..].iter().all(|y| *y == 12345.0), "{name}: wrote past its blocks");
            }
        }
    }
}

#[test]
fn big_endian_blocks_decode_as_little_endian_ones() {
    for codec in CODECS {
        let name = codec.name;
        let fields = BIG_ENDIAN.iter().find(|entry| entry.0 == name).map(|entry| entry.1);
        match codec.swap {
            None => assert!(fields.is_none() && name.starts_with("iq"), "{name}"),
            Some(swap) => assert_eq!(swap.is_empty(), fields.is_none(), "{name}"),
        }
        let little = random_bytes(3, 5 * codec.bytes);
        let mut big = little.clone();
        for block in big.chunks_mut(codec.bytes) {
            for (offset, width) in fields.unwrap_or_default() {
                block[*offset..offset + width].reverse();
            }
        }
        let mut swapped = big.clone();
        swap_fields(codec, &mut swapped);
        assert_eq!(swapped, little, "{name}");
        assert_same(name, &decode(codec, &swapped), &decode(codec, &little));
        swap_fields(codec, &mut swapped);
        assert_eq!(swapped, big, "{name}: twice is not the identity");
        // A partial last block stays.
        let cut = 5 * codec.bytes - 1;
        let mut partial = little[..cut].to_vec();
        swap_fields(codec, &mut partial);
        assert_eq!(partial[..4 * codec.bytes], big[..4 * codec.bytes], "{name}");
        assert_eq!(partial[4 * codec.bytes..], little[4 * codec.bytes..cut], "{name}");
    }
}

#[test]
fn narrowing_finds_the_nearest_value() {
    let f16 = Grid::new(5, 10, 15);
    let bf16 = Grid::new(8, 7, 127);
    let check = |value: f64| {
        for value in [value, -value] {
            assert_eq!(narrow::f64_to_f16_bits(value), f16.nearest(value), "f64 {value:e} as f16");
            assert_eq!(narrow::f64_to_bf16_bits(value), bf16.nearest(value), "f64 {value:e} as bf16");
            let single = value as f32;
            assert_eq!(narrow::f64_to_f32(value).to_bits(), single.to_bits());
            let exact = f64::from(single);
            assert_eq!(narrow::f32_to_f16_bits(single), f16.nearest(exact), "f32 {single:e} as f16");
            assert_eq!(narrow::f32_to_bf16_bits(single), bf16.nearest(exact), "f32 {single:e} as bf16");
        }
    };
    // Each value of the two formats, each tie between two of them, and what lies just beside: by a last place of f64, where the way through f32 is wrong, and
    // by one of f32.
    for grid in [&f16, &bf16] {
        for pair in grid.values.windows(2) {
            for value in [pair[0], (pair[0] + pair[1]) / 2.0] {
                let single = value as f32;
                check(value);
                check(value.next_up());
                check(value.next_down());
                check(f64::from(single.next_up()));
                check(f64::from(single.next_down()));
                // A tie of f32 beside the tie.
                check((f64::from(single) + f64::from(single.next_up())) / 2.0);
                check(((f64::from(single) + f64::from(single.next_up())) / 2.0).next_down());
            }
        }
    }
    for value in [0.0, 5e-324, f64::MIN_POSITIVE, f64::MAX, f64::INFINITY, 65519.999, 65520.0, 1e39] {
        check(value);
    }
    for bytes in random_bytes(4, 8 * 100_000).as_chunks().0 {
        let value = f64::from_le_bytes(*bytes);
        check(if value.is_nan() { 1.0 } else { value });
    }
    for bits in (0..0x7F80_0000).step_by(1009) {
        check(f64::from(f32::from_bits(bits)));
    }
}

#[test]
fn nan_stays_nan() {
    for bits in [0x7F80_0001, 0x7FC0_0000, 0xFF80_0001, 0xFFFF_FFFF, 0x7F80_8000, 0x7FA0_1234_u32] {
        let value = f32::from_bits(bits);
        assert_eq!(narrow::f32_to_bf16_bits(value), (bits >> 16) as u16 | 0x40);
        let half = narrow::f32_to_f16_bits(value);
        assert_eq!(u32::from(half), bits >> 16 & 0x8000 | 0x7E00 | bits >> 13 & 0x3FF);
        for half in [half, narrow::f64_to_f16_bits(f64::from(value))] {
            assert!(half & 0x7FFF > 0x7C00);
        }
        assert!(narrow::f64_to_bf16_bits(f64::from(value)) & 0x7FFF > 0x7F80);
        assert!(narrow::f64_to_f32(f64::from(value)).is_nan());
    }
    // A payload that is only in the part that f32 lacks.
    for bits in [0x7FF0_0000_0000_0001, 0xFFF0_0000_0000_0001] {
        let value = f64::from_bits(bits);
        assert!(narrow::f64_to_f16_bits(value) & 0x7FFF > 0x7C00);
        assert!(narrow::f64_to_bf16_bits(value) & 0x7FFF > 0x7F80);
    }
}

#[test]
fn slices_narrow_as_single_values_do() {
    // Every exponent with many mantissas, NaN included; in lengths that leave a rest at any width of vectors.
    let values: Vec<f32> = (0..=u32::MAX).step_by(4099).map(f32::from_bits).collect();
    let mut out = vec![0; 4 * values.len()];
    narrow::narrow_f32(&values, &mut out);
    assert!(out.iter().eq(values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>().iter()));
    let expect = |convert: fn(f32) -> u16| -> Vec<u8> { values.iter().flat_map(|v| convert(*v).to_le_bytes()).collect() };
    let (f16, bf16) = (expect(narrow::f32_to_f16_bits), expect(narrow::f32_to_bf16_bits));
    out.truncate(2 * values.len());
    narrow::narrow_f16(&values, &mut out);
    assert!(out == f16, "narrow_f16 differs at byte {:?}", out.iter().zip(&f16).position(|(a, b)| a != b));
    narrow::narrow_bf16(&values, &mut out);
    assert!(out == bf16, "narrow_bf16 differs at byte {:?}", out.iter().zip(&bf16).position(|(a, b)| a != b));
    // What `half` does where the CPU has no F16C.
    for (value, bits) in values.iter().zip(f16.as_chunks().0) {
        let software = half::f16::from_f32_const(*value).to_bits();
        assert_eq!(software, u16::from_le_bytes(*bits), "{value:e} in software");
    }
    for length in 0..200 {
        // One byte too many and, in the second half, too few values for the room: both are left alone.
        let mut out = vec![0xAA; 201];
        narrow::narrow_f16(&values[..length], &mut out);
        let written = (2 * length).min(200);
        assert_eq!(out[..written], f16[..written]);
        assert!(out[written..].iter().all(|byte| *byte == 0xAA));
    }
    let doubles: Vec<f64> = random_bytes(5, 8 * 1000).as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect();
    let mut out = vec![0; 2000];
    narrow::narrow_f64_to_f16(&doubles, &mut out);
    assert!(out.as_chunks().0.iter().zip(&doubles).all(|(b, v)| u16::from_le_bytes(*b) == narrow::f64_to_f16_bits(*v)));
    narrow::narrow_f64_to_bf16(&doubles, &mut out);
    assert!(out.as_chunks().0.iter().zip(&doubles).all(|(b, v)| u16::from_le_bytes(*b) == narrow::f64_to_bf16_bits(*v)));
}

/// The values of a 16-bit format from 0 up, each at the index that is its code; the last is where infinity begins to be nearest from the other side.
struct Grid {
    values: Vec<f64>,
    infinity: usize,
}

impl Grid {
    fn new(exponent_bits: u32, mantissa_bits: u32, bias: i32) -> Self {
        let infinity = ((1 << exponent_bits) - 1) << mantissa_bits;
        let values = (0..=infinity).map(|code| value_of(code, exponent_bits, mantissa_bits, bias)).collect();
        Self { values, infinity: infinity as usize }
    }

    /// Searches for the two neighbours and compares with the middle between them, which f64 holds exactly.
    fn nearest(&self, value: f64) -> u16 {
        let magnitude = value.abs();
        let above = self.values.partition_point(|candidate| *candidate <= magnitude);
        let code = if above > self.infinity {
            self.infinity
        } else {
            let below = above - 1;
            let middle = (self.values[below] + self.values[above]) / 2.0;
            match magnitude.total_cmp(&middle) {
                std::cmp::Ordering::Less => below,
                std::cmp::Ordering::Greater => above,
                std::cmp::Ordering::Equal => below + below % 2,
            }
        };
        code as u16 | u16::from(value.is_sign_negative()) << 15
    }
}

/// The value of a code without special values, by the definition of a binary floating-point number.
fn value_of(code: u32, exponent_bits: u32, mantissa_bits: u32, bias: i32) -> f64 {
    let mantissa = f64::from(code & ((1 << mantissa_bits) - 1)) / 2f64.powi(mantissa_bits as i32);
    let exponent = (code >> mantissa_bits & ((1 << exponent_bits) - 1)) as i32;
    let magnitude = if exponent == 0 { mantissa * 2f64.powi(1 - bias) } else { (1.0 + mantissa) * 2f64.powi(exponent - bias) };
    if code >> (exponent_bits + mantissa_bits) & 1 == 1 { -magnitude } else { magnitude }
}

/// Packs codes into bytes from the least significant bits up.
fn pack(codes: &[u32], width: usize) -> Vec<u8> {
    let mut bytes = vec![0; codes.len() * width / 8];
    for (i, code) in codes.iter().enumerate() {
        for bit in 0..width {
            let at = i * width + bit;
            bytes[at / 8] |= ((code >> bit & 1) as u8) << (at % 8);
        }
    }
    bytes
}

/// Blocks that hold every 16-bit pattern at every aligned place, and so each special value of each scale, and runs of equal bytes.
fn special_blocks(codec: &Codec) -> Vec<u8> {
    let patterns = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7C01, 0x7D00, 0x7E00, 0xFE00, 0x7FFF_u16];
    let mut blocks = Vec::new();
    for (i, pattern) in patterns.iter().enumerate() {
        for at in (0..codec.bytes.saturating_sub(1)).step_by(2).chain([codec.bytes.saturating_sub(2)]) {
            let mut block = random_bytes((1000 * i + at) as u64, codec.bytes);
            block.iter_mut().skip(at).zip(pattern.to_le_bytes()).for_each(|(byte, pattern)| *byte = pattern);
            blocks.extend(block);
        }
    }
    // In a block of one byte or two, every code.
    for byte in 0..=255 {
        blocks.extend(std::iter::repeat_n(byte, codec.bytes));
        let mut block = random_bytes(u64::from(byte), codec.bytes);
        block[0] = byte;
        blocks.extend(block);
    }
    blocks
}

#[test]
fn fast_decoders_equal_the_scalar_ones() {
    if !mount_tensors::quant::has_fast() {
        writeln!(std::io::stderr(), "skipped: this CPU has no AVX2, only the scalar decoders ran").unwrap();
    }
    for codec in CODECS {
        let (name, bytes, elements) = (codec.name, codec.bytes, codec.elements);
        assert!(codec.fast.is_some() || name == "f32" || !cfg!(target_arch = "x86_64"), "{name} has no fast twin");
        // Whole blocks of random bytes, in which every scale is any number; of small types many more, to see every code.
        let random = random_bytes(11, bytes * if elements > 8 { 2_500 } else { 200_000 });
        assert_same(&format!("{name}, random"), &decode_fast(codec, &random), &decode(codec, &random));
        if elements <= 8 {
            // Where several blocks are decoded at a time and the rest singly, a NaN must not depend on which: reads of one file may be cut anywhere.
            let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            assert!(bits(decode_fast(codec, &random)) == bits(decode(codec, &random)), "{name}: another NaN");
        }
        let special = special_blocks(codec);
        assert_same(&format!("{name}, special"), &decode_fast(codec, &special), &decode(codec, &special));
        if bytes <= 2 {
            let every: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
            assert_same(&format!("{name}, every code"), &decode_fast(codec, &every), &decode(codec, &every));
        }
        // Counts that leave a rest at any width, from any address, and partial blocks on either side.
        for count in [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 65] {
            for shift in 0..5 {
                let stored = &random[shift..][..count * bytes];
                let context = format!("{name}, {count} blocks at {shift}");
                assert_same(&context, &decode_fast(codec, stored), &decode(codec, stored));
                for (more_stored, more_out) in [(0, elements - 1), (bytes - 1, 0), (bytes - 1, elements - 1), (9 * bytes, 0), (0, 9 * elements)] {
                    let stored = &random[shift..][..count * bytes + more_stored];
                    let room = vec![12345.0; shift + count * elements + more_out];
                    let (mut fast, mut scalar) = (room.clone(), room);
                    (codec.decoder())(stored, &mut fast[shift..]);
                    (codec.decode)(stored, &mut scalar[shift..]);
                    assert_same(&context, &fast, &scalar);
                }
            }
        }
    }
}

fn decode_fast(codec: &Codec, stored: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; stored.len() / codec.bytes * codec.elements];
    (codec.decoder())(stored, &mut out);
    out
}

fn decode(codec: &Codec, stored: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; stored.len() / codec.bytes * codec.elements];
    (codec.decode)(stored, &mut out);
    out
}

/// Compares bit for bit, any NaN being equal to any NaN, and reports the first difference.
fn assert_same(context: &str, values: &[f32], expected: &[f32]) {
    assert_eq!(values.len(), expected.len(), "{context}: length");
    let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan());
    if let Some(at) = values.iter().zip(expected).position(differs) {
        let (value, expected) = (values[at], expected[at]);
        assert_eq!(format!("{:#010x} ({value:e})", value.to_bits()), format!("{:#010x} ({expected:e})", expected.to_bits()), "{context}: element {at}");
    }
}

fn assert_digest(context: &str, bytes: &[u8], expected: &serde_json::Value) {
    let digest: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(Some(digest.as_str()), expected.as_str(), "{context}: digest");
}

/// Bytes that are always the same for a seed (SplitMix64).
fn random_bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let word = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    };
    std::iter::repeat_with(word).flat_map(u64::to_le_bytes).take(length).collect()
}
