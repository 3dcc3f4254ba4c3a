//! Initialisers that a node dequantises, as the values that the node gives: `NAME.dequantised`.
//!
//! `DequantizeLinear`: (x - zero point) * scale, with one scale for the tensor, for each index of an axis, or for each block along an axis. The difference
//! of the integers is rounded to f32, the product is rounded to f32 and then to the result's type, as onnxruntime does.
//!
//! `com.microsoft.MatMulNBits`: the weight, N rows of K codes of 2, 4 or 8 bits from the low end, in blocks of `block_size` with a scale each. Without zero
//! points half the range is subtracted.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;

use serde_json::json;

use super::super::schemes::Rounding;
use super::graph::{Bytes, Model, Scope};
use crate::catalog::{Builder, Catalog, Data, Spec, Tensor};
use crate::dtype::{DType, Native};
use crate::error::{Result, quoted};
use crate::quant::Codec;
use crate::recipe::{Inputs, Scheme, Values};

/// A node that may dequantise an initialiser, or that stands between the two.
pub(super) struct Candidate {
    pub(super) scope: Scope,
    pub(super) op_type: Vec<u8>,
    /// Its name, or what it is called without one.
    pub(super) label: Vec<u8>,
    pub(super) inputs: Vec<Vec<u8>>,
    pub(super) output: Vec<u8>,
    /// Attributes that are integers.
    pub(super) integers: Vec<(Vec<u8>, i64)>,
}

impl Candidate {
    pub(super) fn is_interesting(domain: &[u8], op_type: &[u8]) -> bool {
        match op_type {
            b"DequantizeLinear" => matches!(domain, b"" | b"ai.onnx" | b"com.microsoft"),
            b"Identity" => matches!(domain, b"" | b"ai.onnx"),
            b"MatMulNBits" => domain == b"com.microsoft",
            _ => false,
        }
    }

    fn integer(&self, name: &str) -> Option<i64> {
        self.integers.iter().rev().find(|(key, _)| key == name.as_bytes()).map(|(_, value)| *value)
    }
}

/// Finds tensors by the names that nodes use.
struct Lookup<'a> {
    catalog: &'a Catalog,
    tensors: HashMap<&'a [u8], u32>,
    /// What an Identity gives, by the full name of its output.
    identities: HashMap<Vec<u8>, &'a Candidate>,
}

/// A tensor to add beside the packed one.
struct Found {
    packed: u32,
    shape: Vec<u64>,
    scheme: Scheme,
}

/// Adds the values of every initialiser that a node dequantises.
pub(super) fn apply(model: &mut Model<'_>) -> Result<()> {
    let candidates = std::mem::take(&mut model.candidates);
    if candidates.iter().all(|candidate| candidate.op_type == b"Identity") {
        return Ok(());
    }
    let (mut found, mut doubts) = (Vec::new(), Vec::new());
    {
        let catalog = model.builder.catalog();
        let mut lookup = Lookup { catalog, tensors: HashMap::new(), identities: HashMap::new() };
        for tensor in catalog.tensors() {
            lookup.tensors.entry(tensor.name()).or_insert(tensor.index());
        }
        for candidate in candidates.iter().filter(|candidate| candidate.op_type == b"Identity") {
            lookup.identities.insert([&candidate.scope.prefix[..], &candidate.output].concat(), candidate);
        }
        let mut seen = HashSet::new();
        for candidate in &candidates {
            let layout = match candidate.op_type.as_slice() {
                b"DequantizeLinear" => linear(&lookup, candidate),
                b"MatMulNBits" => blocks(&lookup, candidate),
                _ => None,
            };
            match layout {
                // Two nodes may do the same to one tensor.
                Some((packed, Ok(new))) if seen.insert((packed.index(), new.scheme.facts.to_string())) => found.push(new),
                Some((_, Ok(_))) | None => {}
                Some((packed, Err(what))) => doubts.push((packed.index(), format!("{} {}: {what}", text(&candidate.op_type), quoted(&candidate.label)))),
            }
        }
    }
    for (index, what) in doubts {
        let Some(tensor) = model.builder.catalog().tensor(index) else { continue };
        let (source, name) = (tensor.source(), tensor.name().to_vec());
        model.builder.tensor_issue(source, &name, what, "served as stored, not dequantised");
    }
    for Found { packed, shape, scheme } in found {
        let Some(tensor) = model.builder.catalog().tensor(packed) else { continue };
        let own = [tensor.name(), b".dequantised"].concat();
        let name = model.unique(own);
        add(model.builder, packed, &name, &shape, scheme)?;
    }
    Ok(())
}

fn add(builder: &mut Builder, packed: u32, name: &[u8], shape: &[u64], scheme: Scheme) -> Result<()> {
    let Some(tensor) = builder.catalog().tensor(packed) else { return Ok(()) };
    let stored: Vec<u64> = tensor.shape().to_vec();
    let mut spec = Spec::new(name, tensor.dtype().clone(), shape, tensor.source(), tensor.offset());
    spec.stored_shape = (stored != shape).then_some(&stored);
    spec.scheme = Some(Arc::new(scheme));
    if let Data::Computed(elements, bytes) = tensor.data() {
        spec.computed = Some(Arc::clone(elements));
        spec.bytes = Some(*bytes);
        spec.same_as = Some(packed);
    }
    builder.tie(&spec)
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

impl<'a> Lookup<'a> {
    /// The tensor that a node's input is, if it is one of the model's: in the node's own graph or one around it, or through one Identity.
    fn input(&self, candidate: &Candidate, number: usize) -> Option<Tensor<'a>> {
        let name = candidate.inputs.get(number).filter(|name| !name.is_empty())?;
        self.named(&candidate.scope, name, true)
    }

    fn named(&self, scope: &Scope, name: &[u8], through: bool) -> Option<Tensor<'a>> {
        let around = scope.around.iter().rev().filter_map(|len| scope.prefix.get(..*len));
        for prefix in std::iter::once(&scope.prefix[..]).chain(around) {
            let full = [prefix, name].concat();
            if let Some(index) = self.tensors.get(full.as_slice()) {
                return self.catalog.tensor(*index);
            }
            if let Some(identity) = self.identities.get(&full).filter(|_| through) {
                return self.named(&identity.scope, identity.inputs.first()?, false);
            }
        }
        None
    }

    /// Whether a node has an input of this number at all.
    fn has(candidate: &Candidate, number: usize) -> bool {
        candidate.inputs.get(number).is_some_and(|name| !name.is_empty())
    }
}

/// A tensor and what a node makes of it, or why that is not certain.
type Layout<'a> = Option<(Tensor<'a>, std::result::Result<Found, String>)>;

/// A DequantizeLinear over initialisers; `None` if what it takes is computed by the model.
fn linear<'a>(lookup: &Lookup<'a>, node: &Candidate) -> Layout<'a> {
    let (x, scale) = (lookup.input(node, 0)?, lookup.input(node, 1)?);
    let zero = if Lookup::has(node, 2) { Some(lookup.input(node, 2)?) } else { None };
    Some((x, linear_of(node, x, scale, zero)))
}

fn linear_of(node: &Candidate, x: Tensor<'_>, scale: Tensor<'_>, zero: Option<Tensor<'_>>) -> std::result::Result<Found, String> {
    const CODES: [&str; 14] = ["i8", "u8", "i16", "u16", "i32", "i4", "u4", "i2", "u2", "f8_e4m3", "f8_e4m3fnuz", "f8_e5m2", "f8_e5m2fnuz", "f4"];
    if !CODES.contains(&x.dtype().to_string().as_str()) {
        return Err(format!("its input is {}, which it does not take", x.dtype()));
    }
    let result = match node.integer("output_dtype").unwrap_or(0) {
        0 => scale.dtype().to_string(),
        1 => "f32".to_string(),
        10 => "f16".to_string(),
        16 => "bf16".to_string(),
        other => return Err(format!("its output_dtype is {other}, which is no type of its")),
    };
    let rounding = Rounding::of(&result).ok_or_else(|| format!("its result would be {result}"))?;
    let rank = x.shape().len() as u64;
    let given = node.integer("axis").unwrap_or(1);
    let axis = if given < 0 { rank.checked_sub(given.unsigned_abs()) } else { Some(given.unsigned_abs()) };
    let block = node.integer("block_size").unwrap_or(0);
    let block = u64::try_from(block).map_err(|_| format!("its block_size is {block}"))?;
    let unfit = || format!("its scale has shape {:?}, which does not fit shape {:?} along axis {given} in blocks of {block}", scale.shape(), x.shape());
    let covers = if scale.elements() == 1 && scale.shape().len() <= 1 && block == 0 {
        Covers { dimension: 1, inner: u64::MAX, block: 1, scales: 1 }
    } else {
        let at = axis.and_then(|axis| usize::try_from(axis).ok()).ok_or_else(unfit)?;
        let dimension = *x.shape().get(at).ok_or_else(unfit)?;
        let inner: u64 = x.shape().iter().skip(at).skip(1).product();
        let expected: Vec<u64> = match block {
            0 => vec![dimension],
            _ => x.shape().iter().enumerate().map(|(i, d)| if i == at { d.div_ceil(block) } else { *d }).collect(),
        };
        if scale.shape() != expected {
            return Err(unfit());
        }
        Covers { dimension, inner, block, scales: if block == 0 { 0 } else { dimension.div_ceil(block) } }
    };
    if let Some(zero) = zero.filter(|zero| zero.elements() != scale.elements()) {
        return Err(format!("its zero point has shape {:?}, its scale {:?}", zero.shape(), scale.shape()));
    }
    let missing = || "its bytes, scale or zero point are missing".to_string();
    let facts = json!({
        "layout": "onnx_dequantize_linear",
        "scale": text(scale.name()),
        "zero_point": zero.map(|zero| text(zero.name())),
        "axis": axis.filter(|_| covers.inner != u64::MAX),
        "block_size": block,
        "result_dtype": rounding.name(),
    });
    let zero = zero.map(|zero| Column::of(zero).ok_or_else(missing)).transpose()?;
    let (codes, scale) = (Column::of(x).ok_or_else(missing)?, Column::of(scale).ok_or_else(missing)?);
    let values = Box::new(Linear { codes, scale, zero, covers, rounding });
    Ok(Found { packed: x.index(), shape: x.shape().to_vec(), scheme: Scheme { facts, values } })
}

/// Which scale an element has.
#[derive(Clone, Copy)]
struct Covers {
    /// Size of the axis, and elements from one index of it to the next.
    dimension: u64,
    /// All there are, for one scale for the whole tensor.
    inner: u64,
    /// Indices of the axis that share a scale; 0 for one scale an index, whatever the other axes.
    block: u64,
    /// Of blocks: how many there are along the axis.
    scales: u64,
}

impl Covers {
    /// For an element: how many from it on have scales at regular distances, the first scale's number, how many elements it is already into
    /// that scale, and how many share one.
    fn run(self, element: u64) -> (u64, u64, u64, u64) {
        if self.inner == u64::MAX {
            return (u64::MAX, 0, 0, u64::MAX);
        }
        let inner = self.inner.max(1);
        let within = element.checked_rem(inner).unwrap_or(0);
        let row = element.checked_div(inner).unwrap_or(0);
        let index = row.checked_rem(self.dimension).unwrap_or(0);
        let outer = row.checked_div(self.dimension).unwrap_or(0);
        let row_left = inner.saturating_sub(within);
        let axis_left = self.dimension.saturating_sub(index);
        if self.block == 0 {
            return if inner == 1 { (axis_left, index, 0, 1) } else { (row_left, index, 0, u64::MAX) };
        }
        let block = index.checked_div(self.block).unwrap_or(0);
        let first = outer.saturating_mul(self.scales).saturating_add(block).saturating_mul(inner).saturating_add(within);
        if inner == 1 { (axis_left, first, index.checked_rem(self.block).unwrap_or(0), self.block) } else { (row_left, first, 0, 1) }
    }
}

/// What DequantizeLinear makes of a tensor.
struct Linear {
    codes: Column,
    scale: Column,
    zero: Option<Column>,
    covers: Covers,
    rounding: Rounding,
}

impl Values for Linear {
    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [f32]) -> io::Result<()> {
        let mut codes = vec![0.0f64; out.len()];
        self.codes.read(inputs, first, &mut codes)?;
        let (mut scales, mut zeros) = (Window::default(), Window::default());
        let mut element = first;
        let mut rest = out.iter_mut().zip(codes);
        loop {
            let (len, start, phase, share) = self.covers.run(element);
            let mut done = 0u64;
            let (mut number, mut into) = (start, phase);
            let (mut scale, mut zero) = (0.0f32, 0.0f64);
            while done < len {
                let Some((slot, code)) = rest.next() else { return Ok(()) };
                if done == 0 || into == share {
                    if done > 0 {
                        number = number.saturating_add(1);
                        into = 0;
                    }
                    scale = scales.get(&self.scale, inputs, number)? as f32;
                    zero = match &self.zero {
                        Some(column) => zeros.get(column, inputs, number)?,
                        None => 0.0,
                    };
                }
                *slot = self.rounding.round((code - zero) as f32 * scale);
                into = into.saturating_add(1);
                done = done.saturating_add(1);
            }
            if done == 0 {
                return Ok(());
            }
            element = element.saturating_add(done);
        }
    }
}

/// A MatMulNBits over initialisers.
fn blocks<'a>(lookup: &Lookup<'a>, node: &Candidate) -> Layout<'a> {
    let (packed, scale) = (lookup.input(node, 1)?, lookup.input(node, 2)?);
    let zero = if Lookup::has(node, 3) { Some(lookup.input(node, 3)?) } else { None };
    Some((packed, blocks_of(node, packed, scale, zero)))
}

fn blocks_of(node: &Candidate, packed: Tensor<'_>, scale: Tensor<'_>, zero: Option<Tensor<'_>>) -> std::result::Result<Found, String> {
    let attribute = |name: &str| {
        let value = node.integer(name).and_then(|value| u64::try_from(value).ok()).filter(|value| *value > 0);
        value.ok_or_else(|| format!("its attribute {name} is missing or not positive"))
    };
    let (columns, rows, block) = (attribute("K")?, attribute("N")?, attribute("block_size")?);
    let bits = if node.integer("bits").is_some() { attribute("bits")? } else { 4 };
    if !matches!(bits, 2 | 4 | 8) || !block.is_power_of_two() || block < 16 {
        return Err(format!("has {bits} bits in blocks of {block}, which are not decoded"));
    }
    if Lookup::has(node, 4) {
        return Err("has a g_idx, which is not decoded".to_string());
    }
    if node.integer("weight_prepacked").is_some_and(|packed| packed != 0) {
        return Err("is packed for one machine, which is not decoded".to_string());
    }
    let blocks = columns.div_ceil(block);
    let too_large = || "its K and N are too large".to_string();
    let row_bytes = blocks.checked_mul(block).and_then(|n| n.checked_mul(bits)).ok_or_else(too_large)? / 8;
    let (bytes, scales) = (rows.checked_mul(row_bytes).ok_or_else(too_large)?, rows.checked_mul(blocks).ok_or_else(too_large)?);
    if packed.dtype().to_string() != "u8" || packed.elements() != bytes {
        return Err(format!("its weight has {} elements of {}, expected {bytes} of u8", packed.elements(), packed.dtype()));
    }
    let rounding = Rounding::of(&scale.dtype().to_string()).ok_or_else(|| format!("its scales are {}", scale.dtype()))?;
    if scale.elements() != scales {
        return Err(format!("has {} scales, expected {scales}", scale.elements()));
    }
    let zero_row_bytes = blocks.checked_mul(bits).ok_or_else(too_large)?.div_ceil(8);
    let zeros = match zero {
        None => Zeros::Middle(f32::from(1u16 << (bits.saturating_sub(1)))),
        Some(zero) => {
            let column = Column::of(zero).ok_or("its zero points are missing")?;
            let is_packed = zero.dtype().to_string() == "u8";
            let expected = if is_packed { rows.checked_mul(zero_row_bytes).ok_or_else(too_large)? } else { scales };
            if zero.elements() != expected || !is_packed && zero.dtype() != scale.dtype() {
                return Err(format!("has {} zero points of {}, expected {expected}", zero.elements(), zero.dtype()));
            }
            if is_packed { Zeros::Packed(column) } else { Zeros::Numbers(column) }
        }
    };
    let facts = json!({
        "layout": "onnx_matmul_nbits",
        "bits": bits,
        "block_size": block,
        "scales": text(scale.name()),
        "zero_points": zero.map(|zero| text(zero.name())),
        "result_dtype": rounding.name(),
    });
    let missing = || "its weight or scales are missing".to_string();
    let (codes, scale) = (Column::of(packed).ok_or_else(missing)?, Column::of(scale).ok_or_else(missing)?);
    let values = Box::new(Blocks { codes, scale, zeros, columns, bits, block, blocks, row_bytes, zero_row_bytes, rounding });
    Ok(Found { packed: packed.index(), shape: vec![rows, columns], scheme: Scheme { facts, values } })
}

enum Zeros {
    /// Half the range.
    Middle(f32),
    /// Codes of the weight's width, rows of whole bytes.
    Packed(Column),
    /// One number a block.
    Numbers(Column),
}

/// A weight as MatMulNBits uses it.
struct Blocks {
    codes: Column,
    scale: Column,
    zeros: Zeros,
    columns: u64,
    bits: u64,
    block: u64,
    /// Blocks a row.
    blocks: u64,
    row_bytes: u64,
    zero_row_bytes: u64,
    rounding: Rounding,
}

/// Code number `index` of a run of packed codes of 2, 4 or 8 bits.
fn code(byte: f64, index: u64, bits: u64) -> f32 {
    let shift = index.saturating_mul(bits) % 8;
    let mask = (1u32 << bits).wrapping_sub(1);
    f32::from((byte as u32 >> shift & mask) as u16)
}

impl Values for Blocks {
    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [f32]) -> io::Result<()> {
        let (mut codes, mut scales, mut zeros) = (Window::default(), Window::default(), Window::default());
        let mut row = first.checked_div(self.columns).unwrap_or(0);
        let mut column = first.checked_rem(self.columns).unwrap_or(0);
        let mut current = (u64::MAX, 0.0f32, 0.0f32);
        for slot in out {
            if column == self.columns {
                (row, column) = (row.saturating_add(1), 0);
            }
            let block = column.checked_div(self.block).unwrap_or(0);
            let number = row.saturating_mul(self.blocks).saturating_add(block);
            if current.0 != number {
                let zero = match &self.zeros {
                    Zeros::Middle(zero) => *zero,
                    Zeros::Numbers(column) => zeros.get(column, inputs, number)? as f32,
                    Zeros::Packed(column) => {
                        let byte = row.saturating_mul(self.zero_row_bytes).saturating_add(block.saturating_mul(self.bits) / 8);
                        code(zeros.get(column, inputs, byte)?, block, self.bits)
                    }
                };
                current = (number, scales.get(&self.scale, inputs, number)? as f32, zero);
            }
            let byte = row.saturating_mul(self.row_bytes).saturating_add(column.saturating_mul(self.bits) / 8);
            let code = code(codes.get(&self.codes, inputs, byte)?, column, self.bits);
            *slot = self.rounding.round(match &self.zeros {
                // With numbers for zero points onnxruntime rounds both products.
                Zeros::Numbers(_) => code * current.1 - current.2 * current.1,
                _ => (code - current.2) * current.1,
            });
            column = column.saturating_add(1);
        }
        Ok(())
    }
}

/// A tensor's elements as numbers, all of which f64 holds exactly.
struct Column {
    bytes: Bytes,
    elements: u64,
    decode: Decode,
}

enum Decode {
    Integers(&'static Native),
    Codec(&'static Codec),
}

impl Column {
    fn of(tensor: Tensor<'_>) -> Option<Self> {
        let decode = match tensor.dtype() {
            DType::Native(native) if matches!(native.kind, 'i' | 'u') && native.bytes <= 4 => Decode::Integers(native),
            other => Decode::Codec(other.codec().filter(|codec| codec.name != "f64")?),
        };
        Some(Self { bytes: Bytes::of(tensor)?, elements: tensor.elements(), decode })
    }

    /// Fills `out` with the numbers from number `first` on.
    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [f64]) -> io::Result<()> {
        match self.decode {
            Decode::Integers(native) => {
                let width = usize::from(native.bytes);
                let mut bytes = vec![0; out.len().saturating_mul(width)];
                self.bytes.read(inputs, first, &mut bytes)?;
                for (slot, bytes) in out.iter_mut().zip(bytes.chunks_exact(width)) {
                    let mut word = [0; 4];
                    word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
                    let word = u32::from_le_bytes(word);
                    let unused = 32u32.saturating_sub(u32::from(native.bytes).saturating_mul(8));
                    *slot = if native.kind == 'i' { f64::from((word << unused).cast_signed() >> unused) } else { f64::from(word) };
                }
            }
            Decode::Codec(codec) => {
                let per_block = codec.elements as u64;
                let skip = usize::try_from(first.checked_rem(per_block).unwrap_or(0)).unwrap_or(0);
                let blocks = skip.saturating_add(out.len()).div_ceil(codec.elements.max(1));
                let mut bytes = vec![0; blocks.saturating_mul(codec.bytes)];
                self.bytes.read(inputs, first.checked_div(per_block).unwrap_or(0), &mut bytes)?;
                let mut values = vec![0.0f32; blocks.saturating_mul(codec.elements)];
                (codec.decode)(&bytes, &mut values);
                out.iter_mut().zip(values.into_iter().skip(skip)).for_each(|(slot, value)| *slot = value.into());
            }
        }
        Ok(())
    }
}

/// The last numbers that were read of a column.
#[derive(Default)]
struct Window {
    first: u64,
    numbers: Vec<f64>,
}

/// Numbers that a window fetches at a time.
const WINDOW: u64 = 4096;

impl Window {
    #[inline]
    fn get(&mut self, column: &Column, inputs: Inputs<'_>, number: u64) -> io::Result<f64> {
        let index = number.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        if let Some(number) = index.and_then(|index| self.numbers.get(index)) {
            return Ok(*number);
        }
        let count = WINDOW.min(column.elements.saturating_sub(number));
        self.numbers.resize(usize::try_from(count).unwrap_or(0), 0.0);
        self.first = number;
        if let Err(e) = column.read(inputs, number, &mut self.numbers) {
            self.numbers.clear();
            return Err(e);
        }
        self.numbers.first().copied().ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }
}
