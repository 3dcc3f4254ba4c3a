//! torch's oldest format, before version 0.1.10: a tar archive.
//!
//! | member | what |
//! |---|---|
//! | `storages` | pickle: how many; for each a pickle (key, location, class), the number of elements (i64) and the elements; then a pickle of views: (key, root's key, first element, elements) |
//! | `tensors` | pickle: how many; for each a pickle (key, storage's key, class), dimensions (i32 and 4 bytes), sizes and strides (i64 each), offset (i64) |
//! | `pickle` | the value, in which a bare key names a tensor or a storage |
//!
//! `tensors` may be missing: there are files whose value refers to storages as the later formats do.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::super::pickle::text::str_of;
use super::super::pickle::{Graph, Node};
use super::super::stopped;
use super::storage::{Bare, Place, Storage, Storages};
use super::types::Type;
use crate::catalog::Builder;
use crate::error::{Error, Result, quoted};
use crate::limits;
use crate::reader::Reader;
use crate::source::{Source, SourceId};

const BLOCK: u64 = 512;
/// Most members that are looked at.
const MEMBERS: usize = 64;

/// Where the members of an archive are, by name.
fn members(source: &Source) -> HashMap<Vec<u8>, Range<u64>> {
    let mut found = HashMap::new();
    let mut at = 0_u64;
    for _ in 0..MEMBERS {
        let mut header = [0; 512];
        if source.read_at(at, &mut header).is_err() || header.get(257..262) != Some(b"ustar") {
            break;
        }
        let field = |from: usize, to: usize| header.get(from..to).unwrap_or_default().split(|b| *b == 0).next().unwrap_or_default();
        let digits = std::str::from_utf8(field(124, 136)).unwrap_or_default();
        let Ok(size) = u64::from_str_radix(digits.trim(), 8) else { break };
        let start = at.saturating_add(BLOCK);
        let Some(end) = start.checked_add(size).filter(|end| *end <= source.len()) else { break };
        if matches!(header.get(156), Some(b'0' | 0)) {
            let name = field(0, 100);
            found.insert(name.strip_prefix(b"./").unwrap_or(name).to_vec(), start..end);
        }
        at = start.saturating_add(size.next_multiple_of(BLOCK));
    }
    found
}

/// Whether a file is such an archive.
pub(super) fn is_one(head: &[u8], source: &Source) -> bool {
    if head.get(257..262) != Some(b"ustar") {
        return false;
    }
    let members = members(source);
    members.contains_key(b"storages".as_slice()) && members.contains_key(b"pickle".as_slice())
}

/// What the archive holds besides its value.
pub(super) struct Tar {
    storages: HashMap<Vec<u8>, Storage>,
    tensors: HashMap<Vec<u8>, Description>,
}

/// A tensor: its storage's key, offset, shape and strides.
type Description = (Vec<u8>, u64, Vec<u64>, Vec<u64>);

impl Storages for Tar {
    fn find(&mut self, key: &[u8], _builder: &mut Builder) -> std::result::Result<Place, String> {
        let storage = self.storages.get(key).ok_or_else(|| format!("its storage {} is not in the archive", quoted(key)))?;
        Ok(storage.place)
    }

    fn bare(&mut self, key: &[u8], _builder: &mut Builder) -> Option<Bare> {
        if let Some((storage, offset, shape, strides)) = self.tensors.get(key) {
            return Some(Bare::Tensor(*self.storages.get(storage)?, *offset, shape.clone(), strides.clone()));
        }
        self.storages.get(key).copied().map(Bare::Storage)
    }
}

/// Reads the archive: its value and its storages.
pub(super) fn read(source: &Arc<Source>, id: SourceId) -> Result<(Graph, Tar)> {
    let members = members(source);
    let member = |name: &[u8]| members.get(name).cloned().ok_or_else(|| Error::format(format!("its member {} is missing", quoted(name))));
    let mut tar = Tar { storages: HashMap::new(), tensors: HashMap::new() };
    tar.read_storages(source, id, member(b"storages")?)?;
    if let Ok(range) = member(b"tensors") {
        tar.read_tensors(source, range)?;
    }
    let range = member(b"pickle")?;
    Ok((Graph::read(source, range.start, range.end)?, tar))
}

/// The pickle of a number of things.
fn count(source: &Arc<Source>, range: &Range<u64>, what: &str) -> Result<(u64, u64)> {
    let graph = Graph::read(source, range.start, range.end)?;
    let count = graph.int(graph.root()).and_then(|count| u64::try_from(count).ok());
    let count = count.ok_or_else(|| Error::format(format!("its number of {what} is no number")))?;
    Ok((count, graph.end()))
}

impl Tar {
    fn read_storages(&mut self, source: &Arc<Source>, id: SourceId, range: Range<u64>) -> Result<()> {
        let (count, mut at) = count(source, &range, "storages")?;
        for _ in 0..count {
            let graph = Graph::read(source, at, range.end)?;
            let Some([key, _, class]) = graph.sequence(graph.root()) else { return Err(Error::format("one of its storages has no description")) };
            let class = graph.global(*class).and_then(|(_, name)| Type::of_storage(name)).flatten();
            let class = class.ok_or_else(|| Error::unsupported("one of its storages is of an unknown class"))?;
            let mut reader = Reader::new(source, graph.end(), range.end);
            let elements = reader.u64().map_err(|stop| stopped(stop, "the length of a storage", source))?;
            let bytes = elements.saturating_mul(class.bytes);
            let offset = reader.position();
            reader.skip(bytes).map_err(|stop| stopped(stop, "a storage", source))?;
            at = reader.position();
            self.storages.insert(str_of(&graph, *key), Storage { place: Place { source: id, offset, bytes }, class: Some(class) });
        }
        // Old files end here; later ones have views of storages.
        if at < range.end {
            let graph = Graph::read(source, at, range.end)?;
            for view in graph.sequence(graph.root()).unwrap_or_default() {
                let Some([key, root, offset, elements]) = graph.sequence(*view) else { continue };
                let number = |id: u32| graph.int(id).and_then(|n| u64::try_from(n).ok());
                let Some(storage) = self.storages.get(&str_of(&graph, *root)).copied() else { continue };
                let item = storage.class.map_or(1, |class| class.bytes);
                let part = number(*offset).zip(number(*elements)).and_then(|(offset, elements)| {
                    Some(Storage { place: storage.place.sub(offset.checked_mul(item)?, elements.checked_mul(item)?)?, ..storage })
                });
                if let Some(part) = part {
                    self.storages.insert(str_of(&graph, *key), part);
                }
            }
        }
        Ok(())
    }

    fn read_tensors(&mut self, source: &Arc<Source>, range: Range<u64>) -> Result<()> {
        let (count, mut at) = count(source, &range, "tensors")?;
        for _ in 0..count {
            let graph = Graph::read(source, at, range.end)?;
            let Some([key, storage, _]) = graph.sequence(graph.root()) else { return Err(Error::format("one of its tensors has no description")) };
            let mut reader = Reader::new(source, graph.end(), range.end);
            let failed = |stop| stopped(stop, "the shape of a tensor", source);
            let dimensions = reader.u32().map_err(failed)?;
            reader.skip(4).map_err(failed)?;
            if dimensions as usize > limits::DIMENSIONS {
                return Err(Error::format(format!("one of its tensors has {dimensions} dimensions")));
            }
            let mut numbers = || (0..dimensions).map(|_| reader.u64()).collect::<std::result::Result<Vec<u64>, _>>().map_err(failed);
            let (shape, strides) = (numbers()?, numbers()?);
            let offset = reader.u64().map_err(failed)?;
            at = reader.position();
            let storage = match graph.node(*storage) {
                Node::None => continue,
                _ => str_of(&graph, *storage),
            };
            self.tensors.insert(str_of(&graph, *key), (storage, offset, shape, strides));
        }
        Ok(())
    }
}
