//! tensors.json: one object a tensor, in file order, one line each.

use super::Cursor;
use super::json::{integers, put, string};
use crate::catalog::{Order, Tensor};
use crate::reader::Endian;
use crate::tree::Set;
use crate::tree::names::json_name;
use crate::view::View;

pub(super) fn next(set: &Set, cursor: &mut Cursor, out: &mut Vec<u8>) -> bool {
    let count = u64::from(set.catalog().len());
    if cursor.item > count {
        return false;
    }
    if cursor.item == count {
        out.extend_from_slice(if count == 0 { b"[]\n" } else { b"\n]\n" });
    } else if let Some(tensor) = set.catalog().tensor(u32::try_from(cursor.item).unwrap_or(u32::MAX)) {
        out.extend_from_slice(if cursor.item == 0 { b"[\n" } else { b",\n" });
        object(set, tensor, out);
    }
    cursor.item = cursor.item.saturating_add(1);
    true
}

/// One tensor's object.
pub(crate) fn object(set: &Set, tensor: Tensor<'_>, out: &mut Vec<u8>) {
    let dtype = tensor.dtype();
    out.extend_from_slice(b"{\"name\": ");
    string(out, &json_name(tensor.name()));
    out.extend_from_slice(b", \"dtype\": ");
    string(out, &dtype.to_string());
    out.extend_from_slice(b", \"shape\": ");
    integers(out, tensor.shape());
    let order = if tensor.order() == Order::C { "C" } else { "F" };
    put(out, format_args!(", \"order\": \"{order}\", \"endian\": \"{}\", \"elements\": {}", endian(tensor.endian()), tensor.elements()));
    if let Some(bytes) = tensor.bytes() {
        put(out, format_args!(", \"bytes\": {bytes}"));
    }
    if let Some((elements, bytes)) = dtype.block() {
        put(out, format_args!(", \"block\": {{\"elements\": {elements}, \"bytes\": {bytes}}}"));
    }
    if let Some(bytes) = tensor.row_bytes() {
        put(out, format_args!(", \"row_bytes\": {bytes}"));
    }
    if let Some(stored) = tensor.stored_shape() {
        out.extend_from_slice(b", \"stored_shape\": ");
        integers(out, stored);
    }
    out.extend_from_slice(b", \"source\": ");
    string(out, &source(set, tensor));
    out.extend_from_slice(b", \"offset\": ");
    offset(set, tensor, out);
    if let Some(first) = tensor.shares() {
        out.extend_from_slice(b", \"shares\": ");
        string(out, &json_name(first.name()));
    }
    if let Some(scheme) = tensor.scheme() {
        put(out, format_args!(", \"scheme\": {}", scheme.facts));
    }
    let paths: Vec<(View, Vec<u8>)> = View::ALL.into_iter().filter_map(|view| Some((view, set.path(view, tensor)?))).collect();
    out.extend_from_slice(b", \"zero_copy\": [");
    let direct = paths.iter().filter(|(view, _)| crate::content::is_zero_copy(set.catalog(), *view, tensor));
    for (i, (view, _)) in direct.enumerate() {
        put(out, format_args!("{}\"{}\"", if i == 0 { "" } else { ", " }, view.key()));
    }
    out.extend_from_slice(b"], \"files\": {");
    for (i, (view, path)) in paths.iter().enumerate() {
        put(out, format_args!("{}\"{}\": ", if i == 0 { "" } else { ", " }, view.key()));
        // Paths are UTF-8: what is not is percent-encoded.
        string(out, &String::from_utf8_lossy(path));
    }
    out.extend_from_slice(b"}}");
}

/// The extended attributes of a tensor's files, as JSON text.
pub(crate) fn attribute(set: &Set, tensor: Tensor<'_>, name: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    match name {
        b"user.tensor.name" => string(&mut out, &json_name(tensor.name())),
        b"user.tensor.dtype" => string(&mut out, &tensor.dtype().to_string()),
        b"user.tensor.shape" => integers(&mut out, tensor.shape()),
        b"user.tensor.offset" => offset(set, tensor, &mut out),
        b"user.tensor.source" => string(&mut out, &source(set, tensor)),
        _ => return None,
    }
    Some(out)
}

/// The names of the extended attributes of a tensor's files, each followed by NUL, as listxattr(2) gives them.
pub(crate) const ATTRIBUTES: &[u8] = b"user.tensor.name\0user.tensor.dtype\0user.tensor.shape\0user.tensor.offset\0user.tensor.source\0";

fn endian(endian: Endian) -> &'static str {
    match endian {
        Endian::Little => "little",
        Endian::Big => "big",
    }
}

/// The file in `source/` that holds a tensor.
fn source(set: &Set, tensor: Tensor<'_>) -> String {
    String::from_utf8_lossy(set.source_name(tensor.source())).into_owned()
}

/// The offset in that file; null for what is compressed there or not there at all.
fn offset(set: &Set, tensor: Tensor<'_>, out: &mut Vec<u8>) {
    let compressed = set.catalog().source(tensor.source()).is_some_and(|source| source.is_member());
    match tensor.offset().filter(|_| !compressed) {
        Some(offset) => put(out, format_args!("{offset}")),
        None => out.extend_from_slice(b"null"),
    }
}

/// Bytes of one row (the last dimension), where rows are whole bytes.
pub fn row_bytes(tensor: Tensor<'_>) -> Option<u64> {
    tensor.row_bytes()
}
