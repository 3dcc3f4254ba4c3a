//! GGUF: llama.cpp's container, versions 1 to 3, both byte orders, split sets, and GGUF inside a zip (llamafile).
//!
//! | part | fields |
//! |---|---|
//! | header | magic `GGUF`, version u32, tensor count, key count (u64; u32 in version 1) |
//! | keys | name, type u32, value; an array is element type u32, count, elements |
//! | tensors | name, n_dims u32, dims (fastest first), type u32, offset u64 from the start of the data |
//! | data | starts at the next multiple of `general.alignment`; so does each tensor |
//!
//! Strings are a length (u64; u32 in version 1) and bytes. Definition: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>; the checks follow
//! `gguf.cpp` of the same repository where that is not stricter than the data needs.

mod header;

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::json;

use super::{Format, Head, Opening};
use crate::catalog::{Builder, Region, Section, SideBytes, SideFile, Spec, StoredArray, Value};
use crate::dtype::DType;
use crate::error::{Error, Result, quoted};
use crate::limits;
use crate::quant;
use crate::source::{Source, SourceId};
use header::{Header, Place};

pub(super) const FORMAT: Format =
    Format { name: "gguf", title: "GGUF v1, v2, v3, both byte orders, split sets, llamafile", extensions: &["gguf", "llamafile"], sniff, open, part: None };

/// `GGML_MAX_DIMS` of ggml.h.
const GGML_MAX_DIMS: usize = 4;

fn sniff(head: &Head<'_>) -> bool {
    is_gguf(head.bytes) || embedded(head).is_some()
}

fn is_gguf(bytes: &[u8]) -> bool {
    bytes.len() >= 8 && (bytes.starts_with(b"GGUF") || bytes.starts_with(b"FUGG"))
}

/// Where a GGUF member lies in a zip or a llamafile (an executable with a zip at its end).
fn embedded(head: &Head<'_>) -> Option<Place> {
    let executable = head.bytes.starts_with(b"MZ") || head.bytes.starts_with(b"\x7fELF") || head.bytes.starts_with(b"#!");
    if !executable && !head.bytes.starts_with(b"PK\x03\x04") {
        return None;
    }
    super::zip::stored_member(head.source, b".gguf").map(|(start, len)| Place { start, len })
}

fn open(opening: &mut Opening, builder: &mut Builder) -> Result<()> {
    let main = Arc::clone(opening.main());
    let mut buffer = Vec::new();
    let head = Head::read(&main, &mut buffer)?;
    let place =
        if is_gguf(head.bytes) { Place { start: 0, len: main.len() } } else { embedded(&head).ok_or_else(|| Error::format("its GGUF member has gone"))? };
    // Extents of metadata carry the number of their source, which only a split set makes other than 0.
    let first = Header::read(&main, 0, place)?;
    match shards(opening, &first, builder) {
        Some(names) => open_split(opening, &names, builder),
        None => {
            let id = builder.source(Arc::clone(&main));
            add_metadata(&first, builder)?;
            add_tensors(&main, id, &first, builder)
        }
    }
}

/// The file names of the split set that the opened file belongs to; `None` if it belongs to none, or they cannot be told.
fn shards(opening: &Opening, header: &Header, builder: &mut Builder) -> Option<Vec<Vec<u8>>> {
    let value = header.value(b"split.count")?;
    let Some(count) = value.as_u64() else {
        let place = format!("{}: key \"split.count\"", opening.main().path().display());
        builder.issue(place, format!("is of type {}, expected u16", value.type_name()), "opened as a file of its own");
        return None;
    };
    if count <= 1 {
        return None;
    }
    let name = String::from_utf8_lossy(opening.file_name()).into_owned();
    match split_name(&name) {
        Some((prefix, _, of)) if u64::from(of) == count => Some((1..=of).map(|n| format!("{prefix}-{n:05}-of-{of:05}.gguf").into_bytes()).collect()),
        _ => {
            let what = format!("is one of a split set of {count}, but its name is not PREFIX-NNNNN-of-{count:05}.gguf, so the others cannot be found");
            builder.issue(opening.main().path().display().to_string(), what, "opened as a file of its own");
            None
        }
    }
}

/// `PREFIX-00002-of-00003.gguf` as prefix, number and count.
pub(super) fn split_name(name: &str) -> Option<(&str, u32, u32)> {
    super::numbered_name(name, ".gguf")
}

fn open_split(opening: &Opening, names: &[Vec<u8>], builder: &mut Builder) -> Result<()> {
    let (mut declared, mut found) = (None, 0u64);
    for (number, name) in (0u64..).zip(names) {
        let opened = opening.sibling(name).and_then(|source| {
            let id = builder.source(Arc::clone(&source));
            let header = Header::read(&source, id, Place { start: 0, len: source.len() }).map_err(|e| e.in_file(source.path()))?;
            Ok((source, id, header))
        });
        let (source, id, header) = match opened {
            Ok(opened) => opened,
            Err(e) if e.is_for_files() => return Err(e),
            Err(e) => {
                builder.dropped();
                let place = format!("shard {} of {} ({})", number.saturating_add(1), names.len(), quoted(name));
                builder.issue(place, e.message(), "the other shards are served");
                continue;
            }
        };
        let place = builder.path(id);
        match header.value(b"split.no").and_then(Value::as_u64) {
            Some(no) if no == number => {}
            no => builder.issue(place.clone(), format!("split.no is {no:?}, expected {number} by its name"), "taken in the order of the names"),
        }
        declared = declared.or_else(|| header.value(b"split.tensors.count").and_then(Value::as_u64));
        found = found.saturating_add(header.tensor_count());
        // The first shard carries the metadata; the others repeat the split.* keys.
        if builder.metadata_so_far().is_empty() {
            add_metadata(&header, builder)?;
        }
        add_tensors(&source, id, &header, builder)?;
    }
    if let Some(declared) = declared.filter(|declared| *declared != found) {
        builder.issue(builder.path(0), format!("split.tensors.count is {declared}, the shards hold {found} tensors"), "all of them are served");
    }
    builder.fact("shards", json!(names.len()));
    Ok(())
}

fn add_metadata(header: &Header, builder: &mut Builder) -> Result<()> {
    builder.endian(header.endian);
    builder.fact("version", json!(header.version));
    builder.fact("alignment", json!(header.alignment));
    for (index, (key, value)) in header.metadata.iter().enumerate() {
        if let Some((name, verbatim)) = tokenizer_file(key, value) {
            let bytes = if verbatim { SideBytes::Text(index) } else { SideBytes::Json(index) };
            builder.side(SideFile { section: Section::Tokenizer, name, bytes });
        }
        builder.metadata(key.clone(), value.clone())?;
    }
    Ok(())
}

/// The file in `tokenizer/` for a key, and whether it holds the string verbatim instead of JSON.
fn tokenizer_file(key: &[u8], value: &Value) -> Option<(Vec<u8>, bool)> {
    let rest = key.strip_prefix(b"tokenizer.")?;
    let rest = rest.strip_prefix(b"ggml.").unwrap_or(rest);
    let text = matches!(value, Value::String(_) | Value::StoredString(_));
    let (stem, extension, verbatim) = match rest {
        b"huggingface.json" if text => (&b"tokenizer"[..], &b".json"[..], true),
        template if text && (template == b"chat_template" || template.starts_with(b"chat_template.")) => (template, &b".jinja"[..], true),
        other => (other, &b".json"[..], false),
    };
    Some(([stem, extension].concat(), verbatim))
}

/// The type behind a ggml type number.
fn dtype(id: u32) -> DType {
    let native = match id {
        0 => "f32",
        1 => "f16",
        24 => "i8",
        25 => "i16",
        26 => "i32",
        27 => "i64",
        28 => "f64",
        _ => return quant::by_ggml(id).map_or(DType::Unknown(id), DType::Coded),
    };
    DType::native(native).unwrap_or(DType::Unknown(id))
}

fn add_tensors(source: &Arc<Source>, id: SourceId, header: &Header, builder: &mut Builder) -> Result<()> {
    let original_shapes = original_shapes(source, header);
    let sizes = header.gaps();
    for (info, gap) in header.tensors().zip(sizes) {
        let name = info.name;
        let dtype = dtype(info.kind);
        let stored: Vec<u64> = info.dims.iter().rev().copied().collect();
        let original = original_shapes.get(name).filter(|shape| product(shape) == product(&stored) && **shape != stored);
        let shape = original.unwrap_or(&stored);
        let offset = header.data_start.checked_add(info.offset);
        if offset.is_none() {
            builder.tensor_issue(id, name, format!("its offset {} is larger than 2^63", info.offset), "listed without files");
        } else if !info.offset.is_multiple_of(header.alignment) {
            builder.tensor_issue(id, name, format!("its offset {} is no multiple of general.alignment {}", info.offset, header.alignment), "served from there");
        }
        if info.dims.len() > GGML_MAX_DIMS {
            let what = format!("has {} dimensions, ggml reads at most {GGML_MAX_DIMS}", info.dims.len());
            builder.tensor_issue(id, name, what, "served with all of them");
        }
        let unknown = matches!(dtype, DType::Unknown(_));
        if unknown {
            let what = format!("has the unknown type {}", info.kind);
            builder.tensor_issue(id, name, what, "its bytes up to the next tensor (padding included) are served in raw/ only");
        }
        let swapped = header.endian == crate::reader::Endian::Big && matches!(&dtype, DType::Coded(codec) if codec.swap.is_none());
        if swapped {
            builder.tensor_issue(id, name, format!("{dtype} has no defined big-endian layout"), "served in raw/ only");
        }
        builder.tensor(&Spec {
            stored_shape: original.map(|_| stored.as_slice()),
            endian: header.endian,
            bytes: unknown.then_some(gap),
            // ggml defines no decoder for its intermediate format Q8_1 (type 9).
            opaque: unknown || swapped || info.kind == 9,
            ..Spec::new(name, dtype, shape, id, offset)
        })?;
    }
    if header.tensor_count() > 0 {
        builder.region(Region { source: id, start: header.data_start, end: header.end, slack: header.alignment });
    }
    Ok(())
}

fn product(shape: &[u64]) -> Option<u64> {
    crate::catalog::product(shape)
}

/// The shapes that ComfyUI-GGUF stores for tensors which it had to reshape: `comfy.gguf.orig_shape.NAME`, outermost dimension first.
fn original_shapes<'a>(source: &Source, header: &'a Header) -> HashMap<&'a [u8], Vec<u64>> {
    let mut shapes = HashMap::new();
    for (key, value) in &header.metadata {
        let (Some(name), Value::StoredArray(array)) = (key.strip_prefix(b"comfy.gguf.orig_shape."), value) else { continue };
        if let Some(shape) = small_integers(source, array) {
            shapes.insert(name, shape);
        }
    }
    shapes
}

/// The elements of a short array of non-negative integers.
fn small_integers(source: &Source, array: &StoredArray) -> Option<Vec<u64>> {
    use crate::catalog::Scalar;
    if array.count > limits::DIMENSIONS as u64 {
        return None;
    }
    let mut reader = crate::reader::Reader::new(source, array.extent.offset(), array.extent.offset().checked_add(array.extent.len())?);
    reader.endian = array.endian;
    (0..array.count)
        .map(|_| match array.element {
            Scalar::U32 | Scalar::I32 => reader.u32().ok().filter(|v| *v <= i32::MAX as u32).map(u64::from),
            Scalar::U64 | Scalar::I64 => reader.u64().ok().filter(|v| *v <= i64::MAX as u64),
            _ => None,
        })
        .collect()
}

/// The error for a value in the header that cannot stand.
fn bad_key(key: &[u8], what: String) -> Error {
    Error::format(format!("key {}: {what}", quoted(key)))
}
