//! AWQ: `P.qweight`, `P.scales` and `P.qzeros` are `P.weight` [N, K] in 4 bits.
//!
//! Version "gemm" packs eight columns of the transposed weight [K, N] into a word, in an order of its own; version "gemv" packs along the rows of [N, K] and
//! pads the groups of a row. (code - zero) * scale, rounded once to the type of the scales, as AutoAWQ does; versions that interleave rows are not decoded.

use std::io;

use serde_json::{Value as Json, json};

use super::bits::Rows;
use super::columns::{Columns, Packing, number as columns_number};
use super::gptq::{Layout, Parts, group_size};
use super::grouped::{self, Division, Groups, State};
use super::{Context, Numbers, Rounding, text};
use crate::recipe::{Inputs, Values};

pub(super) fn layout(context: &Context<'_>, parts: &Parts<'_>) -> Result<Layout, String> {
    let config = &context.config;
    let get = |keys: [&str; 2]| keys.iter().find_map(|key| config.get(key)).filter(|value| !value.is_null());
    let version = get(["version", "format"]).or_else(|| config.get("checkpoint_format")).and_then(Json::as_str).unwrap_or("gemm").to_ascii_lowercase();
    let bits = get(["bits", "w_bit"]).and_then(Json::as_u64).ok_or("is an AWQ weight, but the configuration names no bits")?;
    if bits != 4 {
        return Err(format!("is an AWQ weight of {bits} bits, expected 4"));
    }
    let Parts { qweight, scales, qzeros, .. } = *parts;
    let (&[a, b], &[scale_a, scale_b]) = (qweight.shape(), scales.shape()) else {
        return Err("is an AWQ weight, but it and its scales are not matrices".to_string());
    };
    let numbers = Numbers::of(scales).ok_or("its scales have no floating-point type, or are missing")?;
    let rounding = Rounding::of(numbers.name()).ok_or("its scales are not f16, bf16 or f32")?;
    let words = qweight.stored().ok_or("its bytes are missing")?;
    let zeros = qzeros.stored().ok_or("its qzeros are missing")?;
    let eight = b.checked_mul(8).ok_or("is too large")?;
    let size = get(["group_size", "q_group_size"]);
    let expect = |what: &str, found: &[u64], expected: [u64; 2]| {
        if found == expected { Ok(()) } else { Err(format!("its {what} have shape {found:?}, expected {expected:?} in version {version:?}")) }
    };
    let (shape, group, values): (_, _, Box<dyn Values>) = match version.as_str() {
        "gemm" => {
            let (columns, rows) = (a, eight);
            let group = group_size(size, columns)?;
            let groups = columns.div_ceil(group);
            expect("scales", scales.shape(), [groups, rows])?;
            expect("qzeros", qzeros.shape(), [groups, b])?;
            let packing = Packing::Awq;
            (
                vec![rows, columns],
                group,
                Box::new(Columns {
                    number: columns_number(),
                    packing,
                    words,
                    rows,
                    columns,
                    scales: numbers,
                    zeros,
                    zero_bias: 0.0,
                    group,
                    index: None,
                    rounding,
                }),
            )
        }
        "gemv" => {
            let (rows, columns) = (a, eight);
            let group = group_size(size, columns)?;
            // Words of zero points a row: padded to one, two or four by the size of the groups.
            let unit = match group {
                128.. => 1,
                64 => 2,
                32 => 4,
                _ => return Err(format!("is an AWQ weight of version gemv in groups of {group}, expected 32, 64 or at least 128")),
            };
            let width = columns.checked_div(group).unwrap_or(0).div_ceil(8).next_multiple_of(unit);
            expect("scales", &[scale_a, scale_b], [rows, width.saturating_mul(8)])?;
            expect("qzeros", qzeros.shape(), [rows, width])?;
            if !columns.is_multiple_of(group) {
                return Err("its rows are not whole groups".to_string());
            }
            let codes = Rows::dense(words, 4, b.saturating_mul(4));
            let zeros = Rows::dense(zeros, 4, width.saturating_mul(4));
            (vec![rows, columns], group, Box::new(Gemv { codes, zeros, scales: numbers, scales_a_row: width.saturating_mul(8), columns, group, rounding }))
        }
        other => return Err(format!("is an AWQ weight of version {other:?}, which is not decoded")),
    };
    let facts = json!({
        "layout": "awq", "version": version, "bits": 4, "group_size": group, "result_dtype": rounding.name(),
        "packed": text(qweight.name()), "scales": text(scales.name()), "zeros": text(qzeros.name()),
    });
    Ok((shape, facts, values))
}

struct Gemv {
    codes: Rows,
    zeros: Rows,
    scales: Numbers,
    scales_a_row: u64,
    columns: u64,
    group: u64,
    rounding: Rounding,
}

impl Groups for Gemv {
    fn prepare(&self, inputs: Inputs<'_>, row: u64, first: u64, count: usize, state: &mut State) -> io::Result<()> {
        grouped::numbers(inputs, self.scales, row, self.scales_a_row, first, count, &mut state.scales)?;
        self.zeros.read(inputs, row, first, count, &mut state.scratch)?;
        state.offsets.clear();
        state.offsets.extend(state.scratch.codes.iter().map(|code| f32::from(*code)));
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

impl Values for Gemv {
    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [f32]) -> io::Result<()> {
        grouped::read(inputs, self.codes, Division { columns: self.columns, group: self.group, index: None }, self, first, out)
    }
}
