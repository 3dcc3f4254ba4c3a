//! Flax checkpoints: one msgpack map whose leaves are arrays.
//!
//! | msgpack | meaning |
//! |---|---|
//! | map with string keys | a level of names; lists are written as maps with the keys `0`, `1`, ... |
//! | ext type 1 | an array: itself msgpack, `[shape, name of the dtype, bytes]` |
//! | ext type 2 | a complex number: `[real, imaginary]` |
//! | ext type 3 | a NumPy scalar, written like an array |
//! | map with the key `__msgpack_chunked_array__` | an array of more than 1 GiB in `chunks`, to be joined and given `shape` |
//!
//! Definitions: <https://github.com/msgpack/msgpack/blob/master/spec.md>, flax/serialization.py in <https://github.com/google/flax>. The file is walked once,
//! without a stack of calls; the arrays' bytes are not fetched. Names join their keys with dots. What is no array is metadata; a map or list without arrays is
//! one key.

use std::io;
use std::sync::Arc;

use serde_json::{Map, Value as Json, json};

use super::{Format, Head, Opening};
use crate::catalog::{Builder, Spec, Value, product};
use crate::dtype::{DType, NumPyOnly};
use crate::error::{Error, Result, left_over, quoted};
use crate::limits;
use crate::reader::{Endian, Reader, Stop};
use crate::recipe::{Elements, Inputs};
use crate::source::{Extent, Source, SourceId};

pub(super) const FORMAT: Format = Format { name: "msgpack", title: "Flax checkpoints (msgpack)", extensions: &["msgpack"], sniff, open, part: None };

/// Bytes fetched at a time: there is little between two arrays.
const WINDOW_BYTES: u64 = 16 << 10;
/// Values that a sniffer passes on the way to the first array.
const SNIFFED: usize = 10_000;
/// Maps and lists within each other.
const DEPTH: usize = 256;
/// The key that marks an array in chunks.
const CHUNKED: &[u8] = b"__msgpack_chunked_array__";

/// A map that begins with a string for a key, and in it an array as Flax writes it.
fn sniff(head: &Head<'_>) -> bool {
    let map = matches!(head.bytes.first(), Some(0x81..=0x8f | 0xde | 0xdf));
    map && begins_with_array(head.source).unwrap_or(false)
}

/// Whether a file begins as a msgpack map whose first key is a readable text, with arrays or without.
pub(super) fn is_map(source: &Source) -> bool {
    let mut reader = Reader::new(source, 0, source.len()).with_window(WINDOW_BYTES);
    reader.endian = Endian::Big;
    let (Ok(Token::Map(1..)), Ok(Token::Text(len @ 1..=255))) = (Token::read(&mut reader), Token::read(&mut reader)) else { return false };
    let key = text(&mut reader, len).ok().and_then(|key| String::from_utf8(key).ok());
    key.is_some_and(|key| !key.chars().any(char::is_control)) && Token::read(&mut reader).is_ok()
}

fn begins_with_array(source: &Source) -> std::result::Result<bool, Fault> {
    let mut reader = Reader::new(source, 0, source.len()).with_window(WINDOW_BYTES);
    reader.endian = Endian::Big;
    let (Token::Map(_), Token::Text(len)) = (Token::read(&mut reader)?, Token::read(&mut reader)?) else { return Ok(false) };
    reader.skip(len)?;
    for _ in 0..SNIFFED {
        match Token::read(&mut reader)? {
            Token::Ext(1 | 3, len) => return Ok(Array::read(&mut reader, len).is_ok()),
            Token::Text(len) | Token::Bytes(len) | Token::Ext(_, len) => reader.skip(len)?,
            _ => {}
        }
    }
    Ok(false)
}

/// Why the walk ended early.
enum Fault {
    End,
    Damaged(&'static str),
    Io(io::Error),
    Error(Error),
}

impl From<Stop> for Fault {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::End { .. } => Self::End,
            Stop::Io(e) => Self::Io(e),
        }
    }
}

impl From<Error> for Fault {
    fn from(e: Error) -> Self {
        Self::Error(e)
    }
}

/// One value's head; the bytes of those that have a length follow.
#[derive(Debug, PartialEq)]
enum Token {
    Nil,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    F32(f32),
    F64(f64),
    Text(u64),
    Bytes(u64),
    List(u64),
    Map(u64),
    Ext(i8, u64),
}

impl Token {
    fn read(reader: &mut Reader<'_>) -> std::result::Result<Self, Fault> {
        let byte = reader.u8()?;
        Ok(match byte {
            0x00..=0x7f => Self::Unsigned(byte.into()),
            0x80..=0x8f => Self::Map(u64::from(byte & 0x0f)),
            0x90..=0x9f => Self::List(u64::from(byte & 0x0f)),
            0xa0..=0xbf => Self::Text(u64::from(byte & 0x1f)),
            0xc0 => Self::Nil,
            0xc1 => return Err(Fault::Damaged("a byte that msgpack never uses")),
            0xc2 => Self::Bool(false),
            0xc3 => Self::Bool(true),
            0xc4 => Self::Bytes(reader.u8()?.into()),
            0xc5 => Self::Bytes(reader.u16()?.into()),
            0xc6 => Self::Bytes(reader.u32()?.into()),
            0xc7 => {
                let len = reader.u8()?.into();
                Self::Ext(reader.u8()?.cast_signed(), len)
            }
            0xc8 => {
                let len = reader.u16()?.into();
                Self::Ext(reader.u8()?.cast_signed(), len)
            }
            0xc9 => {
                let len = reader.u32()?.into();
                Self::Ext(reader.u8()?.cast_signed(), len)
            }
            0xca => Self::F32(f32::from_bits(reader.u32()?)),
            0xcb => Self::F64(f64::from_bits(reader.u64()?)),
            0xcc => Self::Unsigned(reader.u8()?.into()),
            0xcd => Self::Unsigned(reader.u16()?.into()),
            0xce => Self::Unsigned(reader.u32()?.into()),
            0xcf => Self::Unsigned(reader.u64()?),
            0xd0 => Self::Signed(reader.u8()?.cast_signed().into()),
            0xd1 => Self::Signed(reader.u16()?.cast_signed().into()),
            0xd2 => Self::Signed(reader.u32()?.cast_signed().into()),
            0xd3 => Self::Signed(reader.u64()?.cast_signed()),
            0xd4..=0xd8 => Self::Ext(reader.u8()?.cast_signed(), 1 << byte.wrapping_sub(0xd4)),
            0xd9 => Self::Text(reader.u8()?.into()),
            0xda => Self::Text(reader.u16()?.into()),
            0xdb => Self::Text(reader.u32()?.into()),
            0xdc => Self::List(reader.u16()?.into()),
            0xdd => Self::List(reader.u32()?.into()),
            0xde => Self::Map(reader.u16()?.into()),
            0xdf => Self::Map(reader.u32()?.into()),
            0xe0..=0xff => Self::Signed(byte.cast_signed().into()),
        })
    }
}

/// An array as Flax writes it.
#[derive(Debug, Default)]
struct Array {
    shape: Vec<u64>,
    dtype: Vec<u8>,
    start: u64,
    len: u64,
}

impl Array {
    /// Reads the head of an array of `len` bytes; the reader stands before its elements afterwards.
    fn read(reader: &mut Reader<'_>, len: u64) -> std::result::Result<Self, Fault> {
        let end = reader.position().saturating_add(len);
        let mut array = Self::default();
        let Token::List(3) = Token::read(reader)? else { return Err(Fault::Damaged("an array is not a list of shape, dtype and bytes")) };
        let Token::List(rank) = Token::read(reader)? else { return Err(Fault::Damaged("an array's shape is not a list")) };
        if rank > limits::DIMENSIONS as u64 {
            return Err(Fault::Damaged("an array has more than 64 dimensions"));
        }
        for _ in 0..rank {
            match Token::read(reader)? {
                Token::Unsigned(dimension) => array.shape.push(dimension),
                _ => return Err(Fault::Damaged("an array's shape has a dimension that is no length")),
            }
        }
        array.dtype = match Token::read(reader)? {
            Token::Text(len @ 0..=255) | Token::Bytes(len @ 0..=255) => text(reader, len)?,
            _ => return Err(Fault::Damaged("an array has no dtype")),
        };
        match Token::read(reader)? {
            Token::Bytes(bytes) | Token::Text(bytes) if reader.position().checked_add(bytes) == Some(end) => {
                (array.start, array.len) = (reader.position(), bytes);
                Ok(array)
            }
            _ => Err(Fault::Damaged("an array's bytes do not end where it ends")),
        }
    }
}

fn text(reader: &mut Reader<'_>, len: u64) -> std::result::Result<Vec<u8>, Fault> {
    Ok(reader.take(usize::try_from(len).unwrap_or(usize::MAX))?.to_vec())
}

/// The type behind a NumPy dtype's name; `None` if it is not known.
fn dtype(name: &[u8]) -> Option<DType> {
    let name = std::str::from_utf8(name).ok()?;
    let canonical = match name {
        "float64" => "f64",
        "float32" => "f32",
        "float16" => "f16",
        "bfloat16" => "bf16",
        "float8_e4m3fn" => "f8_e4m3",
        "float8_e5m2" => "f8_e5m2",
        "float8_e4m3fnuz" => "f8_e4m3fnuz",
        "float8_e5m2fnuz" => "f8_e5m2fnuz",
        "float8_e8m0fnu" => "f8_e8m0",
        "int64" => "i64",
        "int32" => "i32",
        "int16" => "i16",
        "int8" => "i8",
        "uint64" => "u64",
        "uint32" => "u32",
        "uint16" => "u16",
        "uint8" => "u8",
        "bool" => "bool",
        "complex64" => "c64",
        "complex128" => "c128",
        _ => return numpy_only(name),
    };
    DType::by_name(canonical)
}

/// Strings, whose names tell their length in bits.
fn numpy_only(name: &str) -> Option<DType> {
    let bits = |digits: &str| digits.parse::<u64>().ok().filter(|bits| bits.is_multiple_of(8));
    let (descr, bytes) = if let Some(bits) = name.strip_prefix("str").and_then(bits) {
        (format!("<U{}", bits / 32), bits / 8)
    } else if let Some(bits) = name.strip_prefix("bytes").and_then(bits) {
        (format!("|S{}", bits / 8), bits / 8)
    } else {
        return None;
    };
    Some(DType::NumPy(Arc::new(NumPyOnly { descr, bytes })))
}

/// A value that is no array.
enum Leaf {
    Json(Json),
    /// A long string or run of bytes, which stays in the file.
    Stored(Extent),
}

/// A map or list that is being read.
struct Level {
    /// Length of the name of the levels around it.
    name_len: usize,
    /// Values that are left; of a map a key and its value count as one.
    left: u64,
    is_map: bool,
    next_index: u64,
    has_arrays: bool,
    /// Values without arrays, by their keys.
    leaves: Vec<(Vec<u8>, Leaf)>,
    chunked: Option<Chunked>,
}

/// An array in chunks.
#[derive(Default)]
struct Chunked {
    chunks: Vec<Array>,
}

struct Walk<'a> {
    reader: Reader<'a>,
    builder: &'a mut Builder,
    source: Arc<Source>,
    id: SourceId,
    /// Keys from the top, joined with dots.
    name: Vec<u8>,
    levels: Vec<Level>,
    values: u64,
    values_left_out: u64,
}

fn open(opening: &mut Opening, builder: &mut Builder) -> Result<()> {
    let main = Arc::clone(opening.main());
    let id = builder.source(Arc::clone(&main));
    let mut reader = Reader::new(&main, 0, main.len()).with_window(WINDOW_BYTES);
    reader.endian = Endian::Big;
    let mut walk = Walk { reader, builder, source: Arc::clone(&main), id, name: Vec::new(), levels: Vec::new(), values: 0, values_left_out: 0 };
    let result = walk.run();
    let at = walk.reader.position();
    let place = walk.builder.path(id);
    let what = match result {
        Ok(()) if at < main.len() => {
            let rest = main.len().saturating_sub(at);
            walk.builder.issue(place, left_over(rest, "the checkpoint", at), "shown in source/ only");
            return Ok(());
        }
        Ok(()) => return Ok(()),
        Err(Fault::Error(e)) => return Err(e),
        Err(Fault::Io(e)) => return Err(Error::io("cannot read its structure", e)),
        Err(Fault::End) => format!("the file of {} bytes ends within the checkpoint (a download that was cut short?)", main.len()),
        Err(Fault::Damaged(what)) => format!("cannot be read past byte {at}: {what}"),
    };
    walk.builder.dropped();
    walk.builder.issue(place, what, "what comes before is served");
    walk.close_all().or_else(|fault| if let Fault::Error(e) = fault { Err(e) } else { Ok(()) })
}

impl Walk<'_> {
    fn run(&mut self) -> std::result::Result<(), Fault> {
        self.value()?;
        while let Some(level) = self.levels.last_mut() {
            if level.left == 0 {
                self.close()?;
                continue;
            }
            level.left = level.left.saturating_sub(1);
            let (is_map, index, name_len) = (level.is_map, level.next_index, level.name_len);
            level.next_index = level.next_index.saturating_add(1);
            let key = if is_map { self.key()? } else { index.to_string().into_bytes() };
            self.name.truncate(name_len);
            if self.levels.len() > 1 {
                self.name.push(b'.');
            }
            self.name.extend_from_slice(&key);
            if self.name.len() as u64 > limits::NAME_BYTES {
                return Err(Fault::Damaged("a name is far too long"));
            }
            self.value()?;
        }
        if self.values_left_out > 0 {
            let what = format!("has {} values that are no arrays, more than {}", self.values, limits::NESTED_VALUES);
            self.builder.issue(self.builder.path(self.id), what, format!("{} of them are left out of the metadata", self.values_left_out));
        }
        Ok(())
    }

    /// A map's key, as Python's str() would write it.
    fn key(&mut self) -> std::result::Result<Vec<u8>, Fault> {
        match Token::read(&mut self.reader)? {
            Token::Text(len) | Token::Bytes(len) if len <= limits::NAME_BYTES => text(&mut self.reader, len),
            Token::Unsigned(n) => Ok(n.to_string().into_bytes()),
            Token::Signed(n) => Ok(n.to_string().into_bytes()),
            Token::Bool(true) => Ok(b"True".to_vec()),
            Token::Bool(false) => Ok(b"False".to_vec()),
            Token::Nil => Ok(b"None".to_vec()),
            _ => Err(Fault::Damaged("a map has a key that is neither a string nor a number")),
        }
    }

    /// The last part of the current name.
    fn last_key(&self) -> Vec<u8> {
        let start = match self.levels.len() {
            0 => 0,
            1 => self.levels.last().map_or(0, |level| level.name_len),
            _ => self.levels.last().map_or(0, |level| level.name_len.saturating_add(1)),
        };
        self.name.get(start..).unwrap_or_default().to_vec()
    }

    fn value(&mut self) -> std::result::Result<(), Fault> {
        let json = match Token::read(&mut self.reader)? {
            Token::Map(n) => return self.open_level(n, true),
            Token::List(n) => return self.open_level(n, false),
            Token::Ext(1 | 3, len) => {
                let end = self.reader.position().saturating_add(len);
                match Array::read(&mut self.reader, len) {
                    Ok(array) => self.array(array)?,
                    Err(Fault::Damaged(what)) => {
                        let name = self.name.clone();
                        self.builder.dropped();
                        self.builder.tensor_issue(self.id, &name, what, "left out");
                        self.has_arrays();
                    }
                    Err(fault) => return Err(fault),
                }
                self.reader.seek(end);
                return if end > self.source.len() { Err(Fault::End) } else { Ok(()) };
            }
            Token::Ext(2, len) => {
                let end = self.reader.position().saturating_add(len);
                let complex = self.complex();
                self.reader.seek(end);
                if end > self.source.len() {
                    return Err(Fault::End);
                }
                match complex {
                    Ok(json) => json,
                    Err(Fault::Io(e)) => return Err(Fault::Io(e)),
                    Err(_) => json!({"ext": 2, "bytes": len}),
                }
            }
            Token::Ext(kind, len) => {
                self.reader.skip(len)?;
                json!({"ext": kind, "bytes": len})
            }
            Token::Text(len) | Token::Bytes(len) => {
                let start = self.reader.position();
                if len > limits::INLINE_STRING_BYTES {
                    self.reader.skip(len)?;
                    let extent = Extent::new(self.id, &self.source, start, len).ok_or(Fault::End)?;
                    self.leaf(Leaf::Stored(extent));
                    return Ok(());
                }
                let bytes = text(&mut self.reader, len)?;
                match String::from_utf8(bytes) {
                    Ok(text) => Json::String(text),
                    Err(e) => base64(e.as_bytes()),
                }
            }
            Token::Nil => Json::Null,
            Token::Bool(value) => json!(value),
            Token::Unsigned(value) => json!(value),
            Token::Signed(value) => json!(value),
            Token::F32(value) => float(value.into()),
            Token::F64(value) => float(value),
        };
        self.leaf(Leaf::Json(json));
        Ok(())
    }

    fn complex(&mut self) -> std::result::Result<Json, Fault> {
        let Token::List(2) = Token::read(&mut self.reader)? else { return Err(Fault::Damaged("a complex number is not a pair")) };
        let mut part = || match Token::read(&mut self.reader)? {
            Token::F64(value) => Ok(float(value)),
            Token::F32(value) => Ok(float(value.into())),
            Token::Unsigned(value) => Ok(json!(value)),
            Token::Signed(value) => Ok(json!(value)),
            _ => Err(Fault::Damaged("a complex number has a part that is no number")),
        };
        Ok(json!([part()?, part()?]))
    }

    fn open_level(&mut self, count: u64, is_map: bool) -> std::result::Result<(), Fault> {
        if self.levels.len() >= DEPTH {
            return Err(Fault::Damaged("maps are nested more than 256 deep"));
        }
        // Each value takes a byte at least, each entry of a map two.
        if count.saturating_mul(if is_map { 2 } else { 1 }) > self.reader.left() {
            return Err(Fault::End);
        }
        let name_len = self.name.len();
        self.levels.push(Level { name_len, left: count, is_map, next_index: 0, has_arrays: false, leaves: Vec::new(), chunked: None });
        Ok(())
    }

    fn has_arrays(&mut self) {
        if let Some(level) = self.levels.last_mut() {
            level.has_arrays = true;
        }
    }

    fn leaf(&mut self, leaf: Leaf) {
        self.values = self.values.saturating_add(1);
        if self.values > limits::NESTED_VALUES {
            self.values_left_out = self.values_left_out.saturating_add(1);
            return;
        }
        let key = self.last_key();
        let Some(level) = self.levels.last_mut() else { return };
        if key == CHUNKED && level.is_map && matches!(leaf, Leaf::Json(Json::Bool(true))) {
            level.chunked = Some(Chunked::default());
            level.has_arrays = true;
        } else {
            level.leaves.push((key, leaf));
        }
    }

    /// An array: a tensor, or a chunk of one.
    fn array(&mut self, array: Array) -> std::result::Result<(), Fault> {
        self.has_arrays();
        // The level around the list of chunks is the chunked array.
        let parent = self.levels.len().checked_sub(2).and_then(|index| self.levels.get_mut(index));
        if let Some(chunked) = parent.and_then(|level| level.chunked.as_mut()) {
            chunked.chunks.push(array);
            return Ok(());
        }
        let name = self.name.clone();
        self.tensor(&name, &array, None)?;
        Ok(())
    }

    fn tensor(&mut self, name: &[u8], array: &Array, joined: Option<Joined>) -> Result<()> {
        let known = dtype(&array.dtype);
        let mut spec = Spec::new(name, known.clone().unwrap_or(DType::Unknown(0)), &array.shape, self.id, Some(array.start));
        spec.bytes = Some(array.len);
        if known.is_none() {
            spec.opaque = true;
            self.builder.tensor_issue(self.id, name, format!("has the unknown dtype {}", quoted(&array.dtype)), "its bytes are served in raw/ only");
        }
        if let Some(joined) = joined {
            let size = spec.dtype.block().map_or(1, |(_, bytes)| bytes);
            let expected = product(&array.shape).and_then(|n| n.checked_mul(size));
            if known.is_some() && expected != Some(array.len) {
                self.builder.tensor_issue(self.id, name, format!("has {} bytes in its chunks, expected {expected:?}", array.len), "listed without files");
                (spec.offset, spec.bytes) = (None, None);
            } else {
                spec.computed = Some(Arc::new(Joined { size, ..joined }));
            }
        }
        self.builder.tensor(&spec)
    }

    /// Ends a map or list: without arrays it is one value of the one around it, else its values are keys of their own.
    fn close(&mut self) -> std::result::Result<(), Fault> {
        let Some(level) = self.levels.pop() else { return Ok(()) };
        self.name.truncate(level.name_len);
        if let Some(chunked) = level.chunked {
            return Ok(self.chunked(chunked, &level.leaves)?);
        }
        let in_chunked = self.levels.last().is_some_and(|parent| parent.chunked.is_some());
        let stored = level.leaves.iter().any(|(_, leaf)| matches!(leaf, Leaf::Stored(_)));
        if (level.has_arrays || stored || self.levels.is_empty()) && !in_chunked {
            self.has_arrays();
            let prefix = if self.levels.is_empty() { Vec::new() } else { [&self.name[..], b"."].concat() };
            for (key, leaf) in level.leaves {
                let value = match leaf {
                    Leaf::Stored(extent) => Value::StoredString(extent),
                    Leaf::Json(json) => value(json),
                };
                self.builder.metadata([&prefix[..], &key].concat(), value)?;
            }
            return Ok(());
        }
        let json = |leaf| match leaf {
            Leaf::Json(json) => json,
            Leaf::Stored(extent) => json!({"bytes": extent.len()}),
        };
        let whole = if level.is_map {
            Json::Object(level.leaves.into_iter().map(|(key, leaf)| (String::from_utf8_lossy(&key).into_owned(), json(leaf))).collect::<Map<_, _>>())
        } else {
            Json::Array(level.leaves.into_iter().map(|(_, leaf)| json(leaf)).collect())
        };
        let key = self.last_key();
        if let Some(parent) = self.levels.last_mut() {
            parent.leaves.push((key, Leaf::Json(whole)));
        }
        Ok(())
    }

    fn close_all(&mut self) -> std::result::Result<(), Fault> {
        while !self.levels.is_empty() {
            self.close()?;
        }
        Ok(())
    }

    /// A chunked array whose parts are known.
    fn chunked(&mut self, chunked: Chunked, leaves: &[(Vec<u8>, Leaf)]) -> Result<()> {
        self.has_arrays();
        let name = self.name.clone();
        let shape: Option<Vec<u64>> = leaves.iter().find(|(key, _)| key == b"shape").and_then(|(_, leaf)| match leaf {
            // Flax writes a tuple as a map with the keys "0", "1", ...
            Leaf::Json(Json::Object(object)) => (0..object.len()).map(|index| object.get(&index.to_string())?.as_u64()).collect(),
            Leaf::Json(Json::Array(list)) => list.iter().map(Json::as_u64).collect(),
            _ => None,
        });
        let first = chunked.chunks.first();
        let same = chunked.chunks.iter().all(|chunk| Some(&chunk.dtype) == first.map(|first| &first.dtype));
        let extents: Option<Vec<Extent>> = chunked.chunks.iter().map(|c| Extent::new(self.id, &self.source, c.start, c.len)).collect();
        let (Some(shape), Some(first), true, Some(extents)) = (shape, first, same, extents) else {
            self.builder.dropped();
            self.builder.tensor_issue(self.id, &name, "is an array in chunks whose shape or chunks are missing", "left out");
            return Ok(());
        };
        let len = extents.iter().fold(0u64, |len, extent| len.saturating_add(extent.len()));
        let array = Array { shape, dtype: first.dtype.clone(), start: first.start, len };
        self.tensor(&name, &array, Some(Joined { extents, size: 1 }))
    }
}

/// A value for metadata.json.
fn value(json: Json) -> Value {
    match json {
        Json::String(text) => Value::String(text.into_bytes()),
        Json::Bool(value) => Value::Bool(value),
        Json::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(value), ..) => Value::Unsigned(crate::catalog::Scalar::U64, value),
            (_, Some(value), _) => Value::Signed(crate::catalog::Scalar::I64, value),
            (.., value) => Value::F64(value.unwrap_or(f64::NAN)),
        },
        Json::Null => Value::Json("null", Json::Null),
        list @ Json::Array(_) => Value::Json("array", list),
        object @ Json::Object(_) => Value::Json("object", object),
    }
}

fn float(value: f64) -> Json {
    match serde_json::Number::from_f64(value) {
        Some(number) => Json::Number(number),
        // NaN and infinities by their names.
        None => serde_json::from_str(&crate::json::text(|out| crate::json::float(out, value))).unwrap_or_default(),
    }
}

fn base64(bytes: &[u8]) -> Json {
    json!({"base64": crate::json::text(|out| crate::json::base64(out, bytes))})
}

/// Runs of bytes that follow each other.
struct Joined {
    extents: Vec<Extent>,
    /// Bytes of an element.
    size: u64,
}

impl Elements for Joined {
    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [u8]) -> io::Result<()> {
        let mut skip = first.saturating_mul(self.size);
        let mut out = out;
        for extent in &self.extents {
            if skip >= extent.len() {
                skip = skip.saturating_sub(extent.len());
                continue;
            }
            let len = usize::try_from(extent.len().saturating_sub(skip)).unwrap_or(usize::MAX).min(out.len());
            let (part, rest) = out.split_at_mut_checked(len).unwrap_or_default();
            inputs.read(*extent, skip, part)?;
            (out, skip) = (rest, 0);
        }
        if out.is_empty() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use super::*;
    use crate::catalog::{Catalog, Data};
    use crate::formats::open_container;

    fn string(text: &str) -> Vec<u8> {
        [&[0xa0 | text.len() as u8], text.as_bytes()].concat()
    }

    fn array(shape: &[u8], dtype: &str, bytes: &[u8]) -> Vec<u8> {
        let body = [&[0x93, 0x90 | shape.len() as u8], shape, &string(dtype), &[0xc4, bytes.len() as u8], bytes].concat();
        [&[0xc7, body.len() as u8, 1], &body[..]].concat()
    }

    fn map(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let mut out = vec![0x80 | entries.len() as u8];
        for (key, value) in entries {
            out.extend(string(key));
            out.extend(value);
        }
        out
    }

    fn opened(bytes: &[u8]) -> std::result::Result<Catalog, String> {
        open_container(&Source::from_bytes("model.msgpack", bytes.to_vec())).map_err(|e| e.to_string())
    }

    fn summary(catalog: &Catalog) -> Vec<(String, String, Vec<u64>)> {
        catalog.tensors().map(|t| (String::from_utf8_lossy(t.name()).into_owned(), t.dtype().to_string(), t.shape().to_vec())).collect()
    }

    #[test]
    fn levels_are_joined_with_dots_and_what_is_no_array_is_metadata() {
        let bytes = map(&[
            ("params", map(&[("w", array(&[2], "float32", &[0; 8])), ("list", map(&[("0", array(&[], "bfloat16", &[0; 2]))]))])),
            ("step", vec![7]),
            ("config", map(&[("a", vec![0xc3]), ("b", vec![0x92, 0xff, 0xc0])])),
            ("z", vec![0xc7, 19, 2, 0x92, 0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0, 0xcb, 0xc0, 0, 0, 0, 0, 0, 0, 0]),
        ]);
        let catalog = opened(&bytes).unwrap();
        assert_eq!(summary(&catalog), [("params.w".into(), "f32".into(), vec![2]), ("params.list.0".into(), "bf16".into(), vec![])]);
        let metadata: Vec<String> = catalog.metadata().iter().map(|(k, v)| format!("{} {v:?}", String::from_utf8_lossy(k))).collect();
        assert_eq!(metadata[0], "step Unsigned(U64, 7)");
        assert!(metadata[1].starts_with("config Json(\"object\", Object {\"a\": Bool(true), \"b\": Array [Number(-1), Null]})"), "{metadata:?}");
        assert!(metadata[2].starts_with("z Json"), "{metadata:?}");
        assert!(catalog.issues().is_empty(), "{:?}", catalog.issues());
        assert!(matches!(catalog.tensor(0).unwrap().data(), Data::Stored(extent) if extent.len() == 8));
    }

    #[test]
    fn chunks_are_joined() {
        let ramp: Vec<u8> = (0..12).collect();
        let chunks = map(&[("0", array(&[4], "int16", &ramp[..8])), ("1", array(&[2], "int16", &ramp[8..]))]);
        let chunked = map(&[("__msgpack_chunked_array__", vec![0xc3]), ("shape", map(&[("0", vec![2]), ("1", vec![3])])), ("chunks", chunks)]);
        let bytes = map(&[("p", map(&[("w", chunked), ("n", vec![1])]))]);
        let catalog = opened(&bytes).unwrap();
        assert_eq!(summary(&catalog), [("p.w".into(), "i16".into(), vec![2, 3])]);
        assert_eq!(catalog.metadata().len(), 1);
        let Data::Computed(elements, 12) = catalog.tensor(0).unwrap().data() else { unreachable!("it is computed") };
        for (first, end) in [(0, 6), (3, 5), (5, 6), (0, 4)] {
            let mut out = vec![0; (end - first) * 2];
            elements.read(Inputs::new(catalog.sources()), first as u64, &mut out).unwrap();
            assert_eq!(out, ramp[first * 2..end * 2]);
        }
    }

    #[test]
    fn every_cut_is_an_error_or_a_part() {
        let bytes = map(&[("a", array(&[2], "float32", &[1; 8])), ("b", array(&[3], "int8", &[2; 3])), ("c", string("text"))]);
        for len in 0..bytes.len() {
            if let Ok(catalog) = opened(&bytes[..len]) {
                assert!(!catalog.issues().is_empty(), "{len}");
            }
        }
        assert_eq!(opened(&bytes).unwrap().issues().len(), 0);
        assert_eq!(opened(&[&bytes[..], b"more"].concat()).unwrap().issues().len(), 1);
    }

    #[test]
    fn nothing_is_believed_before_it_is_compared_with_the_file() {
        let good = array(&[1], "int8", &[0]);
        for bad in [
            vec![0xdf, 0xff, 0xff, 0xff, 0xff],
            vec![0xdd, 0xff, 0xff, 0xff, 0xff],
            vec![0xdb, 0xff, 0xff, 0xff, 0xff],
            vec![0xc9, 0xff, 0xff, 0xff, 0xff, 1],
            vec![0x91; 300],
            vec![0xc1],
        ] {
            let catalog = opened(&[&[0x82][..], &string("a"), &good, &string("b"), &bad].concat()).unwrap();
            assert_eq!((catalog.len(), catalog.issues().len()), (1, 1), "{bad:?}");
        }
        // A dtype that is not known, a shape that does not fit, an array that is none.
        for (bad, issues) in [(array(&[1], "int3", &[0]), 1), (array(&[7], "int8", &[0]), 1), (vec![0xc7, 1, 1, 0xc0], 1)] {
            let catalog = opened(&map(&[("a", good.clone()), ("b", bad)])).unwrap();
            assert_eq!(catalog.issues().len(), issues, "{:?}", catalog.issues());
        }
    }
}
