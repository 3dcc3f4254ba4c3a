//! torch's format before version 1.6: five pickles and the storages, back to back.
//!
//! | part | what |
//! |---|---|
//! | pickle | the number 0x1950a86a20f9469cfc6c |
//! | pickle | the protocol version 1001 |
//! | pickle | a dict with byte order and sizes of the writer's types |
//! | pickle | the value itself; storages are named by persistent ids |
//! | pickle | a list of the storages' keys |
//! | storages | in the order of the list: number of elements (i64), elements |
//!
//! Elements are little-endian on every machine. No storage is read to find the next one: its length is in front of it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::super::pickle::text::{integer, str_of};
use super::super::pickle::{Graph, Id, Node};
use super::numpy::Payload;
use super::storage::{Named, Place, Storage, Storages};
use crate::catalog::Builder;
use crate::error::{Error, Result, counted, left_over, quoted};
use crate::reader::Nearby;
use crate::source::{Source, SourceId};

/// The number in the first pickle.
const MAGIC: &str = "119547037146038801333356";
/// A file inside a pickle that has to be decoded may have this many bytes.
const NESTED_BYTES: u64 = 256 << 20;

/// Whether a pickle is the first one of a legacy file.
pub(super) fn is_magic(graph: &Graph) -> bool {
    matches!(graph.node(graph.root()), Node::Long(_) | Node::Decimal(_)) && integer(graph, graph.root()).as_deref() == Some(MAGIC)
}

/// The storages of a legacy file.
pub(super) struct Legacy {
    /// Bytes of an element by key, and the place where it was found.
    storages: HashMap<Vec<u8>, (u64, Option<Place>)>,
}

impl Storages for Legacy {
    fn find(&mut self, key: &[u8], _builder: &mut Builder) -> std::result::Result<Place, String> {
        match self.storages.get(key) {
            Some((_, Some(place))) => Ok(*place),
            _ => Err(format!("its storage {} is not in the file's list of storages", quoted(key))),
        }
    }
}

/// A legacy file: its value, its storages, and what is wrong with them.
pub(super) struct File {
    pub(super) graph: Graph,
    pub(super) storages: Legacy,
    pub(super) issue: Option<String>,
}

/// Reads what comes after the first pickle, which ended at `start`.
pub(super) fn read(source: &Arc<Source>, id: SourceId, start: u64, end: u64) -> Result<File> {
    let version = Graph::read(source, start, end)?;
    if version.int(version.root()) != Some(1001) {
        let found = integer(&version, version.root()).unwrap_or_else(|| "no number".to_string());
        return Err(Error::unsupported(format!("is a PyTorch file of protocol {found}, expected 1001")));
    }
    let system = Graph::read(source, version.end(), end)?;
    let graph = Graph::read(source, system.end(), end)?;
    let (keys, issue) = match Graph::read(source, graph.end(), end) {
        Ok(keys) => (Some(keys), None),
        Err(e) => (None, Some(format!("its list of storages cannot be read: {}", e.message()))),
    };
    // The list has no sizes: what an element takes is said where the value refers to the storage.
    let mut storages: HashMap<Vec<u8>, (u64, Option<Place>)> = HashMap::with_capacity(graph.persistent().len());
    for node in graph.persistent() {
        if let Node::Persistent(name) = graph.node(*node)
            && let Some(Ok(name)) = Named::read(&graph, *name)
        {
            let item = name.item();
            storages.entry(name.key.into_owned()).or_insert((item, None));
        }
    }
    let mut counts = Nearby::new(source);
    let mut issue = issue;
    let mut at = keys.as_ref().map_or(end, Graph::end);
    for key in keys.as_ref().and_then(|keys| keys.sequence(keys.root())).unwrap_or_default() {
        let Some(keys) = &keys else { break };
        let key = match (keys.node(*key), keys.short(*key)) {
            (Node::Text(_), Some(key)) => Cow::Borrowed(key),
            _ => Cow::Owned(str_of(keys, *key)),
        };
        let Some((item, place)) = storages.get_mut(&*key) else {
            // Nothing refers to it, so that its length in bytes is unknown, and so are the places of those behind it.
            issue = Some(format!("its storage {} is used by nothing, and what follows it cannot be found", quoted(&key)));
            break;
        };
        let mut count = [0; 8];
        if at.checked_add(8).is_none_or(|data| data > end) || counts.read_at(at, &mut count).is_err() {
            issue = Some(format!("ends before its storage {} (a download that was cut short?)", quoted(&key)));
            break;
        }
        let count = u64::from_le_bytes(count);
        let offset = at.saturating_add(8);
        let bytes = count.checked_mul(*item).filter(|bytes| *bytes <= i64::MAX as u64);
        let Some(bytes) = bytes else {
            issue = Some(format!("its storage {} has the length {count}", quoted(&key)));
            break;
        };
        *place = Some(Place { source: id, offset, bytes });
        at = offset.saturating_add(bytes);
    }
    if keys.is_some() && issue.is_none() && at != end {
        issue = Some(match at.checked_sub(end) {
            Some(missing) => format!(
                "its storages end at byte {at}, the file at {end}: {} (a download that was cut short?)",
                counted(missing, "byte is missing", "bytes are missing")
            ),
            None => left_over(end.saturating_sub(at), "the last storage", at),
        });
    }
    Ok(File { graph, storages: Legacy { storages }, issue })
}

/// The storage in a legacy file that is a bytes object of another pickle: what `pickle.dumps` makes of a tensor.
pub(super) fn storage_in(graph: &Graph, bytes: Id, stream: SourceId, builder: &mut Builder) -> std::result::Result<Storage, String> {
    let payload = Payload::of(graph, bytes).ok_or("its storage is made of something that is no bytes object")??;
    let (source, id, start, end) = match payload {
        Payload::Stored(at, len) => (Arc::clone(graph.source()), stream, at, at.saturating_add(len)),
        other => {
            let bytes = other.read(graph, NESTED_BYTES).ok_or("its storage is too large to be decoded")?;
            let source = Source::from_bytes(graph.source().path(), bytes);
            let end = source.len();
            (Arc::clone(&source), builder.side_source(source), 0, end)
        }
    };
    let failed = |e: Error| format!("its storage is a file inside the pickle, which cannot be read: {}", e.message());
    let first = Graph::read(&source, start, end).map_err(failed)?;
    if !is_magic(&first) {
        return Err("its storage is a file inside the pickle that is none of torch's legacy format".to_string());
    }
    let File { graph: inner, mut storages, issue } = read(&source, id, first.end(), end).map_err(failed)?;
    let Node::Persistent(name) = inner.node(inner.root()) else { return Err("its storage is a file inside the pickle that holds no storage".to_string()) };
    let named = Named::read(&inner, *name).ok_or("its storage is a file inside the pickle that holds no storage")??;
    let place = storages.find(&named.key, builder).map_err(|what| issue.unwrap_or(what))?;
    named.at(place)
}
