//! The one way to make a catalogue: everything is checked here, once, for all formats.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Catalog, Data, Issue, Order, Row, SideFile, Span, Tensor, Value};
use crate::dtype::DType;
use crate::error::{Error, Result, counted, left_over, quoted};
use crate::limits;
use crate::reader::Endian;
use crate::recipe::{Elements, Scheme};
use crate::source::{Extent, Source, SourceId};

/// A tensor as a format describes it; nothing of it has been checked yet.
#[derive(Clone)]
pub struct Spec<'a> {
    /// Name as the container spells it.
    pub name: &'a [u8],
    /// Element type.
    pub dtype: DType,
    /// Logical shape, outermost dimension first.
    pub shape: &'a [u64],
    /// The stored shape, where it differs.
    pub stored_shape: Option<&'a [u64]>,
    /// Element order.
    pub order: Order,
    /// Byte order.
    pub endian: Endian,
    /// The source that holds it.
    pub source: SourceId,
    /// Where its bytes start in the source; `None` if it has none.
    pub offset: Option<u64>,
    /// How many bytes the container says it has; `None` if shape and type alone tell.
    pub bytes: Option<u64>,
    /// Only the stored bytes are certain: decode nothing.
    pub opaque: bool,
    /// Computes the elements, where they do not lie in the source as they are.
    pub computed: Option<Arc<dyn Elements>>,
    /// Computes the logical values from several tensors.
    pub scheme: Option<Arc<Scheme>>,
    /// An earlier tensor with the same computed elements.
    pub same_as: Option<u32>,
}

impl<'a> Spec<'a> {
    /// A tensor that lies at `offset` of a source in C order, little-endian; the other fields are for what is out of the ordinary.
    pub fn new(name: &'a [u8], dtype: DType, shape: &'a [u64], source: SourceId, offset: Option<u64>) -> Self {
        Self {
            name,
            dtype,
            shape,
            stored_shape: None,
            order: Order::C,
            endian: Endian::Little,
            source,
            offset,
            bytes: None,
            opaque: false,
            computed: None,
            scheme: None,
            same_as: None,
        }
    }
}

/// The part of a source that tensors should fill, for the formats in which holes and trailing bytes are faults.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// The source.
    pub source: SourceId,
    /// Where tensor data starts.
    pub start: u64,
    /// Where it ends.
    pub end: u64,
    /// Bytes that may lie unused between two tensors or after the last one.
    pub slack: u64,
}

impl Catalog {
    /// A catalogue of one tensor that has every stored element of a tensor of this one, for whoever has to see all values of a tensor that is far larger than
    /// what is stored of it: an expanded view repeats its elements, a sparse tensor is zero between them. `None` for every other tensor.
    pub fn once(&self, tensor: Tensor<'_>) -> Option<Self> {
        /// A tensor up to this size, or this many times its stored elements, is read as it is.
        const ELEMENTS: u64 = 1 << 24;
        const TIMES: u64 = 8;
        let Data::Computed(elements, _) = tensor.data() else { return None };
        let (Some((1, _)), true) = (tensor.dtype().block(), tensor.elements() > ELEMENTS) else { return None };
        let (once, count) = elements.once().filter(|(_, count)| *count < tensor.elements() / TIMES)?;
        let mut builder = Builder::new(self.format);
        builder.catalog.sources.clone_from(&self.sources);
        let shape = [count];
        let spec = Spec::new(tensor.name(), tensor.dtype().clone(), &shape, tensor.source(), None);
        builder.tensor(&Spec { endian: tensor.endian(), computed: Some(once), opaque: tensor.is_opaque(), ..spec }).ok()?;
        Some(builder.catalog)
    }
}

/// Collects what a format finds and checks it.
pub struct Builder {
    catalog: Catalog,
    regions: Vec<Region>,
    sharing_is_normal: bool,
    names_may_repeat: bool,
    more_issues: u64,
    dropped: bool,
    /// Rows that come after all others: a shard index says that another shard's tensor of that name is the one meant.
    later: Vec<u32>,
    /// Names that the container itself declares to share another tensor's bytes.
    ties: HashSet<Vec<u8>>,
}

impl Builder {
    /// A builder for a container of this format.
    pub fn new(format: &'static str) -> Self {
        let catalog = Catalog {
            format,
            sources: Vec::new(),
            asides: Vec::new(),
            rows: Vec::new(),
            names: Vec::new(),
            dimensions: Vec::new(),
            metadata: Vec::new(),
            facts: Vec::new(),
            quotes: Vec::new(),
            sides: Vec::new(),
            issues: Vec::new(),
            endian: Endian::Little,
        };
        Self {
            catalog,
            regions: Vec::new(),
            sharing_is_normal: false,
            names_may_repeat: false,
            more_issues: 0,
            dropped: false,
            later: Vec::new(),
            ties: HashSet::new(),
        }
    }

    /// Says that tensors which share bytes are nothing unusual in this format.
    pub fn sharing_is_normal(&mut self) {
        self.sharing_is_normal = true;
    }

    /// Says that equal names are nothing unusual in this format, which reports by itself those that are.
    pub fn names_may_repeat(&mut self) {
        self.names_may_repeat = true;
    }

    /// Sets the container's byte order.
    pub fn endian(&mut self, endian: Endian) {
        self.catalog.endian = endian;
    }

    /// Adds a source and gives its number.
    pub fn source(&mut self, source: Arc<Source>) -> SourceId {
        let id = u32::try_from(self.catalog.sources.len()).unwrap_or(u32::MAX);
        self.catalog.sources.push(source);
        id
    }

    /// Adds a source that only holds a side file.
    pub fn side_source(&mut self, source: Arc<Source>) -> SourceId {
        let id = self.source(source);
        self.catalog.asides.push(id);
        id
    }

    /// The names of all tensors so far.
    pub fn names(&self) -> HashSet<&[u8]> {
        self.catalog.tensors().map(|t| t.name()).collect()
    }

    /// The path of a source, for messages.
    pub fn path(&self, id: SourceId) -> String {
        let path = self.catalog.sources.get(id as usize).map(|s| s.path().display().to_string());
        crate::error::printable(&path.unwrap_or_default())
    }

    /// The run of `len` bytes at `offset` in a source; `None` if it leaves the source.
    pub fn extent(&self, id: SourceId, offset: u64, len: u64) -> Option<Extent> {
        Extent::new(id, self.catalog.sources.get(id as usize)?, offset, len)
    }

    /// A source that was added before.
    pub fn source_of(&self, id: SourceId) -> Option<Arc<Source>> {
        self.catalog.sources.get(id as usize).cloned()
    }

    /// All bytes of a source.
    pub fn whole(&self, id: SourceId) -> Option<Extent> {
        self.extent(id, 0, self.catalog.sources.get(id as usize)?.len())
    }

    /// Declares where tensor data lies in a source, so that holes and trailing bytes are found.
    pub fn region(&mut self, region: Region) {
        self.regions.push(region);
    }

    /// Adds an issue.
    pub fn issue(&mut self, place: impl Into<String>, what: impl Into<String>, done: impl Into<String>) {
        if self.catalog.issues.len() < limits::ISSUES {
            self.catalog.issues.push(Issue { place: place.into(), what: what.into(), done: done.into() });
        } else {
            self.more_issues = self.more_issues.saturating_add(1);
        }
    }

    /// Notes that something with a name had to be left out altogether; a container of which nothing else is left is then refused.
    pub fn dropped(&mut self) {
        self.dropped = true;
    }

    /// Adds an issue about a tensor.
    pub fn tensor_issue(&mut self, source: SourceId, name: &[u8], what: impl Into<String>, done: impl Into<String>) {
        // One that is only counted needs no words: there may be millions.
        let place = if self.catalog.issues.len() < limits::ISSUES { format!("{}: tensor {}", self.path(source), quoted(name)) } else { String::new() };
        self.issue(place, what, done);
    }

    /// Adds a key; a key that is there already is kept once more under its name and reported.
    ///
    /// # Errors
    /// There are more keys than the limits allow.
    pub fn metadata(&mut self, key: Vec<u8>, value: Value) -> Result<()> {
        if self.catalog.metadata.len() as u64 >= limits::KEYS {
            return Err(Error::limit(format!("has more than {} metadata keys", limits::KEYS)));
        }
        self.catalog.metadata.push((key, value));
        Ok(())
    }

    /// The first value of a key.
    pub fn value(&self, key: &[u8]) -> Option<&Value> {
        self.catalog.metadata.iter().find(|(k, _)| k == key).map(|(_, v)| v)
    }

    /// All keys so far.
    pub fn metadata_so_far(&self) -> &[(Vec<u8>, Value)] {
        &self.catalog.metadata
    }

    /// Adds a fact to info.json.
    pub fn fact(&mut self, key: &str, value: serde_json::Value) {
        self.catalog.facts.push((key.to_string(), value));
    }

    /// Adds a fact that is JSON text of the container's own to info.json.
    pub fn quote(&mut self, key: &str, text: String) {
        self.catalog.quotes.push((key.to_string(), text));
    }

    /// Adds a line to a list in info.json, unless it is there already; several files of a set share the list.
    pub fn list_fact(&mut self, key: &str, lines: impl IntoIterator<Item = String>) {
        let at = self.catalog.facts.iter().position(|(k, v)| k == key && v.is_array());
        let mut list = match at {
            Some(at) => self.catalog.facts.remove(at).1,
            None => serde_json::Value::Array(Vec::new()),
        };
        if let Some(list) = list.as_array_mut() {
            let known: HashSet<String> = list.iter().filter_map(|line| line.as_str().map(str::to_string)).collect();
            list.extend(lines.into_iter().filter(|line| !known.contains(line)).map(serde_json::Value::String));
        }
        self.catalog.facts.push((key.to_string(), list));
    }

    /// Adds a side file.
    pub fn side(&mut self, side: SideFile) {
        self.catalog.sides.push(side);
    }

    /// What was added so far, unchecked as a whole.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Gives a tensor logical values that are computed from several tensors; the shape that it had becomes the stored one.
    ///
    /// # Errors
    /// The shapes together are too long.
    pub fn set_scheme(&mut self, index: u32, shape: &[u64], scheme: Arc<Scheme>) -> Result<()> {
        let Some(elements) = product(shape) else { return Ok(()) };
        let span = self.span_of_shape(shape)?;
        if let Some(row) = self.catalog.rows.get_mut(index as usize) {
            let stored = std::mem::replace(&mut row.shape, span);
            row.stored_shape = (stored.of(&self.catalog.dimensions) != shape).then_some(stored);
            row.elements = elements;
            row.scheme = Some(scheme);
        }
        Ok(())
    }

    /// How many tensors were added so far.
    pub fn len(&self) -> usize {
        self.catalog.rows.len()
    }

    /// Whether no tensor was added so far.
    pub fn is_empty(&self) -> bool {
        self.catalog.rows.is_empty()
    }

    fn span_of_name(&mut self, name: &[u8]) -> Result<Span> {
        let too_long = || Error::limit("the tensor names together are longer than 4 GiB");
        let start = u32::try_from(self.catalog.names.len()).map_err(|_| too_long())?;
        let len = u32::try_from(name.len()).map_err(|_| too_long())?;
        self.catalog.names.extend_from_slice(name);
        Ok(Span { start, len })
    }

    fn span_of_shape(&mut self, shape: &[u64]) -> Result<Span> {
        let start = u32::try_from(self.catalog.dimensions.len()).map_err(|_| Error::limit("has more than 4 billion dimensions"))?;
        let len = u32::try_from(shape.len()).unwrap_or(u32::MAX);
        self.catalog.dimensions.extend_from_slice(shape);
        Ok(Span { start, len })
    }

    /// Adds a tensor. What is wrong with it becomes an issue; it stays in the list, without files if its bytes are not certain.
    ///
    /// # Errors
    /// There are more tensors than the limits allow.
    pub fn tensor(&mut self, spec: &Spec<'_>) -> Result<()> {
        if self.catalog.rows.len() as u64 >= limits::TENSORS {
            return Err(Error::limit(format!("has more than {} tensors", limits::TENSORS)));
        }
        let (elements, data) = match self.place(spec) {
            Ok((elements, data)) => (elements, data),
            Err(what) => {
                self.tensor_issue(spec.source, spec.name, what, "listed without files");
                (product(spec.shape).unwrap_or(0), Data::Missing)
            }
        };
        let row = Row {
            name: self.span_of_name(spec.name)?,
            shape: self.span_of_shape(spec.shape)?,
            stored_shape: spec.stored_shape.filter(|stored| *stored != spec.shape).map(|shape| self.span_of_shape(shape)).transpose()?,
            dtype: spec.dtype.clone(),
            data,
            scheme: spec.scheme.clone(),
            source: spec.source,
            offset: spec.offset,
            elements,
            shares: spec.same_as,
            order: if is_one_dimensional(spec.shape) { Order::C } else { spec.order },
            endian: spec.endian,
            opaque: spec.opaque,
        };
        self.catalog.rows.push(row);
        Ok(())
    }

    /// Adds a tensor that comes after all others, so that one of the same name keeps the plain name.
    ///
    /// # Errors
    /// There are more tensors than the limits allow.
    pub fn tensor_later(&mut self, spec: &Spec<'_>) -> Result<()> {
        self.later.push(self.catalog.len());
        self.tensor(spec)
    }

    /// Adds a name for bytes that another tensor has too, as the container itself says: sharing them is no issue.
    ///
    /// # Errors
    /// There are more tensors than the limits allow.
    pub fn tie(&mut self, spec: &Spec<'_>) -> Result<()> {
        self.ties.insert(spec.name.to_vec());
        self.tensor(spec)
    }

    /// The number of elements and the bytes of a tensor, or what is wrong with it.
    fn place(&self, spec: &Spec<'_>) -> std::result::Result<(u64, Data), String> {
        let elements = product(spec.shape).ok_or_else(|| format!("the product of its shape {:?} is larger than 2^63", spec.shape))?;
        if elements == 0 && !numpy_can_hold(spec) {
            return Err(format!("its shape {:?} is too large for NumPy even though it is empty", spec.shape));
        }
        if let (Some(computed), Some(bytes)) = (&spec.computed, spec.bytes) {
            return Ok((elements, Data::Computed(Arc::clone(computed), bytes)));
        }
        let Some(offset) = spec.offset.or(spec.computed.is_some().then_some(0)) else { return Ok((elements, Data::Missing)) };
        // A layout that packs several values into an element has as many elements as its stored shape says.
        let stored_elements = spec.stored_shape.map_or(Some(elements), product).ok_or("the product of its stored shape is larger than 2^63")?;
        let needed = match spec.dtype.block() {
            Some((per_block, bytes)) => Some(
                stored_elements
                    .div_ceil(per_block)
                    .checked_mul(bytes)
                    .map(|whole| match &spec.dtype {
                        // Sub-byte elements may end inside a group; ggml blocks are always whole.
                        DType::Coded(codec) if codec.ggml.is_none() && !stored_elements.is_multiple_of(per_block) => {
                            packed_bytes(stored_elements, per_block, bytes).unwrap_or(whole)
                        }
                        _ => whole,
                    })
                    .filter(|bytes| *bytes <= i64::MAX as u64)
                    .ok_or_else(|| format!("its size (shape {:?}, {}) is larger than 2^63 bytes", spec.shape, spec.dtype))?,
            ),
            None => spec.bytes,
        };
        if spec.dtype.is_block() {
            let (per_block, _) = spec.dtype.block().unwrap_or((1, 1));
            let row = spec.stored_shape.unwrap_or(spec.shape).last().copied().unwrap_or(1);
            if !row.is_multiple_of(per_block) {
                return Err(format!("its rows have {row} elements, expected a multiple of {per_block} for {}", spec.dtype));
            }
        }
        let Some(needed) = needed else { return Ok((elements, Data::Missing)) };
        if let Some(computed) = &spec.computed {
            return Ok((elements, Data::Computed(Arc::clone(computed), needed)));
        }
        if let Some(stored) = spec.bytes.filter(|stored| *stored != needed) {
            return Err(format!("has {}, expected {needed} for shape {:?} of {}", counted(stored, "byte", "bytes"), spec.shape, spec.dtype));
        }
        let source = self.catalog.sources.get(spec.source as usize).ok_or("its source is missing")?;
        match Extent::new(spec.source, source, offset, needed) {
            Some(extent) => Ok((elements, Data::Stored(extent))),
            None => Err(match offset.checked_add(needed) {
                Some(end) => format!(
                    "its data ends at byte {end}, the file ends at {}: {} (a download that was cut short?)",
                    source.len(),
                    counted(end.saturating_sub(source.len()), "byte is missing", "bytes are missing")
                ),
                None => format!("its data starts at byte {offset}, far outside the file of {} bytes", source.len()),
            }),
        }
    }

    /// Checks what only shows once everything is known and gives the catalogue.
    ///
    /// # Errors
    /// Nothing is left: parts had to be dropped, and no tensor and no key remains.
    pub fn finish(mut self) -> Result<Catalog> {
        if !self.later.is_empty() {
            let later: HashSet<u32> = std::mem::take(&mut self.later).into_iter().collect();
            let rows = std::mem::take(&mut self.catalog.rows);
            let (first, last): (Vec<_>, Vec<_>) = (0u32..).zip(rows).partition(|(index, _)| !later.contains(index));
            let moved: HashMap<u32, u32> = first.iter().chain(&last).map(|(index, _)| *index).zip(0u32..).collect();
            self.catalog.rows = first.into_iter().chain(last).map(|(_, row)| row).collect();
            for row in &mut self.catalog.rows {
                row.shares = row.shares.and_then(|index| moved.get(&index).copied());
            }
        }
        self.duplicate_keys();
        if !self.names_may_repeat {
            self.duplicate_names();
        }
        self.shared_and_overlapping();
        self.holes();
        if self.more_issues > 0 {
            let more = self.more_issues;
            self.catalog.issues.push(Issue {
                place: self.path(0),
                what: counted(more, "further issue", "further issues"),
                done: format!("only the first {} are listed", limits::ISSUES),
            });
        }
        let served = self.catalog.rows.iter().any(|row| !row.data.is_missing() || row.offset.is_none());
        if !served && self.catalog.metadata.is_empty() && (self.dropped || !self.catalog.rows.is_empty()) {
            let file = format!("{}: ", self.path(0));
            let first = self.catalog.issues.first().map(|i| format!("{}: {}", i.place.strip_prefix(&file).unwrap_or(&i.place), i.what)).unwrap_or_default();
            return Err(Error::format(format!("no tensor and no metadata is left of it: {first}")));
        }
        self.catalog.rows.shrink_to_fit();
        self.catalog.names.shrink_to_fit();
        self.catalog.dimensions.shrink_to_fit();
        Ok(self.catalog)
    }

    fn duplicate_keys(&mut self) {
        let mut seen: HashMap<&[u8], u32> = HashMap::with_capacity(self.catalog.metadata.len());
        let mut twice = Vec::new();
        for (key, _) in &self.catalog.metadata {
            let count = seen.entry(key).or_default();
            *count = count.saturating_add(1);
            if *count == 2 {
                twice.push(quoted(key));
            }
        }
        for key in twice {
            self.issue(format!("{}: key {key}", self.path(0)), "the key occurs more than once", "all are listed, the later ones as ~2, ~3");
        }
    }

    fn duplicate_names(&mut self) {
        let mut order: Vec<u32> = (0..self.catalog.len()).collect();
        let name = |i: &u32| self.catalog.tensor(*i).map(|t| t.name()).unwrap_or_default();
        order.sort_by(|a, b| name(a).cmp(name(b)).then(a.cmp(b)));
        let mut twice: Vec<u32> = order
            .windows(2)
            .filter_map(|pair| match pair {
                [a, b] if name(a) == name(b) => Some(*b),
                _ => None,
            })
            .collect();
        twice.sort_unstable();
        for index in twice {
            let Some(tensor) = self.catalog.tensor(index) else { continue };
            let (source, name) = (tensor.source(), tensor.name().to_vec());
            self.tensor_issue(source, &name, "the name occurs more than once", "served beside the first under a name with ~2");
        }
    }

    /// Marks tensors with equal bytes as sharing them and reports ranges that overlap.
    fn shared_and_overlapping(&mut self) {
        let mut order: Vec<(Extent, u32)> =
            (0u32..).zip(&self.catalog.rows).filter_map(|(i, row)| Some((row.data.stored().filter(|d| !d.is_empty())?, i))).collect();
        if order.is_sorted_by(|(a, _), (b, _)| a.source() < b.source() || (a.source() == b.source() && end(*a) <= b.offset())) {
            return;
        }
        order.sort_unstable();
        let mut reports = Vec::new();
        let mut reach: Option<(Extent, u32)> = None;
        let mut first: Option<(Extent, u32)> = None;
        for (extent, index) in order {
            match first {
                Some((same, owner)) if same == extent => {
                    if let Some(row) = self.catalog.rows.get_mut(index as usize) {
                        row.shares = Some(owner);
                    }
                    if !self.sharing_is_normal && !self.catalog.tensor(index).is_some_and(|t| self.ties.contains(t.name())) {
                        reports.push((index, owner, true));
                    }
                    continue;
                }
                _ => first = Some((extent, index)),
            }
            match reach {
                Some((furthest, other)) if furthest.source() == extent.source() && end(furthest) > extent.offset() => {
                    if !self.sharing_is_normal {
                        reports.push((index, other, false));
                    }
                    if end(extent) > end(furthest) {
                        reach = Some((extent, index));
                    }
                }
                _ => reach = Some((extent, index)),
            }
        }
        reports.sort_unstable();
        for (index, other, equal) in reports {
            let (Some(tensor), Some(other)) = (self.catalog.tensor(index), self.catalog.tensor(other)) else { continue };
            let what = if equal { "has the same bytes as" } else { "overlaps" };
            let (source, name, text) = (tensor.source(), tensor.name().to_vec(), format!("{what} tensor {}", quoted(other.name())));
            self.tensor_issue(source, &name, text, "both are served as they are");
        }
    }

    fn holes(&mut self) {
        let regions = std::mem::take(&mut self.regions);
        if regions.is_empty() {
            return;
        }
        let mut extents: Vec<Extent> = self.catalog.rows.iter().filter_map(|row| row.data.stored()).collect();
        if !extents.is_sorted() {
            extents.sort_unstable();
        }
        // A tensor that could not be placed explains any hole.
        let unplaced: HashSet<SourceId> = self.catalog.rows.iter().filter(|row| row.data.is_missing()).map(|row| row.source).collect();
        for region in regions.into_iter().filter(|region| !unplaced.contains(&region.source)) {
            let mut at = region.start;
            let place = self.path(region.source);
            let first = extents.partition_point(|e| e.source() < region.source);
            for extent in extents.iter().skip(first).take_while(|e| e.source() == region.source) {
                let hole = extent.offset().saturating_sub(at);
                if hole > region.slack {
                    self.issue(
                        place.clone(),
                        format!("{} at {at} {} to no tensor", counted(hole, "byte", "bytes"), if hole == 1 { "belongs" } else { "belong" }),
                        "shown in source/ only",
                    );
                }
                at = at.max(end(*extent));
            }
            let rest = region.end.saturating_sub(at);
            if rest > region.slack {
                self.issue(place, left_over(rest, "the last tensor", at), "shown in source/ only");
            }
        }
    }
}

fn end(extent: Extent) -> u64 {
    extent.offset().saturating_add(extent.len())
}

/// Bytes of `elements` packed sub-byte elements, of which `per_block` take `bytes`.
fn packed_bytes(elements: u64, per_block: u64, bytes: u64) -> Option<u64> {
    Some(elements.checked_mul(bytes)?.div_ceil(per_block))
}

/// NumPy multiplies the dimensions that are not zero, and the bytes of an element, and wants less than 2^63 even of an empty array.
fn numpy_can_hold(spec: &Spec<'_>) -> bool {
    let element = spec.dtype.block().map_or(8, |(elements, bytes)| bytes.div_ceil(elements).max(8));
    let bytes = spec.shape.iter().filter(|d| **d != 0).try_fold(element, |product, dimension| product.checked_mul(*dimension));
    bytes.is_some_and(|bytes| bytes <= i64::MAX as u64)
}

/// The product of a shape, at most 2^63 - 1; a zero anywhere makes it 0.
pub(crate) fn product(shape: &[u64]) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1u64, |product, dimension| product.checked_mul(*dimension).filter(|p| *p <= i64::MAX as u64))
}

/// Whether C and Fortran order are the same for this shape, in which case NumPy says C.
fn is_one_dimensional(shape: &[u64]) -> bool {
    shape.contains(&0) || shape.iter().filter(|d| **d > 1).count() <= 1
}
