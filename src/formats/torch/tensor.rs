//! Tensors as a pickle describes them, and how they become rows of the catalogue.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use super::numpy::Array;
use super::quantised::Affine;
use super::sparse::Sparse;
use super::storage::{Place, Storage};
use super::types::Type;
use crate::catalog::{Builder, Order, Spec, product};
use crate::dtype::DType;
use crate::error::Result;
use crate::limits;
use crate::reader::Endian;
use crate::recipe::{Elements, Inputs, Strided};
use crate::source::{Extent, SourceId};

/// A tensor.
pub(super) enum Tensor {
    /// A view of a storage.
    View(View),
    /// A view of stored integers that have a scale.
    Quantised(View, Affine),
    /// Parts that make a mostly empty tensor.
    Sparse(Sparse),
    /// A shape without data.
    Meta(&'static Type, Vec<u64>),
    /// A NumPy array.
    Array(Array),
}

/// Why a tensor cannot be served, with what is known of it.
#[derive(Clone, Debug)]
pub(super) struct Bad {
    pub(super) what: String,
    pub(super) known: Option<(DType, Vec<u64>)>,
}

impl From<String> for Bad {
    fn from(what: String) -> Self {
        Self { what, known: None }
    }
}

impl From<&str> for Bad {
    fn from(what: &str) -> Self {
        what.to_string().into()
    }
}

/// A view of a storage: any strides, any offset.
#[derive(Clone, Debug)]
pub(super) struct View {
    place: Place,
    pub(super) class: &'static Type,
    /// Where it starts, in elements.
    offset: u64,
    pub(super) shape: Vec<u64>,
    strides: Vec<u64>,
    /// Whether the imaginary parts are stored with the other sign.
    pub(super) conjugate: bool,
    /// Whether all values are stored with the other sign.
    pub(super) negative: bool,
    endian: Endian,
}

/// How a view's elements lie.
enum Layout {
    /// One after the other, in this order.
    Run(Order),
    Scattered,
}

impl View {
    /// A view of a storage, checked to lie inside of it.
    pub(super) fn new(
        storage: Storage,
        class: &'static Type,
        offset: u64,
        shape: Vec<u64>,
        strides: Vec<u64>,
        endian: Endian,
    ) -> std::result::Result<Self, Bad> {
        let view = Self { place: storage.place, class, offset, shape, strides, conjugate: false, negative: false, endian };
        match view.check() {
            Ok(()) => Ok(view),
            Err(what) => Err(Bad { what, known: Some((class.dtype(), view.logical_shape())) }),
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        if self.shape.len() != self.strides.len() {
            return Err(format!("its shape {:?} and its strides {:?} have not the same length", self.shape, self.strides));
        }
        if self.shape.len() > limits::DIMENSIONS {
            return Err(format!("has {} dimensions, NumPy takes {}", self.shape.len(), limits::DIMENSIONS));
        }
        let Some(elements) = product(&self.shape) else { return Err(format!("the product of its shape {:?} is larger than 2^63", self.shape)) };
        let (needed, stored) = match self.class.in_byte() {
            1 => (self.reach(), self.place.bytes.checked_div(self.class.bytes).unwrap_or(0)),
            _ if matches!(self.layout(), Layout::Run(Order::C)) && self.offset == 0 => (Some(elements.div_ceil(self.class.in_byte())), self.place.bytes),
            _ => return Err(format!("is a strided view of {}, which packs several values into a byte", self.class.torch)),
        };
        match needed {
            _ if elements == 0 => Ok(()),
            Some(needed) if needed <= stored => Ok(()),
            needed => Err(format!(
                "its view (offset {}, shape {:?}, strides {:?}) needs {} elements, its storage has {stored}",
                self.offset,
                self.shape,
                self.strides,
                needed.map_or("more than 2^64".to_string(), |needed| needed.to_string())
            )),
        }
    }

    /// Whether elements share their bytes: an expanded view, or one whose rows overlap.
    pub(super) fn repeats(&self) -> bool {
        product(&self.shape).is_none_or(|elements| elements > self.place.bytes.checked_div(self.class.bytes).unwrap_or(0).saturating_mul(self.class.in_byte()))
    }

    /// How many elements of the storage are needed for the furthest of the view's.
    fn reach(&self) -> Option<u64> {
        let mut steps = self.shape.iter().zip(&self.strides);
        let last = steps.try_fold(self.offset, |reach, (size, stride)| reach.checked_add(size.saturating_sub(1).checked_mul(*stride)?))?;
        last.checked_add(1)
    }

    /// The shape as everybody else counts it: torch counts a packed type's bytes.
    pub(super) fn logical_shape(&self) -> Vec<u64> {
        let mut shape = self.shape.clone();
        if let Some(last) = shape.last_mut() {
            *last = last.saturating_mul(self.class.packs());
        }
        shape
    }

    /// Whether the elements follow each other; strides of dimensions that have one element do not matter.
    fn layout(&self) -> Layout {
        let follows = |dimensions: &mut dyn Iterator<Item = (&u64, &u64)>| {
            let mut next = 1_u64;
            for (size, stride) in dimensions.filter(|(size, _)| **size != 1) {
                if *stride != next {
                    return false;
                }
                next = next.saturating_mul(*size);
            }
            true
        };
        if self.shape.contains(&0) || follows(&mut self.shape.iter().zip(&self.strides).rev()) {
            Layout::Run(Order::C)
        } else if follows(&mut self.shape.iter().zip(&self.strides)) {
            Layout::Run(Order::F)
        } else {
            Layout::Scattered
        }
    }

    /// Where the first element is in its source.
    fn start(&self) -> u64 {
        self.place.offset.saturating_add(self.offset.saturating_mul(self.class.bytes))
    }

    /// The elements in C order, computed where they do not lie so.
    pub(super) fn elements(&self, builder: &Builder) -> std::result::Result<Operand, String> {
        let base = self.place.extent(builder).ok_or("its storage leaves the file (a download that was cut short?)")?;
        let strided = match self.class.in_byte() {
            1 => Strided::new(base, self.class.bytes, self.offset, &self.shape, &self.strides),
            // Packed over the flat index, and checked to be contiguous.
            packed => Strided::new(base, 1, 0, &[product(&self.shape).unwrap_or(0).div_ceil(packed)], &[1]),
        };
        let strided = strided.ok_or("its view leaves its storage")?;
        Ok(Operand { strided, class: self.class, endian: self.endian })
    }

    /// The first element's bytes as extent, if all follow each other in C order.
    pub(super) fn whole_extent(&self, builder: &Builder) -> Option<Extent> {
        match (self.layout(), self.conjugate || self.negative) {
            (Layout::Run(Order::C), false) => {
                let bytes = product(&self.shape)?.checked_mul(self.class.bytes)?;
                builder.extent(self.place.source, self.start(), bytes)
            }
            _ => None,
        }
    }
}

/// A tensor that a recipe reads: its elements in C order.
pub(super) struct Operand {
    strided: Strided,
    pub(super) class: &'static Type,
    pub(super) endian: Endian,
}

impl Operand {
    /// Fills `out` with the bytes of elements from number `first` on, in the stored byte order.
    pub(super) fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [u8]) -> io::Result<()> {
        self.strided.read(inputs, first, out)
    }

    /// Every element that is stored, and how many these are.
    pub(super) fn distinct(&self) -> (Strided, u64) {
        self.strided.distinct()
    }

    /// Integers from number `first` on.
    pub(super) fn integers(&self, inputs: Inputs<'_>, first: u64, count: usize) -> io::Result<Vec<i64>> {
        let size = usize::try_from(self.class.bytes).unwrap_or(8);
        let mut bytes = vec![0; count.saturating_mul(size)];
        self.read(inputs, first, &mut bytes)?;
        Ok(bytes.chunks_exact(size.max(1)).map(|element| integer(element, self.class, self.endian)).collect())
    }

    /// Real numbers from number `first` on.
    pub(super) fn floats(&self, inputs: Inputs<'_>, first: u64, count: usize) -> io::Result<Vec<f64>> {
        let size = usize::try_from(self.class.bytes).unwrap_or(8);
        let mut bytes = vec![0; count.saturating_mul(size)];
        self.read(inputs, first, &mut bytes)?;
        let float = |element: &[u8]| {
            let mut wide = [0; 8];
            wide.iter_mut().zip(element).for_each(|(to, from)| *to = *from);
            if self.endian == Endian::Big {
                wide.get_mut(..size).unwrap_or_default().reverse();
            }
            let low = u32::try_from(u64::from_le_bytes(wide) & 0xFFFF_FFFF).unwrap_or(0);
            match self.class.torch {
                "float64" => f64::from_le_bytes(wide),
                "float32" => f32::from_bits(low).into(),
                "float16" => half::f16::from_bits(low as u16).to_f64(),
                "bfloat16" => half::bf16::from_bits(low as u16).to_f64(),
                _ => integer(element, self.class, self.endian) as f64,
            }
        };
        Ok(bytes.chunks_exact(size.max(1)).map(float).collect())
    }
}

/// An element of an integer type.
fn integer(element: &[u8], class: &Type, endian: Endian) -> i64 {
    let byte = |b: &u8| i64::from(*b);
    let fold = |value: i64, b: i64| value << 8 | b;
    let value = match endian {
        Endian::Little => element.iter().rev().map(byte).fold(0, fold),
        Endian::Big => element.iter().map(byte).fold(0, fold),
    };
    match class.torch {
        "int8" | "qint8" => i64::from(value as i8),
        "int16" => i64::from(value as i16),
        "int32" | "qint32" => i64::from(value as i32),
        _ => value,
    }
}

/// Elements with the sign of some of their parts turned.
#[derive(Clone)]
struct Signs {
    inner: Strided,
    endian: Endian,
    /// Bytes of each part of an element.
    part: usize,
    /// Whether the first and the second part of a pair are turned; a real number is its own first part.
    turned: (bool, bool),
    element: usize,
}

impl Elements for Signs {
    fn once(&self) -> Option<(Arc<dyn Elements>, u64)> {
        self.inner.once()?;
        let (inner, count) = self.inner.distinct();
        Some((Arc::new(Self { inner, ..self.clone() }), count))
    }

    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(inputs, first, out)?;
        for element in out.chunks_exact_mut(self.element.max(1)) {
            let turned = [self.turned.0, self.turned.1];
            for (part, _) in element.chunks_exact_mut(self.part.max(1)).zip(turned).filter(|(_, turned)| *turned) {
                let high = if self.endian == Endian::Little { part.last_mut() } else { part.first_mut() };
                if let Some(high) = high {
                    *high ^= 0x80;
                }
            }
        }
        Ok(())
    }
}

/// What tells one computed view from another.
#[derive(PartialEq, Eq, Hash)]
struct Same(Place, &'static str, u64, Vec<u64>, Vec<u64>, bool, bool);

/// Adds tensors to the catalogue, and knows those that were added before.
pub(super) struct Adder<'a> {
    pub(super) builder: &'a mut Builder,
    /// The pickle's source, for what has no other.
    pub(super) stream: SourceId,
    /// Whether the index gives this name to another shard.
    pub(super) elsewhere: &'a mut dyn FnMut(&[u8]) -> bool,
    seen: HashMap<Same, u32>,
    /// Computed tensors other than views, by the node that describes them.
    nodes: HashMap<u32, u32>,
}

impl<'a> Adder<'a> {
    pub(super) fn new(builder: &'a mut Builder, stream: SourceId, elsewhere: &'a mut dyn FnMut(&[u8]) -> bool) -> Self {
        Self { builder, stream, elsewhere, seen: HashMap::new(), nodes: HashMap::new() }
    }

    /// Adds a tensor (and the parts that it is made of) under a name.
    ///
    /// # Errors
    /// There are more tensors than the limits allow.
    pub(super) fn add(&mut self, name: &[u8], node: u32, tensor: &Tensor) -> Result<()> {
        match tensor {
            Tensor::View(view) => self.view(name, view),
            Tensor::Quantised(view, affine) => self.quantised(name, view, affine),
            Tensor::Sparse(sparse) => self.sparse(name, node, sparse),
            Tensor::Meta(class, shape) => self.row(&Spec::new(name, class.dtype(), shape, self.stream, None)),
            Tensor::Array(array) => {
                let same_as = self.nodes.get(&node).copied();
                let row = u32::try_from(self.builder.len()).unwrap_or(u32::MAX);
                let spec = array.spec(name, (self.stream, self.builder.whole(self.stream)));
                if spec.computed.is_some() && same_as.is_none() {
                    self.nodes.insert(node, row);
                }
                let same_as = same_as.filter(|_| spec.computed.is_some());
                self.row(&Spec { same_as, ..spec })
            }
        }
    }

    /// Lists a tensor that cannot be served.
    ///
    /// # Errors
    /// There are more tensors than the limits allow.
    pub(super) fn bad(&mut self, name: &[u8], bad: &Bad) -> Result<()> {
        self.builder.dropped();
        let done = if bad.known.is_some() { "listed without files" } else { "left out" };
        self.builder.tensor_issue(self.stream, name, bad.what.clone(), done);
        match &bad.known {
            Some((dtype, shape)) if product(shape).is_some() => self.row(&Spec::new(name, dtype.clone(), shape, self.stream, None)),
            _ => Ok(()),
        }
    }

    fn row(&mut self, spec: &Spec<'_>) -> Result<()> {
        if (self.elsewhere)(spec.name) { self.builder.tensor_later(spec) } else { self.builder.tensor(spec) }
    }

    fn view(&mut self, name: &[u8], view: &View) -> Result<()> {
        let shape = view.logical_shape();
        let spec = Spec { endian: view.endian, ..Spec::new(name, view.class.dtype(), &shape, view.place.source, Some(view.start())) };
        let turned = view.conjugate || view.negative;
        match view.layout() {
            Layout::Run(Order::C) if !turned => self.row(&spec),
            // The last dimension of a packed type is not one of bytes.
            Layout::Run(Order::F) if !turned && view.class.packs() == 1 => self.row(&Spec { order: Order::F, ..spec }),
            _ => self.computed(name, view, spec, turned),
        }
    }

    /// A view whose elements are gathered when they are read.
    fn computed(&mut self, name: &[u8], view: &View, spec: Spec<'_>, turned: bool) -> Result<()> {
        let operand = match view.elements(self.builder) {
            Ok(operand) => operand,
            Err(what) => return self.bad(name, &Bad { what, known: Some((view.class.dtype(), view.logical_shape())) }),
        };
        let elements: Arc<dyn Elements> = match turned {
            false => Arc::new(operand.strided),
            true => {
                let element = usize::try_from(view.class.bytes).unwrap_or(1);
                let part = view.class.complex_part().unwrap_or(element);
                let turned = (view.negative, view.negative != view.conjugate);
                Arc::new(Signs { inner: operand.strided, endian: view.endian, part, turned, element })
            }
        };
        let key = Same(view.place, view.class.torch, view.offset, view.shape.clone(), view.strides.clone(), view.conjugate, view.negative);
        let row = u32::try_from(self.builder.len()).unwrap_or(u32::MAX);
        let first = *self.seen.entry(key).or_insert(row);
        self.row(&Spec { computed: Some(elements), same_as: (first != row).then_some(first), ..spec })
    }

    fn quantised(&mut self, name: &[u8], view: &View, affine: &Affine) -> Result<()> {
        let spec = Spec { endian: view.endian, ..Spec::new(name, view.class.dtype(), &view.shape, view.place.source, Some(view.start())) };
        let scheme = match affine.scheme(view, self.builder) {
            Ok(scheme) => Some(Arc::new(scheme)),
            Err(what) => {
                self.builder.tensor_issue(self.stream, name, what, "only its stored integers are served");
                None
            }
        };
        // Values come in C order; so do the integers, where they are stored otherwise.
        match view.layout() {
            Layout::Run(Order::C) => self.row(&Spec { scheme, ..spec }),
            _ => self.computed(name, view, Spec { scheme, ..spec }, false),
        }
    }

    fn sparse(&mut self, name: &[u8], node: u32, sparse: &Sparse) -> Result<()> {
        let row = u32::try_from(self.builder.len()).unwrap_or(u32::MAX);
        let same_as = self.nodes.get(&node).copied();
        match sparse.elements(self.builder) {
            Ok(elements) => {
                let dtype = sparse.class().dtype();
                let endian = sparse.endian();
                self.nodes.entry(node).or_insert(row);
                let spec = Spec { endian, ..Spec::new(name, dtype, &sparse.shape, sparse.source(), None) };
                self.row(&Spec { computed: Some(elements), same_as, ..spec })?;
            }
            Err(what) => self.bad(name, &Bad { what, known: Some((sparse.class().dtype(), sparse.shape.clone())) })?,
        }
        for (part, view) in sparse.parts() {
            let name = [name, b".", part.as_bytes()].concat();
            self.view(&name, view)?;
        }
        Ok(())
    }
}

impl View {
    pub(super) fn source(&self) -> SourceId {
        self.place.source
    }

    pub(super) fn endian(&self) -> Endian {
        self.endian
    }
}
