//! Eight-bit weights with scales beside them: per tensor, per channel, per group, or per block of rows and columns.
//!
//! `NAME_scale_inv` (DeepSeek, transformers' fine-grained FP8) and `NAME_scale` (compressed-tensors, FBGEMM, ModelOpt) are both multiplied, whatever the
//! name says. The scale's shape tells what it covers; blocks at the edges may be partial.

use std::io;

use serde_json::json;

use super::{Context, Numbers, Rounding, text};
use crate::catalog::Tensor;
use crate::recipe::{Inputs, Values};

pub(super) fn find(context: &mut Context<'_>) {
    for suffix in ["_scale_inv", "_scale"] {
        let scales: Vec<_> = context.stems(suffix).collect();
        for (name, scale) in scales {
            let Some(weight) = context.get(name) else { continue };
            if !matches!(weight.dtype().to_string().as_str(), "f8_e4m3" | "f8_e5m2" | "f8_e4m3fnuz" | "f8_e5m2fnuz") {
                continue;
            }
            match layout(weight, scale, context.config.get("weight_block_size")) {
                Ok((cover, values)) => {
                    let facts = json!({"layout": "fp8_scaled", "scale": text(scale.name()), "covers": cover, "result_dtype": values.rounding.name()});
                    context.add(weight, None, weight.shape().to_vec(), facts, Box::new(values));
                }
                Err(what) => context.doubt(weight, what),
            }
        }
    }
}

/// What the scale covers, as text for tensors.json, and the values.
fn layout(weight: Tensor<'_>, scale: Tensor<'_>, block: Option<&serde_json::Value>) -> Result<(serde_json::Value, Blocks), String> {
    let numbers = Numbers::of(scale).ok_or("its scale has no floating-point type")?;
    let codes = Numbers::of(weight).ok_or("its bytes are missing")?;
    let shape = weight.shape();
    let (columns, rows) = match shape {
        [.., rows, columns] => (*columns, *rows),
        [columns] => (*columns, 1),
        [] => (1, 1),
    };
    let outer: u64 = weight.elements().checked_div(rows.saturating_mul(columns).max(1)).unwrap_or(1);
    let whole = |covers: &str, rows_a_scale: u64, columns_a_scale: u64| (json!(covers), rows_a_scale, columns_a_scale);
    let unfit = || format!("its scale has shape {:?}, which does not fit its own {shape:?}", scale.shape());
    let named = |index: usize| block.and_then(|b| b.get(index)).and_then(serde_json::Value::as_u64).filter(|n| *n > 0);
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
    let rounding = Rounding::F32;
    Ok((covers, Blocks { codes, numbers, rows, columns, rows_a_scale, columns_a_scale, scales_a_row, scale_rows, tensor_wide, rounding }))
}

struct Blocks {
    codes: Numbers,
    numbers: Numbers,
    rows: u64,
    columns: u64,
    rows_a_scale: u64,
    columns_a_scale: u64,
    scales_a_row: u64,
    scale_rows: u64,
    tensor_wide: bool,
    rounding: Rounding,
}

impl Values for Blocks {
    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [f32]) -> io::Result<()> {
        self.codes.read(inputs, first, out)?;
        if self.tensor_wide {
            let mut scale = [0.0];
            self.numbers.read(inputs, 0, &mut scale)?;
            out.iter_mut().for_each(|value| *value *= scale[0]);
            return Ok(());
        }
        let mut scales = Vec::new();
        super::by_rows(first, self.columns, out, &mut |row, column, part| {
            let (matrix, row) = (row.checked_div(self.rows).unwrap_or(0), row.checked_rem(self.rows).unwrap_or(0));
            let scale_row = matrix.saturating_mul(self.scale_rows).saturating_add(row.checked_div(self.rows_a_scale).unwrap_or(0));
            let first_scale = column.checked_div(self.columns_a_scale).unwrap_or(0);
            let last_scale = column.saturating_add(part.len() as u64).div_ceil(self.columns_a_scale);
            scales.resize(usize::try_from(last_scale.saturating_sub(first_scale)).unwrap_or(0), 0.0);
            self.numbers.read(inputs, scale_row.saturating_mul(self.scales_a_row).saturating_add(first_scale), &mut scales)?;
            for (at, value) in (column..).zip(part) {
                let number = at.checked_div(self.columns_a_scale).unwrap_or(0).saturating_sub(first_scale);
                *value *= usize::try_from(number).ok().and_then(|n| scales.get(n)).copied().unwrap_or(0.0);
            }
            Ok(())
        })
    }
}
