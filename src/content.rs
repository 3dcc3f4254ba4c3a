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
    packed: Vec<u8>,
    floats: Vec<f32>,
    narrow: Vec<u8>,
    out: Vec<u8>,
}

impl Scratch {
    /// The output buffer, emptied.
    pub(crate) fn start(&mut self) -> &mut Vec<u8> {
        self.out.clear();
        &mut self.out
    }

    /// What was put into the output buffer.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.out
    }
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
        scratch.out.clear();
        if offset >= end {
            return Ok(&scratch.out);
        }
        let header = self.header.len() as u64;
        if offset < header {
            scratch.out.extend_from_slice(part(&self.header, offset, end.min(header)));
        }
        let (from, to) = (offset.saturating_sub(header), end.saturating_sub(header));
        if from < to {
            let source = usize::try_from(self.source).ok().and_then(|id| sources.get(id)).ok_or(io::ErrorKind::InvalidInput)?;
            if source.health() == Health::Rewritten {
                return Err(rewritten());
            }
            let inputs = Inputs::new(sources);
            match &self.body {
                Body::Stored(extent) => {
                    inputs.read(*extent, from, grown(&mut scratch.out, to.saturating_sub(from)))?;
                }
                Body::Computed(elements, block, bytes) => {
                    let first = from.checked_div(*block).unwrap_or(0);
                    let start = first.saturating_mul(*block);
                    let stop = to.div_ceil(*block).saturating_mul(*block).min(*bytes);
                    let Scratch { packed, out, .. } = scratch;
                    packed.clear();
                    elements.read(inputs, first, grown(packed, stop.saturating_sub(start)))?;
                    out.extend_from_slice(part(packed, from.saturating_sub(start), to.saturating_sub(start)));
                }
                Body::Decoded(decoded) => decoded.read(inputs, from, to, scratch)?,
                Body::Values(scheme, _, out) => read_values(&*scheme.values, *out, inputs, from, to, scratch)?,
            }
        }
        Ok(&scratch.out)
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

/// Appends the computed values from byte `from` to byte `to` to the output buffer.
fn read_values(values: &dyn Values, kind: Out, inputs: Inputs<'_>, from: u64, to: u64, scratch: &mut Scratch) -> io::Result<()> {
    let Scratch { floats, narrow, out, .. } = scratch;
    let size = kind.bytes();
    let (mut first, last) = (from.checked_div(size).unwrap_or(0), to.div_ceil(size));
    let mut fill = |first: u64, out: &mut [u8]| {
        if let Some(out) = as_floats(kind, out) {
            return values.read(inputs, first, out);
        }
        floats.clear();
        floats.resize(out.len().checked_div(size as usize).unwrap_or(0), 0.0);
        values.read(inputs, first, floats)?;
        convert(kind, floats, out);
        Ok(())
    };
    while first < last {
        let count = last.saturating_sub(first).min(VALUES_STEP);
        let (start, bytes) = (first.saturating_mul(size), count.saturating_mul(size));
        let (a, b) = (from.saturating_sub(start), to.saturating_sub(start).min(bytes));
        if (a, b) == (0, bytes) {
            fill(first, grown(out, bytes))?;
        } else {
            narrow.clear();
            fill(first, grown(narrow, bytes))?;
            out.extend_from_slice(part(narrow, a, b));
        }
        first = first.saturating_add(count);
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
    /// Appends the decoded bytes from `from` to `to` to the output buffer.
    fn read(&self, inputs: Inputs<'_>, from: u64, to: u64, scratch: &mut Scratch) -> io::Result<()> {
        let Scratch { packed, floats, narrow, out } = scratch;
        let (per_block, block_bytes) = (self.codec.elements as u64, self.codec.bytes as u64);
        // Bytes of the file that one block makes.
        let out_block = per_block.saturating_mul(self.out.bytes()).max(1);
        let first_block = from.checked_div(out_block).unwrap_or(0);
        let start = first_block.saturating_mul(block_bytes);
        let whole = to.div_ceil(out_block).saturating_sub(first_block).saturating_mul(block_bytes);
        packed.resize(whole as usize, 0);
        match &self.blocks {
            // A packed type's last block may be partly stored; what is missing is zero and past the last element.
            Blocks::Stored(extent) => {
                let (stored, missing) = packed.split_at_mut(whole.min(extent.len().saturating_sub(start)) as usize);
                inputs.read(*extent, start, stored)?;
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
        let blocks_a_step = STEP.checked_div(self.codec.elements).unwrap_or(1).max(1);
        let mut at = first_block.saturating_mul(out_block);
        for blocks in packed.chunks(blocks_a_step.saturating_mul(self.codec.bytes).max(1)) {
            let bytes = (blocks.len() as u64).checked_div(block_bytes).unwrap_or(0).saturating_mul(out_block);
            let (a, b) = (from.saturating_sub(at), to.saturating_sub(at).min(bytes));
            if (a, b) == (0, bytes) {
                self.decode(blocks, grown(out, bytes), floats);
            } else {
                narrow.clear();
                self.decode(blocks, grown(narrow, bytes), floats);
                out.extend_from_slice(part(narrow, a, b));
            }
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
                floats.resize(out.len().checked_div(self.out.bytes() as usize).unwrap_or(0), 0.0);
                decode(blocks, floats);
                convert(self.out, floats, out);
            }
        }
    }
}

/// Makes the buffer longer and returns what is new.
fn grown(buffer: &mut Vec<u8>, bytes: u64) -> &mut [u8] {
    let start = buffer.len();
    buffer.resize(start.saturating_add(bytes as usize), 0);
    buffer.get_mut(start..).unwrap_or_default()
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
