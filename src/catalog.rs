//! What a container holds: tensors in file order, metadata, side files and issues.
//!
//! A [`Catalog`] is made by a [`Builder`] only, which checks once, for all formats, that every extent lies in its source and has the length that shape and
//! type ask for, and finds duplicate names, shared ranges, overlaps, holes and trailing bytes. What does not hold becomes an [`Issue`], and the rest stays.

mod builder;
mod value;

use std::sync::Arc;

use crate::dtype::DType;
use crate::reader::Endian;
use crate::recipe::{Elements, Scheme};
use crate::source::{Extent, Source, SourceId};

pub(crate) use builder::product;
pub use builder::{Builder, Region, Spec};
pub use value::{Scalar, StoredArray, Value};

/// The order of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Order {
    /// Row-major: the last index varies fastest.
    #[default]
    C,
    /// Column-major: the first index varies fastest.
    F,
}

/// A part of a container that could not be taken as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// Where it is: a file, and the tensor or key.
    pub place: String,
    /// What was found and what was expected.
    pub what: String,
    /// What was done instead.
    pub done: String,
}

/// The folder of a side file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// `config/`: small files of a model folder.
    Config,
    /// `tokenizer/`: tokenizer files of a model folder, or keys of the container.
    Tokenizer,
}

/// Where a side file's bytes are.
#[derive(Clone, Debug)]
pub enum SideBytes {
    /// In a source, as they are.
    Stored(Extent),
    /// The metadata value with this number, as JSON.
    Json(usize),
    /// The metadata string with this number, verbatim.
    Text(usize),
}

/// A file that is shown beside the tensors.
#[derive(Clone, Debug)]
pub struct SideFile {
    /// The folder it belongs to.
    pub section: Section,
    /// Its name, which may hold `/`.
    pub name: Vec<u8>,
    /// Its bytes.
    pub bytes: SideBytes,
}

/// A span of one of the catalogue's arenas.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    start: u32,
    len: u32,
}

impl Span {
    fn of<T>(self, arena: &[T]) -> &[T] {
        let start = self.start as usize;
        arena.get(start..start.saturating_add(self.len as usize)).unwrap_or(&[])
    }
}

/// Where a tensor's elements are.
#[derive(Clone)]
pub enum Data {
    /// They cannot be served.
    Missing,
    /// They lie in a source as they are.
    Stored(Extent),
    /// They are computed when they are read, and take this many bytes.
    Computed(Arc<dyn Elements>, u64),
}

/// One row of the table of tensors.
struct Row {
    name: Span,
    shape: Span,
    stored_shape: Option<Span>,
    dtype: DType,
    data: Data,
    /// How its logical values come from its elements and other tensors.
    scheme: Option<Arc<Scheme>>,
    source: SourceId,
    offset: Option<u64>,
    elements: u64,
    /// The first tensor with the same bytes.
    shares: Option<u32>,
    order: Order,
    endian: Endian,
    opaque: bool,
}

/// Everything a container holds.
pub struct Catalog {
    format: &'static str,
    sources: Vec<Arc<Source>>,
    /// Sources that are side files only, not containers.
    asides: Vec<SourceId>,
    rows: Vec<Row>,
    names: Vec<u8>,
    dimensions: Vec<u64>,
    metadata: Vec<(Vec<u8>, Value)>,
    facts: Vec<(String, serde_json::Value)>,
    /// Facts that are JSON text of the container's own.
    quotes: Vec<(String, String)>,
    sides: Vec<SideFile>,
    issues: Vec<Issue>,
    endian: Endian,
}

impl Data {
    fn stored(&self) -> Option<Extent> {
        match self {
            Self::Stored(extent) => Some(*extent),
            _ => None,
        }
    }

    fn is_missing(&self) -> bool {
        matches!(self, Self::Missing)
    }
}

/// One tensor of a catalogue.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    catalog: &'a Catalog,
    row: &'a Row,
    index: u32,
}

impl Catalog {
    /// The format's name: `gguf`, `safetensors`, ...
    pub fn format(&self) -> &'static str {
        self.format
    }

    /// The sources, in the order of their numbers.
    pub fn sources(&self) -> &[Arc<Source>] {
        &self.sources
    }

    /// The containers among the sources, with their numbers.
    pub fn containers(&self) -> impl Iterator<Item = (SourceId, &Arc<Source>)> {
        self.containers_from(0)
    }

    /// The same from a number on.
    pub(crate) fn containers_from(&self, first: SourceId) -> impl Iterator<Item = (SourceId, &Arc<Source>)> {
        let sources = self.sources.get(first as usize..).unwrap_or_default();
        (first..).zip(sources).filter(|(id, source)| self.asides.binary_search(id).is_err() && !source.is_member())
    }

    /// Adds an issue that was found beside the container, in its folder.
    pub(crate) fn add_issue(&mut self, issue: Issue) {
        self.issues.push(issue);
    }

    /// Adds a side file of the container's folder.
    pub(crate) fn add_side(&mut self, section: Section, name: Vec<u8>, source: Arc<Source>) {
        let id = u32::try_from(self.sources.len()).unwrap_or(u32::MAX);
        if let Some(extent) = Extent::new(id, &source, 0, source.len()) {
            self.sources.push(source);
            self.asides.push(id);
            self.sides.push(SideFile { section, name, bytes: SideBytes::Stored(extent) });
        }
    }

    /// One source.
    pub fn source(&self, id: SourceId) -> Option<&Arc<Source>> {
        self.sources.get(id as usize)
    }

    /// How many tensors there are.
    pub fn len(&self) -> u32 {
        u32::try_from(self.rows.len()).unwrap_or(u32::MAX)
    }

    /// Whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The tensor with this number, in file order.
    pub fn tensor(&self, index: u32) -> Option<Tensor<'_>> {
        self.rows.get(index as usize).map(|row| Tensor { catalog: self, row, index })
    }

    /// Every tensor in file order.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor<'_>> {
        (0u32..).zip(&self.rows).map(|(index, row)| Tensor { catalog: self, row, index })
    }

    /// The container's keys and values, in file order.
    pub fn metadata(&self) -> &[(Vec<u8>, Value)] {
        &self.metadata
    }

    /// Further facts for info.json, in the order they were found.
    pub fn facts(&self) -> &[(String, serde_json::Value)] {
        &self.facts
    }

    /// Further facts for info.json that are JSON text of the container's own: with its order and its numbers of any size.
    pub fn quotes(&self) -> &[(String, String)] {
        &self.quotes
    }

    /// Files to show in `config/` and `tokenizer/`.
    pub fn sides(&self) -> &[SideFile] {
        &self.sides
    }

    /// What could not be taken.
    pub fn issues(&self) -> &[Issue] {
        &self.issues
    }

    /// Byte order of the container's numbers.
    pub fn endian(&self) -> Endian {
        self.endian
    }
}

impl<'a> Tensor<'a> {
    /// Its number, in file order.
    pub fn index(self) -> u32 {
        self.index
    }

    /// Its own name, as the container spells it.
    pub fn name(self) -> &'a [u8] {
        self.row.name.of(&self.catalog.names)
    }

    /// Its logical shape, outermost dimension first.
    pub fn shape(self) -> &'a [u64] {
        self.row.shape.of(&self.catalog.dimensions)
    }

    /// The shape that is stored, where it differs from the logical one.
    pub fn stored_shape(self) -> Option<&'a [u64]> {
        self.row.stored_shape.map(|span| span.of(&self.catalog.dimensions))
    }

    /// The type of its elements.
    pub fn dtype(self) -> &'a DType {
        &self.row.dtype
    }

    /// How many elements it has: the product of the shape.
    pub fn elements(self) -> u64 {
        self.row.elements
    }

    /// The order of its elements.
    pub fn order(self) -> Order {
        self.row.order
    }

    /// Byte order of its elements.
    pub fn endian(self) -> Endian {
        self.row.endian
    }

    /// Where its elements are.
    pub fn data(self) -> &'a Data {
        &self.row.data
    }

    /// Its stored bytes; `None` where they cannot be served or are computed.
    pub fn stored(self) -> Option<Extent> {
        self.row.data.stored()
    }

    /// Length of its elements in the stored type, in bytes; `None` where they cannot be served.
    pub fn bytes(self) -> Option<u64> {
        match &self.row.data {
            Data::Missing => None,
            Data::Stored(extent) => Some(extent.len()),
            Data::Computed(_, bytes) => Some(*bytes),
        }
    }

    /// Bytes of one row (the last dimension), where rows are whole bytes.
    pub fn row_bytes(self) -> Option<u64> {
        let (elements, bytes) = self.dtype().block()?;
        let row = *self.stored_shape().unwrap_or(self.shape()).last()?;
        let size = row.checked_mul(bytes)?;
        if self.order() != Order::C || size.checked_rem(elements)? != 0 {
            return None;
        }
        size.checked_div(elements)
    }

    /// How its logical values are computed from several tensors, if they are.
    pub fn scheme(self) -> Option<&'a Arc<Scheme>> {
        self.row.scheme.as_ref()
    }

    /// The source that holds (or should hold) its bytes.
    pub fn source(self) -> SourceId {
        self.row.source
    }

    /// Where its bytes start in the source as the container says, even if they are not there.
    pub fn offset(self) -> Option<u64> {
        self.row.offset
    }

    /// The first tensor with the same bytes, if that is another one.
    pub fn shares(self) -> Option<Tensor<'a>> {
        self.catalog.tensor(self.row.shares?)
    }

    /// Whether only the stored bytes are certain, so that nothing is decoded from them.
    pub fn is_opaque(self) -> bool {
        self.row.opaque
    }
}
