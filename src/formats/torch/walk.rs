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
}

/// The children of a value, one after the other: a list of millions that is looked through takes no more room than one of two.
type Children<'g> = Box<dyn Iterator<Item = Child> + 'g>;

fn none<'g>() -> Children<'g> {
    Box::new(std::iter::empty())
}

fn of_items<'g>(items: &'g [Id]) -> impl Iterator<Item = Child> + use<'g> {
    items.iter().enumerate().map(|(i, id)| Child::new(Key::Index(i), *id))
}

/// The children that the pairs of a dict give. A key that may hold tensors is one before its value, under the same name.
fn of_pairs<'g>(graph: &'g Graph, pairs: &'g [(Id, Id)]) -> impl Iterator<Item = Child> + use<'g> {
    let mut left = pairs.iter();
    let mut after_key = None;
    std::iter::from_fn(move || {
        if let Some(value) = after_key.take() {
            return Some(value);
        }
        let (key, value) = left.next()?;
        let value = Child::new(Key::Value(*key), *value);
        if matches!(graph.node(*key), Node::Tuple(..) | Node::List(_) | Node::Set(_) | Node::Dict(_) | Node::Object(_) | Node::Persistent(_)) {
            after_key = Some(value);
            return Some(Child { is_key: true, ..Child::new(Key::Value(*key), *key) });
        }
        Some(value)
    })
}

/// The children of a value, with the names that they have.
fn children(graph: &Graph, id: Id) -> Children<'_> {
    match rebuild::role(graph, id) {
        Role::Nested => {
            let names = ["buffer", "sizes", "strides", "offsets"];
            let args = graph.call(id).map(|(_, _, args)| args).unwrap_or_default();
            return Box::new(names.into_iter().zip(args).map(|(name, id)| Child::new(Key::Named(name), *id)));
        }
        Role::Wrapper => {
            // _rebuild_from_type_v2(function, type, arguments, state)
            let args = graph.call(id).map(|(_, _, args)| args).filter(|_| rebuild::attributes(graph, id).is_some()).unwrap_or_default();
            let inner = args.get(2).and_then(|args| graph.sequence(*args)).unwrap_or_default();
            return Box::new(of_items(inner).chain(args.get(3).map_or_else(none, |state| state_children(graph, *state))));
        }
        Role::Tensor => return rebuild::attributes(graph, id).map_or_else(none, |state| state_children(graph, state)),
        Role::Plain => {}
    }
    match shape(graph, id) {
        Shape::Leaf => none(),
        Shape::Sequence(items) => Box::new(of_items(items)),
        Shape::Mapping(pairs, None) => Box::new(of_pairs(graph, pairs)),
        Shape::Mapping(pairs, Some(state)) => Box::new(of_pairs(graph, pairs).chain(state_children(graph, state))),
        Shape::Object(object) => object_children(graph, object),
    }
}

/// The children of a value as far as they matter to whether it holds a tensor: of an object, what it was given, each a child itself, so that what many
/// objects were given is looked through once.
fn parts(graph: &Graph, id: Id) -> Children<'_> {
    let Some(object) = graph.object(id).filter(|_| rebuild::role(graph, id) == Role::Plain) else { return children(graph, id) };
    let given = [Some(object.args), object.kwargs, object.state];
    let given = given.into_iter().flatten().map(|id| Child::new(Key::Named("state"), id));
    if object.items.is_empty() && object.pairs.is_empty() {
        return Box::new(given);
    }
    Box::new(given.chain(of_items(&object.items)).chain(of_pairs(graph, &object.pairs)))
}

/// The children of an object of a class that is not known.
fn object_children<'g>(graph: &'g Graph, object: &'g Object) -> Children<'g> {
    let args = graph.tuple(object.args).unwrap_or_default();
    let args = if let Some(("copyreg" | "copy_reg", "_reconstructor")) = graph.global(object.callee) { args.get(2..).unwrap_or_default() } else { args };
    let items = args.iter().chain(&object.items).enumerate().map(|(i, id)| Child::new(Key::Index(i), *id));
    if object.pairs.is_empty() && object.kwargs.is_none() {
        return match object.state {
            Some(state) if args.is_empty() && object.items.is_empty() => state_children(graph, state),
            Some(state) => Box::new(items.chain(state_children(graph, state))),
            None => Box::new(items),
        };
    }
    let kwargs = match object.kwargs.map(|kwargs| graph.node(kwargs)) {
        Some(Node::Dict(pairs)) => pairs.as_slice(),
        _ => &[],
    };
    let kwargs = kwargs.iter().map(|(key, value)| Child::new(Key::Value(*key), *value));
    let state = object.state.map_or_else(none, |state| state_children(graph, state));
    Box::new(items.chain(of_pairs(graph, &object.pairs)).chain(kwargs).chain(state))
}

/// The attributes in a state: a dict, or a pair of one and of slots.
fn state_children(graph: &Graph, state: Id) -> Children<'_> {
    let pairs_of = move |part: Id| if let Node::Dict(pairs) = graph.node(part) { pairs.as_slice() } else { &[] };
    match (shape(graph, state), graph.tuple(state)) {
        (Shape::Mapping(pairs, _), _) => attributes(graph, pairs),
        (_, Some([dict, slots])) if is_dict_or_none(graph, *dict) && is_dict_or_none(graph, *slots) => {
            Box::new(attributes(graph, pairs_of(*dict)).chain(attributes(graph, pairs_of(*slots))))
        }
        (Shape::Leaf, _) if matches!(graph.node(state), Node::None) => none(),
        _ => Box::new(std::iter::once(Child::new(Key::Named("state"), state))),
    }
}

fn is_dict_or_none(graph: &Graph, id: Id) -> bool {
    matches!(graph.node(id), Node::Dict(_) | Node::None)
}

/// Attributes of an object; those of a module are named as its `state_dict` names them.
fn attributes<'g>(graph: &'g Graph, pairs: &'g [(Id, Id)]) -> Children<'g> {
    let is = |key: &Id, names: &[&[u8]]| graph.short(*key).is_some_and(|key| names.contains(&key));
    const PARTS: [&[u8]; 3] = [b"_parameters", b"_buffers", b"_modules"];
    if !pairs.iter().any(|(key, _)| is(key, &PARTS)) {
        return Box::new(pairs.iter().map(|(key, value)| Child::new(Key::Value(*key), *value)));
    }
    Box::new(pairs.iter().flat_map(move |(key, value)| {
        // A part's own values, or the attribute itself.
        let (inner, own): (&[(Id, Id)], _) = match (is(key, &PARTS), shape(graph, *value)) {
            (true, Shape::Mapping(inner, _)) => (inner, None),
            (true, _) => (&[], None),
            (false, _) => {
                let hooks = graph.short(*key).is_some_and(|key| key.starts_with(b"_"));
                (&[], Some(Child { silent: hooks, ..Child::new(Key::Value(*key), *value) }))
            }
        };
        own.into_iter().chain(inner.iter().map(|(key, value)| Child { silent: true, ..Child::new(Key::Value(*key), *value) }))
    }))
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
struct Frame<'g> {
    id: Id,
    name: Option<Vec<u8>>,
    children: Children<'g>,
    /// Whether it is a tensor, of whose attributes only those that hold tensors are listed.
    of_tensor: bool,
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
        let mut stack: Vec<(Id, Children<'a>)> = Vec::new();
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
                    stack.push((id, parts(self.graph(), id)));
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
        let mut stack: Vec<Frame<'a>> = Vec::new();
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
            if frame.of_tensor && !self.holds_tensors(child.id) {
                names_left = names_left.saturating_sub(1);
                continue;
            }
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
                if on_path.insert(child.id) {
                    stack.push(Frame { of_tensor: true, ..self.frame(child.id, Some(name)) });
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

    fn frame(&self, id: Id, name: Option<Vec<u8>>) -> Frame<'a> {
        Frame { id, name, children: children(self.graph(), id), of_tensor: false }
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
