//! torchao: `M._weight_qdata` and `M._weight_scale` with `{"_type": "Float8Tensor" | "Int8Tensor", ...}` under `M.weight` in the metadata are `M.weight`.
//!
//! (code - zero point) * scale in f32, rounded to the type that the metadata names. The other types of torchao are listed as their parts.

use serde_json::{Value as Json, json};

use super::{Context, Rounding, blocks, text};
use crate::catalog::Tensor;

pub(super) fn find(context: &mut Context<'_>) {
    let data: Vec<_> = context.stems("_qdata").collect();
    for (prefix, qdata) in data {
        let Some((name, said)) = logical(context, prefix) else { continue };
        match layout(context, prefix, qdata, &said) {
            Ok((facts, values)) => context.add(qdata, Some(name), qdata.shape().to_vec(), facts, Box::new(values)),
            Err(what) => context.doubt(qdata, what),
        }
    }
}

/// `M._weight` as the name `M.weight`, and what the metadata says of that.
fn logical(context: &Context<'_>, prefix: &[u8]) -> Option<(Vec<u8>, Json)> {
    let at = prefix.windows(2).rposition(|pair| pair == b"._")?;
    let (module, attribute) = (prefix.get(..at)?, prefix.get(at.checked_add(2)?..)?);
    let name = [module, b".", attribute].concat();
    let (_, value) = context.catalog.metadata().iter().find(|(key, _)| *key == name)?;
    let said = serde_json::from_slice(value.as_bytes()?).ok()?;
    Some((name, said))
}

fn layout(context: &Context<'_>, prefix: &[u8], qdata: Tensor<'_>, said: &Json) -> Result<(Json, blocks::Blocks), String> {
    let kind = said.get("_type").and_then(Json::as_str).unwrap_or_default();
    if !matches!(kind, "Float8Tensor" | "Int8Tensor") {
        return Err(format!("is packed by torchao as {kind:?}, which is not decoded"));
    }
    let scale = context.part(prefix, "_scale").ok_or("is a torchao weight, but its scale is missing")?;
    let data = said.get("_data");
    let dtype = data.and_then(|data| data.get("dtype")).and_then(|dtype| dtype.as_str().or_else(|| dtype.get("_data")?.as_str()));
    let rounding = dtype.and_then(Rounding::of).ok_or("is a torchao weight, but its metadata names no type that it has")?;
    let block = data.and_then(|data| data.get("block_size")).and_then(|block| block.get("_data").or(Some(block)));
    let zero = context.part(prefix, "_zero_point");
    let (covers, values) = blocks::layout(qdata, scale, zero, block, Some(rounding))?;
    let facts = json!({
        "layout": format!("torchao_{}", kind.to_ascii_lowercase()), "packed": text(qdata.name()), "scale": text(scale.name()), "covers": covers,
        "result_dtype": values.result().name(),
    });
    Ok((facts, values))
}
