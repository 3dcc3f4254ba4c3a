//! compressed-tensors "pack-quantized": `P.weight_packed` (i32), `P.weight_scale` and `P.weight_shape`, with `P.weight_zero_point` and `P.weight_g_idx` where
//! there are any, is `P.weight`.
//!
//! Integers of 1 to 8 bits, stored with half their range added, along the rows; zero points are packed in the same way down the rows of a matrix. Files
//! from before elements crossed words leave the last bits of a word unused: the width of a row tells. (code - zero) * scale, rounded once to the type of
//! the scales. What is packed into bytes (NVFP4, MXFP4) is in `micro`, what is not packed at all in `blocks`.

use std::io;

use serde_json::{Value as Json, json};

use super::bits::{Rows, low_bits};
use super::grouped::{self, Division, GroupIndex, Groups, State};
use super::{Context, Numbers, Rounding, is, text};
use crate::catalog::{Tensor, product};
use crate::recipe::{Inputs, Values};
use crate::source::Extent;

pub(super) fn find(context: &mut Context<'_>) {
    let packed: Vec<_> = context.stems("_packed").filter(|(_, t)| is(*t, "i32")).collect();
    for (name, packed) in packed {
        let Some(scale) = context.part(name, "_scale") else {
            context.doubt(packed, "looks like a compressed-tensors weight, but its scales are missing");
            continue;
        };
        match layout(context, name, packed, scale) {
            Ok((shape, facts, values)) => context.add(packed, Some(name.to_vec()), shape, facts, Box::new(values)),
            Err(what) => context.doubt(packed, what),
        }
    }
}

/// What one group of the configuration says of weights, as far as it matters here.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Weights {
    bits: u64,
    symmetric: bool,
    /// `None`: one group a row, or one for the whole tensor.
    group: Option<u64>,
}

impl Weights {
    fn of(group: &Json) -> Option<Self> {
        let weights = group.get("weights")?;
        let bits = weights.get("num_bits").and_then(Json::as_u64).filter(|bits| (1..=8).contains(bits))?;
        let is_integer = weights.get("type").and_then(Json::as_str).unwrap_or("int") == "int";
        let symmetric = weights.get("symmetric").and_then(Json::as_bool).unwrap_or(true);
        let group = weights.get("group_size").and_then(Json::as_i64).and_then(|size| u64::try_from(size).ok()).filter(|size| *size > 0);
        is_integer.then_some(Self { bits, symmetric, group })
    }
}

/// Where zero points come from.
#[derive(Clone, Copy)]
enum Zero {
    /// There are none.
    None,
    /// As bytes, laid out as the scales are.
    Bytes(Extent),
    /// Packed down the rows: words of [rows * bits / 32, groups] for each matrix.
    Down { extent: Extent, words: u64, groups: u64 },
}

struct Packed {
    codes: Rows,
    /// Rows of a matrix: the zero points of each are packed apart.
    rows: u64,
    columns: u64,
    group: u64,
    /// Scales of a row; none if there is one for the whole tensor.
    scales_a_row: u64,
    scales: Numbers,
    zero: Zero,
    index: Option<GroupIndex>,
    rounding: Rounding,
}

fn layout(context: &Context<'_>, name: &[u8], packed: Tensor<'_>, scale: Tensor<'_>) -> Result<(Vec<u64>, Json, Packed), String> {
    if context.config.method() != Some("compressed-tensors") {
        return Err("looks like a compressed-tensors weight, but no configuration says so".to_string());
    }
    let groups =
        context.config.get("config_groups").and_then(Json::as_object).ok_or("is a compressed-tensors weight, but the configuration has no config_groups")?;
    let shape = context.part(name, "_shape").ok_or("is a compressed-tensors weight, but its weight_shape is missing")?;
    let shape = integers(context, shape)?;
    let ([.., rows, columns], Some(_)) = (shape.as_slice(), product(&shape)) else { return Err(format!("its weight_shape {shape:?} is not that of a matrix")) };
    let (rows, columns) = (*rows, *columns);
    let outer = shape.get(..shape.len().saturating_sub(1)).unwrap_or_default();
    let Some((width, packed_outer)) = packed.shape().split_last() else { return Err("is a packed weight without a shape".to_string()) };
    if packed_outer != outer || rows == 0 || columns == 0 {
        return Err(format!("its weight_shape is {shape:?}, which does not fit its own {:?}", packed.shape()));
    }
    let zero_point = context.part(name, "_zero_point");
    let g_idx = context.part(name, "_g_idx");
    // What a group says must agree with the shapes; if more than one does, they must say the same.
    let mut fitting: Vec<(Weights, Option<u64>)> = Vec::new();
    for weights in groups.values().filter_map(Weights::of) {
        let a_word = 32u64.checked_div(weights.bits).unwrap_or(1);
        let dense = columns.checked_mul(weights.bits).map(|bits| bits.div_ceil(32));
        let gaps = if dense == Some(*width) {
            None
        } else if columns.div_ceil(a_word) == *width {
            Some(a_word)
        } else {
            continue;
        };
        if weights.symmetric == zero_point.is_none() && scales_a_row(scale, outer, columns, weights.group).is_some() && !fitting.contains(&(weights, gaps)) {
            fitting.push((weights, gaps));
        }
    }
    let [(weights, a_word)] = fitting.as_slice() else {
        let how_many = if fitting.is_empty() { "none" } else { "more than one" };
        return Err(format!("is a compressed-tensors weight, and of the configuration's groups {how_many} fits its shapes"));
    };
    let (bits, group) = (weights.bits, weights.group.unwrap_or(columns));
    let scales_a_row = scales_a_row(scale, outer, columns, weights.group).unwrap_or(0);
    let numbers = Numbers::of(scale).ok_or("its scales have no floating-point type, or are missing")?;
    let rounding = Rounding::of(numbers.name()).ok_or("its scales are not f16, bf16 or f32")?;
    let zero = match zero_point {
        None => Zero::None,
        Some(zero) if is(zero, "i8") && zero.shape() == scale.shape() => Zero::Bytes(zero.stored().ok_or("its zero points are missing")?),
        Some(zero) => {
            let words = match a_word {
                None => rows.checked_mul(bits).map(|b| b.div_ceil(32)).ok_or("is too large")?,
                Some(a_word) => rows.div_ceil(*a_word),
            };
            let expected: Vec<u64> = outer.iter().copied().take(outer.len().saturating_sub(1)).chain([words, scales_a_row.max(1)]).collect();
            if !is(zero, "i32") || zero.shape() != expected {
                return Err(format!("its zero points have shape {:?} of {}, expected {expected:?} of i32", zero.shape(), zero.dtype()));
            }
            Zero::Down { extent: zero.stored().ok_or("its zero points are missing")?, words, groups: scales_a_row.max(1) }
        }
    };
    let index = match g_idx {
        None => None,
        Some(g_idx) if is(g_idx, "i32") && g_idx.shape() == [columns] && scales_a_row > 0 => {
            Some(GroupIndex { extent: g_idx.stored().ok_or("its g_idx is missing")?, columns, groups: scales_a_row })
        }
        Some(g_idx) => return Err(format!("its g_idx has shape {:?} of {}, expected [{columns}] of i32", g_idx.shape(), g_idx.dtype())),
    };
    let codes = Rows {
        extent: packed.stored().ok_or("its bytes are missing")?,
        bits: u32::try_from(bits).unwrap_or(8),
        row_bytes: width.saturating_mul(4),
        a_word: *a_word,
    };
    let mut facts = json!({
        "layout": "pack_quantized", "bits": bits, "group_size": group, "symmetric": weights.symmetric, "result_dtype": rounding.name(),
        "packed": text(packed.name()), "scales": text(scale.name()),
    });
    if let Some(object) = facts.as_object_mut() {
        for (key, part) in [("zeros", zero_point), ("g_idx", g_idx)] {
            if let Some(part) = part {
                object.insert(key.to_string(), text(part.name()).into());
            }
        }
    }
    Ok((shape, facts, Packed { codes, rows, columns, group, scales_a_row, scales: numbers, zero, index, rounding }))
}

/// Scales of each row, 0 for one that covers the whole tensor, if the scales have the shape that the group size asks for.
fn scales_a_row(scale: Tensor<'_>, outer: &[u64], columns: u64, group: Option<u64>) -> Option<u64> {
    let groups = match group {
        Some(group) => columns.checked_div(group).filter(|_| columns.is_multiple_of(group))?,
        None => 1,
    };
    let fits = scale.shape().split_last() == Some((&groups, outer)) || groups == 1 && scale.shape() == outer;
    match scale.elements() {
        _ if fits => Some(groups),
        1 if group.is_none() => Some(0),
        _ => None,
    }
}

/// The numbers of a small tensor of integers.
fn integers(context: &Context<'_>, tensor: Tensor<'_>) -> Result<Vec<u64>, String> {
    let unread = || format!("its {:?} cannot be read", text(tensor.name()));
    if tensor.elements() > 8 {
        return Err(unread());
    }
    let bytes = context.bytes(tensor).ok_or_else(unread)?;
    let numbers: Option<Vec<u64>> = match tensor.dtype().to_string().as_str() {
        "i64" => bytes.as_chunks().0.iter().map(|number| u64::try_from(i64::from_le_bytes(*number)).ok()).collect(),
        "i32" => bytes.as_chunks().0.iter().map(|number| u64::try_from(i32::from_le_bytes(*number)).ok()).collect(),
        _ => None,
    };
    numbers.ok_or_else(unread)
}

impl Groups for Packed {
    fn prepare(&self, inputs: Inputs<'_>, row: u64, first: u64, count: usize, state: &mut State) -> io::Result<()> {
        grouped::numbers(inputs, self.scales, row, self.scales_a_row, first, count, &mut state.scales)?;
        // Stored codes have half the range added: without it the zero point is that half.
        let half = 1u32.unbounded_shl(self.codes.bits.saturating_sub(1)) as f32;
        state.offsets.clear();
        match self.zero {
            Zero::None => state.offsets.resize(count, half),
            Zero::Bytes(extent) => {
                let mut bytes = vec![0; count];
                inputs.read(extent, row.saturating_mul(self.scales_a_row).saturating_add(first), &mut bytes)?;
                state.offsets.extend(bytes.iter().map(|byte| f32::from(byte.cast_signed()) + half));
            }
            Zero::Down { extent, words, groups } => {
                let (matrix, within) = (row.checked_div(self.rows).unwrap_or(0), row.checked_rem(self.rows).unwrap_or(0));
                let bits = u64::from(self.codes.bits);
                let (word, shift) = match self.codes.a_word {
                    None => (within.saturating_mul(bits) / 32, within.saturating_mul(bits) % 32),
                    Some(a_word) => (within.checked_div(a_word).unwrap_or(0), within.checked_rem(a_word).unwrap_or(0).saturating_mul(bits)),
                };
                let at = |word: u64| matrix.saturating_mul(words).saturating_add(word).saturating_mul(groups).saturating_add(first).saturating_mul(4);
                let mut low = vec![0; count.saturating_mul(4)];
                let mut high = low.clone();
                inputs.read(extent, at(word), &mut low)?;
                if shift.saturating_add(bits) > 32 {
                    inputs.read(extent, at(word.saturating_add(1)), &mut high)?;
                }
                let mask = u64::from(low_bits(self.codes.bits));
                state.offsets.extend(low.as_chunks().0.iter().zip(high.as_chunks().0).map(|(low, high)| {
                    let pair = u64::from(u32::from_le_bytes(*low)) | u64::from(u32::from_le_bytes(*high)) << 32;
                    (pair.unbounded_shr(u32::try_from(shift).unwrap_or(0)) & mask) as f32
                }));
            }
        }
        Ok(())
    }

    fn values(&self, state: &State, group: usize, codes: &[u8], out: &mut [f32]) {
        let (scale, zero) = (state.scales.get(group).copied().unwrap_or(0.0), state.offsets.get(group).copied().unwrap_or(0.0));
        out.iter_mut().zip(codes).for_each(|(value, code)| *value = (f32::from(*code) - zero) * scale);
    }

    fn rounding(&self) -> Rounding {
        self.rounding
    }
}

impl Values for Packed {
    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [f32]) -> io::Result<()> {
        grouped::read(inputs, self.codes, Division { columns: self.columns, group: self.group, index: self.index }, self, first, out)
    }
}
