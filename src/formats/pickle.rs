//! Python pickles of protocols 0 to 5 as a graph of values, without importing or running anything.
//!
//! A pickle is a program for a small stack machine. [`machine`] carries it out on values of its own: a global is a pair of strings, a call is a record of what
//! would be called with what. Nodes refer to each other by number, so that shared and cyclic values cost nothing and no depth of nesting costs stack. Long strings
//! and bytes stay in the stream, where they can be served from.
//!
//! Definition: <https://docs.python.org/3/library/pickle.html> and Lib/pickletools.py of CPython, which documents each opcode.

mod budget;
pub(super) mod json;
mod keys;
mod machine;
pub(super) mod text;

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use crate::error::Result;
use crate::source::Source;

/// The number of a node in its graph.
pub(super) type Id = u32;

/// A run of bytes: a string's text or a bytes object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// Where it is in the stream's source; [`Run::NOWHERE`] for text that had escapes.
    at: u64,
    len: u64,
    /// Where its copy is in the graph; [`Run::NO_COPY`] for a long one.
    copy: u32,
}

impl Run {
    const NOWHERE: u64 = u64::MAX;
    const NO_COPY: u32 = u32::MAX;

    /// Length in bytes.
    pub(super) fn len(self) -> u64 {
        self.len
    }

    /// Where it is in the stream's source, if it stands there as it is.
    pub(super) fn position(self) -> Option<u64> {
        (self.at != Self::NOWHERE).then_some(self.at)
    }
}

/// One value.
#[derive(Debug)]
pub(super) enum Node {
    None,
    Bool(bool),
    Int(i64),
    /// A larger integer: two's complement, least significant byte first.
    Long(Run),
    /// A larger integer: decimal digits, perhaps behind a minus.
    Decimal(Run),
    Float(f64),
    /// A string; one of Python 2 may hold any bytes.
    Text(Run),
    Bytes(Run),
    /// A span of the graph's `items`.
    Tuple(u32, u32),
    List(Vec<Id>),
    Set(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    /// A module and a name: a number in the graph's `globals`.
    Global(u32),
    /// What a call or a new object would give.
    /// A number in the graph's `objects`.
    Object(u32),
    /// Something outside of the pickle, by the value that names it.
    Persistent(Id),
}

/// A call that was not made.
#[derive(Debug)]
pub(super) struct Object {
    /// What would be called or made an instance of.
    pub(super) callee: Id,
    /// The arguments: a tuple.
    pub(super) args: Id,
    /// The keyword arguments: a dict.
    pub(super) kwargs: Option<Id>,
    /// The last state that it would be given.
    pub(super) state: Option<Id>,
    /// Items that would be appended.
    pub(super) items: Vec<Id>,
    /// Items that would be set.
    pub(super) pairs: Vec<(Id, Id)>,
}

/// The values of one pickle.
pub(super) struct Graph {
    source: Arc<Source>,
    nodes: Vec<Node>,
    items: Vec<Id>,
    objects: Vec<Object>,
    text: Vec<u8>,
    globals: Vec<(String, String)>,
    persistent: Vec<Id>,
    /// The pairs of lists and tuples of which a call makes a dict, as Python keeps them.
    given: HashMap<Id, Vec<(Id, Id)>>,
    root: Id,
    end: u64,
}

impl Graph {
    /// Reads the pickle that starts at `start` of a source and must stop before `end`.
    ///
    /// # Errors
    /// The stream is damaged, ends early, holds an opcode that is refused, or exceeds a limit.
    pub(super) fn read(source: &Arc<Source>, start: u64, end: u64) -> Result<Self> {
        machine::run(source, start, end)
    }

    /// Whether bytes that may be cut off at their end begin as a pickle without a protocol number does.
    pub(super) fn begins_as_text(bytes: &[u8], whole: bool) -> bool {
        machine::begins_as_text(bytes, whole)
    }

    /// The value of the pickle.
    pub(super) fn root(&self) -> Id {
        self.root
    }

    /// Where the pickle ends in its source.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// How many nodes there are.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The source that holds the stream.
    pub(super) fn source(&self) -> &Arc<Source> {
        &self.source
    }

    /// Every global that is named, in the order of first mention: module and name.
    pub(super) fn globals(&self) -> &[(String, String)] {
        &self.globals
    }

    /// The nodes that stand for something outside.
    pub(super) fn persistent(&self) -> &[Id] {
        &self.persistent
    }

    pub(super) fn node(&self, id: Id) -> &Node {
        self.nodes.get(id as usize).unwrap_or(&Node::None)
    }

    /// The items of a tuple or list.
    pub(super) fn sequence(&self, id: Id) -> Option<&[Id]> {
        match self.node(id) {
            Node::Tuple(start, len) => {
                let start = *start as usize;
                self.items.get(start..start.saturating_add(*len as usize))
            }
            Node::List(items) => Some(items),
            _ => None,
        }
    }

    /// The items of a tuple.
    pub(super) fn tuple(&self, id: Id) -> Option<&[Id]> {
        matches!(self.node(id), Node::Tuple(..)).then(|| self.sequence(id)).flatten()
    }

    pub(super) fn object(&self, id: Id) -> Option<&Object> {
        match self.node(id) {
            Node::Object(index) => self.objects.get(*index as usize),
            _ => None,
        }
    }

    /// Module and name of a global.
    pub(super) fn global(&self, id: Id) -> Option<(&str, &str)> {
        match self.node(id) {
            Node::Global(index) => self.globals.get(*index as usize).map(|(module, name)| (module.as_str(), name.as_str())),
            _ => None,
        }
    }

    /// The global that an object would call, with its arguments.
    pub(super) fn call(&self, id: Id) -> Option<(&str, &str, &[Id])> {
        let object = self.object(id)?;
        let (module, name) = self.global(object.callee)?;
        Some((module, name, self.tuple(object.args)?))
    }

    pub(super) fn int(&self, id: Id) -> Option<i64> {
        match self.node(id) {
            Node::Int(value) => Some(*value),
            Node::Bool(value) => Some(i64::from(*value)),
            _ => None,
        }
    }

    /// The bytes of a string or bytes object.
    pub(super) fn run(&self, id: Id) -> Option<Run> {
        match self.node(id) {
            Node::Text(run) | Node::Bytes(run) => Some(*run),
            _ => None,
        }
    }

    /// A string or bytes object that is not long.
    pub(super) fn short(&self, id: Id) -> Option<&[u8]> {
        self.copy(self.run(id)?)
    }

    fn copy(&self, run: Run) -> Option<&[u8]> {
        let start = usize::try_from(run.copy).ok().filter(|_| run.copy != Run::NO_COPY)?;
        self.text.get(start..start.checked_add(usize::try_from(run.len).ok()?)?)
    }

    /// The first bytes of a run, up to `most`.
    ///
    /// # Errors
    /// The stream cannot be read any more.
    pub(super) fn bytes(&self, run: Run, most: u64) -> io::Result<Cow<'_, [u8]>> {
        let len = usize::try_from(run.len.min(most)).unwrap_or(usize::MAX);
        if let Some(copy) = self.copy(run) {
            return Ok(Cow::Borrowed(copy.get(..len).unwrap_or(copy)));
        }
        let mut bytes = vec![0; len];
        self.source.read_at(run.at, &mut bytes)?;
        Ok(Cow::Owned(bytes))
    }
}
