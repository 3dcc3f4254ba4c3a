//! What a path holds: a container, the set it belongs to, or a model folder.
//!
//! In a folder every file is recognised by its content. A set (the shards of an index, a split GGUF) counts once. The model at the top gives the root's tree;
//! every other container has its own. Small files at the top that are no containers are shown in `config/` and `tokenizer/`.

use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use super::{open_among, open_container, recognise};
use crate::catalog::{Catalog, Issue, Section};
use crate::error::{Error, Result};
use crate::limits;
use crate::source::Source;

/// What one source argument holds.
pub struct Collection {
    /// The tree at the root of this source.
    pub top: Option<Catalog>,
    /// Further containers, each under its name (which may hold `/`).
    pub parts: Vec<(Vec<u8>, Catalog)>,
}

/// Opens a file or a folder.
///
/// # Errors
/// The path cannot be opened, is no container, or is a folder that holds none.
pub fn open(path: &Path) -> Result<Collection> {
    if path.as_os_str().is_empty() {
        return Err(Error::unsupported("expected the path of a source, found an empty one"));
    }
    let meta = std::fs::metadata(path).map_err(|e| Error::io("cannot open", e).in_file(path))?;
    if meta.is_dir() {
        return open_folder(&snapshot(path)?);
    }
    Ok(Collection { top: Some(open_container(&Source::open(path)?)?), parts: Vec::new() })
}

/// The name for a source among several: the file's name without its extension (the prefix of a set), the model's folder, or org--name for a cache path.
pub fn source_name(path: &Path) -> Vec<u8> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    if let Some(model) = absolute.components().filter_map(|c| c.as_os_str().as_bytes().strip_prefix(b"models--")).next_back() {
        return model.to_vec();
    }
    let name = absolute.file_name().map(|n| n.as_bytes().to_vec()).unwrap_or_else(|| b"root".to_vec());
    if path.is_dir() { name } else { stem(&name) }
}

/// A file name without its extension, and without what only numbers the parts of a set.
fn stem(name: &[u8]) -> Vec<u8> {
    let name = name.strip_suffix(b".index.json").unwrap_or(name);
    let end = name.iter().rposition(|b| *b == b'.').filter(|dot| *dot > 0).unwrap_or(name.len());
    let stem = name.get(..end).unwrap_or(name);
    match std::str::from_utf8(stem).ok().and_then(|text| super::numbered_name(text, "")) {
        Some((prefix, ..)) => prefix.as_bytes().to_vec(),
        None => stem.to_vec(),
    }
}

/// The snapshot that a model's folder in a Hugging Face cache points to; any other folder is itself.
fn snapshot(path: &Path) -> Result<PathBuf> {
    let snapshots = path.join("snapshots");
    if !snapshots.is_dir() || !path.join("blobs").is_dir() {
        return Ok(path.to_path_buf());
    }
    let main = std::fs::read_to_string(path.join("refs/main")).unwrap_or_default();
    let main = main.trim();
    if !main.is_empty() && main.bytes().all(|b| b.is_ascii_alphanumeric()) && snapshots.join(main).is_dir() {
        return Ok(snapshots.join(main));
    }
    let mut revisions: Vec<PathBuf> = std::fs::read_dir(&snapshots)
        .map_err(|e| Error::io("cannot list", e).in_file(&snapshots))?
        .take(limits::FOLDER_FILES)
        .filter_map(|entry| Some(entry.ok()?.path()).filter(|p| p.is_dir()))
        .collect();
    match (revisions.pop(), revisions.is_empty()) {
        (Some(only), true) => Ok(only),
        _ => Err(Error::unsupported("is a model's cache folder without a refs/main that names one of its snapshots")
            .in_file(path)
            .hint("name one of the folders in snapshots/")),
    }
}

/// A file found in a folder.
struct Found {
    /// Path relative to the folder.
    relative: PathBuf,
    source: Arc<Source>,
    /// Whether it is an index; `None` if it is no container.
    container: Option<bool>,
}

fn open_folder(folder: &Path) -> Result<Collection> {
    let mut refused = Vec::new();
    let (mut files, visited) = list(folder, &mut refused)?;
    // An index comes before the shards that it takes with it, a set's first shard before its others.
    files.sort_by(|a, b| (a.container != Some(true)).cmp(&(b.container != Some(true))).then_with(|| a.relative.cmp(&b.relative)));
    let mut opened: Vec<(PathBuf, bool, Catalog)> = Vec::new();
    let mut claimed: HashSet<(u64, u64)> = HashSet::new();
    let indexes = Rc::default();
    for file in files.iter().filter(|f| f.container.is_some()) {
        if file.source.identity().is_some_and(|identity| claimed.contains(&identity)) {
            continue;
        }
        match open_among(&file.source, &indexes) {
            Ok(catalog) => {
                claimed.extend(catalog.sources().iter().filter_map(|s| s.identity()));
                opened.push((file.relative.clone(), file.container == Some(true), catalog));
            }
            Err(e) if e.is_for_files() => return Err(e),
            Err(e) => refused.push((file.relative.clone(), e)),
        }
    }
    if opened.is_empty() {
        // A format of others may be a folder some levels down.
        if let Some(error) = visited
            .iter()
            .find_map(|relative| super::foreign::folder(&if relative.as_os_str().is_empty() { folder.to_path_buf() } else { folder.join(relative) }))
        {
            return Err(error);
        }
        let error = match refused.into_iter().next() {
            Some((_, e)) => e,
            None => Error::unsupported("holds no tensor container").in_file(folder),
        };
        return Err(error);
    }
    let top = choose_top(&opened).map(|index| opened.remove(index).2);
    opened.sort_by(|(a, ..), (b, ..)| a.cmp(b));
    let names = part_names(opened.iter().map(|(path, ..)| path.as_path()));
    let parts = names.into_iter().zip(opened).map(|(name, (.., catalog))| (name, catalog)).collect();
    let mut collection = Collection { top, parts };
    for (_, error) in &refused {
        log::warn!("{error}");
    }
    // Where there is no model at the top, the first container says what was left out.
    refused.sort_by(|(a, _), (b, _)| a.cmp(b));
    if let Some(catalog) = collection.top.as_mut().or(collection.parts.first_mut().map(|(_, catalog)| catalog)) {
        for (relative, error) in refused {
            catalog.add_issue(Issue { place: relative.display().to_string(), what: error.to_string(), done: "left out".to_string() });
        }
    }
    if let Some(top) = &mut collection.top {
        add_sides(top, &files, &claimed);
    }
    Ok(collection)
}

/// The names of parts: their files' without the extension, with it where that alone tells them apart (`x.npy` beside `x.npz`).
fn part_names<'a>(files: impl Iterator<Item = &'a Path>) -> Vec<Vec<u8>> {
    let names: Vec<(&Path, Vec<u8>)> = files.map(|relative| (relative, part_name(relative))).collect();
    let mut uses: HashMap<&[u8], u32> = HashMap::new();
    for (_, name) in &names {
        let count = uses.entry(name).or_default();
        *count = count.saturating_add(1);
    }
    let alone = |name: &[u8]| uses.get(name).is_none_or(|count| *count < 2);
    names.iter().map(|(relative, name)| if alone(name) { name.clone() } else { relative.as_os_str().as_bytes().to_vec() }).collect()
}

fn part_name(relative: &Path) -> Vec<u8> {
    let stem = stem(relative.file_name().map(OsStrExt::as_bytes).unwrap_or_default());
    match relative.parent().map(|p| p.as_os_str().as_bytes()).filter(|p| !p.is_empty()) {
        Some(parent) => [parent, &b"/"[..], &stem].concat(),
        None => stem,
    }
}

/// The container that is the folder's model: the index at its top, the only container there, or the one with the usual name.
fn choose_top(opened: &[(PathBuf, bool, Catalog)]) -> Option<usize> {
    const USUAL: [&str; 6] = [
        "model.safetensors",
        "pytorch_model.bin",
        "diffusion_pytorch_model.safetensors",
        "adapter_model.safetensors",
        "model.safetensors.index.json",
        "model.onnx",
    ];
    let at_top = |path: &Path| path.parent().is_none_or(|p| p.as_os_str().is_empty());
    let usual = |path: &Path| USUAL.iter().any(|name| path.as_os_str() == *name);
    let pick = |wanted: &dyn Fn(&Path, bool) -> bool| {
        let found: Vec<usize> = (0usize..).zip(opened).filter(|(_, (path, index, _))| at_top(path) && wanted(path, *index)).map(|(i, _)| i).collect();
        match found.as_slice() {
            [only] => Some(*only),
            _ => None,
        }
    };
    pick(&|_, index| index)
        .or_else(|| pick(&|path, index| index && usual(path)))
        .or_else(|| pick(&|_, _| true))
        .or_else(|| USUAL.iter().find_map(|name| pick(&|path, _| path.as_os_str() == *name)))
}

/// Every regular file of a folder and its sub-folders that may be shown, and the folders looked at (links to files are followed, links to folders are not), hidden ones left out.
fn list(folder: &Path, refused: &mut Vec<(PathBuf, Error)>) -> Result<(Vec<Found>, Vec<PathBuf>)> {
    let mut files = Vec::new();
    let mut visited = Vec::new();
    let mut folders = vec![(PathBuf::new(), 0)];
    let mut seen = 0usize;
    while let Some((relative, level)) = folders.pop() {
        let path = folder.join(&relative);
        visited.push(relative.clone());
        let entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(e) if relative.as_os_str().is_empty() => return Err(Error::io("cannot list", e).hint_for_files().in_file(folder)),
            Err(e) => {
                let e = Error::io("cannot list", e).hint_for_files().in_file(&path);
                if e.is_for_files() {
                    return Err(e);
                }
                refused.push((relative, e));
                continue;
            }
        };
        for entry in entries.filter_map(std::result::Result::ok) {
            seen = seen.saturating_add(1);
            if seen > limits::FOLDER_FILES {
                return Err(Error::limit(format!("holds more than {} files", limits::FOLDER_FILES)).in_file(folder));
            }
            let relative = relative.join(entry.file_name());
            if entry.file_name().as_bytes().starts_with(b".") {
                continue;
            }
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                if level < limits::FOLDER_LEVELS {
                    folders.push((relative, level.saturating_add(1)));
                }
                continue;
            }
            let path = folder.join(&relative);
            if !std::fs::metadata(&path).is_ok_and(|meta| meta.is_file()) {
                continue;
            }
            match Source::open(&path) {
                Ok(source) => {
                    let container = match recognise(&source) {
                        Ok(format) => Some(format.extensions == ["index.json"]),
                        Err(e) => {
                            // What has a container's name and is none (a pointer, a broken download) is told; anything else is just another file.
                            if has_container_name(&relative) {
                                refused.push((relative.clone(), e));
                            }
                            None
                        }
                    };
                    // Only what may be shown stays open.
                    let at_top = relative.parent().is_none_or(|p| p.as_os_str().is_empty());
                    if container.is_some() || (at_top && source.len() <= limits::SIDE_FILE_BYTES) {
                        files.push(Found { relative, source, container });
                    }
                }
                Err(e) if e.is_for_files() => return Err(e),
                Err(e) => refused.push((relative, e)),
            }
        }
    }
    visited.sort();
    Ok((files, visited))
}

/// Whether a file's name ends as those of a container format do.
fn has_container_name(path: &Path) -> bool {
    let extension = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
    // `bin` and `zip` are anything's extension.
    extension.is_some_and(|e| e != "bin" && e != "zip" && super::FORMATS.iter().any(|format| format.extensions.contains(&e.as_str())))
}

/// Adds the small files at the folder's top that are no containers and hold no container's data.
fn add_sides(top: &mut Catalog, files: &[Found], claimed: &HashSet<(u64, u64)>) {
    const TOKENIZER: [&[u8]; 9] = [
        b"tokenizer.json",
        b"tokenizer_config.json",
        b"tokenizer.model",
        b"vocab.json",
        b"vocab.txt",
        b"merges.txt",
        b"special_tokens_map.json",
        b"added_tokens.json",
        b"chat_template.jinja",
    ];
    let mut shown: HashSet<Vec<u8>> = top.sides().iter().map(|side| side.name.clone()).collect();
    for file in files {
        let name = file.relative.as_os_str().as_bytes();
        let is_data = file.container.is_none() && file.source.identity().is_some_and(|identity| claimed.contains(&identity));
        let is_weights = file.container == Some(false) || is_data;
        if is_weights || shown.contains(name) || name.contains(&b'/') || file.source.len() > limits::SIDE_FILE_BYTES {
            continue;
        }
        let tokenizer = TOKENIZER.contains(&name) || name.starts_with(b"chat_template");
        let section = if tokenizer { Section::Tokenizer } else { Section::Config };
        shown.insert(name.to_vec());
        top.add_side(section, name.to_vec(), Arc::clone(&file.source));
    }
}
