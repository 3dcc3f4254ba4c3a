//! `.pt2` archives of torch.export: weights as members of their own, described in JSON.
//!
//! `data/weights/MODEL_weights_config.json` is `{"config": {NAME: {"path_name", "use_pickle", "tensor_meta": {"dtype", "sizes": [{"as_int"}], "strides", "storage_offset"}}}}`, and
//! likewise `data/constants`. Schema: torch/_export/serde/schema.py.

use serde_json::Value as Json;

use super::archive::Archive;
use super::storage::Storage;
use super::tensor::{Adder, Bad, Tensor, View};
use super::types::Type;
use crate::error::Result;
use crate::limits;
use crate::reader::Endian;

/// Adds the tensors that the archive's JSON describes.
pub(super) fn read(archive: &Archive<'_>, endian: Endian, adder: &mut Adder<'_>) -> Result<()> {
    let mut number = 0_u32;
    for folder in [b"data/weights/".as_slice(), b"data/constants/"] {
        let configs: Vec<Vec<u8>> =
            archive.names().into_iter().filter(|name| name.starts_with(folder) && name.ends_with(b"_config.json")).map(<[u8]>::to_vec).collect();
        for config in configs {
            let bytes = archive.small(&config, limits::SIDE_FILE_BYTES, adder.builder)?;
            let place = super::super::zip::place(&adder.builder.path(adder.stream), &config);
            let parsed: Json = match serde_json::from_slice(&bytes) {
                Ok(parsed) => parsed,
                Err(e) => {
                    adder.builder.dropped();
                    adder.builder.issue(place, format!("is not JSON: {e}"), "left out");
                    continue;
                }
            };
            let Some(entries) = parsed.get("config").and_then(Json::as_object) else {
                adder.builder.issue(place, "has no config", "left out");
                continue;
            };
            for (name, entry) in entries {
                number = number.saturating_add(1);
                match tensor(archive, folder, entry, endian, adder) {
                    Ok(Some(tensor)) => adder.add(name.as_bytes(), number, &tensor)?,
                    Ok(None) => {}
                    Err(bad) => adder.bad(name.as_bytes(), &bad)?,
                }
            }
        }
    }
    Ok(())
}

/// A list of sizes, each `{"as_int": N}` or a number.
fn sizes(meta: &Json, key: &str) -> Option<Vec<u64>> {
    meta.get(key)?.as_array()?.iter().map(size).collect()
}

fn size(value: &Json) -> Option<u64> {
    value.as_u64().or_else(|| value.get("as_int")?.as_u64())
}

fn tensor(archive: &Archive<'_>, folder: &[u8], entry: &Json, endian: Endian, adder: &mut Adder<'_>) -> std::result::Result<Option<Tensor>, Bad> {
    let path = entry.get("path_name").and_then(Json::as_str).ok_or("its entry names no member")?;
    let Some(meta) = entry.get("tensor_meta").filter(|meta| meta.is_object()) else {
        return Ok(None); // an object that is no tensor
    };
    let code = meta.get("dtype").and_then(Json::as_u64).unwrap_or(0);
    let class = Type::by_code(code).ok_or_else(|| format!("is of the unknown type number {code}"))?;
    let shape = sizes(meta, "sizes").ok_or("its sizes are no integers")?;
    let bad = |what: &str| Bad { what: what.to_string(), known: Some((class.dtype(), shape.clone())) };
    if entry.get("use_pickle").and_then(Json::as_bool) == Some(true) {
        return Err(bad("is a PyTorch file inside the archive, which is not opened"));
    }
    let strides = sizes(meta, "strides").ok_or_else(|| bad("its strides are no integers"))?;
    let offset = meta.get("storage_offset").map_or(Some(0), size).ok_or_else(|| bad("its offset is no integer"))?;
    let place = archive.place(&[folder, path.as_bytes()].concat(), adder.builder).map_err(|e| bad(&e.message()))?;
    View::new(Storage { place, class: Some(class) }, class, offset, shape, strides, endian).map(|view| Some(Tensor::View(view)))
}
