//! Storages: the runs of bytes that tensors are views of, by the name that the pickle has for them.

use std::borrow::Cow;
use std::collections::HashMap;

use super::super::pickle::{Graph, Id, Node};
use super::legacy;
use super::types::Type;
use crate::catalog::Builder;
use crate::error::quoted;
use crate::source::{Extent, SourceId};

/// Where a storage's bytes are; not checked against the end of the source, so that a file that was cut still lists its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) source: SourceId,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl Place {
    /// The bytes that are there.
    pub(super) fn extent(self, builder: &Builder) -> Option<Extent> {
        builder.extent(self.source, self.offset, self.bytes)
    }

    /// The part of `bytes` bytes at `offset`; `None` if it leaves the storage.
    pub(super) fn sub(self, offset: u64, bytes: u64) -> Option<Self> {
        let end = offset.checked_add(bytes).filter(|end| *end <= self.bytes);
        end.and_then(|_| Some(Self { offset: self.offset.checked_add(offset)?, bytes, ..self }))
    }
}

/// Where a container keeps its storages.
pub(super) trait Storages {
    /// The storage with this key, or what is wrong with it; asked for as often as the pickle refers to it.
    fn find(&mut self, key: &[u8], builder: &mut Builder) -> Result<Place, String>;

    /// What a bare key (no tuple) stands for in the oldest containers: a storage and its type, or a tensor.
    fn bare(&mut self, _key: &[u8], _builder: &mut Builder) -> Option<Bare> {
        None
    }
}

/// What a bare key stands for.
pub(super) enum Bare {
    Storage(Storage),
    Tensor(Storage, u64, Vec<u64>, Vec<u64>),
}

/// A pickle that has none.
pub(super) struct Nowhere;

impl Storages for Nowhere {
    fn find(&mut self, key: &[u8], _builder: &mut Builder) -> Result<Place, String> {
        Err(format!("its storage {} is in no file: the pickle stands alone", quoted(key)))
    }
}

/// A storage and what its class says of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Storage {
    pub(super) place: Place,
    /// The type of its elements; `None` for plain bytes.
    pub(super) class: Option<&'static Type>,
}

/// What a persistent id says of a storage.
pub(super) struct Named<'g> {
    pub(super) class: Option<&'static Type>,
    pub(super) key: Cow<'g, [u8]>,
    /// How many elements (or bytes) it has.
    pub(super) count: u64,
    /// A part of it: first element and number of elements.
    pub(super) view: Option<(u64, u64)>,
}

impl<'g> Named<'g> {
    /// Reads `('storage', class, key, location, count[, view])`; `None` if the id is no such tuple.
    ///
    /// # Errors
    /// It is one, with a class that is unknown or a part of the wrong type.
    pub(super) fn read(graph: &'g Graph, name: Id) -> Option<Result<Self, String>> {
        let items = graph.sequence(name)?;
        let (kind, rest) = items.split_first()?;
        if graph.short(*kind)? != b"storage" {
            return None;
        }
        Some(Self::of_items(graph, rest))
    }

    fn of_items(graph: &'g Graph, items: &[Id]) -> Result<Self, String> {
        let [class, key, _location, count, rest @ ..] = items else { return Err("its storage is named by a tuple that is too short".to_string()) };
        let Some((module, name)) = graph.global(*class) else { return Err("its storage has no class".to_string()) };
        let Some(class) = Type::of_storage(name) else { return Err(format!("its storage is of the unknown class {}.{}", module, name)) };
        let key = match graph.node(*key) {
            Node::Int(value) => Cow::Owned(value.to_string().into_bytes()),
            _ => Cow::Borrowed(graph.short(*key).ok_or("its storage has no key")?),
        };
        let number = |id: &Id| graph.int(*id).and_then(|n| u64::try_from(n).ok());
        let count = number(count).ok_or("its storage has no length")?;
        let view = match rest.first().and_then(|view| graph.sequence(*view)) {
            Some([_, offset, size]) => Some((number(offset).ok_or("its storage's view has no offset")?, number(size).ok_or("its storage's view has no size")?)),
            _ => None,
        };
        Ok(Self { class, key, count, view })
    }

    /// Bytes that its elements take.
    pub(super) fn bytes(&self) -> Option<u64> {
        self.count.checked_mul(self.item())
    }

    /// Bytes of one element.
    pub(super) fn item(&self) -> u64 {
        self.class.map_or(1, |class| class.bytes)
    }

    /// The storage, in a place that holds all of it.
    pub(super) fn at(&self, place: Place) -> Result<Storage, String> {
        let expected = self.bytes().ok_or("its storage is larger than 2^64 bytes")?;
        if place.bytes != expected {
            return Err(format!("its storage {} has {} bytes, expected {expected}", quoted(&self.key), place.bytes));
        }
        let place = match self.view {
            Some((offset, size)) => offset
                .checked_mul(self.item())
                .and_then(|offset| place.sub(offset, size.checked_mul(self.item())?))
                .ok_or_else(|| format!("its view of storage {} leaves it", quoted(&self.key)))?,
            None => place,
        };
        Ok(Storage { place, class: self.class })
    }
}

/// All storages of one pickle.
pub(super) struct Finder<'a> {
    pub(super) container: &'a mut dyn Storages,
    /// The pickle's own source.
    pub(super) stream: SourceId,
    /// Those that are made, and not only named, by the node that stands for them.
    made: HashMap<Id, Result<Storage, String>>,
}

impl<'a> Finder<'a> {
    pub(super) fn new(container: &'a mut dyn Storages, stream: SourceId) -> Self {
        Self { container, stream, made: HashMap::new() }
    }

    /// The storage that a node stands for.
    pub(super) fn find(&mut self, graph: &Graph, id: Id, builder: &mut Builder) -> Result<Storage, String> {
        // There are writers of the oldest form that leave the tuple as it is.
        let name = match graph.node(id) {
            Node::Persistent(name) => Some(*name),
            Node::Tuple(..) => Some(id),
            _ => None,
        };
        if let Some(name) = name {
            if let Some(named) = Named::read(graph, name) {
                let named = named?;
                return match self.container.find(&named.key, builder) {
                    Err(_) if named.count == 0 => Ok(Storage { place: Place { source: self.stream, offset: 0, bytes: 0 }, class: named.class }),
                    place => named.at(place?),
                };
            }
            let key = super::super::pickle::text::str_of(graph, name);
            return match self.container.bare(&key, builder) {
                Some(Bare::Storage(storage)) => Ok(storage),
                _ => Err(format!("its storage has the unknown name {}", quoted(&key))),
            };
        }
        if let Some(made) = self.made.get(&id) {
            return made.clone();
        }
        let made = match graph.call(id) {
            Some(("torch.storage", "_load_from_bytes", [bytes])) => legacy::storage_in(graph, *bytes, self.stream, builder),
            _ => Err("its storage is made in an unknown way".to_string()),
        };
        self.made.insert(id, made.clone());
        made
    }
}
