//! Eight-bit weights with scales beside them: per tensor, per channel, per group, or per block of rows and columns.
//!
//! `NAME_scale_inv` (DeepSeek, transformers' fine-grained FP8) and `NAME_scale` (compressed-tensors, FBGEMM, ModelOpt) are both multiplied, whatever the
//! name says. The scale's shape tells what it covers; blocks at the edges may be partial. Integers (compressed-tensors "int-quantized") may have
//! `NAME_zero_point`. The product is one of f32, rounded once to the type of the scales, or to bf16 where these are powers of two of eight bits: that is
//! what transformers (integrations/finegrained_fp8.py) and compressed-tensors give.

use std::io;

use serde_json::{Value as Json, json};

use super::{Context, Numbers, Rounding, is, text};
use crate::catalog::Tensor;
use crate::recipe::{Inputs, Values};
use crate::source::Extent;

pub(super) fn find(context: &mut Context<'_>) {
    for suffix in ["_scale_inv", "_scale"] {
        let scales: Vec<_> = context.stems(suffix).collect();
        for (name, scale) in scales {
            let Some(weight) = context.get(name) else { continue };
            let is_float = matches!(weight.dtype().to_string().as_str(), "f8_e4m3" | "f8_e5m2" | "f8_e4m3fnuz" | "f8_e5m2fnuz");
            if !is_float && !is(weight, "i8") {
                continue;
            }
            let zero = context.part(name, "_zero_point");
            let found = if !is_float && context.config.method() != Some("compressed-tensors") {
                Err("looks like an int8 weight with a scale, but no configuration says how they belong together".to_string())
            } else {
                layout(weight, scale, zero, block_structure(context).as_ref(), None)
            };
            match found {
                Ok((cover, values)) => {
                    let layout = if is_float { "fp8_scaled" } else { "int8_scaled" };
                    let mut facts = json!({"layout": layout, "scale": text(scale.name()), "covers": cover, "result_dtype": values.rounding.name()});
                    if let (Some(zero), Some(object)) = (zero, facts.as_object_mut()) {
                        object.insert("zeros".to_string(), text(zero.name()).into());
                    }
                    context.add(weight, None, weight.shape().to_vec(), facts, Box::new(values));
                }
                Err(what) => context.doubt(weight, what),
            }
        }
    }
}

/// The rows and columns of a block, where the configuration names one size for all.
fn block_structure(context: &Context<'_>) -> Option<Json> {
    if let Some(size) = context.config.get("weight_block_size") {
        return Some(size.clone());
    }
    let groups = context.config.get("config_groups")?.as_object()?;
    let mut sizes = groups.values().filter_map(|group| group.get("weights")?.get("block_structure").filter(|size| size.is_array()));
    let first = sizes.next()?;
    sizes.all(|size| size == first).then(|| first.clone())
}

/// The codes of a weight.
#[derive(Clone, Copy)]
enum Codes {
    Float(Numbers),
    Integer(Extent),
}

impl Codes {
    fn of(tensor: Tensor<'_>) -> Option<Self> {
        if is(tensor, "i8") { tensor.stored().map(Self::Integer) } else { Numbers::of(tensor).map(Self::Float) }
    }

    fn read(self, inputs: Inputs<'_>, first: u64, out: &mut [f32]) -> io::Result<()> {
        match self {
            Self::Float(numbers) => numbers.read(inputs, first, out),
            Self::Integer(extent) => {
                let mut bytes = vec![0u8; out.len()];
                inputs.read(extent, first, &mut bytes)?;
                out.iter_mut().zip(bytes).for_each(|(value, byte)| *value = f32::from(byte.cast_signed()));
                Ok(())
            }
        }
    }
}

/// What the scale covers, as text for tensors.json, and the values; `result` is their type where it is not that of the scales.
pub(super) fn layout(
    weight: Tensor<'_>,
    scale: Tensor<'_>,
    zero: Option<Tensor<'_>>,
    block: Option<&Json>,
    result: Option<Rounding>,
) -> Result<(Json, Blocks), String> {
    // A byte is the exponent of a power of two.
    let numbers = if is(scale, "u8") { Numbers::as_type(scale, "f8_e8m0") } else { Numbers::of(scale) };
    let numbers = numbers.ok_or("its scale has no floating-point type, or is missing")?;
    let codes = Codes::of(weight).ok_or("its bytes are missing")?;
    let zeros = match zero {
        None => None,
        Some(zero) if zero.shape() == scale.shape() => Some(Codes::of(zero).ok_or("its zero points have no type that is decoded, or are missing")?),
        Some(zero) => return Err(format!("its zero points have shape {:?}, expected {:?}", zero.shape(), scale.shape())),
    };
    let shape = weight.shape();
    let (columns, rows) = match shape {
        [.., rows, columns] => (*columns, *rows),
        [columns] => (*columns, 1),
        [] => (1, 1),
    };
    let outer: u64 = weight.elements().checked_div(rows.saturating_mul(columns).max(1)).unwrap_or(1);
    let whole = |covers: &str, rows_a_scale: u64, columns_a_scale: u64| (json!(covers), rows_a_scale, columns_a_scale);
    let unfit = || format!("its scale has shape {:?}, which does not fit its own {shape:?}", scale.shape());
    let named = |index: usize| block.and_then(|b| b.get(index)).and_then(Json::as_u64).filter(|n| *n > 0);
    let last_two = match scale.shape() {
        [before @ .., a, b] if before.iter().product::<u64>() == outer || before.is_empty() && outer == 1 => Some((*a, *b)),
        _ => None,
    };
    let (covers, rows_a_scale, columns_a_scale) = match (scale.shape(), last_two) {
        (own, _) if own.is_empty() || own.iter().all(|d| *d == 1) => whole("tensor", u64::MAX, u64::MAX),
        ([channels], _) if *channels == rows && outer == 1 => whole("channel", 1, columns.max(1)),
        (_, Some((a, 1))) if a == rows => whole("channel", 1, columns.max(1)),
        (_, Some((a, b))) if a == rows && b > 0 && columns.is_multiple_of(b) => whole("group", 1, columns.checked_div(b).unwrap_or(1)),
        (_, Some((a, b))) if a > 0 && b > 0 => {
            // The block size is the configuration's; without one it must follow from the shapes: 128 as a rule.
            let size = |count: u64, extent: u64, given: Option<u64>| {
                let fits = |size: &u64| extent.div_ceil(*size) == count;
                given.into_iter().chain([128]).chain((extent.is_multiple_of(count)).then_some(extent.checked_div(count).unwrap_or(1))).find(fits)
            };
            let (Some(block_rows), Some(block_columns)) = (size(a, rows, named(0)), size(b, columns, named(1))) else { return Err(unfit()) };
            (json!([block_rows, block_columns]), block_rows, block_columns)
        }
        _ => return Err(unfit()),
    };
    let tensor_wide = rows_a_scale == u64::MAX;
    let scales_a_row = if tensor_wide { 1 } else { columns.div_ceil(columns_a_scale.max(1)) };
    let scale_rows = if tensor_wide { 1 } else { rows.div_ceil(rows_a_scale.max(1)) };
    let expected = if tensor_wide { 1 } else { scales_a_row.saturating_mul(scale_rows).saturating_mul(outer) };
    if scale.elements() != expected {
        return Err(unfit());
    }
    let own = match numbers.name() {
        "f64" => Some(Rounding::F32),
        name if name.starts_with("f8") => Some(Rounding::Bf16),
        name => Rounding::of(name),
    };
    let rounding = result.or(own).ok_or("its scale is not of a type that is decoded")?;
    // A byte that is no tensor of f8_e8m0 itself is infinite at 255, not NaN.
    let infinite = is(scale, "u8");
    Ok((covers, Blocks { codes, numbers, zeros, rows, columns, rows_a_scale, columns_a_scale, scales_a_row, scale_rows, tensor_wide, infinite, rounding }))
}

/// An eight-bit weight as its library dequantises it.
pub(super) struct Blocks {
    codes: Codes,
    numbers: Numbers,
    zeros: Option<Codes>,
    rows: u64,
    columns: u64,
    rows_a_scale: u64,
    columns_a_scale: u64,
    scales_a_row: u64,
    scale_rows: u64,
    tensor_wide: bool,
    infinite: bool,
    rounding: Rounding,
}

impl Blocks {
    /// The type of the values.
    pub(super) fn result(&self) -> Rounding {
        self.rounding
    }

    /// Scales and zero points from number `first` on.
    fn read_scales(&self, inputs: Inputs<'_>, first: u64, scales: &mut [f32], zeros: &mut [f32]) -> io::Result<()> {
        self.numbers.read(inputs, first, scales)?;
        if self.infinite {
            scales.iter_mut().filter(|scale| scale.is_nan()).for_each(|scale| *scale = f32::INFINITY);
        }
        match self.zeros {
            Some(codes) => codes.read(inputs, first, zeros),
            None => Ok(()),
        }
    }

    /// Turns codes into values.
    fn apply(&self, values: &mut [f32], scale: f32, zero: f32) {
        match self.zeros {
            None => values.iter_mut().for_each(|value| *value *= scale),
            Some(_) => values.iter_mut().for_each(|value| *value = (*value - zero) * scale),
        }
    }
}

impl Values for Blocks {
    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [f32]) -> io::Result<()> {
        self.codes.read(inputs, first, out)?;
        if self.tensor_wide {
            let (mut scale, mut zero) = ([0.0], [0.0]);
            self.read_scales(inputs, 0, &mut scale, &mut zero)?;
            self.apply(out, scale[0], zero[0]);
            self.rounding.round_all(out);
            return Ok(());
        }
        let (mut scales, mut zeros) = (Vec::new(), Vec::new());
        super::by_rows(first, self.columns, out, &mut |row, column, part| {
            let (matrix, row) = (row.checked_div(self.rows).unwrap_or(0), row.checked_rem(self.rows).unwrap_or(0));
            let scale_row = matrix.saturating_mul(self.scale_rows).saturating_add(row.checked_div(self.rows_a_scale).unwrap_or(0));
            let first_scale = column.checked_div(self.columns_a_scale).unwrap_or(0);
            let last_scale = column.saturating_add(part.len() as u64).div_ceil(self.columns_a_scale);
            let count = usize::try_from(last_scale.saturating_sub(first_scale)).unwrap_or(0);
            scales.resize(count, 0.0);
            zeros.resize(count, 0.0);
            self.read_scales(inputs, scale_row.saturating_mul(self.scales_a_row).saturating_add(first_scale), &mut scales, &mut zeros)?;
            super::grouped::by_groups(column, self.columns_a_scale, part, &mut |number, values| {
                self.apply(values, scales.get(number).copied().unwrap_or(0.0), zeros.get(number).copied().unwrap_or(0.0));
            });
            self.rounding.round_all(part);
            Ok(())
        })
    }
}
