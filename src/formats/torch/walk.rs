//! From the value of a pickle to names: tensors into the catalogue, everything else into its metadata.
//!
//! Keys are joined by dots, items count from 0, and a pickled module gives the names of its `state_dict`. A subtree without tensors is one key of metadata. A
//! value that is reached in several ways is listed under each name, up to a number of names that grows with the pickle: references may multiply without end.

use std::collections::HashSet;

use super::super::pickle::json::{Shape, Writer, dotted, shape};
use super::super::pickle::text::str_of;
use super::super::pickle::{Graph, Id, Node, Object};
use super::numpy;
use super::rebuild::{self, Rebuild, Role};
use super::tensor::Adder;
use crate::catalog::{Scalar, Value};
use crate::error::{Error, Result};
use crate::limits;
use crate::source::Extent;

/// Deepest nesting of what holds tensors.
const DEPTH: usize = 1000;

/// How a child's name goes on from its parent's.
#[derive(Clone, Copy)]
enum Key {
    /// The parent's own name.
    Same,
    Index(usize),
    Value(Id),
    Named(&'static str),
}

#[derive(Clone, Copy)]
struct Child {
    key: Key,
    id: Id,
    /// Whether nothing need be said of it if it is empty: a module's hooks, a parameter that is None.
    silent: bool,
    /// Whether it is not a value but a key, of which only the tensors are listed.
    is_key: bool,
}

impl Child {
    fn new(key: Key, id: Id) -> Self {
        Self { key, id, silent: false, is_key: false }
    }

    /// The children that a pair of a dict gives. A key that may hold tensors is one beside its value, under the same name.
    fn of_pair(graph: &Graph, (key, value): &(Id, Id)) -> impl Iterator<Item = Self> + use<> {
        let may_hold = matches!(graph.node(*key), Node::Tuple(..) | Node::List(_) | Node::Set(_) | Node::Dict(_) | Node::Object(_) | Node::Persistent(_));
        let as_key = may_hold.then(|| Self { is_key: true, ..Self::new(Key::Value(*key), *key) });
        as_key.into_iter().chain([Self::new(Key::Value(*key), *value)])
    }
}

/// The children of a value, with the names that they have.
fn children(graph: &Graph, id: Id) -> Vec<Child> {
    match rebuild::role(graph, id) {
        Role::Nested => {
            let names = ["buffer", "sizes", "strides", "offsets"];
            let args = graph.call(id).map(|(_, _, args)| args).unwrap_or_default();
            return names.iter().zip(args).map(|(name, id)| Child::new(Key::Named(name), *id)).collect();
        }
        Role::Wrapper => {
            let args = graph.call(id).map(|(_, _, args)| args).unwrap_or_default();
            let state = match args.get(3) {
                // _rebuild_from_type_v2(function, type, arguments, state)
                Some(state) if rebuild::attributes(graph, id).is_some() => state_children(graph, *state),
                _ => Vec::new(),
            };
            let inner = args.get(2).filter(|_| rebuild::attributes(graph, id).is_some()).and_then(|args| graph.sequence(*args)).unwrap_or_default();
            return inner.iter().enumerate().map(|(i, id)| Child::new(Key::Index(i), *id)).chain(state).collect();
        }
        Role::Tensor => return rebuild::attributes(graph, id).map(|state| state_children(graph, state)).unwrap_or_default(),
        Role::Plain => {}
    }
    match shape(graph, id) {
        Shape::Leaf => Vec::new(),
        Shape::Sequence(items) => items.iter().enumerate().map(|(i, id)| Child::new(Key::Index(i), *id)).collect(),
        Shape::Mapping(items, attributes) => {
            let mut all: Vec<Child> = Vec::with_capacity(items.len());
            all.extend(items.iter().flat_map(|pair| Child::of_pair(graph, pair)));
            all.extend(attributes.map(|state| state_children(graph, state)).unwrap_or_default());
            all
        }
        Shape::Object(object) => object_children(graph, object),
    }
}

/// The children of an object of a class that is not known.
fn object_children(graph: &Graph, object: &Object) -> Vec<Child> {
    let args = graph.tuple(object.args).unwrap_or_default();
    let args = if let Some(("copyreg" | "copy_reg", "_reconstructor")) = graph.global(object.callee) { args.get(2..).unwrap_or_default() } else { args };
    let mut all: Vec<Child> = args.iter().chain(&object.items).enumerate().map(|(i, id)| Child::new(Key::Index(i), *id)).collect();
    all.extend(object.pairs.iter().flat_map(|pair| Child::of_pair(graph, pair)));
    if let Some(Node::Dict(pairs)) = object.kwargs.map(|kwargs| graph.node(kwargs)) {
        all.extend(pairs.iter().map(|(key, value)| Child::new(Key::Value(*key), *value)));
    }
    if let Some(state) = object.state {
        all.extend(state_children(graph, state));
    }
    all
}

/// The attributes in a state: a dict, or a pair of one and of slots.
fn state_children(graph: &Graph, state: Id) -> Vec<Child> {
    match (shape(graph, state), graph.tuple(state)) {
        (Shape::Mapping(pairs, _), _) => attributes(graph, pairs),
        (_, Some([dict, slots])) if is_dict_or_none(graph, *dict) && is_dict_or_none(graph, *slots) => {
            [*dict, *slots].into_iter().flat_map(|part| if let Node::Dict(pairs) = graph.node(part) { attributes(graph, pairs) } else { Vec::new() }).collect()
        }
        (Shape::Leaf, _) if matches!(graph.node(state), Node::None) => Vec::new(),
        _ => vec![Child::new(Key::Named("state"), state)],
    }
}

fn is_dict_or_none(graph: &Graph, id: Id) -> bool {
    matches!(graph.node(id), Node::Dict(_) | Node::None)
}

/// Attributes of an object; those of a module are named as its `state_dict` names them.
fn attributes(graph: &Graph, pairs: &[(Id, Id)]) -> Vec<Child> {
    let is = |key: &Id, names: &[&[u8]]| graph.short(*key).is_some_and(|key| names.contains(&key));
    let parts: [&[u8]; 3] = [b"_parameters", b"_buffers", b"_modules"];
    let module = pairs.iter().any(|(key, _)| is(key, &parts));
    let attribute = |(key, value): &(Id, Id)| {
        let hooks = module && graph.short(*key).is_some_and(|key| key.starts_with(b"_"));
        Child { key: if module && is(key, &parts) { Key::Same } else { Key::Value(*key) }, id: *value, silent: hooks, is_key: false }
    };
    let mut all: Vec<Child> = Vec::with_capacity(pairs.len());
    for child in pairs.iter().map(attribute) {
        match (child.key, shape(graph, child.id)) {
            (Key::Same, Shape::Mapping(inner, _)) => {
                all.extend(inner.iter().map(|(key, value)| Child { silent: true, ..Child::new(Key::Value(*key), *value) }))
            }
            (Key::Same, _) => {}
            _ => all.push(child),
        }
    }
    all
}

/// What is known of a node's subtree.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    Unknown,
    /// Being looked at: it holds itself, or nothing is known yet.
    Open,
    Nothing,
    Tensors,
}

/// One value on the way down.
struct Frame {
    id: Id,
    name: Option<Vec<u8>>,
    children: std::vec::IntoIter<Child>,
}

/// Goes through the value of a pickle.
pub(super) struct Walk<'a, 'b> {
    pub(super) rebuild: Rebuild<'a>,
    pub(super) adder: Adder<'b>,
    /// The name of a value that has none: the file's stem.
    pub(super) stem: &'a [u8],
    /// The keys that are there already and are left alone, in one of several shards.
    known: Option<HashSet<Vec<u8>>>,
    holds: Vec<Holds>,
    left: usize,
    cut: bool,
}

impl<'a, 'b> Walk<'a, 'b> {
    pub(super) fn new(rebuild: Rebuild<'a>, adder: Adder<'b>, stem: &'a [u8], shard: bool) -> Self {
        let nodes = rebuild.graph.len();
        let known = shard.then(|| adder.builder.metadata_so_far().iter().map(|(key, _)| key.clone()).collect());
        let left = limits::Pickle::of(rebuild.graph.source().stored_len()).json_bytes;
        Self { rebuild, adder, stem, known, holds: vec![Holds::Unknown; nodes], left: usize::try_from(left).unwrap_or(usize::MAX), cut: false }
    }

    fn graph(&self) -> &'a Graph {
        self.rebuild.graph
    }

    fn is_tensor(&mut self, id: Id) -> bool {
        match self.graph().node(id) {
            Node::Persistent(_) => self.rebuild.is_bare_tensor(id, self.adder.builder),
            _ => rebuild::role(self.graph(), id) == Role::Tensor,
        }
    }

    fn state(&self, id: Id) -> Holds {
        self.holds.get(id as usize).copied().unwrap_or(Holds::Nothing)
    }

    fn set(&mut self, id: Id, holds: Holds) {
        if let Some(state) = self.holds.get_mut(id as usize) {
            *state = holds;
        }
    }

    /// Whether a subtree holds a tensor. Every node is looked at once, however often it is referred to.
    fn holds_tensors(&mut self, root: Id) -> bool {
        let mut stack: Vec<(Id, std::vec::IntoIter<Child>)> = Vec::new();
        let mut next = Some(root);
        loop {
            if let Some(id) = next.take().filter(|id| self.state(*id) == Holds::Unknown) {
                if self.is_tensor(id) {
                    self.set(id, Holds::Tensors);
                    if let Some(parent) = stack.last().map(|(parent, _)| *parent) {
                        self.set(parent, Holds::Tensors);
                    }
                } else {
                    self.set(id, Holds::Open);
                    stack.push((id, children(self.graph(), id).into_iter()));
                }
            }
            let Some((id, children)) = stack.last_mut() else { break };
            let id = *id;
            match children.next() {
                Some(child) => match self.state(child.id) {
                    Holds::Tensors => self.set(id, Holds::Tensors),
                    Holds::Unknown => next = Some(child.id),
                    Holds::Open | Holds::Nothing => {}
                },
                None => {
                    stack.pop();
                    let found = self.state(id) == Holds::Tensors;
                    self.set(id, if found { Holds::Tensors } else { Holds::Nothing });
                    if let (true, Some((parent, _))) = (found, stack.last()) {
                        let parent = *parent;
                        self.set(parent, Holds::Tensors);
                    }
                }
            }
        }
        self.state(root) == Holds::Tensors
    }

    /// Lists everything, under names that begin with `prefix`.
    ///
    /// # Errors
    /// There are more tensors or keys than the limits allow.
    pub(super) fn run(&mut self, prefix: Option<&[u8]>) -> Result<()> {
        self.list_all(prefix)?;
        if self.cut {
            let place = self.adder.builder.path(self.adder.stream);
            self.adder.builder.issue(place, "its values other than tensors are too large or too deep to be shown whole", "what was left out is marked");
        }
        Ok(())
    }

    fn list_all(&mut self, prefix: Option<&[u8]>) -> Result<()> {
        let root = self.graph().root();
        self.count_keys(root)?;
        let mut names_left = self.graph().len().saturating_mul(8).saturating_add(1000);
        let mut on_path = HashSet::new();
        let mut stack: Vec<Frame> = Vec::new();
        let holds = self.holds_tensors(root);
        if self.is_tensor(root) {
            self.tensor(self.stem, root)?;
        } else if !holds && !matches!(shape(self.graph(), root), Shape::Mapping(..)) {
            return self.metadata(self.stem.to_vec(), root);
        }
        let name = if self.is_tensor(root) { Some(self.stem.to_vec()) } else { prefix.map(<[u8]>::to_vec) };
        self.class_of(root, name.as_deref())?;
        stack.push(self.frame(root, name));
        on_path.insert(root);
        while let Some(frame) = stack.last_mut() {
            let Some(child) = frame.children.next() else {
                on_path.remove(&frame.id);
                stack.pop();
                continue;
            };
            let name = self.name_of(stack.last().and_then(|frame| frame.name.as_deref()), child.key);
            names_left = names_left.saturating_sub(1);
            if names_left == 0 {
                let what = "its values refer to each other so often that they have many more names than the pickle has values";
                self.adder.builder.issue(self.adder.builder.path(self.adder.stream), what, "the names after that are left out");
                break;
            }
            if self.is_tensor(child.id) {
                self.tensor(&name, child.id)?;
                if rebuild::attributes(self.graph(), child.id).is_none() {
                    continue;
                }
                let within: Vec<Child> = children(self.graph(), child.id).into_iter().filter(|inner| self.holds_tensors(inner.id)).collect();
                if !within.is_empty() && on_path.insert(child.id) {
                    stack.push(Frame { id: child.id, name: Some(name), children: within.into_iter() });
                }
            } else if self.holds_tensors(child.id) {
                if stack.len() >= DEPTH || name.len() as u64 > limits::NAME_BYTES {
                    self.issue(&name, "is nested too deeply", "left out");
                } else if on_path.insert(child.id) {
                    self.count_keys(child.id)?;
                    self.class_of(child.id, Some(&name))?;
                    stack.push(self.frame(child.id, Some(name)));
                } else {
                    self.issue(&name, "holds itself", "listed once");
                }
            } else if !(child.is_key || child.silent && self.is_empty(child.id)) {
                self.metadata(name, child.id)?;
            }
        }
        Ok(())
    }

    /// Refuses a dict of which more values than there may be keys are certainly no tensors, before anything is made of them.
    fn count_keys(&self, id: Id) -> Result<()> {
        let graph = self.graph();
        let Shape::Mapping(pairs, _) = shape(graph, id) else { return Ok(()) };
        let is_key = |value: Id| match graph.node(value) {
            Node::Persistent(_) | Node::Object(_) => false,
            Node::Tuple(_, len) => *len == 0,
            Node::List(items) | Node::Set(items) => items.is_empty(),
            Node::Dict(pairs) => pairs.is_empty(),
            _ => true,
        };
        if pairs.len() as u64 > limits::KEYS && pairs.iter().filter(|(_, value)| is_key(*value)).count() as u64 > limits::KEYS {
            return Err(Error::limit(format!("has more than {} metadata keys", limits::KEYS)));
        }
        Ok(())
    }

    fn frame(&self, id: Id, name: Option<Vec<u8>>) -> Frame {
        Frame { id, name, children: children(self.graph(), id).into_iter() }
    }

    fn is_empty(&self, id: Id) -> bool {
        match shape(self.graph(), id) {
            Shape::Leaf => matches!(self.graph().node(id), Node::None),
            Shape::Sequence(items) => items.is_empty(),
            Shape::Mapping(pairs, _) => pairs.is_empty(),
            Shape::Object(_) => false,
        }
    }

    fn name_of(&self, parent: Option<&[u8]>, key: Key) -> Vec<u8> {
        let own = match key {
            Key::Same => return parent.unwrap_or_default().to_vec(),
            Key::Index(index) => index.to_string().into_bytes(),
            Key::Named(name) => name.as_bytes().to_vec(),
            Key::Value(id) => str_of(self.graph(), id),
        };
        match parent {
            Some(parent) => [parent, b".", &own].concat(),
            None => own,
        }
    }

    fn issue(&mut self, name: &[u8], what: &str, done: &str) {
        let place = format!("{}: {}", self.adder.builder.path(self.adder.stream), crate::error::quoted(name));
        self.adder.builder.issue(place, what, done);
    }

    fn tensor(&mut self, name: &[u8], id: Id) -> Result<()> {
        match self.rebuild.tensor(id, self.adder.builder) {
            Ok(tensor) => self.adder.add(name, id, &tensor),
            Err(bad) => self.adder.bad(name, &bad),
        }
    }

    /// Notes the class of an object whose attributes are listed one by one.
    fn class_of(&mut self, id: Id, name: Option<&[u8]>) -> Result<()> {
        let Some(object) = self.graph().object(id).filter(|_| matches!(shape(self.graph(), id), Shape::Object(_))) else { return Ok(()) };
        let arguments = self.graph().tuple(object.args).unwrap_or_default();
        let class = match self.graph().global(object.callee) {
            Some(("copyreg" | "copy_reg", "_reconstructor") | ("torch._tensor" | "torch.tensor", "_rebuild_from_type" | "_rebuild_from_type_v2")) => {
                arguments.iter().find_map(|id| self.graph().global(*id).filter(|(_, name)| !name.starts_with("_rebuild_")))
            }
            other => other,
        };
        let Some((module, class)) = class else { return Ok(()) };
        let key = self.name_of(name, Key::Named("__class__"));
        let value = Value::String(dotted(module, class).into_bytes());
        self.add_key(key, value)
    }

    fn add_key(&mut self, key: Vec<u8>, value: Value) -> Result<()> {
        if self.known.as_mut().is_some_and(|known| !known.insert(key.clone())) {
            return Ok(());
        }
        self.adder.builder.metadata(key, value)
    }

    /// Adds a value without tensors under a key.
    fn metadata(&mut self, key: Vec<u8>, id: Id) -> Result<()> {
        let graph = self.graph();
        let value = match graph.node(id) {
            Node::Bool(value) => Value::Bool(*value),
            Node::Int(value) => Value::Signed(Scalar::I64, *value),
            Node::Float(value) => Value::F64(*value),
            Node::Text(run) | Node::Bytes(run) => match (graph.short(id), run.position()) {
                (Some(text), _) => Value::String(text.to_vec()),
                (None, Some(at)) => self.stored(at, run.len()).map_or(Value::String(Vec::new()), Value::StoredString),
                (None, None) => Value::String(graph.bytes(*run, run.len()).map(std::borrow::Cow::into_owned).unwrap_or_default()),
            },
            _ => {
                let (text, cut) = Writer::new(graph, self.left, &|id| numpy::known(graph, id)).value(id);
                self.left = self.left.saturating_sub(text.len());
                self.cut |= cut;
                Value::Rendered(self.type_name(id), text.into())
            }
        };
        self.add_key(key, value)
    }

    fn stored(&self, at: u64, len: u64) -> Option<Extent> {
        self.adder.builder.extent(self.adder.stream, at, len)
    }

    /// What a value is called in metadata.json.
    fn type_name(&self, id: Id) -> &'static str {
        let graph = self.graph();
        match graph.node(id) {
            Node::None => "null",
            Node::Long(_) | Node::Decimal(_) => "integer",
            Node::Tuple(..) => "tuple",
            Node::Set(_) => "set",
            _ if numpy::scalar(graph, id).is_some() => "scalar",
            _ => match shape(graph, id) {
                Shape::Sequence(_) => "list",
                Shape::Mapping(..) => "dict",
                _ => "object",
            },
        }
    }
}
