//! Files beside the model that hold its tensors' bytes.
//!
//! A model says where by a relative path. Only regular files in the model's own folder are opened: the folder of the model as it was named, or, where the
//! model is a link as in a model cache, the folder above the real file's or its own. No other path is ever opened.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::Opening;
use crate::catalog::Builder;
use crate::error::{self, Error, quoted, reason};
use crate::source::{Source, SourceId};

/// What external_data says of one tensor.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) location: Vec<u8>,
    pub(super) offset: u64,
    pub(super) length: Option<u64>,
    /// Keys that ONNX does not define.
    pub(super) unknown: Vec<Vec<u8>>,
}

impl Place {
    /// Reads the entries, of which the last of equal ones counts.
    pub(super) fn read(entries: &[(Vec<u8>, Vec<u8>)]) -> Result<Self, String> {
        let mut place = Self::default();
        let number = |key: &str, text: &[u8]| {
            let digits = std::str::from_utf8(text).ok().filter(|t| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit()));
            digits.and_then(|t| t.parse().ok()).ok_or_else(|| format!("its external {key} is {}, expected a number of bytes", quoted(text)))
        };
        for (key, value) in entries {
            match key.as_slice() {
                b"location" => place.location = value.clone(),
                b"offset" => place.offset = number("offset", value)?,
                b"length" => place.length = Some(number("length", value)?),
                // A digest of the whole file, and what some writers leave behind.
                b"checksum" | b"basepath" => {}
                other => place.unknown.push(other.to_vec()),
            }
        }
        Ok(place)
    }
}

/// A file that tensors name.
struct File {
    location: Vec<u8>,
    found: Result<SourceId, String>,
    /// The first tensor that names it, and how many do.
    first: Vec<u8>,
    count: u64,
}

/// Every file that was named so far.
#[derive(Default)]
pub(super) struct Files {
    files: Vec<File>,
    by_location: HashMap<Vec<u8>, usize>,
    /// Why no file could be opened any more, which is no fault of theirs.
    failed: Option<Error>,
}

impl Files {
    /// The source of a location, or `None` if it cannot be had; [`Files::report`] says why.
    pub(super) fn source(&mut self, opening: &Opening, builder: &mut Builder, location: &[u8], tensor: &[u8]) -> Option<SourceId> {
        let index = match self.by_location.get(location) {
            Some(index) => *index,
            None => {
                let opened = open(opening, location).unwrap_or_else(|e| {
                    let why = e.message();
                    self.failed = Some(e);
                    Err(why)
                });
                let found = opened.map(|source| {
                    let known = (0u32..).zip(builder.catalog().sources()).find(|(_, s)| s.identity().is_some() && s.identity() == source.identity());
                    known.map(|(id, _)| id).unwrap_or_else(|| builder.source(source))
                });
                let index = self.files.len();
                self.files.push(File { location: location.to_vec(), found, first: tensor.to_vec(), count: 0 });
                self.by_location.insert(location.to_vec(), index);
                index
            }
        };
        let file = self.files.get_mut(index)?;
        file.count = file.count.saturating_add(1);
        file.found.as_ref().ok().copied()
    }

    /// One issue for each file that could not be had.
    ///
    /// # Errors
    /// No more files may be open at once.
    pub(super) fn report(&mut self, builder: &mut Builder) -> error::Result<()> {
        if let Some(e) = self.failed.take() {
            return Err(e);
        }
        for file in &self.files {
            let Err(why) = &file.found else { continue };
            let tensors = match file.count {
                0 | 1 => format!("tensor {} is", quoted(&file.first)),
                many => format!("tensor {} and {} more are", quoted(&file.first), many.saturating_sub(1)),
            };
            builder.issue(builder.path(0), format!("external data {}: {why}", quoted(&file.location)), format!("{tensors} listed without files"));
        }
        Ok(())
    }
}

/// Opens the file at a location, or says why not.
///
/// # Errors
/// No more files may be open at once.
fn open(opening: &Opening, location: &[u8]) -> error::Result<Result<Arc<Source>, String>> {
    let (path, meta) = match place_of(opening, location) {
        Ok(found) => found,
        Err(why) => return Ok(Err(why)),
    };
    match Source::open(&path) {
        Err(e) if e.is_for_files() => Err(e),
        Err(e) => Ok(Err(e.message())),
        // What was opened is what was looked at, even if a link was changed in between.
        Ok(source) if source.identity() != Some((meta.dev(), meta.ino())) => Ok(Err("was replaced while it was opened".to_string())),
        Ok(source) => Ok(Ok(source)),
    }
}

/// The path of the file at a location and what is known of the file, or why it is not to be opened.
fn place_of(opening: &Opening, location: &[u8]) -> Result<(PathBuf, std::fs::Metadata), String> {
    if location.is_empty() {
        return Err("no file is named".to_string());
    }
    if location.windows(14).any(|w| w == b"_ORT_MEM_ADDR_") {
        return Err("is an address in the memory of the program that wrote it, not a file".to_string());
    }
    if location.contains(&b'\\') {
        return Err("is a Windows path, expected a path within the model's folder with / between its parts; not opened".to_string());
    }
    let path = opening.sibling_path(location).map_err(|_| "leads out of the model's folder; not opened".to_string())?;
    let tried = |e: &std::io::Error| format!("cannot be opened at {}: {}", crate::error::printable(&path.display().to_string()), reason(e));
    let real = path.canonicalize().map_err(|e| tried(&e))?;
    if !folders(opening.main().path()).iter().any(|folder| real.starts_with(folder)) {
        return Err("is a link out of the model's folder; not opened".to_string());
    }
    let meta = std::fs::symlink_metadata(&real).map_err(|e| tried(&e))?;
    if !meta.is_file() {
        return Err("is no regular file; not opened".to_string());
    }
    Ok((path, meta))
}

/// The folders whose files a model may use: its own as named, and the one above the real file's, since model caches keep the files themselves elsewhere.
fn folders(model: &Path) -> Vec<PathBuf> {
    let folder = |path: &Path| path.parent().map(|p| if p.as_os_str().is_empty() { PathBuf::from(".") } else { p.to_path_buf() });
    let named = folder(model).and_then(|f| f.canonicalize().ok());
    let real = model.canonicalize().ok().and_then(|m| folder(&m));
    [named, real].into_iter().flatten().collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn entries(list: &[(&str, &str)]) -> Vec<(Vec<u8>, Vec<u8>)> {
        list.iter().map(|(k, v)| (k.as_bytes().to_vec(), v.as_bytes().to_vec())).collect()
    }

    #[test]
    fn entries_are_numbers_or_an_error() {
        let place = Place::read(&entries(&[("location", "w"), ("offset", "5000000000"), ("length", "8"), ("checksum", "x"), ("colour", "red")])).unwrap();
        assert_eq!(place, Place { location: b"w".to_vec(), offset: 5_000_000_000, length: Some(8), unknown: vec![b"colour".to_vec()] });
        for bad in ["abc", "-1", "", "1e3", "+4", "99999999999999999999"] {
            assert!(Place::read(&entries(&[("offset", bad)])).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_files_of_the_models_own_folder_are_opened() {
        use std::os::unix::fs::symlink;
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), b"secret").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("cache/blobs")).unwrap();
        std::fs::create_dir_all(at("cache/snapshots/1/sub")).unwrap();
        std::fs::write(at("cache/blobs/aaaa"), b"model").unwrap();
        std::fs::write(at("cache/blobs/bbbb"), b"data").unwrap();
        symlink("../../blobs/aaaa", at("cache/snapshots/1/model.onnx")).unwrap();
        symlink("../../blobs/bbbb", at("cache/snapshots/1/model.onnx_data")).unwrap();
        symlink("../../../blobs/bbbb", at("cache/snapshots/1/sub/w")).unwrap();
        symlink(outside.path().join("secret"), at("cache/snapshots/1/out")).unwrap();
        symlink(outside.path(), at("cache/snapshots/1/folder")).unwrap();
        let main = Source::open(&at("cache/snapshots/1/model.onnx")).unwrap();
        let opening = Opening { main, indexes: std::rc::Rc::default() };
        for good in ["model.onnx_data", "./model.onnx_data", "sub/w", "model.onnx"] {
            assert!(open(&opening, good.as_bytes()).unwrap().is_ok(), "{good}");
        }
        for (bad, why) in [
            ("", "no file is named"),
            (".", "no regular file"),
            ("sub", "no regular file"),
            ("../1/model.onnx_data", "leads out"),
            ("sub/../../../blobs/bbbb", "leads out"),
            ("/etc/passwd", "leads out"),
            ("out", "is a link out"),
            ("folder/secret", "is a link out"),
            ("a\0b", "leads out"),
            ("C:\\x", "Windows path"),
            ("*/_ORT_MEM_ADDR_/*", "is an address"),
            ("missing.data", "snapshots/1/missing.data: No such file"),
        ] {
            let error = open(&opening, bad.as_bytes()).unwrap().err().unwrap_or_default();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }
}
