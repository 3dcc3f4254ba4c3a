//! The containers that can be opened, and how a path becomes a catalogue.
//!
//! Adding a format is one file that fills a [`Builder`] and one line in [`FORMATS`]. A file is recognised by its content, never by its name. What is no
//! tensor container is refused by `unknown` with a sentence that says what it is instead.

mod folder;
mod foreign;
mod gguf;
mod hf_index;
mod msgpack;
mod npy;
mod npz;
mod onnx;
mod pickle;
mod safetensors;
mod schemes;
mod torch;
mod unknown;
mod zip;

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use crate::catalog::{Builder, Catalog};
use crate::error::{Error, Result, quoted};
use crate::reader::Stop;
use crate::source::Source;

pub use folder::{Collection, open, source_name};

/// How many first bytes of a file are looked at to recognise it.
const HEAD_BYTES: usize = 4096;

/// One container format: the only registration it needs.
pub struct Format {
    /// Name as shown in info.json.
    pub name: &'static str,
    /// What it is, for tables and messages.
    pub title: &'static str,
    /// Usual file name extensions; never used to recognise a file.
    pub extensions: &'static [&'static str],
    /// Whether the content is of this format.
    pub sniff: fn(&Head<'_>) -> bool,
    /// Reads the container (and what belongs to it) into the builder.
    open: fn(&mut Opening, &mut Builder) -> Result<()>,
    /// Reads one file of a sharded set, where the format has such sets under a shard index.
    part: Option<ReadPart>,
}

/// Reads one file of a sharded set into the builder.
type ReadPart = fn(&Arc<Source>, &mut Builder, &mut Shards<'_>) -> Result<()>;

/// What a shard index says about the shard that is being read.
pub(crate) struct Shards<'a> {
    /// Called with each tensor's name: whether the index says that this tensor is another shard's.
    elsewhere: &'a mut dyn FnMut(&[u8]) -> bool,
}

/// Every format, in order of priority: those with a magic number first, since the others are recognised by structure.
pub static FORMATS: &[Format] = &[
    gguf::FORMAT,
    npy::FORMAT,
    // A zip with a torch pickle in it is torch's, even if there are arrays beside it.
    torch::FORMAT,
    npz::FORMAT,
    hf_index::FORMAT,
    // No magic number either, but far more structure than a safetensors file is recognised by.
    onnx::FORMAT,
    msgpack::FORMAT,
    // No magic number: a plausible length and an opening brace.
    safetensors::FORMAT,
];

/// What a sniffer may look at.
pub struct Head<'a> {
    /// The first bytes of the file.
    pub bytes: &'a [u8],
    /// The file, for a look elsewhere in it (a zip's directory is at its end).
    pub source: &'a Source,
}

impl Head<'_> {
    /// Reads the first bytes of `source`, which go to `buffer`.
    fn read<'a>(source: &'a Source, buffer: &'a mut Vec<u8>) -> Result<Head<'a>> {
        let len = usize::try_from(source.len()).unwrap_or(usize::MAX).min(HEAD_BYTES);
        buffer.resize(len, 0);
        source.read_at(0, buffer).map_err(|e| Error::io("cannot read its first bytes", e))?;
        Ok(Head { bytes: buffer, source })
    }
}

/// One container being opened: its main file and the way to the files beside it.
pub struct Opening {
    main: Arc<Source>,
    indexes: Rc<hf_index::Indexes>,
}

impl Opening {
    /// The main file.
    pub fn main(&self) -> &Arc<Source> {
        &self.main
    }

    /// The main file's name without its folder.
    pub fn file_name(&self) -> &[u8] {
        self.main.path().file_name().map(OsStrExt::as_bytes).unwrap_or_default()
    }

    /// The main file's name without folder and extension: the name of a lone unnamed tensor.
    pub fn stem(&self) -> &[u8] {
        self.main.path().file_stem().map(OsStrExt::as_bytes).unwrap_or_default()
    }

    /// The path of a file that the container names, relative to the container's own folder as it was given (links into a model cache are followed, since
    /// such caches are made of them).
    ///
    /// # Errors
    /// The name is absolute, leads out of the folder, or is no file name at all.
    pub fn sibling_path(&self, name: &[u8]) -> Result<PathBuf> {
        let refuse =
            |why: &str| Err(Error::format(format!("names the file {}, which {why}", quoted(name))).hint("only files in the container's own folder are opened"));
        if name.is_empty() || name.contains(&0) {
            return refuse("is not a file name");
        }
        let relative = PathBuf::from(OsString::from_vec(name.to_vec()));
        if relative.components().any(|c| !matches!(c, Component::Normal(_) | Component::CurDir)) || name.get(1..3) == Some(b":\\") {
            return refuse("leads out of the container's folder");
        }
        Ok(self.main.path().parent().unwrap_or(Path::new("")).join(relative))
    }

    /// Opens a file that the container names; see [`Opening::sibling_path`].
    ///
    /// # Errors
    /// The name is not acceptable, or the file cannot be opened.
    pub fn sibling(&self, name: &[u8]) -> Result<Arc<Source>> {
        let path = self.sibling_path(name)?;
        if self.main.path() == path { Ok(Arc::clone(&self.main)) } else { Source::open(&path) }
    }

    /// The main file's folder.
    fn folder(&self) -> &Path {
        let folder = self.main.path().parent().unwrap_or(Path::new(""));
        if folder.as_os_str().is_empty() { Path::new(".") } else { folder }
    }

    /// Names of the files in the main file's folder, sorted; empty if the folder cannot be read.
    pub fn neighbours(&self) -> Vec<Vec<u8>> {
        let Ok(entries) = std::fs::read_dir(self.folder()) else { return Vec::new() };
        let mut names: Vec<Vec<u8>> = entries.take(crate::limits::FOLDER_FILES).filter_map(|entry| Some(entry.ok()?.file_name().into_vec())).collect();
        names.sort_unstable();
        names
    }
}

/// The format of an opened file, or the error that says what the file is instead.
fn recognise(source: &Source) -> Result<&'static Format> {
    let mut buffer = Vec::new();
    let head = Head::read(source, &mut buffer).map_err(|e| e.in_file(source.path()))?;
    match FORMATS.iter().find(|format| (format.sniff)(&head)) {
        Some(format) => Ok(format),
        None => Err(unknown::explain(&head).in_file(source.path())),
    }
}

/// Opens the container (or the whole set it belongs to) whose main file is `source`.
///
/// # Errors
/// The file is of no known format, its header cannot be read to its end, or nothing of it is left to serve.
pub fn open_container(source: &Arc<Source>) -> Result<Catalog> {
    open_among(source, &Rc::default())
}

/// The same for one of many containers; what was read of the files beside one is not read again for the next.
fn open_among(source: &Arc<Source>, indexes: &Rc<hf_index::Indexes>) -> Result<Catalog> {
    open_with(recognise(source)?, source, indexes)
}

/// Opens the container whose main file is `source` as one of this format, whatever it looks like.
///
/// # Errors
/// Its header cannot be read to its end, or nothing of it is left to serve.
pub fn open_as(format: &Format, source: &Arc<Source>) -> Result<Catalog> {
    open_with(format, source, &Rc::default())
}

fn open_with(format: &Format, source: &Arc<Source>, indexes: &Rc<hf_index::Indexes>) -> Result<Catalog> {
    let mut builder = Builder::new(format.name);
    let mut opening = Opening { main: Arc::clone(source), indexes: Rc::clone(indexes) };
    (format.open)(&mut opening, &mut builder)
        .and_then(|()| schemes::apply(&opening, &mut builder))
        .and_then(|()| builder.finish())
        .map_err(|e| e.in_file(source.path()))
}

/// `PREFIX-00002-of-00003SUFFIX` as prefix, number and count: how every kind of split set is named.
fn numbered_name<'a>(name: &'a str, suffix: &str) -> Option<(&'a str, u32, u32)> {
    let digits = |text: &str| (text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten();
    let rest = name.strip_suffix(suffix)?;
    let (rest, of) = rest.rsplit_once("-of-")?;
    let (prefix, number) = rest.rsplit_once('-')?;
    Some((prefix, digits(number)?, digits(of)?))
}

/// The error for a header that ends early or cannot be read; `what` names the part.
fn stopped(stop: Stop, what: &str, source: &Source) -> Error {
    match stop {
        Stop::End { needed, left } => Error::format(format!(
            "{what} needs {needed} bytes, {left} are left of the file's {} (truncated download, or a damaged length field?)",
            source.len()
        )),
        Stop::Io(e) => Error::io(format!("cannot read {what}"), e),
    }
}
