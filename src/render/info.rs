//! info.json, issues.json and SHA256SUMS.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::UNIX_EPOCH;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::Cursor;
use super::json::{reprinted, string};
use crate::reader::Endian;
use crate::source::Source;
use crate::tree::Set;

/// info.json, indented for people.
pub(super) fn info(set: &Set) -> Vec<u8> {
    let catalog = set.catalog();
    let mut dtypes: BTreeMap<String, (u64, u64, u64)> = BTreeMap::new();
    let (mut elements, mut bytes) = (0u64, 0u64);
    for tensor in catalog.tensors() {
        let size = tensor.bytes().unwrap_or(0);
        let row = dtypes.entry(tensor.dtype().to_string()).or_default();
        row.0 = row.0.saturating_add(1);
        // What two names share is there once.
        if tensor.shares().is_none() {
            (row.1, row.2) = (row.1.saturating_add(tensor.elements()), row.2.saturating_add(size));
            elements = elements.saturating_add(tensor.elements());
            bytes = bytes.saturating_add(size);
        }
    }
    let files: Vec<Value> = catalog.containers().map(|(_, source)| file(source)).collect();
    let total: u64 = catalog.containers().map(|(_, source)| source.len()).fold(0, u64::saturating_add);
    let histogram: Map<String, Value> =
        dtypes.into_iter().map(|(name, (tensors, elements, bytes))| (name, json!({"tensors": tensors, "elements": elements, "bytes": bytes}))).collect();
    let info = json!({
        "format": catalog.format(),
        "files": files,
        "endian": if catalog.endian() == Endian::Little { "little" } else { "big" },
        "tensors": catalog.len(),
        "metadata_keys": catalog.metadata().len(),
        "issues": catalog.issues().len(),
        "elements": elements,
        "tensor_bytes": bytes,
        "file_bytes": total,
        "dtypes": histogram,
        "program": format!("mount-tensors {}", env!("CARGO_PKG_VERSION")),
    });
    let mut members: BTreeMap<&str, String> = info.as_object().into_iter().flatten().map(|(key, value)| (key.as_str(), value.to_string())).collect();
    let facts = catalog.facts().iter().map(|(key, value)| (key.as_str(), value.to_string()));
    let details: BTreeMap<&str, String> = facts.chain(catalog.quotes().iter().map(|(key, text)| (key.as_str(), text.clone()))).collect();
    if !details.is_empty() {
        members.insert("details", object(&details));
    }
    let compact = object(&members);
    let mut text = reprinted(&compact, true).unwrap_or(compact).into_bytes();
    text.push(b'\n');
    text
}

/// A JSON object of values that are JSON text already.
fn object(members: &BTreeMap<&str, String>) -> String {
    let members: Vec<String> = members.iter().map(|(key, value)| format!("{}:{value}", Value::from(*key))).collect();
    format!("{{{}}}", members.join(","))
}

fn file(source: &Source) -> Value {
    let since = source.modified().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut file = json!({
        "path": source.path().to_string_lossy(),
        "bytes": source.len(),
        "mtime": since.as_secs(),
    });
    if let (Some(object), Some(revision)) = (file.as_object_mut(), revision(source.path())) {
        object.insert("huggingface_revision".to_string(), revision.into());
    }
    file
}

/// The revision in a Hugging Face cache path: `.../models--ORG--NAME/snapshots/REVISION/...`.
fn revision(path: &Path) -> Option<String> {
    let absolute = std::path::absolute(path).ok()?;
    let mut parts = absolute.components().map(|c| c.as_os_str().to_string_lossy().into_owned());
    parts.find(|part| part.starts_with("models--"))?;
    (parts.next()? == "snapshots").then(|| parts.next()).flatten()
}

/// issues.json: `[]` when there is none.
pub(super) fn issues(set: &Set, cursor: &mut Cursor, out: &mut Vec<u8>) -> bool {
    let issues = set.catalog().issues();
    let index = usize::try_from(cursor.item).unwrap_or(usize::MAX);
    if index > issues.len() {
        return false;
    }
    match issues.get(index) {
        Some(issue) => {
            out.extend_from_slice(if index == 0 { b"[\n{\"where\": " } else { b",\n{\"where\": " });
            string(out, &issue.place);
            out.extend_from_slice(b", \"what\": ");
            string(out, &issue.what);
            out.extend_from_slice(b", \"done\": ");
            string(out, &issue.done);
            out.push(b'}');
        }
        None => out.extend_from_slice(if issues.is_empty() { b"[]\n" } else { b"\n]\n" }),
    }
    cursor.item = cursor.item.saturating_add(1);
    true
}

/// A file name as sha256sum(1) writes it: with a leading backslash, and escapes, if it holds a backslash or a line break.
fn sum_line(set: &Set, id: u32, sum: &str) -> Vec<u8> {
    let name = set.source_name(id);
    let escaped: Vec<u8> = name.iter().flat_map(|b| if *b == b'\\' { vec![b'\\', b'\\'] } else { vec![*b] }).collect();
    let mark: &[u8] = if escaped.len() == name.len() { b"" } else { b"\\" };
    [mark, sum.as_bytes(), b"  ", &escaped, b"\n"].concat()
}

/// The length of SHA256SUMS, which does not depend on the sums.
pub(super) fn sums_len(set: &Set) -> u64 {
    let zeros = "0".repeat(64);
    set.catalog().containers().map(|(id, _)| sum_line(set, id, &zeros).len() as u64).sum()
}

/// SHA256SUMS, one container at a time, computed when it is first read.
pub(super) fn sums(set: &Set, cursor: &mut Cursor, out: &mut Vec<u8>) -> io::Result<bool> {
    let first = u32::try_from(cursor.item).unwrap_or(u32::MAX);
    let Some((id, source)) = set.catalog().containers_from(first).next() else { return Ok(false) };
    let sum = match set.sum(id).get() {
        Some(sum) => sum.clone(),
        None => {
            let sum = hash(source)?;
            set.sum(id).get_or_init(|| sum).clone()
        }
    };
    out.extend(sum_line(set, id, &sum));
    cursor.item = u64::from(id).saturating_add(1);
    Ok(true)
}

fn hash(source: &Source) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0u64;
    while at < source.len() {
        buffer.truncate(usize::try_from(source.len().saturating_sub(at)).unwrap_or(usize::MAX));
        source.read_at(at, &mut buffer)?;
        hasher.update(&buffer);
        at = at.saturating_add(buffer.len() as u64);
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
