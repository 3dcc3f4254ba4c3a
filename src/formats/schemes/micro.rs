//! Four-bit floats (E2M1) whose groups have scales of eight bits: NVFP4 and MXFP4 as compressed-tensors, ModelOpt and GPT-OSS store them.
//!
//! The low half of a byte is the first element. A byte that stands for a power of two (E8M0) is infinite at 255 in every one of these libraries.

use std::io;

use serde_json::json;

use super::bits::Rows;
use super::grouped::{self, Division, Groups, State};
use super::{Context, Numbers, Rounding, is, text};
use crate::catalog::Tensor;
use crate::quant;
use crate::recipe::{Inputs, Values};

/// What a layout is called, and its logical shape and values.
type Layout = (&'static str, Vec<u64>, Micro);

pub(super) fn find(context: &mut Context<'_>) {
    // compressed-tensors: P.weight_packed beside P.weight_scale is P.weight.
    let packed: Vec<_> = context.stems("_packed").filter(|(_, t)| is(*t, "u8")).collect();
    for (name, packed) in packed {
        let Some(scale) = context.part(name, "_scale") else { continue };
        let found = compressed(context, name, packed, scale);
        add(context, packed, Some(name.to_vec()), scale, found);
    }
    // ModelOpt: P.weight itself is packed, P.weight_scale_2 is multiplied.
    let second: Vec<_> = context.stems("_scale_2").collect();
    for (name, second) in second {
        let (Some(weight), Some(scale)) = (context.get(name), context.part(name, "_scale")) else { continue };
        if is(weight, "u8") {
            let found = model_opt(context, weight, scale, second);
            add(context, weight, None, scale, found);
        }
    }
    // GPT-OSS: X_blocks and X_scales, or X.blocks and X.scales in the original files, are X.
    for (blocks_suffix, scales_suffix) in [("_blocks", "_scales"), (".blocks", ".scales")] {
        let blocks: Vec<_> = context.stems(blocks_suffix).filter(|(_, t)| is(*t, "u8")).collect();
        for (name, blocks) in blocks {
            let Some(scales) = context.part(name, scales_suffix).filter(|t| is(*t, "u8")) else { continue };
            let found = gpt_oss(blocks, scales);
            add(context, blocks, Some(name.to_vec()), scales, found);
        }
    }
}

fn add(context: &mut Context<'_>, packed: Tensor<'_>, beside: Option<Vec<u8>>, scale: Tensor<'_>, found: Result<Layout, String>) {
    match found {
        Ok((layout, shape, values)) => {
            let mut facts = json!({
                "layout": layout, "bits": 4, "group_size": values.group, "result_dtype": values.rounding.name(), "scales": text(scale.name()),
            });
            if let Some(object) = facts.as_object_mut() {
                if beside.is_some() {
                    object.insert("packed".to_string(), text(packed.name()).into());
                }
                if let Some((name, _)) = &values.global {
                    object.insert("global_scale".to_string(), name.clone().into());
                }
            }
            context.add(packed, beside, shape, facts, Box::new(values));
        }
        Err(what) => context.doubt(packed, what),
    }
}

/// A second scale for the whole tensor, and what is done with it.
#[derive(Clone, Copy)]
enum Global {
    /// The groups' scales are divided by it, in this precision.
    Divide(Numbers, Rounding),
    /// The groups' scales are multiplied by it.
    Multiply(Numbers),
}

/// A weight of four-bit floats.
struct Micro {
    codes: Rows,
    columns: u64,
    group: u64,
    scales: Numbers,
    global: Option<(String, Global)>,
    /// Each code's value.
    table: [f32; 16],
    rounding: Rounding,
}

/// The values of E2M1, from the type's own decoder.
pub(super) fn e2m1() -> [f32; 16] {
    let mut table = [0.0; 16];
    if let Some(codec) = quant::by_name("f4") {
        for (code, value) in (0u8..16).zip(&mut table) {
            let mut pair = [0.0; 2];
            codec.decoder()(&[code], &mut pair);
            *value = pair[0];
        }
    }
    table
}

/// Rows of packed pairs, their columns and the columns of a group, if the scales fit them.
fn divide(packed: Tensor<'_>, scale: Tensor<'_>) -> Result<(Rows, u64, u64), String> {
    let (Some((bytes, outer)), Some((groups, scale_outer))) = (packed.shape().split_last(), scale.shape().split_last()) else {
        return Err("is a packed weight without a shape".to_string());
    };
    let columns = bytes.checked_mul(2).ok_or("is too large")?;
    let group = columns.checked_div(*groups).filter(|group| group.checked_mul(*groups) == Some(columns) && *group > 0);
    match group {
        Some(group) if outer == scale_outer => {
            let extent = packed.stored().ok_or("its bytes are missing")?;
            Ok((Rows::dense(extent, 4, *bytes), columns, group))
        }
        _ => Err(format!("its scales have shape {:?}, which does not fit its own {:?}", scale.shape(), packed.shape())),
    }
}

fn single(tensor: Tensor<'_>) -> Result<Numbers, String> {
    match Numbers::of(tensor).filter(|numbers| numbers.name() == "f32") {
        Some(numbers) if tensor.elements() == 1 => Ok(numbers),
        _ => Err(format!("its global scale {:?} is not one number of f32", text(tensor.name()))),
    }
}

fn compressed(context: &Context<'_>, name: &[u8], packed: Tensor<'_>, scale: Tensor<'_>) -> Result<Layout, String> {
    if context.part(name, "_zero_point").is_some() {
        return Err("is packed into bytes with zero points, which is not decoded".to_string());
    }
    let (codes, columns, group) = divide(packed, scale)?;
    let shape = packed.shape().iter().copied().take(packed.shape().len().saturating_sub(1)).chain([columns]).collect();
    let global = context.part(name, "_global_scale");
    match (group, global) {
        (16, Some(global)) if is(scale, "f8_e4m3") => {
            let scales = Numbers::of(scale).ok_or("its scales are missing")?;
            // torch divides in the type of the scales, which is bfloat16 by then, if the other side has no dimension.
            let precision = if global.shape().is_empty() { Rounding::Bf16 } else { Rounding::F32 };
            let global = Some((text(global.name()), Global::Divide(single(global)?, precision)));
            Ok(("nvfp4_pack_quantized", shape, Micro { codes, columns, group, scales, global, table: e2m1(), rounding: Rounding::Bf16 }))
        }
        (32, None) if is(scale, "u8") || is(scale, "f8_e8m0") => {
            let scales = Numbers::as_type(scale, "f8_e8m0").ok_or("its scales are missing")?;
            Ok(("mxfp4_pack_quantized", shape, Micro { codes, columns, group, scales, global: None, table: e2m1(), rounding: Rounding::Bf16 }))
        }
        _ => Err(format!("is packed into bytes in groups of {group} with scales of {}, which is no layout that is decoded", scale.dtype())),
    }
}

fn model_opt(context: &Context<'_>, weight: Tensor<'_>, scale: Tensor<'_>, second: Tensor<'_>) -> Result<Layout, String> {
    if !is(scale, "f8_e4m3") {
        return Err(format!("looks like a ModelOpt NVFP4 weight, but its scales are of {} and not of f8_e4m3", scale.dtype()));
    }
    let (codes, columns, group) = divide(weight, scale)?;
    if group != 16 {
        return Err(format!("looks like a ModelOpt NVFP4 weight, but its groups are of {group} columns and not of 16"));
    }
    let shape = weight.shape().iter().copied().take(weight.shape().len().saturating_sub(1)).chain([columns]).collect();
    let scales = Numbers::of(scale).ok_or("its scales are missing")?;
    let global = Some((text(second.name()), Global::Multiply(single(second)?)));
    // ModelOpt's own table has no negative zero.
    let mut table = e2m1();
    table.iter_mut().filter(|value| **value == 0.0).for_each(|value| *value = 0.0);
    // The type that the weight had before is the model's.
    let rounding = context.config.model_dtype().and_then(Rounding::of).unwrap_or(Rounding::F32);
    Ok(("modelopt_nvfp4", shape, Micro { codes, columns, group, scales, global, table, rounding }))
}

fn gpt_oss(blocks: Tensor<'_>, scales: Tensor<'_>) -> Result<Layout, String> {
    let [outer @ .., groups, 16] = blocks.shape() else {
        return Err(format!("looks like GPT-OSS MXFP4 blocks, but has shape {:?}, expected 16 bytes a block", blocks.shape()));
    };
    if scales.shape().split_last() != Some((groups, outer)) {
        return Err(format!("its scales have shape {:?}, which does not fit its own {:?}", scales.shape(), blocks.shape()));
    }
    let (row_bytes, columns) = (groups.checked_mul(16), groups.checked_mul(32));
    let (Some(row_bytes), Some(columns)) = (row_bytes, columns) else { return Err("is too large".to_string()) };
    let codes = Rows::dense(blocks.stored().ok_or("its bytes are missing")?, 4, row_bytes);
    let numbers = Numbers::as_type(scales, "f8_e8m0").ok_or("its scales are missing")?;
    let shape = outer.iter().copied().chain([columns]).collect();
    Ok(("gpt_oss_mxfp4", shape, Micro { codes, columns, group: 32, scales: numbers, global: None, table: e2m1(), rounding: Rounding::Bf16 }))
}

impl Groups for Micro {
    fn prepare(&self, inputs: Inputs<'_>, row: u64, first: u64, count: usize, state: &mut State) -> io::Result<()> {
        let groups_a_row = self.columns.checked_div(self.group).unwrap_or(0);
        grouped::numbers(inputs, self.scales, row, groups_a_row, first, count, &mut state.scales)?;
        if self.scales.name() == "f8_e8m0" {
            state.scales.iter_mut().filter(|scale| scale.is_nan()).for_each(|scale| *scale = f32::INFINITY);
        }
        let mut global = [1.0];
        match &self.global {
            None => {}
            Some((_, Global::Divide(numbers, precision))) => {
                numbers.read(inputs, 0, &mut global)?;
                state.scales.iter_mut().for_each(|scale| *scale = precision.round(*scale / global[0]));
            }
            Some((_, Global::Multiply(numbers))) => {
                numbers.read(inputs, 0, &mut global)?;
                state.scales.iter_mut().for_each(|scale| *scale *= global[0]);
            }
        }
        Ok(())
    }

    fn values(&self, state: &State, group: usize, codes: &[u8], out: &mut [f32]) {
        let scale = state.scales.get(group).copied().unwrap_or(0.0);
        super::look_up(&self.table, codes, out);
        out.iter_mut().for_each(|value| *value *= scale);
    }

    fn rounding(&self) -> Rounding {
        self.rounding
    }
}

impl Values for Micro {
    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [f32]) -> io::Result<()> {
        grouped::read(inputs, self.codes, Division { columns: self.columns, group: self.group, index: None }, self, first, out)
    }
}
