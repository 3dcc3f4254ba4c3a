//! The tensors of one catalogue in all views: files that are computed, not stored.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use super::names::{Extensions, NUMBER_ROOM, Names};
use super::{Entry, Ino, Node};
use crate::catalog::{Catalog, Tensor};
use crate::source::SourceId;
use crate::view::{View, Views, canonical, views_of};

/// The number of views: inode numbers are laid out view by view.
const VIEWS: u64 = View::ALL.len() as u64;

/// One catalogue and the names of its tensors.
pub struct Set {
    catalog: Arc<Catalog>,
    names: Names,
    /// The display names of metadata keys: unique, the later of two equal ones with `~2`.
    keys: Vec<Box<str>>,
    /// File names in `source/`, safe and unique, by source number.
    source_names: Vec<Vec<u8>>,
    /// For the first of tensors with the same bytes: how many names of other tensors lead to its file in each view.
    ties: HashMap<u32, [u32; View::ALL.len()]>,
    /// SHA-256 of each source, once it was asked for.
    sums: Vec<OnceLock<String>>,
    views: u16,
    base: Ino,
    modified: SystemTime,
}

struct Shown(u16);

impl Extensions for Shown {
    fn views(&self, tensor: Tensor<'_>) -> u16 {
        views_of(tensor) & self.0
    }

    fn extensions(&self, tensor: Tensor<'_>) -> Vec<(String, u16)> {
        let views = self.views(tensor);
        let own = |view: &View| (view.extension().map_or_else(|| tensor.dtype().extension(), str::to_string), view.bit());
        View::ALL.iter().filter(|view| views & view.bit() != 0).map(own).collect()
    }

    fn longest(&self, tensor: Tensor<'_>) -> usize {
        // `bf16` is the longest extension besides the tensor's own.
        match tensor.dtype() {
            crate::dtype::DType::Native(native) => native.name.len().max(4),
            crate::dtype::DType::Coded(codec) => codec.name.len().max(4),
            other => other.extension().len().max(4),
        }
    }
}

impl Set {
    pub(super) fn new(catalog: Arc<Catalog>, views: Views) -> Self {
        let names = Names::new(&catalog, &Shown(views.tensors));
        let mut ties: HashMap<u32, [u32; View::ALL.len()]> = HashMap::new();
        for tensor in catalog.tensors() {
            if tensor.shares().is_none() {
                continue;
            }
            for (view, first) in files(tensor, views.tensors).filter(|(_, first)| first.index() != tensor.index()) {
                ties.entry(first.index()).or_default()[usize::from(view.number())] += 1;
            }
        }
        let modified = catalog.containers().map(|(_, source)| source.modified()).max().unwrap_or(UNIX_EPOCH);
        let keys = unique_keys(&catalog);
        let source_names = source_names(&catalog);
        let sums = (0..catalog.sources().len()).map(|_| OnceLock::new()).collect();
        Self { catalog, names, keys, source_names, ties, sums, views: views.tensors, base: 0, modified }
    }

    /// The catalogue.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Time of last modification of the newest of its files.
    pub fn modified(&self) -> SystemTime {
        self.modified
    }

    /// The name under which a metadata key is shown.
    pub fn key(&self, index: usize) -> &str {
        self.keys.get(index).map_or("", |key| key)
    }

    /// A source's file name in `source/`; a member's is that of the file it lies in.
    pub fn source_name(&self, id: SourceId) -> &[u8] {
        match self.source_names.get(id as usize) {
            Some(name) if !name.is_empty() => name,
            _ => self.source_names.iter().find(|name| !name.is_empty()).map_or(b"", |name| name),
        }
    }

    /// Where the SHA-256 of a source is kept.
    pub(crate) fn sum(&self, id: SourceId) -> &OnceLock<String> {
        static NONE: OnceLock<String> = OnceLock::new();
        self.sums.get(id as usize).unwrap_or(&NONE)
    }

    /// The views that are not empty.
    pub(super) fn shown(&self) -> u16 {
        self.names.folder(0).views
    }

    pub(super) fn base(&self) -> Ino {
        self.base
    }

    pub(super) fn set_base(&mut self, base: Ino) {
        self.base = base;
    }

    fn folder_count(&self) -> u64 {
        u64::from(self.names.folder_count())
    }

    fn tensor_count(&self) -> u64 {
        u64::from(self.catalog.len())
    }

    /// How many inode numbers it takes.
    pub(super) fn span(&self) -> u64 {
        VIEWS * (self.folder_count() + self.tensor_count())
    }

    /// How many files and folders it shows (equal ones counted once).
    pub(super) fn count(&self) -> u64 {
        let folders: u64 = (0..self.names.folder_count()).map(|f| u64::from(self.names.folder(f).views.count_ones())).sum();
        let known = |tensor: Tensor<'_>| {
            let own = files(tensor, self.views).filter(|(_, first)| first.index() == tensor.index()).fold(0, |set, (view, _)| set | view.bit());
            let tied = self.ties.get(&tensor.index()).into_iter().flat_map(|counts| View::ALL.into_iter().zip(counts));
            tied.filter(|(_, count)| **count > 0).fold(own, |set: u16, (view, _)| set | view.bit()).count_ones()
        };
        folders + self.catalog.tensors().map(|tensor| u64::from(known(tensor))).sum::<u64>()
    }

    /// The inode of a folder in a view.
    pub(super) fn folder_ino(&self, view: View, folder: u32) -> Ino {
        self.base + u64::from(view.number()) * self.folder_count() + u64::from(folder)
    }

    /// The inode of a tensor's file in a view; files with the same bytes have one.
    pub fn file_ino(&self, view: View, tensor: Tensor<'_>) -> Ino {
        let (view, first) = file(view, tensor);
        self.base + VIEWS * self.folder_count() + u64::from(view.number()) * self.tensor_count() + u64::from(first.index())
    }

    /// How many names the file of this inode has.
    pub fn links(&self, view: View, tensor: Tensor<'_>) -> u32 {
        let own = files(tensor, self.views).filter(|(v, first)| *v == view && first.index() == tensor.index()).count() as u32;
        let tied = self.ties.get(&tensor.index()).map_or(0, |counts| counts[usize::from(view.number())]);
        (own + tied).max(1)
    }

    pub(super) fn node(&self, ino: Ino) -> Option<Node<'_>> {
        let offset = ino.checked_sub(self.base)?;
        let (folders, tensors) = (self.folder_count(), self.tensor_count());
        if offset < VIEWS * folders {
            let view = View::ALL[(offset / folders) as usize];
            let folder = (offset % folders) as u32;
            return (self.names.folder(folder).views & view.bit() != 0).then_some(Node::TensorFolder(self, view, folder));
        }
        let offset = offset - VIEWS * folders;
        if offset >= VIEWS * tensors {
            return None;
        }
        let view = View::ALL[(offset / tensors) as usize];
        let tensor = (offset % tensors) as u32;
        (views_of(self.catalog.tensor(tensor)?) & view.bit() != 0).then_some(Node::TensorFile(self, view, tensor))
    }

    pub(super) fn lookup(&self, view: View, folder: u32, name: &[u8]) -> Option<Ino> {
        if let Some(folder) = self.names.folder_named(folder, name)
            && self.names.folder(folder).views & view.bit() != 0
        {
            return Some(self.folder_ino(view, folder));
        }
        let dot = name.iter().rposition(|b| *b == b'.')?;
        let tensor = self.catalog.tensor(self.names.find(&self.catalog, folder, &name[..dot])?)?;
        let extension = &name[dot + 1..];
        let right = match view.extension() {
            Some(own) => own.as_bytes() == extension,
            None => tensor.dtype().extension().as_bytes() == extension,
        };
        (right && self.shows(view, tensor)).then(|| self.file_ino(view, tensor))
    }

    fn shows(&self, view: View, tensor: Tensor<'_>) -> bool {
        views_of(tensor) & self.views & view.bit() != 0
    }

    /// The sub-folders of a folder that are not empty in a view.
    pub(super) fn folders_in(&self, view: View, folder: u32) -> impl Iterator<Item = u32> {
        self.names.folders_in(folder).iter().copied().filter(move |f| self.names.folder(*f).views & view.bit() != 0)
    }

    pub(super) fn list<'a>(&'a self, view: View, folder: u32, start: u64, each: &mut dyn FnMut(Entry<'a>, u64) -> bool) {
        let folders = self.names.folders_in(folder);
        let skip = usize::try_from(start).unwrap_or(usize::MAX);
        for (position, number) in folders.iter().enumerate().skip(skip) {
            let entry = self.names.folder(*number);
            if entry.views & view.bit() != 0
                && !each(Entry { name: entry.name.as_slice().into(), ino: self.folder_ino(view, *number), folder: true }, position as u64 + 1)
            {
                return;
            }
        }
        let skip = skip.saturating_sub(folders.len());
        for (position, tensor) in self.names.tensors_in(folder).iter().enumerate().skip(skip) {
            let Some(tensor) = self.catalog.tensor(*tensor) else { continue };
            if self.shows(view, tensor)
                && !each(
                    Entry { name: self.file_name(view, tensor).into(), ino: self.file_ino(view, tensor), folder: false },
                    (folders.len() + position) as u64 + 1,
                )
            {
                return;
            }
        }
    }

    fn file_name(&self, view: View, tensor: Tensor<'_>) -> Vec<u8> {
        let mut name = self.names.stem(&self.catalog, tensor.index()).to_vec();
        name.push(b'.');
        match view.extension() {
            Some(extension) => name.extend_from_slice(extension.as_bytes()),
            None => name.extend_from_slice(tensor.dtype().extension().as_bytes()),
        }
        name
    }

    /// The path of a tensor's file in a view, relative to the root of its source; `None` if the view does not show it.
    pub fn path(&self, view: View, tensor: Tensor<'_>) -> Option<Vec<u8>> {
        if !self.shows(view, tensor) {
            return None;
        }
        let mut path = [view.folder().as_bytes(), b"/"].concat();
        self.names.write_folder_path(self.names.folder_of(tensor.index()), &mut path);
        path.extend(self.file_name(view, tensor));
        Some(path)
    }
}

/// The file that each shown name of a tensor leads to: the view and the tensor by which it is known.
fn files(tensor: Tensor<'_>, shown: u16) -> impl Iterator<Item = (View, Tensor<'_>)> {
    let views = views_of(tensor) & shown;
    View::ALL.into_iter().filter(move |view| views & view.bit() != 0).map(move |view| file(view, tensor))
}

/// The view and the tensor by which a tensor's file in a view is known.
fn file(view: View, tensor: Tensor<'_>) -> (View, Tensor<'_>) {
    let view = canonical(view, tensor);
    match tensor.shares().filter(|first| same_file(view, *first, tensor)) {
        Some(first) => (canonical(view, first), first),
        None => (view, tensor),
    }
}

/// Whether two tensors with the same stored bytes have the same file in a view. What is stored needs no more than that, what is decoded from it the same type,
/// and what has a header the same shape and order too.
fn same_file(view: View, a: Tensor<'_>, b: Tensor<'_>) -> bool {
    if view == View::Raw {
        return a.bytes().is_some() && a.bytes() == b.bytes();
    }
    let plain = a.scheme().is_none() && b.scheme().is_none();
    let decoded = plain && a.dtype() == b.dtype() && a.endian() == b.endian() && a.elements() == b.elements() && a.is_opaque() == b.is_opaque();
    decoded && (!view.has_header() || a.shape() == b.shape() && a.order() == b.order())
}

fn unique_keys(catalog: &Catalog) -> Vec<Box<str>> {
    let mut seen: HashMap<String, u64> = HashMap::new();
    let mut keys = Vec::with_capacity(catalog.metadata().len());
    for (key, _) in catalog.metadata() {
        let name = super::names::json_name(key).into_owned();
        let mut shown = name.clone();
        while seen.contains_key(&shown) {
            let n = seen.entry(name.clone()).or_insert(1);
            *n += 1;
            shown = format!("{name}~{n}");
        }
        seen.insert(shown.clone(), 1);
        keys.push(shown.into_boxed_str());
    }
    keys
}

fn source_names(catalog: &Catalog) -> Vec<Vec<u8>> {
    let mut names = vec![Vec::new(); catalog.sources().len()];
    let mut taken = std::collections::HashSet::new();
    for (id, source) in catalog.containers() {
        let name = source.path().file_name().map_or(&b"source"[..], |n| n.as_encoded_bytes());
        let name = super::names::components(name, NUMBER_ROOM).concat();
        let mut free = name.clone();
        let mut n = 2;
        while !taken.insert(free.clone()) {
            free = super::names::numbered(&name, n);
            n += 1;
        }
        if let Some(slot) = names.get_mut(id as usize) {
            *slot = free;
        }
    }
    names
}
