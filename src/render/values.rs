//! metadata.json and the files of single keys: values of any size, rendered piece by piece from the file.

use std::io;

use super::Cursor;
use super::json::{base64, bytes, escaped, float, put, string};
use crate::catalog::{Catalog, Scalar, StoredArray, Value};
use crate::limits;
use crate::reader::{Reader, Stop};
use crate::source::Extent;
use crate::tree::Set;

/// How much of a value is read from the file at a time, in bytes; a multiple of 3, so that base64 can be cut there.
const PIECE: u64 = 48 << 10;
/// How many elements of an array are rendered at a time.
const ELEMENTS: u64 = 1024;
/// How much of an array is fetched at a time, in bytes: about what so many elements take.
const WINDOW: u64 = 16 << 10;

/// metadata.json: `{KEY: {"type": ..., "value": ...}}`, one key a line.
pub(super) fn metadata(set: &Set, cursor: &mut Cursor, out: &mut Vec<u8>) -> io::Result<bool> {
    let metadata = set.catalog().metadata();
    let index = usize::try_from(cursor.item).unwrap_or(usize::MAX);
    let Some((_, value)) = metadata.get(index) else {
        if index > metadata.len() {
            return Ok(false);
        }
        out.extend_from_slice(if metadata.is_empty() { b"{}\n" } else { b"\n}\n" });
        cursor.item = cursor.item.saturating_add(1);
        return Ok(true);
    };
    if cursor.inner == 0 {
        out.extend_from_slice(if index == 0 { b"{\n" } else { b",\n" });
        string(out, set.key(index));
        put(out, format_args!(": {{\"type\": \"{}\", \"value\": ", value.type_name()));
    }
    if !piece(set.catalog(), value, cursor, out)? {
        out.push(b'}');
        *cursor = Cursor { item: cursor.item.saturating_add(1), ..Cursor::default() };
    }
    Ok(true)
}

/// The bare JSON value of one key.
pub(super) fn key(set: &Set, index: usize, cursor: &mut Cursor, out: &mut Vec<u8>) -> io::Result<bool> {
    let Some((_, value)) = set.catalog().metadata().get(index).filter(|_| cursor.item == 0) else { return Ok(false) };
    if !piece(set.catalog(), value, cursor, out)? {
        out.push(b'\n');
        *cursor = Cursor { item: 1, ..Cursor::default() };
    }
    Ok(true)
}

/// The string of one key, verbatim.
pub(super) fn text(set: &Set, index: usize, cursor: &mut Cursor, out: &mut Vec<u8>) -> io::Result<bool> {
    match set.catalog().metadata().get(index) {
        Some((_, Value::String(text))) if cursor.inner == 0 => {
            out.extend_from_slice(text);
            cursor.inner = 1;
            Ok(!text.is_empty())
        }
        Some((_, Value::StoredString(extent))) => {
            let part = read_part(set.catalog(), *extent, cursor.inner, PIECE)?;
            cursor.inner = cursor.inner.saturating_add(part.len() as u64);
            out.extend_from_slice(&part);
            Ok(!part.is_empty())
        }
        _ => Ok(false),
    }
}

/// Renders the next piece of a value; false when that was the last one.
fn piece(catalog: &Catalog, value: &Value, cursor: &mut Cursor, out: &mut Vec<u8>) -> io::Result<bool> {
    match value {
        Value::StoredArray(array) => array_piece(catalog, array, cursor, out),
        Value::StoredString(extent) => string_piece(catalog, *extent, cursor, out),
        small => {
            whole(catalog, small, out)?;
            Ok(false)
        }
    }
}

/// Renders a value in one go; arrays of arrays are small.
fn whole(catalog: &Catalog, value: &Value, out: &mut Vec<u8>) -> io::Result<()> {
    match value {
        Value::Unsigned(_, value) => put(out, format_args!("{value}")),
        Value::Signed(_, value) => put(out, format_args!("{value}")),
        Value::F32(value) => float(out, *value),
        Value::F64(value) => float(out, *value),
        Value::Bool(value) => put(out, format_args!("{value}")),
        Value::String(text) => bytes(out, text),
        Value::Json(_, value) => put(out, format_args!("{value}")),
        Value::Rendered(_, text) => out.extend_from_slice(text),
        Value::StoredString(_) | Value::StoredArray(_) => {
            let mut cursor = Cursor::default();
            while piece(catalog, value, &mut cursor, out)? {}
        }
        Value::Arrays(items) => {
            out.push(b'[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.extend_from_slice(b", ");
                }
                whole(catalog, item, out)?;
            }
            out.push(b']');
        }
    }
    Ok(())
}

fn read_part(catalog: &Catalog, extent: Extent, offset: u64, len: u64) -> io::Result<Vec<u8>> {
    let part = extent.sub(offset, len.min(extent.len().saturating_sub(offset)));
    let (Some(part), Some(source)) = (part, catalog.source(extent.source())) else { return Ok(Vec::new()) };
    let mut bytes = vec![0; usize::try_from(part.len()).unwrap_or(0)];
    source.read_at(part.offset(), &mut bytes)?;
    Ok(bytes)
}

/// Whether a stored string is UTF-8.
fn is_utf8(catalog: &Catalog, extent: Extent) -> io::Result<bool> {
    let mut at = 0u64;
    while at < extent.len() {
        let part = read_part(catalog, extent, at, PIECE)?;
        let end = at.saturating_add(part.len() as u64);
        match std::str::from_utf8(&part) {
            Ok(_) if part.is_empty() => return Ok(false),
            Ok(_) => at = end,
            // A character that is cut by the end of the part is looked at again in the next one.
            Err(e) if e.error_len().is_none() && e.valid_up_to() > 0 && end < extent.len() => at = at.saturating_add(e.valid_up_to() as u64),
            Err(_) => return Ok(false),
        }
    }
    Ok(true)
}

/// Renders the next piece of a long string; `inner` tells whether it has begun, `at` how many bytes are done.
fn string_piece(catalog: &Catalog, extent: Extent, cursor: &mut Cursor, out: &mut Vec<u8>) -> io::Result<bool> {
    if cursor.inner == 0 {
        cursor.base64 = begin_string(catalog, extent, out)?;
        cursor.inner = 1;
    }
    string_part(catalog, extent, &mut cursor.at, cursor.base64, out)
}

/// Renders what stands before a long string and answers whether it is base64.
fn begin_string(catalog: &Catalog, extent: Extent, out: &mut Vec<u8>) -> io::Result<bool> {
    let base64 = !is_utf8(catalog, extent)?;
    out.extend_from_slice(if base64 { b"{\"base64\": \"" } else { b"\"" });
    Ok(base64)
}

/// Renders the part of a long string after `done` bytes, and what stands behind it if it is the last one; false then.
fn string_part(catalog: &Catalog, extent: Extent, done: &mut u64, in_base64: bool, out: &mut Vec<u8>) -> io::Result<bool> {
    let part = read_part(catalog, extent, *done, PIECE)?;
    let text = match std::str::from_utf8(&part) {
        Ok(text) => text,
        Err(e) => part.get(..e.valid_up_to()).and_then(|valid| std::str::from_utf8(valid).ok()).unwrap_or(""),
    };
    let rendered = if in_base64 {
        base64(out, &part);
        part.len()
    } else {
        escaped(out, text);
        text.len()
    };
    // Nothing where something should be: the file was changed since it was checked.
    *done = if rendered == 0 { extent.len() } else { done.saturating_add(rendered as u64) };
    if *done < extent.len() {
        return Ok(true);
    }
    out.extend_from_slice(if in_base64 { b"\"}" } else { b"\"" });
    Ok(false)
}

/// A long string among the elements of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Long {
    text: Extent,
    done: u64,
    /// Where the element after it starts.
    next: u64,
}

/// Renders the next elements of an array; `inner` counts those done plus one, `at` is the offset of the next.
fn array_piece(catalog: &Catalog, array: &StoredArray, cursor: &mut Cursor, out: &mut Vec<u8>) -> io::Result<bool> {
    if cursor.inner == 0 {
        out.push(b'[');
        cursor.inner = 1;
        cursor.at = array.extent.offset();
    }
    if let Some(long) = &mut cursor.long {
        if string_part(catalog, long.text, &mut long.done, cursor.base64, out)? {
            return Ok(true);
        }
        cursor.at = long.next;
        cursor.long = None;
        cursor.inner = cursor.inner.saturating_add(1);
    }
    let Some(source) = catalog.source(array.extent.source()) else { return Ok(false) };
    let end = array.extent.offset().saturating_add(array.extent.len());
    let mut reader = Reader::new(source, cursor.at, end).with_window(WINDOW);
    reader.endian = array.endian;
    let start = out.len();
    let mut done = cursor.inner.saturating_sub(1);
    let stop = array.count.min(done.saturating_add(ELEMENTS));
    while done < stop && out.len().saturating_sub(start) < PIECE as usize {
        if done > 0 {
            out.extend_from_slice(b", ");
        }
        let long = element(array, &mut reader, out).map_err(|stop| match stop {
            Stop::Io(e) => e,
            Stop::End { .. } => io::Error::new(io::ErrorKind::UnexpectedEof, "the array ends early"),
        })?;
        if let Some(len) = long {
            let begins = reader.position().saturating_sub(len);
            let text = Extent::new(array.extent.source(), source, begins, len).ok_or(io::ErrorKind::UnexpectedEof)?;
            let text = if array.strip_nul { without_nul(catalog, text)? } else { text };
            cursor.base64 = begin_string(catalog, text, out)?;
            cursor.long = Some(Long { text, done: 0, next: reader.position() });
            break;
        }
        done = done.saturating_add(1);
    }
    cursor.inner = done.saturating_add(1);
    cursor.at = reader.position();
    if done < array.count {
        return Ok(true);
    }
    out.push(b']');
    Ok(false)
}

/// A long string without the NUL bytes at its end.
fn without_nul(catalog: &Catalog, mut text: Extent) -> io::Result<Extent> {
    while !text.is_empty() {
        let start = text.len().saturating_sub(PIECE);
        let tail = read_part(catalog, text, start, PIECE)?;
        let kept = tail.iter().rposition(|byte| *byte != 0).map_or(0, |at| at.saturating_add(1));
        text = text.sub(0, start.saturating_add(kept as u64)).unwrap_or(text);
        if kept > 0 || tail.is_empty() {
            break;
        }
    }
    Ok(text)
}

/// Renders one element; a long string is passed over, and its length is the answer.
fn element(array: &StoredArray, reader: &mut Reader<'_>, out: &mut Vec<u8>) -> Result<Option<u64>, Stop> {
    match array.element {
        Scalar::U8 => put(out, format_args!("{}", reader.u8()?)),
        Scalar::I8 => put(out, format_args!("{}", reader.u8()?.cast_signed())),
        Scalar::U16 => put(out, format_args!("{}", reader.u16()?)),
        Scalar::I16 => put(out, format_args!("{}", reader.u16()?.cast_signed())),
        Scalar::U32 => put(out, format_args!("{}", reader.u32()?)),
        Scalar::I32 => put(out, format_args!("{}", reader.u32()?.cast_signed())),
        Scalar::U64 => put(out, format_args!("{}", reader.u64()?)),
        Scalar::I64 => put(out, format_args!("{}", reader.u64()?.cast_signed())),
        Scalar::F32 => float(out, f32::from_bits(reader.u32()?)),
        Scalar::F64 => float(out, f64::from_bits(reader.u64()?)),
        Scalar::Bool => put(out, format_args!("{}", reader.u8()? != 0)),
        Scalar::String => {
            let len = if array.length_bytes == 8 { reader.u64()? } else { u64::from(reader.u32()?) };
            if len > limits::INLINE_STRING_BYTES {
                reader.skip(len)?;
                return Ok(Some(len));
            }
            let mut text = reader.take(usize::try_from(len).unwrap_or(usize::MAX))?;
            while let (true, Some((0, rest))) = (array.strip_nul, text.split_last()) {
                text = rest;
            }
            bytes(out, text);
        }
    }
    Ok(None)
}
