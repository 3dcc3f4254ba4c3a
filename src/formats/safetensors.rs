//! safetensors: a JSON header and the tensors' bytes back to back.
//!
//! | bytes | meaning |
//! |---|---|
//! | 0..8 | `n`: length of the header, u64 |
//! | 8..8+n | JSON object: name to `{"dtype", "shape", "data_offsets": [begin, end]}`; `__metadata__`: strings |
//! | 8+n.. | data; offsets count from here |
//!
//! Definition: <https://github.com/huggingface/safetensors>. The library refuses a whole file for one bad entry; here the entry becomes an issue.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{Format, Head, Opening, Shards, hf_index};
use crate::catalog::{Builder, Order, Region, Spec, Value};
use crate::dtype::DType;
use crate::error::{Error, Result, quoted};
use crate::limits;
use crate::reader::Endian;
use crate::source::{Source, SourceId};

pub(super) const FORMAT: Format = Format {
    name: "safetensors",
    title: "safetensors, sharded sets, Hugging Face model folders and caches",
    extensions: &["safetensors"],
    sniff,
    open,
    part: Some(part),
};

/// There is no magic number: a plausible length, and a brace where the JSON should begin.
fn sniff(head: &Head<'_>) -> bool {
    let Some((len, json)) = head.bytes.split_first_chunk::<8>() else { return false };
    let len = u64::from_le_bytes(*len);
    let first = json.iter().find(|b| !b.is_ascii_whitespace());
    (2..1 << 40).contains(&len) && first == Some(&b'{')
}

fn open(opening: &mut Opening, builder: &mut Builder) -> Result<()> {
    let main = Arc::clone(opening.main());
    if let Some(index) = hf_index::index_of(opening) {
        return hf_index::open_index(opening, &index, builder);
    }
    let name = String::from_utf8_lossy(opening.file_name()).into_owned();
    match super::numbered_name(&name, ".safetensors") {
        // A file that the index of its own set leaves out is a container of its own.
        Some((prefix, _, of)) if of > 1 && !hf_index::any_index_names(opening, &|shard| is_of_set(shard, prefix, of)) => {
            let names: Vec<String> = (1..=of).map(|n| format!("{prefix}-{n:05}-of-{of:05}.safetensors")).collect();
            hf_index::open_shards(opening, names.iter().map(|n| n.as_bytes()), None, builder)
        }
        _ => read(&main, builder, &mut Shards { elsewhere: &mut |_| false }),
    }
}

/// Whether a file name is that of a shard of the set with this prefix and count.
fn is_of_set(name: &str, prefix: &str, of: u32) -> bool {
    super::numbered_name(name, ".safetensors").is_some_and(|(p, _, n)| p == prefix && n == of)
}

fn part(source: &Arc<Source>, builder: &mut Builder, shards: &mut Shards<'_>) -> Result<()> {
    read(source, builder, shards)
}

/// One entry of the header.
#[derive(serde::Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The header in its own order, with duplicate names; entries are parsed one by one.
struct Header<'a>(Vec<(Name<'a>, &'a RawValue)>);

/// A name, borrowed where it holds no escape.
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct NameVisitor;
        impl<'de> Visitor<'de> for NameVisitor {
            type Value = Name<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> std::result::Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> std::result::Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(text.to_string())))
            }
        }
        deserializer.deserialize_str(NameVisitor)
    }
}

impl<'de> Deserialize<'de> for Header<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = Header<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    if entries.len() as u64 > limits::TENSORS {
                        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                        break;
                    }
                    entries.push(entry);
                }
                Ok(Header(entries))
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}

/// Reads one file; `shards` tells which names the index gives to another shard.
fn read(source: &Arc<Source>, builder: &mut Builder, shards: &mut Shards<'_>) -> Result<()> {
    let mut length = [0; 8];
    source.read_at(0, &mut length).map_err(|e| Error::io("cannot read its header length", e))?;
    let length = u64::from_le_bytes(length);
    let data = length.checked_add(8).filter(|data| *data <= source.len());
    let Some(data) = data else {
        let missing = length.saturating_add(8).saturating_sub(source.len());
        let what = format!("its header of {length} bytes does not fit the file of {} bytes: {missing} bytes of the header are missing", source.len());
        return Err(Error::format(what).hint("a download that was cut short? fetch the file again"));
    };
    if length > limits::HEADER_BYTES {
        return Err(Error::limit(format!("its header is {length} bytes long, more than the limit of {}", limits::HEADER_BYTES)));
    }
    let mut json = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    source.read_at(8, &mut json).map_err(|e| Error::io("cannot read its header", e))?;
    let Header(entries) =
        serde_json::from_slice(&json).map_err(|e| Error::format(format!("its header is not the JSON object that safetensors writes: {e}")))?;
    let id = builder.source(Arc::clone(source));
    let mut metadata = Vec::new();
    for (Name(name), raw) in &entries {
        if name == "__metadata__" {
            read_metadata(raw.get(), source, builder, &mut metadata)?;
        } else {
            read_tensor(name, raw.get(), id, data, builder, shards)?;
        }
    }
    add_ties(&entries, &metadata, id, data, builder)?;
    builder.region(Region { source: id, start: data, end: source.len(), slack: 0 });
    Ok(())
}

fn read_tensor(name: &str, raw: &str, id: SourceId, data: u64, builder: &mut Builder, shards: &mut Shards<'_>) -> Result<()> {
    let entry: Entry<'_> = match serde_json::from_str(raw) {
        Ok(entry) => entry,
        Err(e) => {
            builder.dropped();
            builder.tensor_issue(id, name.as_bytes(), format!("its entry in the header cannot be read: {}", short(&e.to_string())), "left out");
            return Ok(());
        }
    };
    let (begin, end) = entry.data_offsets;
    let Some(bytes) = end.checked_sub(begin) else {
        builder.dropped();
        builder.tensor_issue(id, name.as_bytes(), format!("its data_offsets end ({end}) before they begin ({begin})"), "left out");
        return Ok(());
    };
    let (dtype, opaque) = dtype(&entry.dtype);
    if opaque {
        let what = match &dtype {
            DType::Unknown(_) => format!("has the unknown dtype {}", quoted(entry.dtype.as_bytes())),
            _ => format!("is of dtype {}, whose packing safetensors does not specify", entry.dtype),
        };
        builder.tensor_issue(id, name.as_bytes(), what, "its bytes are served in raw/ only");
    }
    let offset = data.checked_add(begin);
    if offset.is_none() {
        builder.tensor_issue(id, name.as_bytes(), format!("its data starts at byte {begin} of the data, far outside the file"), "listed without files");
    }
    let spec = Spec {
        name: name.as_bytes(),
        dtype,
        shape: &entry.shape,
        stored_shape: None,
        order: Order::C,
        endian: Endian::Little,
        source: id,
        offset,
        bytes: Some(bytes),
        opaque,
        computed: None,
        scheme: None,
        same_as: None,
    };
    if (shards.elsewhere)(name.as_bytes()) { builder.tensor_later(&spec) } else { builder.tensor(&spec) }
}

/// The type behind a dtype string, and whether its bytes cannot be decoded with certainty.
fn dtype(text: &str) -> (DType, bool) {
    let name = match text {
        "F8_E4M3FNUZ" => "f8_e4m3fnuz",
        "F8_E5M2FNUZ" => "f8_e5m2fnuz",
        "BF16" => "bf16",
        "F8_E4M3" | "F8_E5M2" | "F8_E8M0" | "F4" | "BOOL" | "U8" | "I8" | "U16" | "I16" | "U32" | "I32" | "U64" | "I64" | "F16" | "F32" | "F64" | "C64" => {
            return (DType::by_name(&text.to_ascii_lowercase()).unwrap_or(DType::Unknown(0)), false);
        }
        // Known by size only: the specification does not say how six bits are packed, nor does it know these integers at all.
        "F6_E2M3" | "F6_E3M2" | "I4" | "U4" | "I2" | "U2" => {
            return (DType::by_name(&text.to_ascii_lowercase()).unwrap_or(DType::Unknown(0)), true);
        }
        _ => return (DType::Unknown(0), true),
    };
    (DType::by_name(name).unwrap_or(DType::Unknown(0)), false)
}

fn read_metadata(raw: &str, source: &Source, builder: &mut Builder, seen: &mut Vec<(String, String)>) -> Result<()> {
    let value: serde_json::Value = match serde_json::from_str(raw) {
        Ok(value) => value,
        Err(e) => {
            builder.dropped();
            builder.issue(metadata_place(source), format!("cannot be read: {}", short(&e.to_string())), "left out");
            return Ok(());
        }
    };
    match value {
        // MLX writes null when there is none.
        serde_json::Value::Null => Ok(()),
        serde_json::Value::Object(map) => {
            let earlier = earlier_keys(builder);
            for (key, value) in map {
                let value = match value {
                    serde_json::Value::String(text) => {
                        seen.push((key.clone(), text.clone()));
                        Value::String(text.into_bytes())
                    }
                    other => {
                        builder.issue(format!("{}, key {}", metadata_place(source), quoted(key.as_bytes())), "is not a string", "kept as it is");
                        Value::Json("json", other)
                    }
                };
                add_key(builder, source, &earlier, key.into_bytes(), value)?;
            }
            Ok(())
        }
        other => {
            builder.issue(metadata_place(source), "is not an object of strings", "kept as it is");
            let earlier = earlier_keys(builder);
            add_key(builder, source, &earlier, b"__metadata__".to_vec(), Value::Json("json", other))
        }
    }
}

/// The keys so far and where the first of each is: no file repeats its own keys, so that one look before each file is enough.
fn earlier_keys(builder: &Builder) -> HashMap<Vec<u8>, usize> {
    let mut earlier = HashMap::new();
    for (index, (key, _)) in builder.metadata_so_far().iter().enumerate() {
        earlier.entry(key.clone()).or_insert(index);
    }
    earlier
}

/// Adds a key; one that another shard has already is left out if it says the same, and named after its shard if it does not.
fn add_key(builder: &mut Builder, source: &Source, earlier: &HashMap<Vec<u8>, usize>, key: Vec<u8>, value: Value) -> Result<()> {
    let same = |a: &Value, b: &Value| match (a, b) {
        (Value::String(a), Value::String(b)) => a == b,
        (Value::Json(_, a), Value::Json(_, b)) => a == b,
        _ => false,
    };
    match earlier.get(&key).and_then(|index| builder.metadata_so_far().get(*index)) {
        Some((_, first)) if same(first, &value) => Ok(()),
        Some(_) => {
            let shard = source.path().file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            builder.metadata([&key, &b"@"[..], shard.as_bytes()].concat(), value)
        }
        None => builder.metadata(key, value),
    }
}

/// Adds the names that `save_model` dropped because they were tied: it records them in the metadata as `{dropped: kept}`.
fn add_ties(entries: &[(Name<'_>, &RawValue)], metadata: &[(String, String)], id: SourceId, data: u64, builder: &mut Builder) -> Result<()> {
    if metadata.is_empty() {
        return Ok(());
    }
    // Of two entries of one name the first is meant, as everywhere.
    let names: HashMap<&str, &RawValue> = entries.iter().rev().map(|(Name(name), raw)| (name.as_ref(), *raw)).collect();
    for (dropped, kept) in metadata {
        if dropped == "format" || names.contains_key(dropped.as_str()) {
            continue;
        }
        let Some(raw) = names.get(kept.as_str()) else { continue };
        let Ok(entry) = serde_json::from_str::<Entry<'_>>(raw.get()) else { continue };
        let (dtype, opaque) = dtype(&entry.dtype);
        let (begin, end) = entry.data_offsets;
        builder.tie(&Spec {
            name: dropped.as_bytes(),
            dtype,
            shape: &entry.shape,
            stored_shape: None,
            order: Order::C,
            endian: Endian::Little,
            source: id,
            offset: data.checked_add(begin),
            bytes: end.checked_sub(begin),
            opaque,
            computed: None,
            scheme: None,
            same_as: None,
        })?;
    }
    Ok(())
}

fn metadata_place(source: &Source) -> String {
    format!("{}: __metadata__", source.path().display())
}

fn short(text: &str) -> String {
    crate::error::printable(&text.chars().take(200).collect::<String>())
}
