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
use crate::catalog::{Builder, Region, Spec, Value};
use crate::dtype::DType;
use crate::error::{Error, Result, counted, quoted};
use crate::json::reprinted;
use crate::limits;
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

/// An object in its own order, with duplicate names: the header, or its `__metadata__`. What stands under the names is parsed one by one.
pub(super) struct Members<'a>(pub(super) Vec<(Name<'a>, &'a RawValue)>);

/// A name, borrowed where it holds no escape.
pub(super) struct Name<'a>(pub(super) Cow<'a, str>);

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

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct MembersVisitor;
        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
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
                Ok(Members(entries))
            }
        }
        deserializer.deserialize_map(MembersVisitor)
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
        let what = format!(
            "its header of {length} bytes does not fit the file of {} bytes: {} missing",
            source.len(),
            counted(missing, "byte of the header is", "bytes of the header are")
        );
        return Err(Error::format(what).hint("a download that was cut short? fetch the file again"));
    };
    if length > limits::HEADER_BYTES {
        return Err(Error::limit(format!("its header is {length} bytes long, more than the limit of {}", limits::HEADER_BYTES)));
    }
    let mut json = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    source.read_at(8, &mut json).map_err(|e| Error::io("cannot read its header", e))?;
    let Members(entries) =
        serde_json::from_slice(&json).map_err(|e| Error::format(format!("its header is not the JSON object that safetensors writes: {e}")))?;
    let id = builder.source(Arc::clone(source));
    let mut metadata = Vec::new();
    let mut earlier = None;
    for (Name(name), raw) in &entries {
        if name == "__metadata__" {
            if earlier.is_some() {
                builder.issue(metadata_place(source), "occurs more than once", "the keys of all are listed");
            }
            let earlier = earlier.get_or_insert_with(|| earlier_keys(builder));
            read_metadata(raw.get(), source, builder, earlier, &mut metadata)?;
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
    let spec = Spec { bytes: Some(bytes), opaque, ..Spec::new(name.as_bytes(), dtype, &entry.shape, id, offset) };
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

/// Where the first of each key of the files before this one is.
type Earlier = HashMap<Vec<u8>, usize>;

fn read_metadata(raw: &str, source: &Source, builder: &mut Builder, earlier: &Earlier, seen: &mut Vec<(String, String)>) -> Result<()> {
    // MLX writes null when there is none.
    if raw == "null" {
        return Ok(());
    }
    if !raw.starts_with('{') {
        let Some(text) = reprinted(raw, false) else {
            return left_out(metadata_place(source), "is nested too deeply, or no text", builder);
        };
        builder.issue(metadata_place(source), "is not an object of strings", "kept as it is");
        return add_key(builder, source, earlier, b"__metadata__".to_vec(), Value::Rendered("json", text.into_bytes().into()));
    }
    let members: Members<'_> = match serde_json::from_str(raw) {
        Ok(members) => members,
        Err(e) => return left_out(metadata_place(source), format!("cannot be read: {}", short(&e.to_string())), builder),
    };
    for (Name(key), value) in members.0 {
        let place = || format!("{}, key {}", metadata_place(source), quoted(key.as_bytes()));
        let value = match serde_json::from_str::<String>(value.get()) {
            Ok(text) => {
                seen.push((key.to_string(), text.clone()));
                Value::String(text.into_bytes())
            }
            Err(_) => match reprinted(value.get(), false) {
                Some(text) => {
                    builder.issue(place(), "is not a string", "kept as it is");
                    Value::Rendered("json", text.into_bytes().into())
                }
                None => {
                    left_out(place(), "is nested too deeply, or no text", builder)?;
                    continue;
                }
            },
        };
        add_key(builder, source, earlier, key.as_bytes().to_vec(), value)?;
    }
    Ok(())
}

fn left_out(place: String, what: impl Into<String>, builder: &mut Builder) -> Result<()> {
    builder.dropped();
    builder.issue(place, what, "left out");
    Ok(())
}

/// The keys so far, before a file's own are added: a key that the file itself repeats is another matter.
fn earlier_keys(builder: &Builder) -> Earlier {
    let mut earlier = HashMap::new();
    for (index, (key, _)) in builder.metadata_so_far().iter().enumerate() {
        earlier.entry(key.clone()).or_insert(index);
    }
    earlier
}

/// Adds a key; one that another shard has already is left out if it says the same, and named after its shard if it does not.
fn add_key(builder: &mut Builder, source: &Source, earlier: &Earlier, key: Vec<u8>, value: Value) -> Result<()> {
    let same = |a: &Value, b: &Value| match (a, b) {
        (Value::String(a), Value::String(b)) => a == b,
        (Value::Rendered(_, a), Value::Rendered(_, b)) => a == b,
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
        let bytes = end.checked_sub(begin);
        builder.tie(&Spec { bytes, opaque, ..Spec::new(dropped.as_bytes(), dtype, &entry.shape, id, data.checked_add(begin)) })?;
    }
    Ok(())
}

fn metadata_place(source: &Source) -> String {
    format!("{}: __metadata__", source.path().display())
}

fn short(text: &str) -> String {
    crate::error::printable(&text.chars().take(200).collect::<String>())
}
