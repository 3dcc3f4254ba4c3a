//! Sources as they are named by a user, opened: what the program mounts, and any other front end may.
//!
//! It stands where parsers and tree meet: what [`formats`] opens becomes the branches of a tree, each with the name of its folder.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use crate::error::Result;
use crate::formats::{self, Collection};
use crate::tree::Branch;

/// A source argument: the name it asks for (`NAME=SOURCE`), and its path. A path that exists is taken as it stands even if it holds `=`.
pub fn split_name(argument: &OsStr) -> (Option<Vec<u8>>, PathBuf) {
    let path = PathBuf::from(argument);
    let bytes = argument.as_bytes();
    let parts = bytes.iter().position(|b| *b == b'=').filter(|at| *at > 0).and_then(|at| bytes.split_at_checked(at));
    match parts {
        Some((name, rest)) if !name.contains(&b'/') && std::fs::symlink_metadata(&path).is_err() => {
            let source = rest.strip_prefix(b"=").unwrap_or(rest);
            (Some(name.to_vec()), PathBuf::from(OsString::from_vec(source.to_vec())))
        }
        _ => (None, path),
    }
}

/// Opens every source, in order; several shards of one set count once. One source without a name is the root of the tree, several are a folder each.
///
/// # Errors
/// A source cannot be opened, or is no container.
pub fn open(arguments: &[OsString]) -> Result<Vec<Branch>> {
    let mut claimed = HashSet::new();
    let mut opened: Vec<(Option<Vec<u8>>, PathBuf, Collection)> = Vec::new();
    for argument in arguments {
        let (name, path) = split_name(argument);
        let identity = std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file).map(|m| {
            use std::os::unix::fs::MetadataExt;
            (m.dev(), m.ino())
        });
        if name.is_none() && identity.is_some_and(|identity| claimed.contains(&identity)) {
            continue;
        }
        let collection = formats::open(&path)?;
        let catalogs = collection.top.iter().chain(collection.parts.iter().map(|(_, c)| c));
        claimed.extend(catalogs.flat_map(|c| c.sources()).filter_map(|s| s.identity()));
        opened.push((name, path, collection));
    }
    let single = opened.len() == 1;
    let branches = opened.into_iter().map(|(name, path, collection)| {
        let name = name.or_else(|| (!single).then(|| formats::source_name(&path)));
        Branch { name, top: collection.top, parts: collection.parts }
    });
    Ok(branches.collect())
}
