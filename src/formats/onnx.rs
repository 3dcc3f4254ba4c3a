//! ONNX: protobuf messages, of which a ModelProto holds a graph and a TensorProto one tensor.
//!
//! | ModelProto | field |
//! |---|---|
//! | 1 ir_version, 2 producer_name, 3 producer_version, 4 domain, 5 model_version, 6 doc_string, 8 opset_import | info.json |
//! | 7 graph: 1 node, 2 name, 5 initializer, 11 input, 12 output, 15 sparse_initializer | tensors; see `onnx/graph.rs` for their names |
//! | 14 metadata_props | metadata |
//! | 20 training_info, 25 functions | tensors of further graphs |
//!
//! Definition: <https://github.com/onnx/onnx/blob/main/onnx/onnx.proto>. The file is walked once, from length to length: no payload is fetched, so a model may
//! be larger than the 2 GiB that protobuf itself allows. There is no magic number; a file is recognised by its structure.

mod external;
mod graph;
mod info;
mod quantised;
mod sparse;
mod tensor;
mod typed;
mod wire;

use std::sync::Arc;

use serde_json::json;

use super::{Format, Head, Opening};
use crate::catalog::{Builder, Value as Metadata};
use crate::error::{Error, Result, counted};
use crate::limits;
use crate::source::{Extent, Source};
use graph::{Model, Scope};
use tensor::TensorProto;
use wire::{Cursor, Fault, Field, Run, Value, Walk, Wire};

pub(super) const FORMAT: Format =
    Format { name: "onnx", title: "ONNX models with their external data, TensorProto files", extensions: &["onnx", "pb"], sniff, open, part: None };

fn sniff(head: &Head<'_>) -> bool {
    // The tag of a field: most files are told apart by it.
    let plausible = head.bytes.first().is_some_and(|tag| tag >> 3 != 0 && !matches!(tag & 7, 4 | 6 | 7));
    plausible && (is_model(head.source) || is_tensor(head.source))
}

/// Most fields that a sniffer looks at.
const FIELDS: usize = 1 << 16;
/// Most fields that ONNX does not have, in a file that is one all the same: protobuf lets a reader pass over them.
const UNKNOWN_FIELDS: usize = 16;
/// Longest name of a producer or domain, in bytes.
const SHORT_BYTES: u64 = 4096;

fn whole(source: &Source) -> Run {
    Run { start: 0, len: source.len() }
}

/// Whether a file is a ModelProto: hardly anything but fields that it has, among them a version and a graph (or functions), in whatever order.
fn is_model(source: &Source) -> bool {
    let mut wire = Wire::new(source);
    let mut cursor = wire.message(whole(source));
    let (mut version, mut graph, mut unknown) = (false, false, 0usize);
    for _ in 0..FIELDS {
        match wire.next(&mut cursor) {
            // What is damaged later on is an issue, not another format.
            Err(_) => return false,
            Ok(None) => return version && graph,
            Ok(Some(Field { number, value, .. })) => match (number, value) {
                (1, Value::Varint(1..=1000)) => version = true,
                (5, Value::Varint(_)) | (6 | 14 | 20 | 26, Value::Bytes(_)) => {}
                (2..=4, Value::Bytes(run)) if wire.bytes(run, SHORT_BYTES).is_ok_and(|text| is_text(&text)) => {}
                (7, Value::Bytes(run)) if is_message(&mut wire, run, &GRAPH) => graph = true,
                (8, Value::Bytes(run)) if is_message(&mut wire, run, &[(1, 2), (2, 0)]) => version = true,
                (25, Value::Bytes(run)) if is_message(&mut wire, run, &FUNCTION) => graph = true,
                (27.., _) if unknown < UNKNOWN_FIELDS => unknown = unknown.saturating_add(1),
                _ => return false,
            },
        }
        if version && graph {
            return true;
        }
    }
    false
}

/// Fields and wire types of a GraphProto and a FunctionProto.
const GRAPH: [(u32, u8); 10] = [(1, 2), (2, 2), (5, 2), (10, 2), (11, 2), (12, 2), (13, 2), (14, 2), (15, 2), (16, 2)];
const FUNCTION: [(u32, u8); 11] = [(1, 2), (4, 2), (5, 2), (6, 2), (7, 2), (8, 2), (9, 2), (10, 2), (11, 2), (12, 2), (13, 2)];

/// Whether a message begins with fields of these numbers and wire types.
fn is_message(wire: &mut Wire<'_>, run: Run, fields: &[(u32, u8)]) -> bool {
    let mut cursor = wire.message(run);
    for _ in 0..16 {
        match wire.next(&mut cursor) {
            Err(_) => return false,
            Ok(None) => break,
            Ok(Some(Field { number, value, .. })) => {
                let kind = match value {
                    Value::Varint(_) => 0,
                    Value::Bytes(_) => 2,
                    Value::Fixed(_) => 5,
                };
                if number <= 16 && !fields.contains(&(number, kind)) {
                    return false;
                }
            }
        }
    }
    true
}

fn is_text(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| !text.chars().any(|c| c.is_control() && !c.is_whitespace()))
}

/// Whether a file is a TensorProto: nothing but its fields, a known type, and as much data as shape and type ask for.
fn is_tensor(source: &Source) -> bool {
    let mut wire = Wire::new(source);
    let mut cursor = wire.message(whole(source));
    let mut typed = false;
    for count in 0.. {
        match wire.next(&mut cursor) {
            Err(_) => return false,
            Ok(None) => break,
            Ok(Some(Field { number, value, .. })) => match (number, value) {
                (1 | 5 | 7 | 11, Value::Varint(_) | Value::Bytes(_)) | (4 | 10, Value::Fixed(_) | Value::Bytes(_)) | (6, Value::Bytes(_)) => {
                    typed |= number != 1
                }
                (2, Value::Varint(1..=1000)) | (14, Value::Varint(0 | 1)) | (3 | 8 | 9 | 12 | 13 | 16, Value::Bytes(_)) => {}
                _ => return false,
            },
        }
        if count > FIELDS {
            break; // numbers that are not packed
        }
    }
    let mut proto = TensorProto::default();
    if proto.read(&mut wire, whole(source)).is_err() || proto.data_type == 0 {
        return false;
    }
    let Ok(shape) = proto.shape() else { return false };
    let (Some(elements), Some((per_block, bytes))) = (crate::catalog::product(&shape), tensor::dtype(proto.data_type).block().or(Some((1, 0)))) else {
        return false;
    };
    let expected = elements.checked_mul(bytes).map(|bytes| bytes.div_ceil(per_block));
    match proto.raw {
        Some(raw) => Some(raw.len) == expected,
        None => typed || elements == 0 || proto.is_external && !proto.external.is_empty(),
    }
}

fn open(opening: &mut Opening, builder: &mut Builder) -> Result<()> {
    let main = Arc::clone(opening.main());
    let id = builder.source(Arc::clone(&main));
    // Many tensors may have one range of an external file.
    builder.sharing_is_normal();
    let mut model = Model::new(Wire::new(&main), opening, builder, id);
    let result = if is_model(&main) { read_model(&mut model, whole(&main)) } else { read_tensor(&mut model, whole(&main)) };
    match model.isolate("the file", result) {
        Ok(()) => {}
        Err(Fault::Stop(e)) => return Err(e),
        Err(Fault::Damaged { what, .. }) => return Err(Error::format(what)),
    }
    quantised::apply(&mut model)?;
    if let Some(end) = model.wire.cut {
        let missing = end.saturating_sub(main.len());
        let what =
            format!("the file ends within the model: at least {} (a download that was cut short?)", counted(missing, "byte is missing", "bytes are missing"));
        model.builder.dropped();
        model.builder.issue(model.builder.path(id), what, "what comes before its end is served");
    }
    if !model.unknown_keys.is_empty() {
        let keys: Vec<_> = model.unknown_keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
        model.builder.fact("unknown_external_data_keys", json!(keys));
    }
    model.files.report(model.builder)?;
    Ok(())
}

fn read_tensor(model: &mut Model<'_>, run: Run) -> Walk<()> {
    let mut proto = TensorProto::default();
    proto.read(&mut model.wire, run)?;
    let name = if proto.name.is_empty() { model.opening.stem().to_vec() } else { std::mem::take(&mut proto.name) };
    model.tensor(&proto, &name, run.start)
}

fn read_model(model: &mut Model<'_>, run: Run) -> Walk<()> {
    let mut facts = info::Facts::default();
    let mut graphs = Vec::new();
    let (mut functions, mut trainings) = (0u64, 0u64);
    let mut cursor: Cursor = model.wire.message(run);
    loop {
        let field = match model.wire.next(&mut cursor) {
            Ok(Some(field)) => field,
            Ok(None) => break,
            Err(fault) => {
                // The rest of the file cannot be told; what was found so far is read all the same.
                model.isolate("the model", Err(fault))?;
                break;
            }
        };
        match (field.number, field.value) {
            (7, Value::Bytes(run)) => graphs.push(run),
            (14, Value::Bytes(run)) => {
                let result = metadata(model, run);
                model.isolate("a metadata entry", result)?;
            }
            (20, Value::Bytes(run)) => {
                let result = training(model, run, trainings);
                model.isolate("the training info", result)?;
                trainings = trainings.saturating_add(1);
            }
            (25, Value::Bytes(run)) => {
                functions = functions.saturating_add(1);
                let result = model.function(run);
                model.isolate("a function", result)?;
            }
            _ => {
                let result = facts.model(&mut model.wire, field);
                model.isolate("a part of the model", result)?;
            }
        }
    }
    // A graph that occurs twice is merged.
    let result = model.graph(&graphs, &Scope::default(), &mut |wire, field| facts.graph(wire, field));
    model.isolate("the graph", result)?;
    facts.finish(model.builder, functions);
    Ok(())
}

fn metadata(model: &mut Model<'_>, run: Run) -> Walk<()> {
    let (mut key, mut value) = (Vec::new(), Run { start: run.start, len: 0 });
    let mut cursor = model.wire.message(run);
    while let Some(field) = model.wire.next(&mut cursor)? {
        match (field.number, field.value) {
            (1, Value::Bytes(run)) => key = model.wire.bytes(run, limits::NAME_BYTES)?,
            (2, Value::Bytes(run)) => value = run,
            _ => {}
        }
    }
    let value = if value.len <= limits::INLINE_STRING_BYTES {
        Metadata::String(model.wire.bytes(value, limits::INLINE_STRING_BYTES)?)
    } else {
        let extent = model.builder.catalog().source(model.id).and_then(|source| Extent::new(model.id, source, value.start, value.len));
        Metadata::StoredString(extent.ok_or(Fault::Damaged { at: value.start, what: "the file ends within a value" })?)
    };
    Ok(model.builder.metadata(key, value)?)
}

fn training(model: &mut Model<'_>, run: Run, number: u64) -> Walk<()> {
    let (mut initialisation, mut algorithm) = (Vec::new(), Vec::new());
    let mut cursor = model.wire.message(run);
    while let Some(field) = model.wire.next(&mut cursor)? {
        match (field.number, field.value) {
            (1, Value::Bytes(run)) => initialisation.push(run),
            (2, Value::Bytes(run)) => algorithm.push(run),
            _ => {}
        }
    }
    for (runs, part) in [(initialisation, "initialization"), (algorithm, "algorithm")] {
        let scope = model.inner(&Scope::default(), format!("training/{number}/{part}").as_bytes());
        let result = model.graph(&runs, &scope, &mut |_, _| Ok(()));
        model.isolate("a training graph", result)?;
    }
    Ok(())
}
