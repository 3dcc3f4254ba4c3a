//! bitsandbytes: four bits by a code book (`P.weight`, `P.weight.absmax`, `P.weight.quant_state.bitsandbytes__nf4` or `__fp4`), and LLM.int8 (`P.weight`,
//! `P.SCB`).
//!
//! Four bits: the high half of a byte is the first element; blocks run over the flat tensor. code book * absmax in f32, rounded once to the type that the
//! state names. The maxima may themselves be stored in eight bits ("nested"). Eight bits: code * SCB * (1 / 127) in f32.

use std::io;

use serde_json::{Value as Json, json};

use super::{Context, Numbers, Rounding, grouped, is, text};
use crate::catalog::{Tensor, product};
use crate::recipe::{Inputs, Values};
use crate::source::Extent;

const STATE: &[u8] = b".quant_state.bitsandbytes__";

/// `get_4bit_type("nf4")` of bitsandbytes/functional.py: the quantiles of a normal distribution.
const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// `get_4bit_type("fp4")`: sign, and these over twelve.
const FP4_TWELFTHS: [f32; 8] = [0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0];

/// 1 / 127 as `int8_vectorwise_dequant` has it.
const ONE_127TH: f32 = 7.874_016e-3;

pub(super) fn find(context: &mut Context<'_>) {
    let states: Vec<(&[u8], Tensor<'_>)> =
        context.catalog.tensors().filter_map(|t| Some((t.name().get(..t.name().windows(STATE.len()).position(|window| window == STATE)?)?, t))).collect();
    for (name, state) in states {
        let Some(weight) = context.get(name) else {
            context.doubt(state, "is a bitsandbytes state, but its weight is missing");
            continue;
        };
        match four_bits(context, name, weight, state) {
            Ok((shape, facts, values)) => context.add(weight, None, shape, facts, Box::new(values)),
            Err(what) => context.doubt(weight, what),
        }
    }
    let eights: Vec<_> = context.stems(".SCB").collect();
    for (stem, scales) in eights {
        let Some(weight) = context.part(stem, ".weight") else { continue };
        match eight_bits(context, stem, weight, scales) {
            Ok((facts, values)) => context.add(weight, None, weight.shape().to_vec(), facts, Box::new(values)),
            Err(what) => context.doubt(weight, what),
        }
    }
}

/// Where the largest magnitude of each block comes from.
#[derive(Clone, Copy)]
enum Absmax {
    Stored(Numbers),
    /// Bytes, through a table of 256 numbers, times a number for each block of them, plus an offset.
    Nested {
        codes: Extent,
        table: Numbers,
        scales: Numbers,
        block: u64,
        offset: f32,
    },
}

struct FourBits {
    codes: Extent,
    book: [f32; 16],
    block: u64,
    absmax: Absmax,
    rounding: Rounding,
}

fn four_bits(context: &Context<'_>, name: &[u8], weight: Tensor<'_>, state: Tensor<'_>) -> Result<(Vec<u64>, Json, FourBits), String> {
    let unread = "is a bitsandbytes weight, but its state is not the JSON text that it should be";
    let said: Json = context.bytes(state).and_then(|bytes| serde_json::from_slice(&bytes).ok()).ok_or(unread)?;
    let number = |key: &str| said.get(key).and_then(Json::as_u64).filter(|number| *number > 0);
    let word = |key: &str| said.get(key).and_then(Json::as_str).unwrap_or_default();
    let kind = word("quant_type");
    let book = match kind {
        "nf4" => NF4,
        "fp4" => std::array::from_fn(|code| {
            let value = FP4_TWELFTHS.get(code % 8).copied().unwrap_or(0.0) / 12.0;
            // There is no negative zero.
            if code > 8 { -value } else { value }
        }),
        other => return Err(format!("is a bitsandbytes weight of the type {other:?}, expected nf4 or fp4")),
    };
    let block = number("blocksize").ok_or(unread)?;
    let rounding = Rounding::of(word("dtype")).ok_or("is a bitsandbytes weight, but its state names no type that it has")?;
    let shape: Option<Vec<u64>> = said.get("shape").and_then(Json::as_array).ok_or(unread)?.iter().map(Json::as_u64).collect();
    let shape = shape.ok_or(unread)?;
    let elements = product(&shape).ok_or(unread)?;
    if weight.bytes() != Some(elements.div_ceil(2)) {
        return Err(format!(
            "is a bitsandbytes weight of shape {shape:?}, which needs {} bytes, and has {:?}",
            elements.div_ceil(2),
            weight.bytes().unwrap_or(0)
        ));
    }
    let blocks = elements.div_ceil(block);
    let absmax = context.part(name, ".absmax").ok_or("is a bitsandbytes weight, but its absmax is missing")?;
    if absmax.elements() != blocks {
        return Err(format!("its absmax has {} numbers, expected {blocks}", absmax.elements()));
    }
    let mut facts = json!({
        "layout": format!("bitsandbytes_{kind}"), "bits": 4, "block_size": block, "result_dtype": rounding.name(), "absmax": text(absmax.name()),
    });
    let nested = context.part(name, ".nested_absmax");
    let source = match nested {
        None => Absmax::Stored(Numbers::of(absmax).filter(|numbers| numbers.name() == "f32").ok_or("its absmax is not of f32, or is missing")?),
        Some(nested) => {
            let inner = number("nested_blocksize").ok_or(unread)?;
            let offset = said.get("nested_offset").and_then(Json::as_f64).ok_or(unread)?;
            let table = context.part(name, ".nested_quant_map").filter(|t| t.elements() == 256).and_then(Numbers::of);
            let table = table.ok_or("its nested_quant_map is missing, or not 256 numbers")?;
            let scales = Numbers::of(nested).filter(|_| nested.elements() == blocks.div_ceil(inner)).ok_or("its nested_absmax does not fit its absmax")?;
            if !is(absmax, "u8") || table.name() != "f32" || scales.name() != "f32" || word("nested_dtype") != "float32" {
                return Err("is a nested bitsandbytes weight of types that are not decoded".to_string());
            }
            if let Some(object) = facts.as_object_mut() {
                object.insert("nested_absmax".to_string(), text(nested.name()).into());
            }
            Absmax::Nested { codes: absmax.stored().ok_or("its absmax is missing")?, table, scales, block: inner, offset: offset as f32 }
        }
    };
    let codes = weight.stored().ok_or("its bytes are missing")?;
    Ok((shape, facts, FourBits { codes, book, block, absmax: source, rounding }))
}

impl Absmax {
    /// The maxima of blocks from `first` on.
    fn read(self, inputs: Inputs<'_>, first: u64, out: &mut [f32]) -> io::Result<()> {
        match self {
            Self::Stored(numbers) => numbers.read(inputs, first, out),
            Self::Nested { codes, table, scales, block, offset } => {
                let mut bytes = vec![0; out.len()];
                inputs.read(codes, first, &mut bytes)?;
                let mut book = [0.0; 256];
                table.read(inputs, 0, &mut book)?;
                let first_scale = first.checked_div(block).unwrap_or(0);
                let last_scale = first.saturating_add(out.len() as u64).div_ceil(block.max(1));
                let mut factors = vec![0.0; usize::try_from(last_scale.saturating_sub(first_scale)).unwrap_or(0)];
                scales.read(inputs, first_scale, &mut factors)?;
                for ((place, byte), value) in (first..).zip(bytes).zip(out) {
                    let number = place.checked_div(block).unwrap_or(0).saturating_sub(first_scale);
                    let factor = usize::try_from(number).ok().and_then(|number| factors.get(number)).copied().unwrap_or(0.0);
                    *value = book.get(usize::from(byte)).copied().unwrap_or(0.0) * factor + offset;
                }
                Ok(())
            }
        }
    }
}

impl Values for FourBits {
    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [f32]) -> io::Result<()> {
        let end = first.saturating_add(out.len() as u64);
        let start = first / 2;
        let mut bytes = vec![0; usize::try_from(end.div_ceil(2).saturating_sub(start)).unwrap_or(0)];
        inputs.read(self.codes, start, &mut bytes)?;
        let mut codes = vec![0; bytes.len().saturating_mul(2)];
        codes.as_chunks_mut::<2>().0.iter_mut().zip(&bytes).for_each(|(pair, byte)| *pair = [byte >> 4, byte & 15]);
        let first_block = first.checked_div(self.block).unwrap_or(0);
        let mut maxima = vec![0.0; usize::try_from(end.div_ceil(self.block.max(1)).saturating_sub(first_block)).unwrap_or(0)];
        self.absmax.read(inputs, first_block, &mut maxima)?;
        let mut codes = codes.get(usize::from(first % 2 == 1)..).unwrap_or_default();
        grouped::by_groups(first, self.block, out, &mut |block, values| {
            let (these, others) = codes.split_at_checked(values.len()).unwrap_or_default();
            let absmax = maxima.get(block).copied().unwrap_or(0.0);
            super::look_up(&self.book, these, values);
            values.iter_mut().for_each(|value| *value *= absmax);
            codes = others;
        });
        self.rounding.round_all(out);
        Ok(())
    }
}

struct EightBits {
    codes: Extent,
    scales: Numbers,
    columns: u64,
}

fn eight_bits(context: &Context<'_>, stem: &[u8], weight: Tensor<'_>, scales: Tensor<'_>) -> Result<(Json, EightBits), String> {
    let (&[rows, columns], true) = (weight.shape(), is(weight, "i8")) else {
        return Err("looks like a bitsandbytes int8 weight, but it is not a matrix of i8".to_string());
    };
    if scales.elements() != rows || !is(scales, "f32") {
        return Err(format!("its SCB has shape {:?} of {}, expected [{rows}] of f32", scales.shape(), scales.dtype()));
    }
    if let Some(format) = context.part(stem, ".weight_format") {
        // 1, 2 and 3 are the tiled orders of old kernels.
        if format.elements() != 1 || context.bytes(format).is_none_or(|bytes| bytes.iter().any(|byte| *byte != 0)) {
            return Err("is a bitsandbytes int8 weight in an order of columns that is not decoded (its weight_format is not 0)".to_string());
        }
    }
    let codes = weight.stored().ok_or("its bytes are missing")?;
    let numbers = Numbers::of(scales).ok_or("its SCB is missing")?;
    let facts = json!({"layout": "bitsandbytes_int8", "bits": 8, "result_dtype": "f32", "scales": text(scales.name())});
    Ok((facts, EightBits { codes, scales: numbers, columns }))
}

impl Values for EightBits {
    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [f32]) -> io::Result<()> {
        let mut bytes = Vec::new();
        super::by_rows(first, self.columns, out, &mut |row, column, part| {
            let mut scale = [0.0];
            self.scales.read(inputs, row, &mut scale)?;
            bytes.clear();
            bytes.resize(part.len(), 0u8);
            inputs.read(self.codes, row.saturating_mul(self.columns).saturating_add(column), &mut bytes)?;
            for (value, byte) in part.iter_mut().zip(&bytes) {
                *value = f32::from(byte.cast_signed()) * scale[0] * ONE_127TH;
            }
            Ok(())
        })
    }
}
