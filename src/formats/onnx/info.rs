//! What info.json says of a model: versions, operator sets, and the graph's inputs and outputs with their types.

use serde_json::{Map, Value as Json, json};

use super::tensor;
use super::wire::{Field, Run, Value, Walk, Wire};
use crate::catalog::Builder;
use crate::limits;

/// Facts in the order of info.json.
#[derive(Default)]
pub(super) struct Facts {
    ir_version: Option<u64>,
    texts: Vec<(&'static str, Json)>,
    model_version: Option<i64>,
    opsets: Vec<Json>,
    opset_count: usize,
    graph_name: Option<String>,
    inputs: Vec<Json>,
    outputs: Vec<Json>,
    more: u64,
}

/// Most operator sets, inputs and outputs that are listed.
const LISTED: usize = 10_000;
/// Longest text that is shown, in bytes.
const TEXT_BYTES: u64 = 4096;
/// Types within types that are followed.
const NESTING: u32 = 16;

impl Facts {
    /// Takes a field of ModelProto.
    pub(super) fn model(&mut self, wire: &mut Wire<'_>, field: Field) -> Walk<()> {
        match (field.number, field.value) {
            (1, Value::Varint(version)) => self.ir_version = Some(version),
            (5, Value::Varint(version)) => self.model_version = Some(version.cast_signed()),
            (2..=4 | 6, Value::Bytes(run)) => {
                let key = match field.number {
                    2 => "producer_name",
                    3 => "producer_version",
                    4 => "domain",
                    _ => "doc_string",
                };
                let text = text(wire, run)?;
                self.texts.retain(|(k, _)| *k != key);
                if !text.is_empty() {
                    self.texts.push((key, Json::String(text)));
                }
            }
            (8, Value::Bytes(run)) => {
                let (mut domain, mut version) = (String::new(), 0);
                let mut cursor = wire.message(run);
                while let Some(field) = wire.next(&mut cursor)? {
                    match (field.number, field.value) {
                        (1, Value::Bytes(run)) => domain = text(wire, run)?,
                        (2, Value::Varint(number)) => version = number.cast_signed(),
                        _ => {}
                    }
                }
                self.opset_count = self.opset_count.saturating_add(1);
                if self.opset_count <= LISTED {
                    self.opsets.push(json!({"domain": domain, "version": version}));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes a field of the main graph.
    pub(super) fn graph(&mut self, wire: &mut Wire<'_>, field: Field) -> Walk<()> {
        let Value::Bytes(run) = field.value else { return Ok(()) };
        match field.number {
            2 => self.graph_name = Some(text(wire, run)?),
            11 if self.inputs.len() < LISTED => self.inputs.push(value_info(wire, run)?),
            12 if self.outputs.len() < LISTED => self.outputs.push(value_info(wire, run)?),
            11 | 12 => self.more = self.more.saturating_add(1),
            _ => {}
        }
        Ok(())
    }

    /// Tells the facts.
    pub(super) fn finish(mut self, builder: &mut Builder, functions: u64) {
        if let Some(version) = self.ir_version {
            builder.fact("ir_version", json!(version));
        }
        if let Some(version) = self.model_version {
            self.texts.push(("model_version", json!(version)));
        }
        for (key, value) in self.texts {
            builder.fact(key, value);
        }
        builder.fact("opset_import", json!(self.opsets));
        let mut graph = Map::new();
        if let Some(name) = self.graph_name {
            graph.insert("name".to_string(), json!(name));
        }
        graph.insert("inputs".to_string(), json!(self.inputs));
        graph.insert("outputs".to_string(), json!(self.outputs));
        if self.more > 0 {
            graph.insert("further_inputs_and_outputs".to_string(), json!(self.more));
        }
        builder.fact("graph", Json::Object(graph));
        if functions > 0 {
            builder.fact("functions", json!(functions));
        }
    }
}

/// A text; of a long one its beginning.
fn text(wire: &mut Wire<'_>, run: Run) -> Walk<String> {
    let shown = Run { start: run.start, len: run.len.min(TEXT_BYTES) };
    let text = String::from_utf8_lossy(&wire.bytes(shown, TEXT_BYTES)?).into_owned();
    Ok(if shown.len < run.len { text + "…" } else { text })
}

/// A ValueInfoProto: a name and a type.
fn value_info(wire: &mut Wire<'_>, run: Run) -> Walk<Json> {
    let (mut name, mut kind) = (String::new(), Map::new());
    let mut cursor = wire.message(run);
    while let Some(field) = wire.next(&mut cursor)? {
        match (field.number, field.value) {
            (1, Value::Bytes(run)) => name = text(wire, run)?,
            (2, Value::Bytes(run)) => kind = type_of(wire, run, 0)?,
            _ => {}
        }
    }
    let mut object = Map::new();
    object.insert("name".to_string(), Json::String(name));
    object.extend(kind);
    Ok(Json::Object(object))
}

/// A TypeProto: a dtype and a shape, or a sequence, optional or map of types.
fn type_of(wire: &mut Wire<'_>, run: Run, depth: u32) -> Walk<Map<String, Json>> {
    let mut object = Map::new();
    let mut cursor = wire.message(run);
    while let Some(field) = wire.next(&mut cursor)? {
        let Value::Bytes(run) = field.value else { continue };
        let kind = match field.number {
            1 => None,
            4 => Some("sequence"),
            5 => Some("map"),
            8 => Some("sparse"),
            9 => Some("optional"),
            _ => continue,
        };
        if let Some(kind) = kind {
            object.insert("kind".to_string(), json!(kind));
        }
        let mut inner = wire.message(run);
        while let Some(field) = wire.next(&mut inner)? {
            match (field.number, field.value) {
                (1, Value::Varint(code)) => {
                    let key = if kind == Some("map") { "key" } else { "dtype" };
                    object.insert(key.to_string(), json!(tensor::dtype(code).to_string()));
                }
                (2, Value::Bytes(run)) if kind != Some("map") => {
                    object.insert("shape".to_string(), json!(shape(wire, run)?));
                }
                (1 | 2, Value::Bytes(run)) if kind.is_some() && depth < NESTING => {
                    object.insert("of".to_string(), Json::Object(type_of(wire, run, depth.saturating_add(1))?));
                }
                _ => {}
            }
        }
    }
    Ok(object)
}

/// A TensorShapeProto: numbers, names of symbolic dimensions, and null for what is not known.
fn shape(wire: &mut Wire<'_>, run: Run) -> Walk<Vec<Json>> {
    let mut dimensions = Vec::new();
    let mut cursor = wire.message(run);
    while let Some(field) = wire.next(&mut cursor)? {
        let (1, Value::Bytes(run)) = (field.number, field.value) else { continue };
        let mut dimension = Json::Null;
        let mut inner = wire.message(run);
        while let Some(field) = wire.next(&mut inner)? {
            match (field.number, field.value) {
                (1, Value::Varint(size)) => dimension = json!(size.cast_signed()),
                (2, Value::Bytes(run)) => dimension = Json::String(text(wire, run)?),
                _ => {}
            }
        }
        if dimensions.len() < limits::DIMENSIONS {
            dimensions.push(dimension);
        }
    }
    Ok(dimensions)
}
