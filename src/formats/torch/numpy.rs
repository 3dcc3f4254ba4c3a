//! NumPy arrays and scalars inside a pickle.
//!
//! An array is `_reconstruct` with a state, or `_frombuffer` under protocol 5; both spellings of NumPy's modules occur. Under protocol 2 and before, Python 3 writes
//! bytes as text that is to be encoded in Latin-1, in which each byte from 0x80 on takes two.

use std::io;
use std::sync::Arc;

use super::super::npy;
use super::super::pickle::json::{Writer, modern};
use super::super::pickle::text::latin1;
use super::super::pickle::{Graph, Id, Node, Run};
use super::tensor::Bad;
use crate::catalog::{Order, Spec, product};
use crate::dtype::DType;
use crate::json;
use crate::limits;
use crate::reader::Endian;
use crate::recipe::{Elements, Inputs};
use crate::source::{Extent, Source, SourceId};

/// An array.
pub(super) struct Array {
    dtype: DType,
    endian: Endian,
    order: Order,
    shape: Vec<u64>,
    bytes: Payload,
}

/// Where bytes are.
#[derive(Clone)]
pub(super) enum Payload {
    /// In the stream, as they are: offset and length.
    Stored(u64, u64),
    /// Nowhere as they are, and few.
    Held(Arc<[u8]>),
    /// In the stream as text.
    Latin1(Arc<Latin1>),
}

impl Payload {
    /// The bytes of a string, a bytes object or a call that makes one; `None` if the node is none of these.
    pub(super) fn of(graph: &Graph, id: Id) -> Option<Result<Self, String>> {
        match graph.node(id) {
            Node::Bytes(run) | Node::Text(run) => Some(Self::plain(graph, *run)),
            Node::Object(_) => match graph.call(id)? {
                ("_codecs", "encode", [text, ..]) => Some(Self::encoded(graph, *text)),
                (module, "bytearray" | "bytes", [content, encoding @ ..]) if modern(module) == "builtins" => match encoding {
                    [] => {
                        matches!(graph.node(*content), Node::Bytes(_) | Node::Text(_)).then(|| graph.run(*content)).flatten().map(|run| Self::plain(graph, run))
                    }
                    _ => Some(Self::encoded(graph, *content)),
                },
                (module, "bytearray" | "bytes", []) if modern(module) == "builtins" => Some(Ok(Self::Held(Arc::from([])))),
                _ => None,
            },
            _ => None,
        }
    }

    fn plain(graph: &Graph, run: Run) -> Result<Self, String> {
        match run.position() {
            Some(at) => Ok(Self::Stored(at, run.len())),
            None => graph.bytes(run, run.len()).map(|bytes| Self::Held(Arc::from(&*bytes))).map_err(|e| e.to_string()),
        }
    }

    fn encoded(graph: &Graph, text: Id) -> Result<Self, String> {
        let Node::Text(run) = graph.node(text) else { return Err("its bytes are made from something that is no text".to_string()) };
        if let Some(short) = graph.short(text) {
            return match latin1(short) {
                Some(bytes) => Ok(Self::Held(bytes.into())),
                None => Err(NOT_LATIN1.to_string()),
            };
        }
        let at = run.position().ok_or("its bytes are nowhere")?;
        Latin1::new(graph.source(), at, run.len()).map(|text| Self::Latin1(Arc::new(text)))
    }

    fn len(&self) -> u64 {
        match self {
            Self::Stored(_, len) => *len,
            Self::Held(bytes) => bytes.len() as u64,
            Self::Latin1(text) => text.decoded,
        }
    }

    /// All the bytes, if they are not more than `most`.
    pub(super) fn read(&self, graph: &Graph, most: u64) -> Option<Vec<u8>> {
        let len = usize::try_from(self.len()).ok().filter(|_| self.len() <= most)?;
        let mut out = vec![0; len];
        match self {
            Self::Stored(at, _) => graph.source().read_at(*at, &mut out).ok()?,
            Self::Held(bytes) => out.copy_from_slice(bytes),
            Self::Latin1(text) => text.read(&|at, part| graph.source().read_at(at, part), 0, &mut out).ok()?,
        }
        Some(out)
    }
}

const NOT_LATIN1: &str = "its bytes are text with characters that are no bytes";

/// Long text that stands for bytes: where it is, and how many bytes come before each window of it.
pub(super) struct Latin1 {
    at: u64,
    len: u64,
    decoded: u64,
    before: Vec<u64>,
}

/// Bytes of text between two entries of the table.
const WINDOW: u64 = 64 << 10;

impl Latin1 {
    fn new(source: &Source, at: u64, len: u64) -> Result<Self, String> {
        let mut before = Vec::new();
        let mut decoded = 0_u64;
        let mut window = vec![0; usize::try_from(WINDOW).unwrap_or(0)];
        let mut done = 0;
        while done < len {
            let part = usize::try_from(len.saturating_sub(done).min(WINDOW)).unwrap_or(0);
            let part = window.get_mut(..part).unwrap_or_default();
            source.read_at(at.saturating_add(done), part).map_err(|e| e.to_string())?;
            before.push(decoded);
            if part.iter().any(|byte| matches!(byte, 0xC0 | 0xC1 | 0xC4..)) {
                return Err(NOT_LATIN1.to_string());
            }
            decoded = decoded.saturating_add(part.iter().filter(|byte| !is_second(**byte)).count() as u64);
            done = done.saturating_add(part.len() as u64);
        }
        Ok(Self { at, len, decoded, before })
    }

    /// Fills `out` with the bytes from number `first` on; `fetch` reads the source.
    fn read(&self, fetch: &dyn Fn(u64, &mut [u8]) -> io::Result<()>, first: u64, out: &mut [u8]) -> io::Result<()> {
        let mut window = (self.before.partition_point(|before| *before <= first) as u64).saturating_sub(1);
        let mut number = usize::try_from(window).ok().and_then(|window| self.before.get(window)).copied().unwrap_or(0);
        let mut done = 0_usize;
        let mut text = Vec::new();
        while done < out.len() {
            let start = window.saturating_mul(WINDOW);
            // One byte more than the window: its last character may go on there.
            let len = self.len.saturating_sub(start).min(WINDOW.saturating_add(1));
            if len == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            text.resize(usize::try_from(len).unwrap_or(0), 0);
            fetch(self.at.saturating_add(start), &mut text)?;
            for (place, byte) in text.iter().enumerate().take(usize::try_from(WINDOW).unwrap_or(0)) {
                if is_second(*byte) {
                    continue;
                }
                if number >= first {
                    let Some(target) = out.get_mut(done) else { break };
                    let second = text.get(place.saturating_add(1)).copied().unwrap_or(0x80);
                    *target = if *byte < 0x80 { *byte } else { (*byte & 3) << 6 | (second & 0x3F) };
                    done = done.saturating_add(1);
                }
                number = number.saturating_add(1);
            }
            window = window.saturating_add(1);
        }
        Ok(())
    }
}

fn is_second(byte: u8) -> bool {
    (0x80..0xC0).contains(&byte)
}

/// Elements that are text in the stream, or held in memory.
struct Decoded {
    bytes: Payload,
    /// All of the stream's source, where it is read.
    stream: Option<Extent>,
    element: u64,
}

impl Elements for Decoded {
    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [u8]) -> io::Result<()> {
        let first = first.saturating_mul(self.element);
        match (&self.bytes, self.stream) {
            (Payload::Held(bytes), _) => {
                let start = usize::try_from(first).unwrap_or(usize::MAX);
                let part = bytes.get(start..).and_then(|rest| rest.get(..out.len())).ok_or(io::ErrorKind::UnexpectedEof)?;
                out.copy_from_slice(part);
                Ok(())
            }
            (Payload::Latin1(text), Some(stream)) => {
                let start = stream.offset();
                text.read(&|at, part| inputs.read(stream, at.saturating_sub(start), part), first, out)
            }
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }
}

impl Array {
    /// Shape, dtype, whether it is in Fortran's order, and data of the array that a node stands for; `None` if it is none, or one of Python objects.
    fn parts(graph: &Graph, id: Id) -> Option<(Id, Id, bool, Id)> {
        let (module, name, args) = graph.call(id)?;
        let inside = module.strip_prefix("numpy.")?;
        let parts = match (inside, name) {
            ("core.multiarray" | "_core.multiarray", "_reconstruct") => match graph.tuple(graph.object(id)?.state?)? {
                [_, shape, dtype, fortran, data] | [shape, dtype, fortran, data] => (*shape, *dtype, graph.int(*fortran) == Some(1), *data),
                _ => return None,
            },
            ("core.numeric" | "_core.numeric", "_frombuffer") => match args {
                [data, dtype, shape, order, ..] => (*shape, *dtype, graph.short(*order) == Some(b"F"), *data),
                _ => return None,
            },
            _ => return None,
        };
        matches!(graph.node(parts.3), Node::Bytes(_) | Node::Text(_) | Node::Object(_)).then_some(parts)
    }

    /// Whether a node stands for an array that can be a tensor.
    pub(super) fn is_one(graph: &Graph, id: Id) -> bool {
        Self::parts(graph, id).is_some()
    }

    /// The array that a node stands for; `None` if it is none, or one of Python objects.
    pub(super) fn of(graph: &Graph, id: Id) -> Option<Result<Self, Bad>> {
        let (shape, dtype, fortran, data) = Self::parts(graph, id)?;
        let bytes = Payload::of(graph, data).unwrap_or_else(|| Err("its bytes are made in an unknown way".to_string()));
        Some(Self::read(graph, shape, dtype, fortran, bytes))
    }

    fn read(graph: &Graph, shape: Id, dtype: Id, fortran: bool, bytes: Result<Payload, String>) -> Result<Self, Bad> {
        let shape = super::rebuild::sizes(graph, shape).ok_or("its shape is no tuple of sizes")?;
        if shape.len() > limits::DIMENSIONS {
            return Err(format!("has {} dimensions, NumPy takes {}", shape.len(), limits::DIMENSIONS).into());
        }
        let (dtype, endian, dimensions) = dtype_of(graph, dtype, 0)?;
        let shape: Vec<u64> = shape.into_iter().chain(dimensions).collect();
        let bad = |what: String| Bad { what, known: Some((dtype.clone(), shape.clone())) };
        let bytes = bytes.map_err(bad)?;
        let needed = product(&shape).zip(dtype.block()).and_then(|(elements, (_, size))| elements.checked_mul(size));
        if needed != Some(bytes.len()) {
            return Err(bad(format!("has {} bytes, shape {shape:?} of {dtype} needs another number", bytes.len())));
        }
        let order = if fortran { Order::F } else { Order::C };
        Ok(Self { dtype, endian, order, shape, bytes })
    }

    /// The array as a tensor of the catalogue.
    pub(super) fn spec<'a>(&'a self, name: &'a [u8], stream: (SourceId, Option<Extent>)) -> Spec<'a> {
        let (id, whole) = stream;
        let spec = Spec { order: self.order, endian: self.endian, ..Spec::new(name, self.dtype.clone(), &self.shape, id, None) };
        match &self.bytes {
            Payload::Stored(at, _) => Spec { offset: Some(*at), ..spec },
            other => {
                let element = self.dtype.block().map_or(1, |(_, bytes)| bytes);
                Spec { computed: Some(Arc::new(Decoded { bytes: other.clone(), stream: whole, element })), ..spec }
            }
        }
    }
}

/// A dtype object: type, byte order, and the dimensions of a sub-array.
fn dtype_of(graph: &Graph, id: Id, depth: usize) -> Result<(DType, Endian, Vec<u64>), Bad> {
    if let Some(("numpy", "dtype", [code, ..])) = graph.call(id)
        && let Some((module, name)) = graph.global(*code)
        && module.starts_with("ml_dtypes")
    {
        let name = match name {
            "bfloat16" => "bf16",
            "float8_e4m3fn" => "f8_e4m3",
            "float8_e5m2" => "f8_e5m2",
            "float8_e4m3fnuz" => "f8_e4m3fnuz",
            "float8_e5m2fnuz" => "f8_e5m2fnuz",
            "float8_e8m0fnu" => "f8_e8m0",
            other => return Err(format!("its dtype ml_dtypes.{other} is not known").into()),
        };
        return Ok((DType::by_name(name).unwrap_or(DType::Unknown(0)), Endian::Little, Vec::new()));
    }
    let literal = literal(graph, id, depth).ok_or("its dtype is not one that NumPy writes")?;
    npy::described(&literal).map_err(|e| Bad::from(e.message()))
}

/// A dtype object as the literal that an npy header would have.
fn literal(graph: &Graph, id: Id, depth: usize) -> Option<npy::Literal> {
    if depth > limits::NESTING {
        return None;
    }
    let text = |text: String| Some(npy::Literal::Text(text));
    let (module, name, args) = graph.call(id)?;
    let state = graph.object(id)?.state.and_then(|state| graph.tuple(state)).unwrap_or_default();
    let code = match (module, name, args) {
        ("numpy", "dtype", [code, ..]) => match graph.global(*code) {
            Some((_, name)) => named(name)?.to_string(),
            None => String::from_utf8(graph.short(*code)?.to_vec()).ok()?,
        },
        ("numpy.dtypes", name, _) => named(&name.strip_suffix("DType")?.to_ascii_lowercase())?.to_string(),
        _ => return None,
    };
    let order = state.get(1).and_then(|order| graph.short(*order)).and_then(|order| order.first()).copied();
    if let Some([base, shape]) = state.get(2).and_then(|sub| graph.tuple(*sub)) {
        let shape = super::rebuild::sizes(graph, *shape).or_else(|| Some(vec![u64::try_from(graph.int(*shape)?).ok()?]))?;
        let shape = shape.into_iter().map(npy::Literal::Integer).collect();
        return Some(npy::Literal::Tuple(vec![literal(graph, *base, depth.saturating_add(1))?, npy::Literal::Tuple(shape)]));
    }
    if let Some(names) = state.get(3).and_then(|names| graph.tuple(*names)).filter(|names| !names.is_empty()) {
        return structure(graph, names, state, depth);
    }
    let bare = code.trim_start_matches(['<', '>', '|', '=']);
    let mark = match (order, code.bytes().next()) {
        (Some(order @ (b'<' | b'>')), _) | (None, Some(order @ (b'<' | b'>'))) => char::from(order),
        (Some(b'|'), _) | (None, Some(b'|')) => '|',
        _ => '<',
    };
    // A zero size stands for one that is in the state.
    let size = state.get(5).and_then(|size| graph.int(*size)).filter(|size| *size >= 0);
    let bare = match (bare, size) {
        ("V" | "S" | "V0" | "S0", Some(size)) => format!("{}{size}", bare.get(..1)?),
        ("U" | "U0", Some(size)) => format!("U{}", size.checked_div(4)?),
        _ => bare.to_string(),
    };
    if matches!(bare.as_str(), "M8" | "m8") {
        let unit = state.get(8).and_then(|meta| graph.tuple(*meta)).and_then(|meta| graph.tuple(*meta.get(1)?))?;
        let (name, count) = (String::from_utf8(Payload::of(graph, *unit.first()?)?.ok()?.read(graph, 64)?).ok()?, graph.int(*unit.get(1)?)?);
        let count = if count == 1 { String::new() } else { count.to_string() };
        return text(if name == "generic" { format!("{mark}{bare}") } else { format!("{mark}{bare}[{count}{name}]") });
    }
    text(format!("{mark}{bare}"))
}

/// The letter and size of a scalar type.
fn named(name: &str) -> Option<&'static str> {
    Some(match name {
        // The class of structured scalars; the fields are in the state.
        "record" | "void" => "V",
        "bool" | "bool_" => "b1",
        "int8" => "i1",
        "int16" => "i2",
        "int32" => "i4",
        "int64" => "i8",
        "uint8" => "u1",
        "uint16" => "u2",
        "uint32" => "u4",
        "uint64" => "u8",
        "float16" => "f2",
        "float32" => "f4",
        "float64" => "f8",
        "complex64" => "c8",
        "complex128" => "c16",
        _ => return None,
    })
}

/// A structured dtype, with its gaps as unnamed fields.
fn structure(graph: &Graph, names: &[Id], state: &[Id], depth: usize) -> Option<npy::Literal> {
    let Node::Dict(fields) = graph.node(*state.get(4)?) else { return None };
    let gap = |bytes: u64| npy::Literal::Tuple(vec![npy::Literal::Text(String::new()), npy::Literal::Text(format!("|V{bytes}"))]);
    let mut list = Vec::new();
    let mut at = 0;
    for name in names.iter().take(4096) {
        let name = graph.short(*name)?;
        let field = fields.iter().find(|(key, _)| graph.short(*key) == Some(name)).and_then(|(_, field)| graph.tuple(*field))?;
        let (dtype, offset) = (*field.first()?, u64::try_from(graph.int(*field.get(1)?)?).ok()?);
        let hole = offset.checked_sub(at)?;
        if hole > 0 {
            list.push(gap(hole));
        }
        let inner = literal(graph, dtype, depth.saturating_add(1))?;
        let (described, _, dimensions) = npy::described(&inner).ok()?;
        let bytes = product(&dimensions)?.checked_mul(described.block()?.1)?;
        at = offset.checked_add(bytes)?;
        let name = npy::Literal::Text(String::from_utf8_lossy(name).into_owned());
        list.push(npy::Literal::Tuple(vec![name, inner]));
    }
    let size = u64::try_from(graph.int(*state.get(5)?)?).ok()?;
    let hole = size.checked_sub(at)?;
    if hole > 0 {
        list.push(gap(hole));
    }
    Some(npy::Literal::List(list))
}

/// A NumPy scalar as JSON text; `None` if the node is none.
pub(super) fn scalar(graph: &Graph, id: Id) -> Option<String> {
    let (module, name, args) = graph.call(id)?;
    if !matches!((module, name), ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar")) {
        return None;
    }
    let [dtype, data] = args else { return None };
    let (dtype, endian, _) = dtype_of(graph, *dtype, 0).ok()?;
    let mut bytes = Payload::of(graph, *data)?.ok()?.read(graph, 64 << 10)?;
    let opaque = |bytes: &[u8]| Some(format!("{{\"__opaque__\": \"numpy.{dtype}\", \"base64\": \"{}\"}}", json::text(|out| json::base64(out, bytes))));
    let DType::Native(native) = &dtype else { return opaque(&bytes) };
    if bytes.len() != usize::from(native.bytes) {
        return None;
    }
    if native.kind == 'c' {
        return opaque(&bytes);
    }
    if endian == Endian::Big {
        bytes.reverse();
    }
    let sign = if native.kind == 'i' && bytes.last().is_some_and(|b| *b >= 0x80) { 0xFF } else { 0 };
    let mut wide = [sign; 8];
    wide.iter_mut().zip(&bytes).for_each(|(to, from)| *to = *from);
    let bits = u64::from_le_bytes(wide);
    Some(match (native.kind, native.bytes) {
        ('f', 8) => json::text(|out| json::float(out, f64::from_bits(bits))),
        ('f', 4) => {
            let value = f32::from_bits(u32::try_from(bits).ok()?);
            json::text(|out| json::float(out, value))
        }
        ('f', _) => {
            let value = half::f16::from_bits(u16::try_from(bits).ok()?).to_f64();
            json::text(|out| json::float(out, value))
        }
        ('i', _) => bits.cast_signed().to_string(),
        ('b', _) => (bits != 0).to_string(),
        _ => bits.to_string(),
    })
}

/// The JSON text of a value that has a meaning of its own in NumPy or torch.
pub(super) fn known(graph: &Graph, id: Id) -> Option<String> {
    if let Some(text) = scalar(graph, id) {
        return Some(text);
    }
    match graph.call(id)? {
        ("torch", "device", [kind, index @ ..]) => {
            let kind = String::from_utf8(graph.short(*kind)?.to_vec()).ok()?;
            let text = match index.first().and_then(|index| graph.int(*index)) {
                Some(index) => format!("{kind}:{index}"),
                None => kind,
            };
            Some(json::text(|out| json::string(out, &text)))
        }
        // Bytes of Python 3 under protocol 2.
        ("_codecs", "encode", _) => {
            let bytes = Payload::of(graph, id)?.ok()?.read(graph, 1 << 20)?;
            Some(json::text(|out| json::bytes(out, &bytes)))
        }
        ("torch.jit._pickle", "restore_type_tag", [value, ..]) => {
            // What is too long for this is written as the call that it is, within the bounds of everything else.
            let (text, cut) = Writer::new(graph, 64 << 10, &|id| scalar(graph, id)).value(*value);
            String::from_utf8(text).ok().filter(|_| !cut)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use super::*;

    #[test]
    fn any_part_of_bytes_that_are_long_text() {
        let bytes: Vec<u8> = (0..300_000_u32).map(|i| (i * 7 % 251 + i / 1000) as u8).collect();
        let text: String = bytes.iter().map(|b| char::from(*b)).collect();
        for shift in 0..2 {
            let source = Source::from_bytes("p", [&b"xy"[..shift], text.as_bytes(), b"z"].concat());
            let long = Latin1::new(&source, shift as u64, text.len() as u64).unwrap();
            assert_eq!(long.decoded, bytes.len() as u64);
            for (first, len) in [(0, 10), (43_000, 3000), (40_000, 100_000), (299_999, 1), (0, 300_000), (65_536, 1), (123_456, 70_000)] {
                let mut out = vec![0; len];
                long.read(&|at, part| source.read_at(at, part), first as u64, &mut out).unwrap();
                assert!(out == bytes[first..first + len], "{shift} {first} {len}");
            }
            assert!(long.read(&|at, part| source.read_at(at, part), 299_999, &mut [0; 2]).is_err());
        }
        let source = Source::from_bytes("p", "漢".repeat(9).into_bytes());
        assert!(Latin1::new(&source, 0, 27).is_err());
    }
}
