//! Quantised layouts that are made of several tensors: packed values here, scales there.
//!
//! [`apply`] looks at a container once its tensors are known, by their names, types and shapes and by the configuration beside the file. Where a layout is
//! certain, the tensor that holds the packed values gets the logical shape and a [`Scheme`]; where the layout's own library knows the logical tensor by
//! another name, it is added beside. What looks like a layout and is not certain is an issue, never a guess.

mod awq;
mod bits;
mod bitsandbytes;
mod blocks;
mod columns;
mod compressed;
mod config;
mod gptq;
mod grouped;
mod micro;
mod mlx;
mod nvfp4;
mod patterns;
mod torchao;

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::Opening;
use crate::catalog::{Builder, Catalog, Spec, Tensor};
use crate::dtype::DType;
use crate::error::Result;
use crate::limits;
use crate::quant;
use crate::recipe::{Inputs, Scheme, Values};
use crate::source::Extent;
use config::Config;
use half::slice::HalfFloatSliceExt;

/// What a layout found: a tensor with logical values.
struct Found {
    /// The tensor that holds the packed values.
    packed: u32,
    /// The name of the logical tensor, if it is not the packed one's own.
    beside: Option<Vec<u8>>,
    shape: Vec<u64>,
    scheme: Scheme,
}

/// What the layouts look at.
struct Context<'a> {
    catalog: &'a Catalog,
    names: HashMap<&'a [u8], u32>,
    config: Config,
    found: Vec<Found>,
    /// What was found already.
    taken: HashSet<(u32, Option<Vec<u8>>)>,
    /// What is not certain: the reason, and the first tensor it concerns and how many.
    doubts: Vec<(String, String, u64)>,
    /// Where a reason stands among them.
    reasons: HashMap<String, usize>,
    /// Steps that are left for matching names.
    steps: Cell<u32>,
}

/// Finds every layout of a container and applies it.
///
/// # Errors
/// There are more tensors than the limits allow.
pub(super) fn apply(opening: &Opening, builder: &mut Builder) -> Result<()> {
    if !builder.catalog().tensors().any(|t| is_part(t.name())) {
        return Ok(());
    }
    let config = Config::read(opening, builder.catalog());
    let (found, doubts) = {
        let catalog = builder.catalog();
        let names = catalog.tensors().map(|t| (t.name(), t.index())).collect();
        let mut context = Context {
            catalog,
            names,
            config,
            found: Vec::new(),
            taken: HashSet::new(),
            doubts: Vec::new(),
            reasons: HashMap::new(),
            steps: Cell::new(patterns::ALL_STEPS),
        };
        for find in [mlx::find, gptq::find, bitsandbytes::find, compressed::find, micro::find, torchao::find, blocks::find, nvfp4::find] {
            find(&mut context);
        }
        (context.found, context.doubts)
    };
    for (what, first, count) in doubts {
        let more = if count > 1 { format!(" (and {} more)", count.saturating_sub(1)) } else { String::new() };
        builder.issue(format!("{}: tensor \"{first}\"{more}", builder.path(0)), what, "served as stored, not decoded");
    }
    for Found { packed, beside, shape, scheme } in found {
        match beside {
            None => builder.set_scheme(packed, &shape, Arc::new(scheme))?,
            Some(name) => {
                let Some(tensor) = builder.catalog().tensor(packed) else { continue };
                let stored: Vec<u64> = tensor.shape().to_vec();
                let mut spec = Spec::new(&name, tensor.dtype().clone(), &shape, tensor.source(), tensor.offset());
                spec.stored_shape = Some(&stored);
                spec.scheme = Some(Arc::new(scheme));
                builder.tie(&spec)?;
            }
        }
    }
    Ok(())
}

/// Whether a name belongs to the scales of some layout: containers without such a name are not looked at further.
fn is_part(name: &[u8]) -> bool {
    const SUFFIXES: [&[u8]; 10] = [b".scales", b".biases", b".qweight", b"_scale", b"_scale_inv", b".SCB", b"_packed", b"_scales", b"_scale_2", b".scale"];
    SUFFIXES.iter().any(|suffix| name.ends_with(suffix)) || name.windows(13).any(|w| w == b".quant_state.")
}

impl<'a> Context<'a> {
    fn get(&self, name: &[u8]) -> Option<Tensor<'a>> {
        self.catalog.tensor(*self.names.get(name)?)
    }

    /// The tensor called `stem` + `suffix`.
    fn part(&self, stem: &[u8], suffix: &str) -> Option<Tensor<'a>> {
        self.get(&[stem, suffix.as_bytes()].concat())
    }

    /// All bytes of a small tensor.
    fn bytes(&self, tensor: Tensor<'_>) -> Option<Vec<u8>> {
        let extent = tensor.stored().filter(|extent| extent.len() <= limits::NAME_BYTES)?;
        Inputs::new(self.catalog.sources()).read_all(extent).ok()
    }

    /// Every tensor whose name ends in `suffix`, with what comes before it.
    fn stems(&self, suffix: &'static str) -> impl Iterator<Item = (&'a [u8], Tensor<'a>)> + use<'a> {
        self.catalog.tensors().filter_map(move |t| Some((t.name().strip_suffix(suffix.as_bytes())?, t)))
    }

    /// Notes that a layout is not certain; each reason is told once.
    fn doubt(&mut self, tensor: Tensor<'_>, what: impl Into<String>) {
        let what = what.into();
        match self.reasons.get(&what).and_then(|at| self.doubts.get_mut(*at)) {
            Some((_, _, count)) => *count = count.saturating_add(1),
            None => {
                self.reasons.insert(what.clone(), self.doubts.len());
                self.doubts.push((what, text(tensor.name()), 1));
            }
        }
    }

    fn add(&mut self, packed: Tensor<'_>, beside: Option<Vec<u8>>, shape: Vec<u64>, facts: serde_json::Value, values: Box<dyn Values>) {
        if beside.as_ref().is_some_and(|name| self.names.contains_key(name.as_slice())) {
            self.doubt(packed, "the name of what it decodes to is another tensor's");
            return;
        }
        // Of two layouts that claim one tensor the first, more particular one stands.
        if self.taken.insert((packed.index(), beside.clone())) {
            self.found.push(Found { packed: packed.index(), beside, shape, scheme: Scheme { facts, values } });
        }
    }
}

/// A name for tensors.json.
fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Whether a tensor is of this type.
fn is(tensor: Tensor<'_>, dtype: &str) -> bool {
    DType::by_name(dtype).is_some_and(|wanted| *tensor.dtype() == wanted)
}

/// Numbers that are stored as a plain or eight-bit floating-point type: scales and offsets.
#[derive(Clone, Copy)]
struct Numbers {
    extent: Extent,
    codec: &'static quant::Codec,
}

impl Numbers {
    /// The elements of a tensor as floating-point numbers; `None` if it has no floating-point type, or its bytes are not there.
    fn of(tensor: Tensor<'_>) -> Option<Self> {
        let codec = tensor.dtype().codec().filter(|codec| codec.elements == 1)?;
        Some(Self { extent: tensor.stored()?, codec })
    }

    /// Eight-bit codes that a layout reads as this type.
    fn as_type(tensor: Tensor<'_>, dtype: &str) -> Option<Self> {
        let codec = quant::by_name(dtype).filter(|codec| codec.elements == 1 && tensor.dtype().block() == Some((1, codec.bytes as u64)))?;
        Some(Self { extent: tensor.stored()?, codec })
    }

    /// Fills `out` with the numbers from number `first` on.
    fn read(self, inputs: Inputs<'_>, first: u64, out: &mut [f32]) -> std::io::Result<()> {
        let bytes = self.codec.bytes as u64;
        let mut stored = vec![0; out.len().saturating_mul(self.codec.bytes)];
        inputs.read(self.extent, first.saturating_mul(bytes), &mut stored)?;
        self.codec.decoder()(&stored, out);
        Ok(())
    }

    /// The type's name.
    fn name(self) -> &'static str {
        self.codec.name
    }
}

/// The type in which a layout's library gives its values: each is rounded to it once and widened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rounding {
    F32,
    F16,
    Bf16,
}

impl Rounding {
    pub(super) fn of(name: &str) -> Option<Self> {
        match name {
            "f32" | "float32" | "torch.float32" => Some(Self::F32),
            "f16" | "float16" | "torch.float16" => Some(Self::F16),
            "bf16" | "bfloat16" | "torch.bfloat16" => Some(Self::Bf16),
            _ => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    pub(super) fn round(self, value: f32) -> f32 {
        let mut one = [value];
        self.round_all(&mut one);
        one[0]
    }

    /// Rounds each value.
    pub(super) fn round_all(self, values: &mut [f32]) {
        match self {
            Self::F32 => {}
            Self::F16 => {
                let mut halves = [half::f16::ZERO; RUN];
                for values in values.chunks_mut(RUN) {
                    let Some(halves) = halves.get_mut(..values.len()) else { continue };
                    halves.convert_from_f32_slice(values);
                    halves.convert_to_f32_slice(values);
                }
            }
            Self::Bf16 => values.iter_mut().for_each(|value| {
                let bits = value.to_bits();
                let rounded = bits.wrapping_add(0x7FFF).wrapping_add(bits >> 16 & 1) & 0xFFFF_0000;
                *value = if value.is_nan() { f32::NAN } else { f32::from_bits(rounded) };
            }),
        }
    }
}

/// Values that are rounded at a time: both forms stay in the first-level cache.
const RUN: usize = 256;

/// The value of each code in a table.
fn look_up<const N: usize>(table: &[f32; N], codes: &[u8], out: &mut [f32]) {
    for (value, code) in out.iter_mut().zip(codes) {
        *value = table.get(usize::from(*code)).copied().unwrap_or(0.0);
    }
}

/// Takes a row, its first column and the part of the output for it.
type EachRow<'a> = dyn FnMut(u64, u64, &mut [f32]) -> std::io::Result<()> + 'a;

/// Calls `each(row, first column, part of out)` for every row that a run of elements of rows of `columns` touches.
fn by_rows(first: u64, columns: u64, out: &mut [f32], each: &mut EachRow<'_>) -> std::io::Result<()> {
    let mut element = first;
    let mut rest = out;
    while !rest.is_empty() && columns > 0 {
        let (row, column) = (element.checked_div(columns).unwrap_or(0), element.checked_rem(columns).unwrap_or(0));
        let len = usize::try_from(columns.saturating_sub(column)).unwrap_or(usize::MAX).min(rest.len());
        let (part, after) = rest.split_at_mut_checked(len).unwrap_or_default();
        each(row, column, part)?;
        element = element.saturating_add(len as u64);
        rest = after;
    }
    Ok(())
}
