//! What a model's configuration says of its quantisation.

use serde_json::Value as Json;

use super::Opening;
use crate::catalog::Catalog;
use crate::limits;

/// The quantisation part of a configuration, from the files beside the container or from its own metadata.
#[derive(Default)]
pub(super) struct Config {
    quantization: Option<Json>,
    /// The type of the model's weights.
    dtype: Option<String>,
}

/// The files in which it may stand, in order of priority, and the keys there; no key is the whole file.
const PLACES: [(&[u8], &[&str]); 4] = [
    (b"config.json", &["quantization", "quantization_config", "compression_config"]),
    (b"quantize_config.json", &[]),
    (b"quant_config.json", &[]),
    (b"hf_quant_config.json", &["quantization"]),
];

impl Config {
    /// Reads what lies beside the container, else what its metadata says.
    pub(super) fn read(opening: &Opening, catalog: &Catalog) -> Self {
        let mut dtype = None;
        for (file, keys) in PLACES {
            let Some(json) = file_json(opening, file) else { continue };
            let named = ["dtype", "torch_dtype"].iter().find_map(|key| json.get(key)?.as_str());
            dtype = dtype.or_else(|| named.map(str::to_string));
            let found = if keys.is_empty() { Some(json) } else { keys.iter().find_map(|key| json.get(key).cloned()) };
            if found.is_some() {
                return Self { quantization: found, dtype };
            }
        }
        let keys: [&[u8]; 3] = [b"quantization", b"quantization_config", b"config"];
        let text = |key: &[u8]| catalog.metadata().iter().find(|(k, _)| k == key).and_then(|(_, value)| value.as_bytes());
        let from_metadata = keys.iter().find_map(|key| {
            let json: Json = serde_json::from_slice(text(key)?).ok()?;
            if *key == b"config" { json.get("quantization").or_else(|| json.get("quantization_config")).cloned() } else { Some(json) }
        });
        Self { quantization: from_metadata, dtype }
    }

    /// Whether anything is said of quantisation at all.
    pub(super) fn is_some(&self) -> bool {
        self.quantization.is_some()
    }

    /// Whether it is said in a form that is understood.
    pub(super) fn is_object(&self) -> bool {
        self.quantization.as_ref().is_some_and(Json::is_object)
    }

    /// A value of it.
    pub(super) fn get(&self, key: &str) -> Option<&Json> {
        self.quantization.as_ref()?.get(key)
    }

    /// A string of it.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }

    /// What it says of one layer by its own name.
    pub(super) fn layer(&self, stem: &[u8]) -> Option<&Json> {
        self.get(std::str::from_utf8(stem).ok()?)
    }

    /// The type of the model's weights, before or beside what was quantised.
    pub(super) fn model_dtype(&self) -> Option<&str> {
        self.dtype.as_deref()
    }

    /// The method: `gptq`, `awq`, `fp8`, `compressed-tensors`, ...
    pub(super) fn method(&self) -> Option<&str> {
        self.text("quant_method")
    }
}

fn file_json(opening: &Opening, name: &[u8]) -> Option<Json> {
    let path = opening.sibling_path(name).ok()?;
    // Small and not part of the mount: read once, by name, beside the container as it was given.
    let size = std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file)?.len();
    if size > limits::SIDE_FILE_BYTES / 8 {
        return None;
    }
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}
