//! A tensor's file as pieces, and reads of any part of it.
//!
//! A file is at most two pieces: a .npy header and the elements, stored or decoded. A read that falls into stored, mapped elements is answered with the
//! mapping itself; everything else goes through the reader's own [`Scratch`]: header bytes are copied, stored bytes are read with pread, and exactly the
//! blocks that cover the wanted elements are decoded and trimmed at both ends.

pub mod npy;

use std::io;
use std::sync::Arc;

use crate::catalog::{Catalog, Data, Order, Tensor};
use crate::dtype::DType;
use crate::quant::{self, Codec, Kind, narrow};
use crate::reader::Endian;
use crate::recipe::{Elements, Inputs, Scheme, Values};
use crate::source::{self, Extent, Health, Source, SourceId};
use crate::view::{View, canonical};

/// What decoded elements are written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Out {
    F32,
    F16,
    Bf16,
    I8,
    U8,
}

impl Out {
    fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::I8 | Self::U8 => 1,
        }
    }
}

/// Where a file's elements come from.
#[derive(Clone)]
enum Body {
    /// Bytes as they are stored.
    Stored(Extent),
    /// Elements of the stored type, computed on read: how, bytes of a block, and bytes of the whole.
    Computed(Arc<dyn Elements>, u64, u64),
    /// Blocks decoded on read.
    Decoded(Decoded),
    /// Logical values, computed on read: how, how many, and what they are written as.
    Values(Arc<Scheme>, u64, Out),
}

/// Where blocks come from.
#[derive(Clone)]
enum Blocks {
    Stored(Extent),
    Computed(Arc<dyn Elements>),
}

/// Blocks and what becomes of them.
#[derive(Clone)]
struct Decoded {
    blocks: Blocks,
    codec: &'static Codec,
    swap: bool,
    /// Elements in the file: of a packed type's last block not all are.
    elements: u64,
    out: Out,
}

/// A file's bytes.
pub struct Content {
    header: Vec<u8>,
    body: Body,
    source: SourceId,
}

/// Buffers that a reader keeps from one read to the next.
#[derive(Default)]
pub struct Scratch {
    work: Work,
    /// As long as the longest answer so far: it is never emptied, since filling it with zeros would cost as much as decoding into it.
    out: Vec<u8>,
    text: Vec<u8>,
}

/// What a decoder needs besides its output.
#[derive(Default)]
struct Work {
    packed: Vec<u8>,
    floats: Vec<f32>,
    partial: Vec<u8>,
}

impl Scratch {
    /// A buffer for rendered text, emptied.
    pub(crate) fn start(&mut self) -> &mut Vec<u8> {
        self.text.clear();
        &mut self.text
    }

    /// What was put into the buffer for text.
    pub(crate) fn text(&self) -> &[u8] {
        &self.text
    }
}

/// The first `len` elements of a buffer that only grows.
fn first<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
    buffer.get_mut(..len).unwrap_or_default()
}

/// What a read asks of a body: bytes `from` to `to`, which fit into memory and end inside the file.
fn bytes_between(from: u64, to: u64) -> usize {
    usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX)
}

/// The bytes that a read gives.
pub enum Bytes<'a> {
    /// A part of the source's mapping, for the kernel to copy.
    Mapped(source::View<'a>),
    /// Bytes in the reader's own buffer.
    Copied(&'a [u8]),
}

/// Elements decoded at a time: their f32 form stays in the first-level cache.
const STEP: usize = 8192;

/// Values computed at a time: a layout that is packed by columns needs many rows at once to be read in long runs.
const VALUES_STEP: u64 = 256 << 10;

/// Whether a tensor's file in a view is served from the mapping (behind its header, if it has one).
pub(crate) fn is_zero_copy(catalog: &Catalog, view: View, tensor: Tensor<'_>) -> bool {
    let mapped = catalog.source(tensor.source()).is_some_and(|s| !s.is_member());
    mapped && matches!(body(view, tensor), Some(Body::Stored(_)))
}

/// What NumPy's header says of a tensor in a view.
fn descr(view: View, tensor: Tensor<'_>) -> Option<String> {
    let dtype = tensor.dtype();
    Some(match view {
        View::F32 => "<f4".to_string(),
        View::Npy if tensor.scheme().is_some() => "<f4".to_string(),
        View::F16 => "<f2".to_string(),
        // As ml_dtypes writes it and jax reads it.
        View::Bf16 => "<V2".to_string(),
        View::Npy => match dtype {
            DType::Coded(Codec { kind: Kind::Float, .. }) => "<f4".to_string(),
            DType::Coded(Codec { kind: Kind::Signed, .. }) => "|i1".to_string(),
            DType::Coded(Codec { kind: Kind::Unsigned, .. }) => "|u1".to_string(),
            DType::C32 => "<c8".to_string(),
            other => other.descr(tensor.endian())?,
        },
        View::Bits => match dtype {
            DType::Coded(codec) if codec.elements == 1 => format!("{}u{}", crate::dtype::order_mark(codec.bytes as u64, tensor.endian()), codec.bytes),
            DType::Coded(_) => "|u1".to_string(),
            DType::C32 => format!("{}u4", crate::dtype::order_mark(4, tensor.endian())),
            _ => return None,
        },
        View::Raw | View::RawF32 | View::RawF16 | View::RawBf16 => return None,
    })
}

/// The shape in a view's header: bits of packed types and blocks have the bytes of a row as their last axis.
pub fn shape(view: View, tensor: Tensor<'_>) -> Vec<u64> {
    match (view, tensor.dtype()) {
        (View::Raw, _) => tensor.stored_shape().unwrap_or(tensor.shape()).to_vec(),
        (View::Bits, DType::Coded(codec)) if codec.elements > 1 => {
            let stored = tensor.stored_shape().unwrap_or(tensor.shape());
            match (stored.split_last(), tensor.row_bytes()) {
                (Some((_, outer)), Some(bytes)) => outer.iter().copied().chain([bytes]).collect(),
                _ => vec![tensor.bytes().unwrap_or(0)],
            }
        }
        _ => tensor.shape().to_vec(),
    }
}

fn body(view: View, tensor: Tensor<'_>) -> Option<Body> {
    let stored = || match tensor.data() {
        Data::Missing => None,
        Data::Stored(extent) => Some(Body::Stored(*extent)),
        Data::Computed(elements, bytes) => Some(Body::Computed(Arc::clone(elements), tensor.dtype().block().map_or(1, |(_, block)| block.max(1)), *bytes)),
    };
    let decoded = |codec: &'static Codec, elements: u64, out: Out| {
        let blocks = match tensor.data() {
            Data::Missing => return None,
            Data::Stored(extent) => Blocks::Stored(*extent),
            Data::Computed(elements, _) => Blocks::Computed(Arc::clone(elements)),
        };
        Some(Body::Decoded(Decoded { blocks, codec, swap: tensor.endian() == Endian::Big, elements, out }))
    };
    let view = canonical(view, tensor);
    if tensor.is_opaque() && !matches!(view, View::Raw | View::Bits) {
        return None;
    }
    let out = match view {
        View::Raw | View::Bits => return stored(),
        View::F32 | View::RawF32 => Out::F32,
        View::F16 | View::RawF16 => Out::F16,
        View::Bf16 | View::RawBf16 => Out::Bf16,
        View::Npy if tensor.scheme().is_some() => Out::F32,
        View::Npy => match tensor.dtype() {
            DType::Coded(codec) => match codec.kind {
                Kind::Float => Out::F32,
                Kind::Signed => Out::I8,
                Kind::Unsigned => Out::U8,
            },
            DType::C32 => {
                // A pair of halves is one block of the stored type but two elements of the codec's.
                let blocks = match tensor.data() {
                    Data::Missing => return None,
                    Data::Stored(extent) => Blocks::Stored(*extent),
                    Data::Computed(pairs, _) => Blocks::Computed(Arc::new(Halves(Arc::clone(pairs)))),
                };
                let (codec, elements) = (quant::by_name("f16")?, tensor.elements().checked_mul(2)?);
                return Some(Body::Decoded(Decoded { blocks, codec, swap: tensor.endian() == Endian::Big, elements, out: Out::F32 }));
            }
            _ => return stored(),
        },
    };
    if let Some(scheme) = tensor.scheme() {
        return Some(Body::Values(Arc::clone(scheme), tensor.elements(), out));
    }
    let little = tensor.endian() == Endian::Little;
    match (tensor.dtype(), out) {
        // Behind an as/ header the stored bytes are what is wanted already.
        (DType::Native(native), Out::F32) if native.name == "f32" && little => stored(),
        (DType::Native(native), Out::F16) if native.name == "f16" && little => stored(),
        (DType::Coded(codec), Out::Bf16) if codec.name == "bf16" && little => stored(),
        (dtype, out) => decoded(dtype.codec()?, tensor.elements(), out),
    }
}

impl Content {
    /// The file of a tensor in a view; `None` if there is none.
    pub fn new(view: View, tensor: Tensor<'_>) -> Option<Self> {
        let header = match descr(view, tensor) {
            Some(descr) => npy::header(&descr, if view == View::Bits { bits_order(tensor) } else { tensor.order() }, &shape(view, tensor)),
            None => Vec::new(),
        };
        Some(Self { header, body: body(view, tensor)?, source: tensor.source() })
    }

    /// A file that is stored bytes and nothing else.
    pub fn stored(extent: Extent) -> Self {
        Self { header: Vec::new(), body: Body::Stored(extent), source: extent.source() }
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        let body = match &self.body {
            Body::Stored(extent) => extent.len(),
            Body::Computed(_, _, bytes) => *bytes,
            Body::Decoded(Decoded { elements, out, .. }) | Body::Values(_, elements, out) => elements.saturating_mul(out.bytes()),
        };
        (self.header.len() as u64).saturating_add(body)
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Length of the header in front of the elements, in bytes.
    pub fn header_len(&self) -> u64 {
        self.header.len() as u64
    }

    /// Reads `size` bytes at `offset`, fewer at the end of the file.
    ///
    /// # Errors
    /// The stored bytes are gone, or the source was rewritten.
    pub fn read<'a>(&self, sources: &'a [Arc<Source>], offset: u64, size: u64, scratch: &'a mut Scratch) -> io::Result<Bytes<'a>> {
        let end = offset.saturating_add(size).min(self.len());
        let header = self.header.len() as u64;
        if let (Body::Stored(extent), true) = (&self.body, header <= offset && offset < end) {
            let source = usize::try_from(self.source).ok().and_then(|id| sources.get(id)).ok_or(io::ErrorKind::InvalidInput)?;
            let run = extent.sub(offset.saturating_sub(header), end.saturating_sub(offset)).ok_or(io::ErrorKind::InvalidInput)?;
            match source.health() {
                Health::Rewritten => return Err(rewritten()),
                Health::Cut(left) if run.offset().saturating_add(run.len()) > left => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => {}
            }
            if let Some(view) = source.view(run.offset(), run.len()) {
                return Ok(Bytes::Mapped(view));
            }
        }
        self.read_copied(sources, offset, size, scratch).map(Bytes::Copied)
    }

    /// The same, always through the scratch buffer: for callers that look at the bytes.
    ///
    /// # Errors
    /// The stored bytes are gone, or the source was rewritten.
    pub fn read_copied<'a>(&self, sources: &[Arc<Source>], offset: u64, size: u64, scratch: &'a mut Scratch) -> io::Result<&'a [u8]> {
        let end = offset.saturating_add(size).min(self.len());
        let Scratch { out, work, .. } = scratch;
        let out = first(out, bytes_between(offset, end));
        self.fill(sources, offset, out, work)?;
        Ok(out)
    }

    /// Fills `out` with the bytes at `offset`.
    ///
    /// # Errors
    /// The file ends before that, the stored bytes are gone, or the source was rewritten.
    pub fn read_into(&self, sources: &[Arc<Source>], offset: u64, out: &mut [u8], scratch: &mut Scratch) -> io::Result<()> {
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > self.len()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.fill(sources, offset, out, &mut scratch.work)
    }

    /// The stored bytes that `len` bytes at `offset` are made of, as far as the file goes; `None` if they are computed from several runs, or there are none.
    pub fn stored_part(&self, offset: u64, len: u64) -> Option<Extent> {
        let header = self.header.len() as u64;
        let end = offset.saturating_add(len).min(self.len()).saturating_sub(header);
        let from = offset.saturating_sub(header).min(end);
        let (extent, start, end) = match &self.body {
            Body::Stored(extent) => (extent, from, end),
            Body::Decoded(Decoded { blocks: Blocks::Stored(extent), codec, out, .. }) => {
                let per_block = out.bytes().saturating_mul(codec.elements as u64);
                let block = |byte: u64| Some(byte.checked_div(per_block)?.saturating_mul(codec.bytes as u64).min(extent.len()));
                (extent, block(from)?, block(end)?)
            }
            _ => return None,
        };
        extent.sub(start, end.saturating_sub(start)).filter(|part| !part.is_empty())
    }

    /// Fills `out`, which ends inside the file.
    fn fill(&self, sources: &[Arc<Source>], offset: u64, out: &mut [u8], work: &mut Work) -> io::Result<()> {
        let header = self.header.get(usize::try_from(offset).unwrap_or(usize::MAX)..).unwrap_or_default();
        let (head, out) = out.split_at_mut(header.len().min(out.len()));
        head.iter_mut().zip(header).for_each(|(to, from)| *to = *from);
        if out.is_empty() {
            return Ok(());
        }
        let from = offset.saturating_sub(self.header.len() as u64);
        let source = usize::try_from(self.source).ok().and_then(|id| sources.get(id)).ok_or(io::ErrorKind::InvalidInput)?;
        if source.health() == Health::Rewritten {
            return Err(rewritten());
        }
        let inputs = Inputs::new(sources);
        match &self.body {
            Body::Stored(extent) => inputs.read(*extent, from, out),
            Body::Computed(elements, block, bytes) => {
                let to = from.saturating_add(out.len() as u64);
                let number = from.checked_div(*block).unwrap_or(0);
                let start = number.saturating_mul(*block);
                let stop = to.div_ceil(*block).saturating_mul(*block).min(*bytes);
                if (start, stop) == (from, to) {
                    return elements.read(inputs, number, out);
                }
                let packed = first(&mut work.packed, bytes_between(start, stop));
                elements.read(inputs, number, packed)?;
                out.copy_from_slice(part(packed, from.saturating_sub(start), to.saturating_sub(start)));
                Ok(())
            }
            Body::Decoded(decoded) => decoded.read(inputs, from, out, work),
            Body::Values(scheme, _, kind) => read_values(&*scheme.values, *kind, inputs, from, out, work),
        }
    }
}

/// The halves of complex numbers that are computed as pairs.
struct Halves(Arc<dyn Elements>);

impl Elements for Halves {
    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [u8]) -> io::Result<()> {
        let skip = if first.is_multiple_of(2) { 0 } else { 2 };
        let end = out.len().saturating_add(skip);
        let mut pairs = vec![0; end.next_multiple_of(4)];
        self.0.read(inputs, first / 2, &mut pairs)?;
        out.copy_from_slice(pairs.get(skip..end).unwrap_or_default());
        Ok(())
    }
}

fn rewritten() -> io::Error {
    io::Error::other("the source was rewritten")
}

/// Fills `out` with the computed values from byte `from` on.
fn read_values(values: &dyn Values, kind: Out, inputs: Inputs<'_>, from: u64, out: &mut [u8], work: &mut Work) -> io::Result<()> {
    let Work { floats, partial, .. } = work;
    let size = kind.bytes();
    let mut fill = |element: u64, out: &mut [u8]| {
        if let Some(out) = as_floats(kind, out) {
            return values.read(inputs, element, out);
        }
        let floats = first(floats, out.len().checked_div(size as usize).unwrap_or(0));
        values.read(inputs, element, floats)?;
        convert(kind, floats, out);
        Ok(())
    };
    let to = from.saturating_add(out.len() as u64);
    let (mut element, last) = (from.checked_div(size).unwrap_or(0), to.div_ceil(size));
    let mut rest = out;
    while element < last {
        let count = last.saturating_sub(element).min(VALUES_STEP);
        let (start, bytes) = (element.saturating_mul(size), count.saturating_mul(size));
        let (a, b) = (from.saturating_sub(start), to.saturating_sub(start).min(bytes));
        let (wanted, after) = rest.split_at_mut(bytes_between(a, b).min(rest.len()));
        if (a, b) == (0, bytes) {
            fill(element, wanted)?;
        } else {
            let whole = first(partial, bytes_between(0, bytes));
            fill(element, whole)?;
            wanted.copy_from_slice(part(whole, a, b));
        }
        rest = after;
        element = element.saturating_add(count);
    }
    Ok(())
}

/// Bits of a Fortran-ordered tensor stay in that order if every element has its own bytes.
fn bits_order(tensor: Tensor<'_>) -> Order {
    match tensor.dtype() {
        DType::Coded(codec) if codec.elements > 1 => Order::C,
        _ => tensor.order(),
    }
}

impl Decoded {
    /// Fills `out` with the decoded bytes from `from` on.
    fn read(&self, inputs: Inputs<'_>, from: u64, out: &mut [u8], work: &mut Work) -> io::Result<()> {
        let Work { packed, floats, partial } = work;
        let (per_block, block_bytes) = (self.codec.elements as u64, self.codec.bytes as u64);
        let decoded_bytes = self.out.bytes().saturating_mul(per_block);
        let to = from.saturating_add(out.len() as u64);
        let first_block = from.checked_div(decoded_bytes).unwrap_or(0);
        let stored_start = first_block.saturating_mul(block_bytes);
        let stored_end = to.div_ceil(decoded_bytes).saturating_mul(block_bytes);
        let packed = first(packed, bytes_between(stored_start, stored_end));
        match &self.blocks {
            // A packed type's last block may be partly stored; what is missing is zero and past the last element.
            Blocks::Stored(extent) => {
                let there = bytes_between(stored_start, stored_end.min(extent.len()));
                let (stored, missing) = packed.split_at_mut(there.min(packed.len()));
                inputs.read(*extent, stored_start, stored)?;
                missing.fill(0);
            }
            Blocks::Computed(elements) => {
                packed.fill(0);
                elements.read(inputs, first_block, packed)?;
            }
        }
        if self.swap {
            quant::swap_fields(self.codec, packed);
        }
        let step = STEP.checked_div(self.codec.elements).unwrap_or(0).max(1);
        let mut at = first_block.saturating_mul(decoded_bytes);
        let mut rest = out;
        for blocks in packed.chunks(step.saturating_mul(self.codec.bytes)) {
            let count = blocks.len().checked_div(self.codec.bytes).unwrap_or(0) as u64;
            let bytes = count.saturating_mul(decoded_bytes);
            let (a, b) = (from.saturating_sub(at), to.saturating_sub(at).min(bytes));
            let (wanted, after) = rest.split_at_mut(bytes_between(a, b).min(rest.len()));
            if (a, b) == (0, bytes) {
                self.decode(blocks, wanted, floats);
            } else {
                let whole = first(partial, bytes_between(0, bytes));
                self.decode(blocks, whole, floats);
                wanted.copy_from_slice(part(whole, a, b));
            }
            rest = after;
            at = at.saturating_add(bytes);
        }
        Ok(())
    }

    /// Decodes whole blocks into bytes of the wanted type.
    fn decode(&self, blocks: &[u8], out: &mut [u8], floats: &mut Vec<f32>) {
        match (self.out, self.codec.name) {
            // A double is rounded once, not to single precision first.
            (Out::F16 | Out::Bf16, "f64") => {
                let doubles: Vec<f64> = blocks.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect();
                match self.out {
                    Out::F16 => narrow::narrow_f64_to_f16(&doubles, out),
                    _ => narrow::narrow_f64_to_bf16(&doubles, out),
                }
            }
            _ => {
                let decode = self.codec.decoder();
                if let Some(out) = as_floats(self.out, out) {
                    return decode(blocks, out);
                }
                let floats = first(floats, out.len().checked_div(self.out.bytes() as usize).unwrap_or(0));
                decode(blocks, floats);
                convert(self.out, floats, out);
            }
        }
    }
}

/// The bytes from `from` to `to`; nothing where they are not all there.
fn part(bytes: &[u8], from: u64, to: u64) -> &[u8] {
    bytes.get(from as usize..to as usize).unwrap_or_default()
}

/// The place of f32 as floats, so that they need not be copied there: where it is aligned, which it is unless the read begins inside an element.
fn as_floats(kind: Out, bytes: &mut [u8]) -> Option<&mut [f32]> {
    if kind != Out::F32 || cfg!(target_endian = "big") {
        return None;
    }
    bytemuck::try_cast_slice_mut(bytes).ok()
}

/// Writes elements in the wanted type, little-endian.
fn convert(kind: Out, floats: &[f32], out: &mut [u8]) {
    match kind {
        Out::F32 => narrow::narrow_f32(floats, out),
        Out::F16 => narrow::narrow_f16(floats, out),
        Out::Bf16 => narrow::narrow_bf16(floats, out),
        // Packed integers have at most eight bits: their values fit.
        Out::I8 => out.iter_mut().zip(floats).for_each(|(byte, value)| *byte = (*value as i8).cast_unsigned()),
        Out::U8 => out.iter_mut().zip(floats).for_each(|(byte, value)| *byte = *value as u8),
    }
}
