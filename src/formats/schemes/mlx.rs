//! MLX: `P.weight` (packed u32), `P.scales`, and for the affine mode `P.biases`.
//!
//! Quantised along the last axis in groups. Affine: code * scale + bias, where product and sum are each rounded to the type of the scales, as MLX does on
//! the CPU (mlx/backend/cpu/quantized.cpp). mxfp4, mxfp8, nvfp4: an eight-bit scale and no bias; the products are exact.

use std::io;

use serde_json::json;

use super::bits::Rows;
use super::grouped::{self, Division, Groups, State};
use super::{Context, Numbers, Rounding, is, text};
use crate::catalog::Tensor;
use crate::quant;
use crate::recipe::{Inputs, Values};

/// What the configuration says of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Parameters {
    bits: u64,
    group: u64,
    mode: String,
}

pub(super) fn find(context: &mut Context<'_>) {
    let weights: Vec<(&[u8], Tensor<'_>)> = context.stems(".weight").filter(|(_, t)| is(*t, "u32")).collect();
    for (stem, weight) in weights {
        let scales = context.part(stem, ".scales");
        let biases = context.part(stem, ".biases");
        let Some(scales) = scales else {
            if biases.is_some() || (context.config.get("group_size").is_some() && context.config.get("bits").is_some()) {
                context.doubt(weight, "looks like an MLX quantised weight, but its .scales are missing");
            }
            continue;
        };
        match layout(context, stem, weight, scales, biases) {
            Ok((shape, parameters, values)) => {
                let mut facts = json!({
                    "layout": format!("mlx_{}", parameters.mode),
                    "bits": parameters.bits,
                    "group_size": parameters.group,
                    "result_dtype": values.rounding.name(),
                    "scales": text(scales.name()),
                });
                if let (Some(biases), Some(object)) = (biases, facts.as_object_mut()) {
                    object.insert("biases".to_string(), text(biases.name()).into());
                }
                context.add(weight, None, shape, facts, Box::new(values));
            }
            Err(what) => context.doubt(weight, what),
        }
    }
}

/// The parameters of a layer: its own in the configuration, else the model's, else what the shapes leave no choice about.
fn parameters(context: &Context<'_>, stem: &[u8], weight: Tensor<'_>, scales: Tensor<'_>) -> Result<Parameters, String> {
    let config = &context.config;
    if config.is_some() && !config.is_object() {
        return Err("looks like an MLX quantised weight, but the configuration's quantization is not an object".to_string());
    }
    let layer = config.layer(stem);
    if layer == Some(&json!(false)) {
        return Err("has scales, but the configuration says that it is not quantised".to_string());
    }
    let own = layer.filter(|layer| layer.is_object());
    let get = |key: &str| own.and_then(|own| own.get(key)).or_else(|| config.get(key));
    // mlx-lm quantises a layer that has parameters of its own with these alone, and affine is the default.
    let mode = own.map_or_else(|| config.get("mode"), |own| own.get("mode")).and_then(|mode| mode.as_str()).unwrap_or("affine").to_string();
    let number = |key: &str| get(key).and_then(serde_json::Value::as_u64);
    if let (Some(bits), Some(group)) = (number("bits"), number("group_size")) {
        return Ok(Parameters { bits, group, mode });
    }
    if config.is_some() {
        return Err("looks like an MLX quantised weight, but the configuration names no bits and group_size".to_string());
    }
    let (Some(packed), Some(groups)) = (weight.shape().last(), scales.shape().last()) else {
        return Err("is a quantised weight without a shape".to_string());
    };
    // bits * group size, of which only some products come about in one way.
    let product = packed.checked_mul(32).and_then(|bits| bits.checked_div(*groups)).unwrap_or(0);
    if is(scales, "u8") {
        // Each mode with scales of eight bits has one product of its own.
        let known = [("nvfp4", 4, 16), ("mxfp4", 4, 32), ("mxfp8", 8, 32)]
            .into_iter()
            .find(|(_, bits, group): &(_, u64, u64)| bits.checked_mul(*group) == Some(product));
        let (mode, bits, group) = known.ok_or("looks like an MLX quantised weight, but no config.json says how")?;
        return Ok(Parameters { bits, group, mode: mode.to_string() });
    }
    let choices: Vec<(u64, u64)> = [2, 3, 4, 5, 6, 8]
        .into_iter()
        .flat_map(|bits: u64| [32u64, 64, 128].map(|group| (bits, group)))
        .filter(|(bits, group)| bits.checked_mul(*group) == Some(product))
        .collect();
    match choices.as_slice() {
        [(bits, group)] if Numbers::of(scales).is_some() => Ok(Parameters { bits: *bits, group: *group, mode }),
        _ => Err("looks like an MLX quantised weight, but no config.json says its bits and group size, and the shapes allow several".to_string()),
    }
}

fn layout(
    context: &Context<'_>,
    stem: &[u8],
    weight: Tensor<'_>,
    scales: Tensor<'_>,
    biases: Option<Tensor<'_>>,
) -> Result<(Vec<u64>, Parameters, Mlx), String> {
    let parameters = parameters(context, stem, weight, scales)?;
    let Parameters { bits, group, ref mode } = parameters;
    let codes = match (mode.as_str(), bits, group) {
        ("affine", 2 | 3 | 4 | 5 | 6 | 8, 32 | 64 | 128) => Codes::Affine,
        ("mxfp4", 4, 32) | ("nvfp4", 4, 16) => Codes::E2m1,
        ("mxfp8", 8, 32) => Codes::E4m3,
        _ => return Err(format!("is quantised as {mode} with {bits} bits in groups of {group}, which MLX does not have")),
    };
    let (packed, outer) = weight.shape().split_last().ok_or("is a quantised weight without a shape")?;
    let columns = packed.checked_mul(32).filter(|b| b.is_multiple_of(bits)).and_then(|b| b.checked_div(bits));
    let columns = columns.ok_or("its rows are not whole elements")?;
    let groups = columns.checked_div(group).filter(|_| columns.is_multiple_of(group)).ok_or("its rows are not whole groups")?;
    let expected: Vec<u64> = outer.iter().copied().chain([groups]).collect();
    if scales.shape() != expected {
        return Err(format!("its scales have shape {:?}, expected {expected:?}", scales.shape()));
    }
    let (scales, biases) = match codes {
        Codes::Affine => {
            let biases = biases.ok_or("is an affine MLX weight, but its .biases are missing")?;
            if biases.shape() != expected || biases.dtype() != scales.dtype() {
                return Err(format!("its biases have shape {:?}, expected {expected:?} in the type of the scales", biases.shape()));
            }
            (Numbers::of(scales), Some(Numbers::of(biases).ok_or("its biases have no floating-point type")?))
        }
        Codes::E2m1 if mode == "nvfp4" => (Numbers::as_type(scales, "f8_e4m3"), None),
        Codes::E2m1 | Codes::E4m3 => (Numbers::as_type(scales, "f8_e8m0"), None),
    };
    let scales = scales.ok_or("its scales have no type that this mode has")?;
    let rounding = if codes == Codes::Affine { Rounding::of(scales.name()).ok_or("its scales have no type that MLX has")? } else { Rounding::Bf16 };
    let rows = Rows::dense(weight.stored().ok_or("its bytes are missing")?, u32::try_from(bits).unwrap_or(8), packed.saturating_mul(4));
    let shape = outer.iter().copied().chain([columns]).collect();
    Ok((shape, parameters, Mlx { rows, columns, group, scales, biases, table: table(codes), rounding }))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Codes {
    Affine,
    E2m1,
    E4m3,
}

/// A weight as MLX dequantises it.
struct Mlx {
    rows: Rows,
    columns: u64,
    group: u64,
    scales: Numbers,
    biases: Option<Numbers>,
    /// Each code's value, where it is not the code itself.
    table: Option<Box<[f32; 256]>>,
    rounding: Rounding,
}

/// Each code's value, from the type's own decoder; of a packed pair the low element is the code's.
fn table(codes: Codes) -> Option<Box<[f32; 256]>> {
    let codec = match codes {
        Codes::Affine => None,
        Codes::E2m1 => quant::by_name("f4"),
        Codes::E4m3 => quant::by_name("f8_e4m3"),
    }?;
    let mut table = [0.0f32; 256];
    for (code, value) in (0u8..=255).zip(&mut table) {
        let mut pair = [0.0; 2];
        codec.decoder()(&[code], pair.get_mut(..codec.elements).unwrap_or_default());
        *value = pair[0];
    }
    Some(Box::new(table))
}

impl Groups for Mlx {
    fn prepare(&self, inputs: Inputs<'_>, row: u64, first: u64, count: usize, state: &mut State) -> io::Result<()> {
        let groups_a_row = self.columns.checked_div(self.group).unwrap_or(0);
        grouped::numbers(inputs, self.scales, row, groups_a_row, first, count, &mut state.scales)?;
        if self.scales.name() == "f8_e8m0" {
            // MLX has no NaN among them: 255 is infinite.
            state.scales.iter_mut().filter(|scale| scale.is_nan()).for_each(|scale| *scale = f32::INFINITY);
        }
        match self.biases {
            Some(biases) => grouped::numbers(inputs, biases, row, groups_a_row, first, count, &mut state.offsets),
            None => Ok(()),
        }
    }

    fn values(&self, state: &State, group: usize, codes: &[u8], out: &mut [f32]) {
        let scale = state.scales.get(group).copied().unwrap_or(0.0);
        match &self.table {
            Some(table) => {
                super::look_up(table, codes, out);
                out.iter_mut().for_each(|value| *value *= scale);
            }
            None => out.iter_mut().zip(codes).for_each(|(value, code)| *value = f32::from(*code) * scale),
        }
    }

    fn sum(&self, state: &State, group: usize) -> Option<f32> {
        self.biases.is_some().then(|| state.offsets.get(group).copied().unwrap_or(0.0))
    }

    fn rounding(&self) -> Rounding {
        if self.table.is_some() { Rounding::F32 } else { self.rounding }
    }
}

impl Values for Mlx {
    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [f32]) -> io::Result<()> {
        grouped::read(inputs, self.rows, Division { columns: self.columns, group: self.group, index: None }, self, first, out)
    }
}
