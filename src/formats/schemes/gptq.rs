//! GPTQ: `P.qweight` (packed i32 [K * bits / 32, N]), `P.scales` [K / group, N], `P.qzeros`, and with activation order `P.g_idx`, is `P.weight` [N, K].
//!
//! scale * (code - zero), rounded once to the type of the scales, as AutoGPTQ and GPTQModel do on the CPU. Format "gptq", the first and usual one, stores zero
//! points less one; what is added to them here is added to each, as AutoGPTQ does, and not to the word that packs them.

use serde_json::{Value as Json, json};

use super::columns::{self, Columns, Packing};
use super::grouped::GroupIndex;
use super::{Context, Numbers, Rounding, awq, is, patterns, text};
use crate::catalog::Tensor;

/// What is packed by GPTQ or AWQ, with its parts.
pub(super) struct Parts<'a> {
    pub(super) stem: &'a [u8],
    pub(super) qweight: Tensor<'a>,
    pub(super) scales: Tensor<'a>,
    pub(super) qzeros: Tensor<'a>,
}

/// The logical shape, what tensors.json says, and the values.
pub(super) type Layout = (Vec<u64>, Json, Box<dyn crate::recipe::Values>);

pub(super) fn find(context: &mut Context<'_>) {
    let weights: Vec<(&[u8], Tensor<'_>)> = context.stems(".qweight").collect();
    for (stem, qweight) in weights {
        match parts(context, stem, qweight).and_then(|parts| layout(context, &parts)) {
            Ok((shape, facts, values)) => context.add(qweight, Some([stem, b".weight"].concat()), shape, facts, values),
            Err(what) => context.doubt(qweight, what),
        }
    }
}

fn parts<'a>(context: &Context<'a>, stem: &'a [u8], qweight: Tensor<'a>) -> Result<Parts<'a>, String> {
    let (scales, qzeros) = (context.part(stem, ".scales"), context.part(stem, ".qzeros"));
    let scales = scales.ok_or("looks like a GPTQ or AWQ weight, but its .scales are missing")?;
    let qzeros = qzeros.ok_or("looks like a GPTQ or AWQ weight, but its .qzeros are missing")?;
    if !is(qweight, "i32") || !is(qzeros, "i32") {
        return Err("looks like a GPTQ or AWQ weight, but it is not packed into i32".to_string());
    }
    Ok(Parts { stem, qweight, scales, qzeros })
}

fn layout(context: &Context<'_>, parts: &Parts<'_>) -> Result<Layout, String> {
    let config = &context.config;
    if !config.is_object() {
        return Err("looks like a GPTQ or AWQ weight, but no configuration says how it is packed".to_string());
    }
    let has = |keys: &[&str]| keys.iter().any(|key| config.get(key).is_some());
    match config.method().map(str::to_ascii_lowercase).as_deref() {
        Some("gptq") => gptq(context, parts),
        Some("awq") => awq::layout(context, parts),
        Some(other) => Err(format!("is packed by the method {other:?}, which is not decoded")),
        // Configurations from before the method had a name.
        None if has(&["desc_act", "damp_percent", "checkpoint_format"]) => gptq(context, parts),
        None if has(&["w_bit", "q_group_size", "zero_point"]) => awq::layout(context, parts),
        None => Err("looks like a GPTQ or AWQ weight, but the configuration names no quant_method".to_string()),
    }
}

/// What the configuration says of a layer: the model's values, under those of the first pattern of `dynamic` that matches the layer.
fn overrides<'c>(context: &'c Context<'_>, stem: &[u8]) -> Result<Option<&'c Json>, String> {
    let dynamic = match context.config.get("dynamic") {
        None | Some(Json::Null) => return Ok(None),
        Some(dynamic) => dynamic.as_object().ok_or("the configuration's dynamic overrides are not an object")?,
    };
    let stem = String::from_utf8_lossy(stem);
    for (key, value) in dynamic {
        let (negative, pattern) = match key.split_once(':') {
            Some(("-", pattern)) => (true, pattern),
            Some(("+", pattern)) => (false, pattern),
            _ => (false, key.as_str()),
        };
        match patterns::matches(pattern, &stem, &context.steps) {
            Some(false) => {}
            Some(true) if negative || *value == json!(false) => {
                return Err("is a packed weight, but the configuration's dynamic overrides say that it is not quantised".to_string());
            }
            Some(true) => return Ok(Some(value)),
            None => return Err(format!("the configuration's dynamic override {key:?} may or may not mean it")),
        }
    }
    Ok(None)
}

fn gptq(context: &Context<'_>, parts: &Parts<'_>) -> Result<Layout, String> {
    let config = &context.config;
    let own = overrides(context, parts.stem)?;
    let get = |key: &str| own.and_then(|own| own.get(key)).or_else(|| config.get(key)).filter(|value| !value.is_null());
    let format = get("checkpoint_format").or_else(|| get("format")).and_then(Json::as_str).unwrap_or("gptq").to_ascii_lowercase();
    let zero_bias = match format.as_str() {
        _ if get("is_marlin_format") == Some(&json!(true)) => return Err("is a GPTQ weight in the format \"marlin\", which is not decoded".to_string()),
        "gptq" => 1,
        "gptq_v2" => 0,
        other => return Err(format!("is a GPTQ weight in the format {other:?}, which is not decoded")),
    };
    let bits = get("bits").and_then(Json::as_u64).ok_or("is a GPTQ weight, but the configuration names no bits")?;
    if !matches!(bits, 2 | 3 | 4 | 8) {
        return Err(format!("is a GPTQ weight of {bits} bits, expected 2, 3, 4 or 8"));
    }
    let Parts { qweight, scales, qzeros, .. } = *parts;
    let ([stored, rows], [groups, scale_rows]) = (qweight.shape(), scales.shape()) else {
        return Err("is a GPTQ weight, but it and its scales are not matrices".to_string());
    };
    let g_idx = context.part(parts.stem, ".g_idx");
    let most = stored.checked_mul(32).and_then(|b| b.checked_div(bits)).filter(|_| bits != 3 || stored.is_multiple_of(3));
    let most = most.ok_or("is a GPTQ weight, but its rows are not whole elements")?;
    let unit = if bits == 3 { 3 } else { 1 };
    // Where the columns do not fill the last words, g_idx says how many there are.
    let columns = match g_idx.map(|g_idx| g_idx.shape()) {
        None => most,
        Some([columns]) if columns.saturating_mul(bits).div_ceil(32).div_ceil(unit).saturating_mul(unit) == *stored => *columns,
        Some(shape) => return Err(format!("its g_idx has shape {shape:?}, expected [{most}]")),
    };
    let group = group_size(get("group_size"), columns)?;
    let expected = columns.div_ceil(group);
    if (*groups, *scale_rows) != (expected, *rows) {
        return Err(format!("its scales have shape {:?}, expected [{expected}, {rows}]", scales.shape()));
    }
    let zero_words = rows.checked_mul(bits).map(|b| b.div_ceil(32)).ok_or("is too large")?;
    if qzeros.shape() != [expected, zero_words] {
        return Err(format!("its qzeros have shape {:?}, expected [{expected}, {zero_words}]", qzeros.shape()));
    }
    let index = match g_idx {
        None => None,
        Some(g_idx) if is(g_idx, "i32") => Some(GroupIndex { extent: g_idx.stored().ok_or("its g_idx is missing")?, columns, groups: expected }),
        Some(g_idx) => return Err(format!("its g_idx is of {}, expected i32", g_idx.dtype())),
    };
    let numbers = Numbers::of(scales).ok_or("its scales have no floating-point type, or are missing")?;
    let rounding = Rounding::of(numbers.name()).ok_or("its scales are not f16, bf16 or f32")?;
    let mut facts = json!({
        "layout": "gptq", "format": format, "bits": bits, "group_size": group, "result_dtype": rounding.name(),
        "packed": text(qweight.name()), "scales": text(scales.name()), "zeros": text(qzeros.name()),
    });
    if let (Some(g_idx), Some(object)) = (g_idx, facts.as_object_mut()) {
        object.insert("g_idx".to_string(), text(g_idx.name()).into());
    }
    let values = Columns {
        number: columns::number(),
        packing: Packing::Down { bits: u32::try_from(bits).unwrap_or(8) },
        words: qweight.stored().ok_or("its bytes are missing")?,
        rows: *rows,
        columns,
        scales: numbers,
        zeros: qzeros.stored().ok_or("its qzeros are missing")?,
        zero_bias: zero_bias as f32,
        group,
        index,
        rounding,
    };
    Ok((vec![*rows, columns], facts, Box::new(values)))
}

/// Columns of a group; -1, or nothing at all, is one group a row.
pub(super) fn group_size(size: Option<&Json>, columns: u64) -> Result<u64, String> {
    match size.map(|size| size.as_i64()) {
        None | Some(Some(-1)) => Ok(columns.max(1)),
        Some(Some(size)) if size > 0 => Ok(size.unsigned_abs()),
        _ => Err("is a packed weight, but the configuration's group size is not a number of columns".to_string()),
    }
}
