//! Graphs, nodes and functions: where tensors live in a model.
//!
//! | place | name of the tensor |
//! |---|---|
//! | initialiser of the main graph | its own |
//! | `Constant` node | the node's output |
//! | tensor attribute of another node | `NODE/ATTRIBUTE` |
//! | graph in an attribute (If, Loop, Scan) | `NODE/ATTRIBUTE/` and the name by these rules |
//! | function | `functions/DOMAIN.NAME/` and the name by these rules |
//! | training graph | `training/N/initialization/` or `training/N/algorithm/`, likewise |
//!
//! NODE is the node's name; one without a name is called after its operator and its number in the graph, `If_3`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::super::Opening;
use super::external::{Files, Place};
use super::quantised::Candidate;
use super::sparse;
use super::tensor::{self, Kind, TensorProto};
use super::typed::{Numbers, Piece, Pieces, Strings};
use super::wire::{DEPTH, Fault, Field, Run, Value, Walk, Wire};
use crate::catalog::{Builder, Data, Spec, product};
use crate::dtype::DType;
use crate::error::{Error, quoted};
use crate::limits;
use crate::recipe::{Elements, Inputs};
use crate::source::{Extent, SourceId};

/// A model that is being read.
pub(super) struct Model<'a> {
    pub(super) wire: Wire<'a>,
    pub(super) opening: &'a Opening,
    pub(super) builder: &'a mut Builder,
    pub(super) id: SourceId,
    pub(super) files: Files,
    /// Nodes that may dequantise an initialiser.
    pub(super) candidates: Vec<Candidate>,
    /// Keys of external_data that ONNX does not define.
    pub(super) unknown_keys: Vec<Vec<u8>>,
    /// Digests of the names so far, and how many tensors wanted each.
    names: HashMap<u64, u64>,
    /// Bytes of prefixes so far.
    prefixes: usize,
}

/// A graph or function body, and what its tensors' names begin with.
#[derive(Clone, Default)]
pub(super) struct Scope {
    pub(super) prefix: Vec<u8>,
    /// Lengths of the prefixes of the scopes around it.
    pub(super) around: Vec<usize>,
    depth: u32,
}

/// What a node is, without its attributes.
#[derive(Default)]
struct Node {
    name: Vec<u8>,
    op_type: Vec<u8>,
    domain: Vec<u8>,
    inputs: Vec<Vec<u8>>,
    output: Vec<u8>,
}

/// An attribute whose values may hold tensors.
#[derive(Default)]
struct Attribute {
    name: Vec<u8>,
    tensor: Vec<Run>,
    graph: Vec<Run>,
    sparse: Vec<Run>,
    /// The single f, i or s, and the lists of them.
    single: Option<Piece>,
    lists: Pieces,
    integer: Option<i64>,
    has_lists_of_messages: bool,
}

/// Most inputs of a node that are looked at: no operator of interest has more.
const INPUTS: usize = 6;
/// Longest prefix of a nested tensor's name, in bytes.
const PREFIX_BYTES: usize = 1024;
/// Most bytes of all prefixes together.
const ALL_PREFIX_BYTES: usize = 256 << 20;
/// Data in typed fields up to this length is counted when the model is opened, in bytes; what is longer, when it is read.
const COUNTED_BYTES: u64 = 1 << 20;

impl<'a> Model<'a> {
    pub(super) fn new(wire: Wire<'a>, opening: &'a Opening, builder: &'a mut Builder, id: SourceId) -> Self {
        Self { wire, opening, builder, id, files: Files::default(), candidates: Vec::new(), unknown_keys: Vec::new(), names: HashMap::new(), prefixes: 0 }
    }

    /// Goes on after damage within one part, which is an issue.
    pub(super) fn isolate(&mut self, part: &str, result: Walk<()>) -> Walk<()> {
        match result {
            Err(Fault::Damaged { at, what }) => {
                self.builder.dropped();
                self.builder.issue(self.builder.path(self.id), format!("{part} cannot be read at byte {at}: {what}"), "what is left of it is served");
                Ok(())
            }
            other => other,
        }
    }

    /// The scope of a graph or body within another one.
    pub(super) fn inner(&self, scope: &Scope, part: &[u8]) -> Scope {
        let mut prefix = scope.prefix.clone();
        let left = PREFIX_BYTES.saturating_sub(prefix.len());
        if part.len() < left {
            prefix.extend_from_slice(part);
        } else {
            // A name of this length is no reader's friend; its number in the file is unique all the same.
            prefix.extend_from_slice(format!("~{}", self.names.len()).as_bytes());
        }
        prefix.push(b'/');
        let around = scope.around.iter().copied().chain([scope.prefix.len()]).collect();
        Scope { prefix, around, depth: scope.depth.saturating_add(1) }
    }

    /// A name that no tensor has yet, and that says where the tensor lives.
    fn name(&mut self, scope: &Scope, own: &[u8]) -> Walk<Vec<u8>> {
        self.prefixes = self.prefixes.saturating_add(scope.prefix.len());
        if self.prefixes > ALL_PREFIX_BYTES {
            return Err(Error::limit("has too many nested tensors with long names").into());
        }
        Ok(self.unique([&scope.prefix, own].concat()))
    }

    /// The name, or the name with a number if a tensor has it already.
    pub(super) fn unique(&mut self, name: Vec<u8>) -> Vec<u8> {
        let mut number = match self.names.entry(digest(&name)) {
            Entry::Vacant(free) => {
                free.insert(1);
                return name;
            }
            Entry::Occupied(taken) => *taken.get(),
        };
        // The next number of the same name goes on from here, so that many equal names take no longer than others.
        let free = loop {
            number = number.saturating_add(1);
            let candidate = [&name[..], format!("~{number}").as_bytes()].concat();
            if let Entry::Vacant(free) = self.names.entry(digest(&candidate)) {
                free.insert(1);
                break candidate;
            }
        };
        self.names.insert(digest(&name), number);
        free
    }

    /// Reads a graph from all its occurrences. `inputs` and the like of the main graph are told to `facts`.
    pub(super) fn graph(&mut self, runs: &[Run], scope: &Scope, facts: &mut dyn FnMut(&mut Wire<'a>, Field) -> Walk<()>) -> Walk<()> {
        if !self.is_shallow(scope) {
            return Ok(());
        }
        let mut number = 0u64;
        for run in runs {
            let mut cursor = self.wire.message(*run);
            while let Some(field) = self.wire.next(&mut cursor)? {
                match (field.number, field.value) {
                    (1, Value::Bytes(run)) => {
                        let result = self.node(run, number, scope);
                        self.isolate("a node", result)?;
                        number = number.saturating_add(1);
                    }
                    (5, Value::Bytes(run)) => {
                        let result = self.initialiser(run, scope);
                        self.isolate("an initialiser", result)?;
                    }
                    (15, Value::Bytes(run)) => {
                        let result = self.sparse(&[run], scope, None);
                        self.isolate("a sparse initialiser", result)?;
                    }
                    _ => {
                        let result = facts(&mut self.wire, field);
                        self.isolate("a part of the graph", result)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn is_shallow(&mut self, scope: &Scope) -> bool {
        // A graph in an attribute in a node in a graph: three messages.
        let shallow = scope.depth.saturating_mul(3) < DEPTH;
        if !shallow {
            self.builder.dropped();
            self.builder.issue(self.builder.path(self.id), format!("graphs are nested more than {} deep", scope.depth), "the innermost are left out");
        }
        shallow
    }

    fn initialiser(&mut self, run: Run, scope: &Scope) -> Walk<()> {
        let mut proto = TensorProto::default();
        proto.read(&mut self.wire, run)?;
        let name = if scope.prefix.is_empty() {
            // A name that occurs twice here is a fault of the model's, which the builder finds.
            self.names.entry(digest(&proto.name)).or_insert(1);
            std::mem::take(&mut proto.name)
        } else {
            self.name(scope, &proto.name)?
        };
        self.tensor(&proto, &name, run.start)
    }

    /// The nodes and the defaults of a function.
    pub(super) fn function(&mut self, run: Run) -> Walk<()> {
        let (mut name, mut domain, mut overload) = (Vec::new(), Vec::new(), Vec::new());
        let mut cursor = self.wire.message(run);
        while let Some(field) = self.wire.next(&mut cursor)? {
            match (field.number, field.value) {
                (1, Value::Bytes(run)) => name = self.wire.bytes(run, limits::NAME_BYTES)?,
                (10, Value::Bytes(run)) => domain = self.wire.bytes(run, limits::NAME_BYTES)?,
                (13, Value::Bytes(run)) => overload = self.wire.bytes(run, limits::NAME_BYTES)?,
                _ => {}
            }
        }
        let full = [domain, name, overload].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(&b'.');
        let scope = self.inner(&Scope::default(), &[b"functions/", &full[..]].concat());
        let mut number = 0u64;
        let mut cursor = self.wire.message(run);
        while let Some(field) = self.wire.next(&mut cursor)? {
            match (field.number, field.value) {
                (7, Value::Bytes(run)) => {
                    let result = self.node(run, number, &scope);
                    self.isolate("a function's node", result)?;
                    number = number.saturating_add(1);
                }
                (11, Value::Bytes(run)) => {
                    let result = self.attribute(run, &Node::default(), b"attributes", &scope).map(drop);
                    self.isolate("a function's attribute", result)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn node(&mut self, run: Run, number: u64, scope: &Scope) -> Walk<()> {
        let mut node = Node::default();
        let mut has_attributes = false;
        let mut has_output = false;
        let mut cursor = self.wire.message(run);
        while let Some(field) = self.wire.next(&mut cursor)? {
            let Value::Bytes(run) = field.value else { continue };
            match field.number {
                1 if node.inputs.len() < INPUTS => node.inputs.push(self.wire.bytes(run, limits::NAME_BYTES)?),
                2 if !has_output => {
                    has_output = true;
                    node.output = self.wire.bytes(run, limits::NAME_BYTES)?;
                }
                3 => node.name = self.wire.bytes(run, limits::NAME_BYTES)?,
                4 => node.op_type = self.wire.bytes(run, limits::NAME_BYTES)?,
                5 => has_attributes = true,
                7 => node.domain = self.wire.bytes(run, limits::NAME_BYTES)?,
                _ => {}
            }
        }
        let label = match node.name.as_slice() {
            b"" => [&node.op_type[..], format!("_{number}").as_bytes()].concat(),
            name => name.to_vec(),
        };
        let interesting = Candidate::is_interesting(&node.domain, &node.op_type);
        let mut integers = Vec::new();
        if has_attributes {
            let mut cursor = self.wire.message(run);
            while let Some(field) = self.wire.next(&mut cursor)? {
                if let (5, Value::Bytes(run)) = (field.number, field.value) {
                    let attribute = self.attribute(run, &node, &label, scope)?;
                    if let (true, Some(value)) = (interesting && integers.len() < 16, attribute.integer) {
                        integers.push((attribute.name, value));
                    }
                }
            }
        }
        if interesting {
            self.candidates.push(Candidate { scope: scope.clone(), op_type: node.op_type, label, inputs: node.inputs, output: node.output, integers });
        }
        Ok(())
    }

    /// Reads an attribute and what tensors and graphs it holds.
    fn attribute(&mut self, run: Run, node: &Node, label: &[u8], scope: &Scope) -> Walk<Attribute> {
        let mut attribute = Attribute::default();
        let mut cursor = self.wire.message(run);
        while let Some(Field { number, whole, value }) = self.wire.next(&mut cursor)? {
            match (number, value) {
                (1, Value::Bytes(run)) => attribute.name = self.wire.bytes(run, limits::NAME_BYTES)?,
                (2, Value::Fixed(Run { len: 4, .. })) | (4, Value::Bytes(_)) => attribute.single = Some(Piece { number, packed: false, run: whole }),
                (3, Value::Varint(value)) => {
                    attribute.integer = Some(value.cast_signed());
                    attribute.single = Some(Piece { number, packed: false, run: whole });
                }
                (5, Value::Bytes(run)) => attribute.tensor.push(run),
                (6, Value::Bytes(run)) => attribute.graph.push(run),
                (7 | 8, Value::Bytes(run)) => attribute.lists.add(number, true, run),
                (7, Value::Fixed(Run { len: 4, .. })) | (8, Value::Varint(_)) | (9, Value::Bytes(_)) => attribute.lists.add(number, false, whole),
                (10 | 11 | 23, Value::Bytes(_)) => attribute.has_lists_of_messages = true,
                (22, Value::Bytes(run)) => attribute.sparse.push(run),
                _ => {}
            }
        }
        let constant = node.op_type == b"Constant" && matches!(node.domain.as_slice(), b"" | b"ai.onnx") && !node.output.is_empty();
        let own = if constant { node.output.clone() } else { [label, b"/", &attribute.name].concat() };
        if !attribute.tensor.is_empty() {
            let mut proto = TensorProto::default();
            for run in &attribute.tensor {
                proto.read(&mut self.wire, *run)?;
            }
            let name = self.name(scope, &own)?;
            self.tensor(&proto, &name, run.start)?;
        }
        if !attribute.sparse.is_empty() {
            self.sparse(&attribute.sparse, scope, Some(&own))?;
        }
        if constant {
            self.constant(&attribute, scope, &own)?;
        }
        if !attribute.graph.is_empty() {
            let scope = self.inner(scope, &[label, b"/", &attribute.name].concat());
            self.graph(&attribute.graph, &scope, &mut |_, _| Ok(()))?;
        }
        if attribute.has_lists_of_messages {
            let (mut number, mut cursor) = (0u64, self.wire.message(run));
            while let Some(field) = self.wire.next(&mut cursor)? {
                let Value::Bytes(run) = field.value else { continue };
                let item = [label, b"/", &attribute.name, format!("/{number}").as_bytes()].concat();
                match field.number {
                    10 => {
                        let mut proto = TensorProto::default();
                        proto.read(&mut self.wire, run)?;
                        let name = self.name(scope, &item)?;
                        self.tensor(&proto, &name, run.start)?;
                    }
                    11 => {
                        let scope = self.inner(scope, &item);
                        self.graph(&[run], &scope, &mut |_, _| Ok(()))?;
                    }
                    23 => self.sparse(&[run], scope, Some(&item))?,
                    _ => continue,
                }
                number = number.saturating_add(1);
            }
        }
        Ok(attribute)
    }

    /// A Constant whose value is a number, a string, or a list of them.
    fn constant(&mut self, attribute: &Attribute, scope: &Scope, own: &[u8]) -> Walk<()> {
        // The attribute's field, and the data_type whose typed field is written in the same way.
        let (number, code) = match attribute.name.as_slice() {
            b"value_float" => (2, 1),
            b"value_int" => (3, tensor::INT64),
            b"value_string" => (4, tensor::STRING),
            b"value_floats" => (7, 1),
            b"value_ints" => (8, tensor::INT64),
            b"value_strings" => (9, tensor::STRING),
            _ => return Ok(()),
        };
        let single = number < 5;
        let pieces: Vec<Piece> = match attribute.single {
            Some(piece) if single => Some(piece).into_iter().filter(|piece| piece.number == number).collect(),
            _ => attribute.lists.of(number).copied().collect(),
        };
        let Some(pieces) = self.extents(&pieces) else { return Ok(()) };
        let inputs = Inputs::new(self.builder.catalog().sources());
        let count = match Kind::of(code) {
            Some(kind) => Numbers::new(pieces.clone(), kind.coding, kind.put, 0, 1).count(inputs)?,
            None => Strings::new(pieces.clone()).count(inputs).map_err(|_| STRINGS)?.0,
        };
        let shape = if single { Vec::new() } else { vec![count] };
        let name = self.name(scope, own)?;
        self.computed(&name, code, &shape, pieces)
    }

    /// Pieces as extents; `None` if one leaves the file.
    fn extents(&self, pieces: &[Piece]) -> Option<Vec<(Extent, bool)>> {
        let source = self.builder.catalog().source(self.id)?;
        pieces.iter().map(|piece| Some((Extent::new(self.id, source, piece.run.start, piece.run.len)?, piece.packed))).collect()
    }

    /// Adds a tensor whose elements are decoded from typed fields.
    fn computed(&mut self, name: &[u8], code: u64, shape: &[u64], pieces: Vec<(Extent, bool)>) -> Walk<()> {
        let mut spec = Spec::new(name, tensor::dtype(code), shape, self.id, None);
        spec.offset = pieces.first().map(|(extent, _)| extent.offset());
        let total = pieces.iter().fold(0u64, |total, (extent, _)| total.saturating_add(extent.len()));
        let inputs = Inputs::new(self.builder.catalog().sources());
        let elements = product(shape);
        let expected = |found: u64, wanted: u64| format!("has {found} values in its data field, expected {wanted} for shape {shape:?}");
        let result: Result<(), String> = match (Kind::of(code), elements) {
            (_, None) => Ok(()), // the builder says so
            (Some(kind), Some(elements)) => {
                let wanted = kind.numbers(elements).unwrap_or(u64::MAX);
                let (_, block_bytes) = kind.dtype().block().unwrap_or((1, 1));
                let numbers = Numbers::new(pieces, kind.coding, kind.put, wanted, block_bytes);
                // Every number takes a byte at least.
                let found = if total < wanted || total <= COUNTED_BYTES { numbers.count(inputs).map_err(|e| e.to_string()) } else { Ok(wanted) };
                spec.computed = Some(Arc::new(numbers));
                found.and_then(|found| if found == wanted { Ok(()) } else { Err(expected(found, wanted)) })
            }
            (None, Some(elements)) => {
                let strings = Strings::new(pieces);
                match strings.count(inputs) {
                    Ok((found, len)) => {
                        spec.bytes = Some(len);
                        spec.computed = Some(Arc::new(strings));
                        if found == elements { Ok(()) } else { Err(expected(found, elements)) }
                    }
                    Err(_) => Err("its strings cannot be read".to_string()),
                }
            }
        };
        if let Err(what) = result {
            self.missing(&mut spec, what);
        }
        Ok(self.builder.tensor(&spec)?)
    }

    fn missing(&mut self, spec: &mut Spec<'_>, what: String) {
        self.builder.tensor_issue(spec.source, spec.name, what, "listed without files");
        (spec.computed, spec.bytes, spec.offset) = (None, None, None);
    }

    /// Adds a tensor, which stands at `at` in the file.
    pub(super) fn tensor(&mut self, proto: &TensorProto, name: &[u8], at: u64) -> Walk<()> {
        let dtype = tensor::dtype(proto.data_type);
        let mut spec = Spec::new(name, dtype.clone(), &[], self.id, None);
        let shape = match proto.shape() {
            Ok(shape) => shape,
            Err(dimension) => {
                self.missing(&mut spec, format!("has the dimension {dimension} in its shape {:?}", proto.dims));
                return Ok(self.builder.tensor(&spec)?);
            }
        };
        spec.shape = &shape;
        if matches!(dtype, DType::Unknown(_)) {
            spec.opaque = true;
            let what = if proto.data_type == 0 { "has no data_type".to_string() } else { format!("has the unknown data_type {}", proto.data_type) };
            self.builder.tensor_issue(self.id, name, what, "its bytes are served in raw/ only");
        }
        if proto.is_external {
            return self.external(proto, spec);
        }
        let kind = Kind::of(proto.data_type);
        let field = kind.map_or(6, |kind| kind.field);
        let typed: Vec<&Piece> = proto.typed.of(field).collect();
        match (proto.raw, kind) {
            (Some(_), None) if dtype == DType::Strings => self.missing(&mut spec, "is of strings, which raw_data does not hold".to_string()),
            (Some(raw), _) => {
                if !proto.typed.pieces.is_empty() {
                    self.builder.tensor_issue(self.id, name, "has its data twice, in raw_data and in a typed field", "raw_data is served");
                }
                (spec.offset, spec.bytes) = (Some(raw.start), Some(raw.len));
            }
            (None, _) if proto.typed.too_many => self.missing(&mut spec, "has its data in far too many pieces".to_string()),
            (None, Some(kind)) if kind.in_place(&typed).is_some() => {
                let run = kind.in_place(&typed);
                (spec.offset, spec.bytes) = (run.map(|run| run.start), run.map(|run| run.len));
            }
            (None, _) if !typed.is_empty() => {
                let pieces: Vec<Piece> = typed.into_iter().copied().collect();
                match self.extents(&pieces) {
                    Some(pieces) => return self.computed(name, proto.data_type, &shape, pieces),
                    None => self.missing(&mut spec, "its data leads past the end of the file (a download that was cut short?)".to_string()),
                }
            }
            (None, _) if product(&shape) == Some(0) && dtype == DType::Strings => return self.computed(name, proto.data_type, &shape, Vec::new()),
            (None, _) if product(&shape) == Some(0) => (spec.offset, spec.bytes) = (Some(at), Some(0)),
            (None, _) if product(&shape).is_none() => spec.offset = Some(at), // the builder says so
            (None, _) if proto.typed.pieces.is_empty() => self.missing(&mut spec, "has no data".to_string()),
            (None, _) => self.missing(&mut spec, format!("has its data in a field that {dtype} does not use")),
        }
        Ok(self.builder.tensor(&spec)?)
    }

    /// Adds a tensor whose bytes are in a file beside the model.
    fn external(&mut self, proto: &TensorProto, mut spec: Spec<'_>) -> Walk<()> {
        let place = match Place::read(&proto.external) {
            Ok(_) if spec.dtype == DType::Strings => Err("is of strings, which no external file holds".to_string()),
            other => other,
        };
        match place {
            Err(what) => self.missing(&mut spec, what),
            Ok(place) => {
                for key in place.unknown {
                    if !self.unknown_keys.contains(&key) && self.unknown_keys.len() < 16 {
                        log::info!("{}: external_data has the key {}, which ONNX does not define", self.builder.path(self.id), quoted(&key));
                        self.unknown_keys.push(key);
                    }
                }
                if let Some(id) = self.files.source(self.opening, self.builder, &place.location, spec.name) {
                    let len = self.builder.catalog().source(id).map_or(0, |source| source.len());
                    let rest = len.saturating_sub(place.offset);
                    spec.source = id;
                    spec.offset = Some(place.offset);
                    // Without a length shape and type tell; where they do not, it is the rest of the file.
                    spec.bytes = place.length.or(spec.dtype.block().is_none().then_some(rest));
                }
            }
        }
        Ok(self.builder.tensor(&spec)?)
    }

    /// Adds a sparse tensor: dense under its name, its indices and values beside.
    fn sparse(&mut self, runs: &[Run], scope: &Scope, own: Option<&[u8]>) -> Walk<()> {
        let (mut values, mut indices, mut dims) = (TensorProto::default(), TensorProto::default(), TensorProto::default());
        for run in runs {
            let mut cursor = self.wire.message(*run);
            while let Some(field) = self.wire.next(&mut cursor)? {
                match (field.number, field.value) {
                    (1, Value::Bytes(run)) => values.read(&mut self.wire, run)?,
                    (2, Value::Bytes(run)) => indices.read(&mut self.wire, run)?,
                    (3, Value::Varint(dimension)) => dims.dims.push(dimension.cast_signed()),
                    (3, Value::Bytes(run)) => self.wire.packed(run, |dimension| dims.dims.push(dimension.cast_signed()))?,
                    _ => {}
                }
                if dims.dims.len() > limits::DIMENSIONS {
                    return Err(Fault::Damaged { at: run.start, what: "a tensor has more than 64 dimensions" });
                }
            }
        }
        let at = runs.first().map_or(0, |run| run.start);
        let name = self.name(scope, own.unwrap_or(&values.name))?;
        let dense = self.builder.len();
        // The parts come first: the dense tensor is made from them.
        let values_name = self.unique([&name[..], b".values"].concat());
        let indices_name = self.unique([&name[..], b".indices"].concat());
        self.tensor(&values, &values_name, at)?;
        self.tensor(&indices, &indices_name, at)?;
        let catalog = self.builder.catalog();
        let part = |index: usize| u32::try_from(index).ok().and_then(|index| catalog.tensor(index));
        let (Some(v), Some(i)) = (part(dense), part(dense.saturating_add(1))) else { return Ok(()) };
        let (dtype, shape) = (v.dtype().clone(), dims.shape().unwrap_or_default());
        let made = match dims.shape() {
            Err(dimension) => Err(format!("has the dimension {dimension} in its shape {:?}", dims.dims)),
            Ok(shape) => sparse::Dense::new(&shape, v, i),
        };
        let mut spec = Spec::new(&name, dtype, &shape, self.id, Some(at));
        match made {
            Ok(dense) => spec.computed = Some(Arc::new(dense) as Arc<dyn Elements>),
            Err(what) => self.missing(&mut spec, what),
        }
        Ok(self.builder.tensor(&spec)?)
    }
}

/// Strings of an attribute that cannot be read.
const STRINGS: Fault = Fault::Damaged { at: 0, what: "the strings of an attribute are damaged" };

fn digest(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

/// Elements of a tensor, wherever they are.
#[derive(Clone)]
pub(super) struct Bytes {
    data: Data,
    block_bytes: u64,
}

impl Bytes {
    pub(super) fn of(tensor: crate::catalog::Tensor<'_>) -> Option<Self> {
        let (_, block_bytes) = tensor.dtype().block()?;
        match tensor.data() {
            Data::Missing => None,
            data => Some(Self { data: data.clone(), block_bytes }),
        }
    }

    /// Fills `out` with whole blocks from number `first` on; what a packed type's last block lacks is zero.
    pub(super) fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [u8]) -> std::io::Result<()> {
        match &self.data {
            Data::Missing => Err(std::io::ErrorKind::InvalidInput.into()),
            Data::Computed(elements, _) => elements.read(inputs, first, out),
            Data::Stored(extent) => {
                let start = first.saturating_mul(self.block_bytes);
                let stored = usize::try_from(extent.len().saturating_sub(start)).unwrap_or(usize::MAX).min(out.len());
                let (there, beyond) = out.split_at_mut_checked(stored).ok_or(std::io::ErrorKind::InvalidInput)?;
                beyond.fill(0);
                inputs.read(*extent, start, there)
            }
        }
    }
}
