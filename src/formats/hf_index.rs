//! A Hugging Face shard index (`*.index.json`): which shard holds which tensor.
//!
//! `{"metadata": {...}, "weight_map": {TENSOR: SHARD}}`. The shards' own headers are the truth; the index only orders them and settles names that occur twice.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::safetensors::{Members, Name};
use super::{Format, Head, Opening, Shards};
use crate::catalog::{Builder, Section, SideBytes, SideFile};
use crate::error::{Error, Result, quoted};
use crate::json::reprinted;
use crate::limits;
use crate::source::{Extent, Source};

pub(super) const FORMAT: Format = Format { name: "safetensors", title: "Hugging Face shard index", extensions: &["index.json"], sniff, open, part: None };

/// A JSON object that has the key `weight_map`, wherever in it.
fn sniff(head: &Head<'_>) -> bool {
    let first = head.bytes.iter().find(|b| !b.is_ascii_whitespace());
    if first != Some(&b'{') || head.source.len() > limits::SIDE_FILE_BYTES {
        return false;
    }
    let key = b"\"weight_map\"";
    let near = |bytes: &[u8]| bytes.windows(key.len()).any(|w| w == key);
    // Writers put it right at the start, or after a short "metadata"; sorted keys put a long "metadata" first.
    near(head.bytes) || Index::read(head.source).is_ok()
}

/// What an index says, in its own order.
pub(super) struct Index {
    source: Arc<Source>,
    metadata: Option<Box<RawValue>>,
    weight_map: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct Text {
    #[serde(default)]
    metadata: Option<Box<RawValue>>,
    weight_map: Pairs,
}

/// An object of strings in its own order.
struct Pairs(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct PairsVisitor;
        impl<'de> serde::de::Visitor<'de> for PairsVisitor {
            type Value = Pairs;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object of file names")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> std::result::Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(PairsVisitor)
    }
}

impl Index {
    fn read(source: &Source) -> Result<Text> {
        if source.len() > limits::SIDE_FILE_BYTES {
            return Err(Error::limit("is too large for a shard index"));
        }
        let mut bytes = vec![0; usize::try_from(source.len()).unwrap_or(usize::MAX)];
        source.read_at(0, &mut bytes).map_err(|e| Error::io("cannot read it", e))?;
        serde_json::from_slice(&bytes).map_err(|e| Error::format(format!("is not the JSON of a shard index: {e}")))
    }

    fn open(source: Arc<Source>) -> Result<Self> {
        let Text { metadata, weight_map } = Self::read(&source)?;
        Ok(Self { source, metadata, weight_map: weight_map.0 })
    }

    /// The shards' file names, each once, in the order of their names.
    fn shards(&self) -> Vec<&str> {
        let mut shards: Vec<&str> = self.weight_map.iter().map(|(_, shard)| shard.as_str()).collect();
        shards.sort_unstable();
        shards.dedup();
        shards
    }
}

fn open(opening: &mut Opening, builder: &mut Builder) -> Result<()> {
    let index = Index::open(Arc::clone(opening.main()))?;
    if index.weight_map.is_empty() {
        return Err(Error::format("its weight_map names no shard"));
    }
    open_index(opening, &index, builder)
}

/// The index beside a container that lists it as one of its shards.
pub(super) fn index_of(opening: &Opening) -> Option<Rc<Index>> {
    let own = opening.file_name();
    indexes(opening).iter().find(|index| index.weight_map.iter().any(|(_, shard)| shard.as_bytes() == own)).cloned()
}

/// Whether an index beside a container names a shard that is `wanted`.
pub(super) fn any_index_names(opening: &Opening, wanted: &dyn Fn(&str) -> bool) -> bool {
    indexes(opening).iter().any(|index| index.shards().into_iter().any(wanted))
}

/// The shard indexes in each folder: where many containers of a folder are opened, they are read once.
#[derive(Default)]
pub(super) struct Indexes(RefCell<HashMap<PathBuf, Rc<[Rc<Index>]>>>);

/// Every shard index in a container's folder.
fn indexes(opening: &Opening) -> Rc<[Rc<Index>]> {
    let known = &opening.indexes.0;
    if let Some(indexes) = known.borrow().get(opening.folder()) {
        return Rc::clone(indexes);
    }
    let names = opening.neighbours().into_iter().filter(|name| name.ends_with(b".index.json"));
    let indexes: Rc<[Rc<Index>]> = names.filter_map(|name| opening.sibling(&name).and_then(Index::open).ok().map(Rc::new)).collect();
    known.borrow_mut().insert(opening.folder().to_path_buf(), Rc::clone(&indexes));
    indexes
}

/// Opens every shard that an index names.
pub(super) fn open_index(opening: &Opening, index: &Index, builder: &mut Builder) -> Result<()> {
    let side = builder.side_source(Arc::clone(&index.source));
    let name = index.source.path().file_name().map(|n| n.as_encoded_bytes().to_vec()).unwrap_or_default();
    if let Some(extent) = Extent::new(side, &index.source, 0, index.source.len()) {
        builder.side(SideFile { section: Section::Config, name, bytes: SideBytes::Stored(extent) });
    }
    if let Some(metadata) = &index.metadata {
        add_metadata(metadata.get(), &index.source, builder);
    }
    let map: HashMap<&[u8], &str> = index.weight_map.iter().map(|(tensor, shard)| (tensor.as_bytes(), shard.as_str())).collect();
    let shards = index.shards();
    open_shards(opening, shards.iter().map(|s| s.as_bytes()), Some(&|tensor| map.get(tensor).copied()), builder)?;
    let place = crate::error::printable(&index.source.path().display().to_string());
    let found = builder.names();
    let mut absent = Vec::new();
    for (tensor, shard) in &index.weight_map {
        if !found.contains(tensor.as_bytes()) {
            absent.push((tensor, shard));
        }
    }
    drop(found);
    for (tensor, shard) in absent {
        builder.dropped();
        let what = format!("tensor {} should be in {}, which does not have it", quoted(tensor.as_bytes()), quoted(shard.as_bytes()));
        builder.issue(place.clone(), what, "left out");
    }
    Ok(())
}

/// Adds what the index says of itself to info.json, in its own order and with all its digits; of a key that occurs twice the later one is `KEY~2`.
fn add_metadata(raw: &str, source: &Source, builder: &mut Builder) {
    let place = |key: &str| format!("{}: metadata, key {}", crate::error::printable(&source.path().display().to_string()), quoted(key.as_bytes()));
    let mut text = String::new();
    match serde_json::from_str::<Members<'_>>(raw) {
        Ok(Members(members)) => {
            let mut taken: HashMap<String, u64> = HashMap::new();
            for (Name(name), value) in members {
                let mut key = name.to_string();
                if taken.contains_key(&key) {
                    builder.issue(place(&name), "the key occurs more than once", "all are listed, the later ones as ~2, ~3");
                }
                while taken.contains_key(&key) {
                    let n = taken.entry(name.to_string()).or_insert(1);
                    *n = n.saturating_add(1);
                    key = format!("{name}~{n}");
                }
                text.push(if text.is_empty() { '{' } else { ',' });
                text.push_str(&format!("{}:{}", serde_json::Value::from(key.as_str()), value.get()));
                taken.insert(key, 1);
            }
            text.push_str(if text.is_empty() { "{}" } else { "}" });
        }
        Err(_) => text.push_str(raw),
    }
    match reprinted(&text, false) {
        Some(text) => builder.quote("index", text),
        None => builder.issue(crate::error::printable(&source.path().display().to_string()), "its metadata is nested too deeply, or no text", "left out"),
    }
}

/// Gives the shard in which an index places a tensor.
type Home<'a> = dyn Fn(&[u8]) -> Option<&'a str> + 'a;

/// Opens shards by name; `home` gives the shard in which the index places a tensor, if there is an index.
pub(super) fn open_shards<'a>(opening: &Opening, names: impl Iterator<Item = &'a [u8]>, home: Option<&Home<'a>>, builder: &mut Builder) -> Result<()> {
    let mut count = 0u64;
    for name in names {
        let mut unlisted = Vec::new();
        let mut elsewhere = |tensor: &[u8]| match home.map(|home| home(tensor)) {
            Some(Some(shard)) => shard.as_bytes() != name,
            Some(None) => {
                unlisted.push(tensor.to_vec());
                false
            }
            None => false,
        };
        let opened = opening.sibling(name).and_then(|source| {
            let format = super::recognise(&source)?;
            let part =
                format.part.ok_or_else(|| Error::unsupported(format!("is a file of format {}, which has no shards", format.name)).in_file(source.path()))?;
            part(&source, builder, &mut Shards { elsewhere: &mut elsewhere }).map_err(|e| e.in_file(source.path()))
        });
        count = count.saturating_add(1);
        if let Err(e) = opened {
            if e.is_for_files() {
                return Err(e);
            }
            builder.dropped();
            builder.issue(format!("shard {}", quoted(name)), e.message(), "the other shards are served");
        }
        for tensor in unlisted {
            builder.issue(format!("shard {}: tensor {}", quoted(name), quoted(&tensor)), "is not in the index", "served all the same");
        }
    }
    builder.fact("shards", count.into());
    Ok(())
}
