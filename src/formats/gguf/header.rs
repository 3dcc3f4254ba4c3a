//! The header of one GGUF file: keys and the table of tensors.

use super::bad_key;
use crate::catalog::{Scalar, StoredArray, Value};
use crate::error::{Error, Result, counted, quoted};
use crate::formats::stopped;
use crate::limits;
use crate::reader::{Endian, Reader, Stop};
use crate::source::{Extent, Source, SourceId};

/// Where a GGUF lies in its file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Offset of its first byte.
    pub(super) start: u64,
    /// Its length in bytes.
    pub(super) len: u64,
}

/// What the header says, with the offsets made relative to the file.
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) endian: Endian,
    pub(super) alignment: u64,
    /// Offset in the file of the first tensor's data.
    pub(super) data_start: u64,
    /// Offset in the file of the end of this GGUF.
    pub(super) end: u64,
    pub(super) metadata: Vec<(Vec<u8>, Value)>,
    infos: Vec<Info>,
    names: Vec<u8>,
    dims: Vec<u64>,
}

/// A row of the table of tensors; names and dims lie back to back in the header's arenas.
struct Info {
    name_bytes: u32,
    n_dims: u32,
    kind: u32,
    offset: u64,
}

/// One tensor as the table gives it.
pub(super) struct TensorInfo<'a> {
    pub(super) name: &'a [u8],
    /// Dimensions as stored: the fastest first.
    pub(super) dims: &'a [u64],
    /// The ggml type number.
    pub(super) kind: u32,
    /// Offset from the start of the data.
    pub(super) offset: u64,
}

/// A key, a type, a value (GGUF spec): no encoder can write less.
const LEAST_KEY_BYTES: [u64; 2] = [10, 14];
/// A name's length, n_dims, type, offset.
const LEAST_TENSOR_BYTES: [u64; 2] = [20, 24];
/// The largest `general.alignment` that is believed, in bytes; real ones are 32 to 65536.
const MOST_ALIGNMENT: u64 = 1 << 24;

struct Parser<'a> {
    reader: Reader<'a>,
    source: &'a Source,
    id: SourceId,
    version: u32,
    nested: u64,
    /// Bytes of the arrays in them.
    nested_bytes: u64,
}

impl Header {
    /// Reads the header of the GGUF at `place` in `source`, which is number `id` of its catalogue.
    pub(super) fn read(source: &Source, id: SourceId, place: Place) -> Result<Self> {
        let end = place.start.saturating_add(place.len);
        let mut parser = Parser { reader: Reader::new(source, place.start, end), source, id, version: 3, nested: 0, nested_bytes: 0 };
        let (tensor_count, key_count) = parser.counts()?;
        let mut header = Self {
            version: parser.version,
            endian: parser.reader.endian,
            alignment: 32,
            data_start: 0,
            end,
            metadata: Vec::new(),
            infos: Vec::new(),
            names: Vec::new(),
            dims: Vec::new(),
        };
        for number in 0..key_count {
            let (key, value) = parser.key(number, key_count)?;
            if key == b"general.alignment" {
                header.alignment = alignment(&key, &value)?;
            }
            header.metadata.push((key, value));
        }
        for number in 0..tensor_count {
            parser.tensor(number, tensor_count, &mut header)?;
        }
        // Alignment is relative to the GGUF's own first byte, wherever it lies in the file.
        let table_end = parser.reader.position().saturating_sub(place.start);
        let aligned = table_end.checked_next_multiple_of(header.alignment).unwrap_or(table_end);
        header.data_start = place.start.saturating_add(if tensor_count == 0 { table_end } else { aligned });
        Ok(header)
    }

    /// The first value of a key.
    pub(super) fn value(&self, key: &[u8]) -> Option<&Value> {
        self.metadata.iter().find(|(k, _)| k == key).map(|(_, value)| value)
    }

    pub(super) fn tensor_count(&self) -> u64 {
        self.infos.len() as u64
    }

    /// Every tensor in the order of the table.
    pub(super) fn tensors(&self) -> impl Iterator<Item = TensorInfo<'_>> {
        let (mut names, mut dims) = (self.names.as_slice(), self.dims.as_slice());
        self.infos.iter().map(move |info| {
            let (name, rest) = names.split_at_checked(info.name_bytes as usize).unwrap_or((names, &[]));
            names = rest;
            let (own, rest) = dims.split_at_checked(info.n_dims as usize).unwrap_or((dims, &[]));
            dims = rest;
            TensorInfo { name, dims: own, kind: info.kind, offset: info.offset }
        })
    }

    /// For each tensor the bytes from its own offset to the next larger one, or to the end of the file.
    pub(super) fn gaps(&self) -> Vec<u64> {
        let mut offsets: Vec<u64> = self.infos.iter().map(|info| info.offset).collect();
        offsets.sort_unstable();
        offsets.dedup();
        let data = self.end.saturating_sub(self.data_start);
        let gap = |offset: u64| {
            let next = offsets.partition_point(|o| *o <= offset);
            offsets.get(next).copied().unwrap_or(data).min(data).saturating_sub(offset)
        };
        self.infos.iter().map(|info| gap(info.offset)).collect()
    }
}

fn alignment(key: &[u8], value: &Value) -> Result<u64> {
    let number = value.as_u64().ok_or_else(|| bad_key(key, format!("is of type {}, expected u32", value.type_name())))?;
    if !number.is_power_of_two() || number > MOST_ALIGNMENT {
        return Err(bad_key(key, format!("is {number}, expected a power of two up to {MOST_ALIGNMENT}")));
    }
    Ok(number)
}

impl Parser<'_> {
    /// 0 in version 1, whose counts and lengths have 32 bits, and 1 after it.
    fn wide(&self) -> usize {
        usize::from(self.version > 1)
    }

    fn length(&mut self) -> std::result::Result<u64, Stop> {
        if self.version > 1 { self.reader.u64() } else { self.reader.u32().map(u64::from) }
    }

    fn counts(&mut self) -> Result<(u64, u64)> {
        let source = self.source;
        let stop = |stop| stopped(stop, "the GGUF header", source);
        let big_magic = self.reader.take(4).map_err(stop)? == b"FUGG";
        let version = self.reader.u32().map_err(stop)?;
        let swapped = big_magic || (version & 0xFFFF == 0 && version != 0);
        if swapped {
            self.reader.endian = Endian::Big;
        }
        self.version = if swapped { version.swap_bytes() } else { version };
        if !(1..=3).contains(&self.version) {
            return Err(Error::unsupported(format!("is GGUF version {}, expected 1, 2 or 3", self.version)));
        }
        let tensors = self.length().map_err(stop)?;
        let keys = self.length().map_err(stop)?;
        let left = self.reader.left();
        for (count, one, what, least, most) in
            [(keys, "key", "keys", LEAST_KEY_BYTES, limits::KEYS), (tensors, "tensor", "tensors", LEAST_TENSOR_BYTES, limits::TENSORS)]
        {
            let least = least.get(self.wide()).copied().unwrap_or(1);
            if count.checked_mul(least).is_none_or(|bytes| bytes > left) {
                return Err(Error::format(format!(
                    "its header announces {}, but only {}",
                    counted(count, one, what),
                    counted(left, "byte follows", "bytes follow")
                )));
            }
            if count > most {
                return Err(Error::limit(format!("has {count} {what}, more than the limit of {most}")));
            }
        }
        Ok((tensors, keys))
    }

    /// A name or key: short, held in memory.
    fn name(&mut self, what: &str, number: u64, of: u64) -> Result<Vec<u8>> {
        let source = self.source;
        let what = || format!("the name of {what} {} of {of}", number.saturating_add(1));
        let len = self.length().map_err(|s| stopped(s, &what(), source))?;
        if len > self.reader.left() {
            return Err(stopped(Stop::End { needed: len, left: self.reader.left() }, &what(), source));
        }
        if len > limits::NAME_BYTES {
            return Err(Error::limit(format!("{} is {len} bytes long, more than the limit of {}", what(), limits::NAME_BYTES)));
        }
        let mut name = self.reader.take(usize::try_from(len).unwrap_or(usize::MAX)).map_err(|s| stopped(s, &what(), source))?.to_vec();
        if self.version == 1 {
            strip_nul(&mut name);
        }
        Ok(name)
    }

    fn key(&mut self, number: u64, of: u64) -> Result<(Vec<u8>, Value)> {
        let key = self.name("key", number, of)?;
        let what = format!("key {}", quoted(&key));
        let source = self.source;
        let kind = self.reader.u32().map_err(|s| stopped(s, &what, source))?;
        let value = self.value(&key, &what, kind, 0)?;
        Ok((key, value))
    }

    fn value(&mut self, key: &[u8], what: &str, kind: u32, depth: usize) -> Result<Value> {
        let source = self.source;
        let stop = |s| stopped(s, what, source);
        let reader = &mut self.reader;
        Ok(match kind {
            0 => Value::Unsigned(Scalar::U8, reader.u8().map_err(stop)?.into()),
            1 => Value::Signed(Scalar::I8, reader.u8().map_err(stop)?.cast_signed().into()),
            2 => Value::Unsigned(Scalar::U16, reader.u16().map_err(stop)?.into()),
            3 => Value::Signed(Scalar::I16, reader.u16().map_err(stop)?.cast_signed().into()),
            4 => Value::Unsigned(Scalar::U32, reader.u32().map_err(stop)?.into()),
            5 => Value::Signed(Scalar::I32, reader.u32().map_err(stop)?.cast_signed().into()),
            6 => Value::F32(f32::from_bits(reader.u32().map_err(stop)?)),
            7 => Value::Bool(reader.u8().map_err(stop)? != 0),
            8 => self.string(what)?,
            9 => self.array(key, what, depth)?,
            10 => Value::Unsigned(Scalar::U64, reader.u64().map_err(stop)?),
            11 => Value::Signed(Scalar::I64, reader.u64().map_err(stop)?.cast_signed()),
            12 => Value::F64(f64::from_bits(reader.u64().map_err(stop)?)),
            other => return Err(bad_key(key, format!("has value type {other}, expected 0 to 12"))),
        })
    }

    fn string(&mut self, what: &str) -> Result<Value> {
        let source = self.source;
        let stop = |s| stopped(s, what, source);
        let len = self.length().map_err(stop)?;
        if len <= limits::INLINE_STRING_BYTES {
            let mut bytes = self.reader.take(usize::try_from(len).unwrap_or(0)).map_err(stop)?.to_vec();
            if self.version == 1 {
                strip_nul(&mut bytes);
            }
            return Ok(Value::String(bytes));
        }
        let start = self.reader.position();
        self.reader.skip(len).map_err(stop)?;
        let mut last = [1];
        if self.version == 1 {
            source.read_at(start.saturating_add(len).saturating_sub(1), &mut last).map_err(|e| stop(e.into()))?;
        }
        let len = if last == [0] { len.saturating_sub(1) } else { len };
        Extent::new(self.id, source, start, len).map(Value::StoredString).ok_or_else(|| Error::format(format!("{what} leaves the file")))
    }

    fn array(&mut self, key: &[u8], what: &str, depth: usize) -> Result<Value> {
        let source = self.source;
        let stop = |s| stopped(s, what, source);
        let kind = self.reader.u32().map_err(stop)?;
        let count = self.length().map_err(stop)?;
        if kind == 9 {
            return self.nested(key, what, count, depth);
        }
        // What lies in nested arrays is rendered in one go, and is bounded for that.
        self.spend(key, if depth > 0 { count } else { 0 })?;
        let element = scalar(kind).ok_or_else(|| bad_key(key, format!("has array element type {kind}, expected 0 to 12")))?;
        let start = self.reader.position();
        let announced = |left| bad_key(key, format!("announces {count} elements of type {}, but only {left} bytes follow", element.name()));
        let length_bytes = if self.version > 1 { 8 } else { 4 };
        let least = count.checked_mul(element.bytes().unwrap_or(length_bytes));
        let least = least.filter(|bytes| *bytes <= self.reader.left()).ok_or_else(|| announced(self.reader.left()))?;
        if element == Scalar::String {
            for _ in 0..count {
                let len = self.length().map_err(stop)?;
                self.reader.skip(len).map_err(stop)?;
            }
        } else {
            self.reader.skip(least).map_err(stop)?;
        }
        let len = self.reader.position().saturating_sub(start);
        if depth > 0 {
            self.nested_bytes = self.nested_bytes.saturating_add(len);
            if self.nested_bytes > limits::NESTED_BYTES {
                return Err(Error::limit(format!("key {}: nested arrays hold more than {} bytes", quoted(key), limits::NESTED_BYTES)));
            }
        }
        let extent = Extent::new(self.id, source, start, len).ok_or_else(|| announced(0))?;
        let length_bytes = if self.version > 1 { 8 } else { 4 };
        Ok(Value::StoredArray(StoredArray { element, count, extent, endian: self.reader.endian, length_bytes, strip_nul: self.version == 1 }))
    }

    /// Counts values that nested arrays hold.
    fn spend(&mut self, key: &[u8], count: u64) -> Result<()> {
        self.nested = self.nested.saturating_add(count);
        if self.nested > limits::NESTED_VALUES {
            return Err(Error::limit(format!("key {}: nested arrays hold more than {} values", quoted(key), limits::NESTED_VALUES)));
        }
        Ok(())
    }

    /// An array of arrays: llama.cpp refuses them, the specification and gguf-py do not.
    fn nested(&mut self, key: &[u8], what: &str, count: u64, depth: usize) -> Result<Value> {
        if depth >= 8 {
            return Err(bad_key(key, "nests arrays more than 8 deep".to_string()));
        }
        self.spend(key, count)?;
        // An inner array takes at least its element type and count.
        if count.checked_mul(8).is_none_or(|bytes| bytes > self.reader.left()) {
            return Err(bad_key(key, format!("announces {count} arrays, but only {} bytes follow", self.reader.left())));
        }
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(self.array(key, what, depth.saturating_add(1))?);
        }
        Ok(Value::Arrays(items))
    }

    fn tensor(&mut self, number: u64, of: u64, header: &mut Header) -> Result<()> {
        let name = self.name("tensor", number, of)?;
        let source = self.source;
        let stop = |s| stopped(s, &format!("the table entry of tensor {}", quoted(&name)), source);
        let n_dims = self.reader.u32().map_err(stop)?;
        if n_dims as usize > limits::DIMENSIONS {
            return Err(Error::format(format!("tensor {} has {n_dims} dimensions, expected at most 64", quoted(&name))));
        }
        for _ in 0..n_dims {
            let dimension = if self.version > 1 { self.reader.u64() } else { self.reader.u32().map(u64::from) };
            header.dims.push(dimension.map_err(stop)?);
        }
        let kind = self.reader.u32().map_err(stop)?;
        let offset = self.reader.u64().map_err(stop)?;
        header.infos.push(Info { name_bytes: u32::try_from(name.len()).unwrap_or(0), n_dims, kind, offset });
        header.names.extend_from_slice(&name);
        Ok(())
    }
}

fn scalar(kind: u32) -> Option<Scalar> {
    use Scalar::{Bool, F32, F64, I8, I16, I32, I64, String, U8, U16, U32, U64};
    let scalars = [U8, I8, U16, I16, U32, I32, F32, Bool, String];
    match kind {
        10 => Some(U64),
        11 => Some(I64),
        12 => Some(F64),
        other => scalars.get(other as usize).copied(),
    }
}

/// The C writer of August 2023 counted the terminating NUL in every string of version 1.
fn strip_nul(bytes: &mut Vec<u8>) {
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
}
