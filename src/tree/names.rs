//! Tensor names as file names: safe, reversible, never lost.
//!
//! A name's `/` makes folders. What a path cannot hold is percent-encoded: the components `.` and `..`, NUL and control bytes, bytes that are not UTF-8, a
//! `%` that would read as an escape, and the slash beside an empty component. The empty name is `%`.
//!
//! [`Names`] is one index for all views of a catalogue: every tensor has a folder and a stem there, and a view only adds its extension.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use crate::catalog::{Catalog, Tensor};
use crate::limits::{FILE_NAME_BYTES, FOLDER_DEPTH};

/// Bytes that a file's name leaves free for `~2` and the like.
pub(super) const NUMBER_ROOM: usize = 8;

/// Whether a name is a single file name as it stands.
fn is_plain(name: &[u8], room: usize) -> bool {
    let fits = !name.is_empty() && name.len().saturating_add(room) <= FILE_NAME_BYTES && name != b"." && name != b"..";
    fits && name.iter().all(|b| (0x20..0x7f).contains(b) && *b != b'/' && *b != b'%')
}

fn escape(out: &mut Vec<u8>, byte: u8) {
    const HEX: [u8; 16] = *b"0123456789ABCDEF";
    out.extend([b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
}

/// Whether the `%` at the start of `rest` reads as an escape.
fn reads_as_escape(rest: &[u8]) -> bool {
    matches!(rest, [_, a, b, ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit())
}

/// Encodes one component's bytes (no `/` in them) onto `out`.
fn encode_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    for chunk in bytes.utf8_chunks() {
        let valid = chunk.valid().as_bytes();
        for (i, byte) in valid.iter().enumerate() {
            match byte {
                0..=0x1f | 0x7f => escape(out, *byte),
                b'%' if reads_as_escape(&valid[i..]) => escape(out, b'%'),
                _ => out.push(*byte),
            }
        }
        chunk.invalid().iter().for_each(|byte| escape(out, *byte));
    }
}

/// A name as path components, each at most 255 bytes long with `room` bytes kept free at the end of the last one.
pub(crate) fn components(name: &[u8], room: usize) -> Vec<Vec<u8>> {
    match name {
        b"" => return vec![b"%".to_vec()],
        b"%" => return vec![b"%25".to_vec()],
        _ => {}
    }
    let mut parts: Vec<Vec<u8>> = Vec::new();
    let mut current = Vec::new();
    // True while the current component holds nothing but encoded slashes, that is, while it is empty in the original.
    let mut empty = true;
    let mut rest = name;
    loop {
        let slash = rest.iter().position(|b| *b == b'/');
        let (piece, after) = match slash {
            Some(at) => (&rest[..at], Some(&rest[at + 1..])),
            None => (rest, None),
        };
        match piece {
            b"." | b".." if current.is_empty() && after.is_none_or(|after| !after.is_empty()) => piece.iter().for_each(|b| escape(&mut current, *b)),
            _ => encode_bytes(piece, &mut current),
        }
        empty &= piece.is_empty();
        let Some(after) = after else { break };
        if empty || after.is_empty() || parts.len() >= FOLDER_DEPTH {
            escape(&mut current, b'/');
        } else {
            parts.push(std::mem::take(&mut current));
            empty = true;
        }
        rest = after;
    }
    parts.push(current);
    let last = parts.len() - 1;
    for (i, part) in parts.iter_mut().enumerate() {
        shorten(part, FILE_NAME_BYTES - if i == last { room } else { 0 });
    }
    parts
}

/// Cuts a component that is too long at a character (and not inside an escape) and ends it with a hash of the whole.
fn shorten(part: &mut Vec<u8>, limit: usize) {
    if part.len() <= limit {
        return;
    }
    let hash = format!("-{:016x}", fnv1a(part));
    let mut end = limit - hash.len();
    while end > 0 && (part[end] & 0xC0) == 0x80 {
        end -= 1;
    }
    if let Some(escape) = part[end.saturating_sub(2)..end].iter().position(|b| *b == b'%') {
        end = end.saturating_sub(2) + escape;
    }
    part.truncate(end);
    part.extend(hash.into_bytes());
}

/// The 64-bit FNV-1a hash: short, stable, and only for telling long names apart.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A name as JSON text: bytes that are not UTF-8 are percent-encoded, and then a `%` that would read as an escape too.
pub(crate) fn json_name(name: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(name) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => {
            let mut out = Vec::new();
            for chunk in name.utf8_chunks() {
                let valid = chunk.valid().as_bytes();
                for (i, byte) in valid.iter().enumerate() {
                    if *byte == b'%' && reads_as_escape(&valid[i..]) { escape(&mut out, b'%') } else { out.push(*byte) }
                }
                chunk.invalid().iter().for_each(|byte| escape(&mut out, *byte));
            }
            Cow::Owned(String::from_utf8_lossy(&out).into_owned())
        }
    }
}

/// `name` with `~n` before its extension, if it has one; shortened if it would be too long.
pub(crate) fn numbered(name: &[u8], n: u64) -> Vec<u8> {
    let dot = name.iter().rposition(|b| *b == b'.').filter(|at| *at > 0).unwrap_or(name.len());
    let suffix = format!("~{n}");
    let fits = name.len() + suffix.len() <= FILE_NAME_BYTES;
    let dot = if fits || name.len() - dot < FILE_NAME_BYTES / 2 { dot } else { name.len() };
    let (stem, extension) = name.split_at(dot);
    let mut out = stem.to_vec();
    shorten(&mut out, FILE_NAME_BYTES - suffix.len() - extension.len());
    out.extend(suffix.into_bytes());
    out.extend_from_slice(extension);
    out
}

/// A folder of tensors. Every view has it, as far as it has tensors in it.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) parent: u32,
    pub(crate) name: Vec<u8>,
    /// The views in which something lies in or below it.
    pub(crate) views: u16,
    /// Its tensors: a range of `order`.
    files: (u32, u32),
    /// Its sub-folders: a range of `folder_order`.
    folders: (u32, u32),
    /// The tensor that made it.
    first: u32,
}

/// A tensor's place: its folder and the name there without the view's extension.
#[derive(Clone, Copy, Debug)]
struct Place {
    folder: u32,
    /// Where the stem starts in the arena; `WHOLE` if it is the tensor's own name.
    start: u32,
    len: u32,
}

const WHOLE: u32 = u32::MAX;

/// The name index of one catalogue.
#[derive(Debug)]
pub(crate) struct Names {
    arena: Vec<u8>,
    folders: Vec<Folder>,
    folder_order: Vec<u32>,
    places: Vec<Place>,
    /// Tensors sorted by folder and stem.
    order: Vec<u32>,
}

/// What a view needs to know of each tensor: the views it has and the extension of its raw file.
pub(crate) trait Extensions {
    /// The set of views that show the tensor.
    fn views(&self, tensor: Tensor<'_>) -> u16;
    /// Every extension that the tensor's files have, each with the views that use it.
    fn extensions(&self, tensor: Tensor<'_>) -> Vec<(String, u16)>;
    /// The longest of them, in bytes.
    fn longest(&self, tensor: Tensor<'_>) -> usize;
}

impl Names {
    /// Names every tensor of a catalogue.
    pub(crate) fn new(catalog: &Catalog, extensions: &dyn Extensions) -> Self {
        let root = Folder { parent: 0, name: Vec::new(), views: 0, files: (0, 0), folders: (0, 0), first: 0 };
        let mut names = Self { arena: Vec::new(), folders: vec![root], folder_order: Vec::new(), places: Vec::new(), order: Vec::new() };
        names.places.reserve_exact(catalog.len() as usize);
        let mut known: HashMap<(u32, Vec<u8>), u32> = HashMap::new();
        for tensor in catalog.tensors() {
            let room = extensions.longest(tensor) + 1;
            let place = if is_plain(tensor.name(), room) {
                Place { folder: 0, start: WHOLE, len: 0 }
            } else {
                let mut parts = components(tensor.name(), room);
                let stem = parts.pop().unwrap_or_default();
                let mut folder = 0;
                for part in parts {
                    folder = *known.entry((folder, part)).or_insert_with_key(|(parent, part)| {
                        let number = u32::try_from(names.folders.len()).unwrap_or(u32::MAX);
                        names.folders.push(Folder { parent: *parent, name: part.clone(), views: 0, files: (0, 0), folders: (0, 0), first: tensor.index() });
                        number
                    });
                }
                let (start, len) = names.keep(&stem);
                Place { folder, start, len }
            };
            names.places.push(place);
            names.mark(place.folder, extensions.views(tensor));
        }
        drop(known);
        names.order = (0..catalog.len()).collect();
        names.sort(catalog);
        for _ in 0..8 {
            if !names.separate(catalog, extensions) {
                break;
            }
        }
        names
    }

    fn keep(&mut self, stem: &[u8]) -> (u32, u32) {
        let start = u32::try_from(self.arena.len()).unwrap_or(WHOLE - 1);
        self.arena.extend_from_slice(stem);
        (start, u32::try_from(stem.len()).unwrap_or(0))
    }

    fn mark(&mut self, mut folder: u32, views: u16) {
        loop {
            let entry = &mut self.folders[folder as usize];
            if entry.views & views == views {
                return;
            }
            entry.views |= views;
            if folder == 0 {
                return;
            }
            folder = entry.parent;
        }
    }

    fn sort(&mut self, catalog: &Catalog) {
        let mut order = std::mem::take(&mut self.order);
        let key = |t: &u32| (self.places[*t as usize].folder, self.stem(catalog, *t), *t);
        if !order.is_sorted_by_key(key) {
            order.sort_unstable_by(|a, b| key(a).cmp(&key(b)));
        }
        let mut at = 0;
        for number in 0..self.folders.len() {
            let start = at;
            while order.get(at).is_some_and(|t| self.places[*t as usize].folder as usize == number) {
                at += 1;
            }
            self.folders[number].files = (start as u32, at as u32);
        }
        self.order = order;
        let mut folders: Vec<u32> = (1..self.folders.len() as u32).collect();
        folders.sort_unstable_by(|a, b| {
            let (a, b) = (&self.folders[*a as usize], &self.folders[*b as usize]);
            (a.parent, &a.name).cmp(&(b.parent, &b.name))
        });
        let mut at = 0;
        for number in 0..self.folders.len() {
            let start = at;
            while folders.get(at).is_some_and(|f| self.folders[*f as usize].parent as usize == number) {
                at += 1;
            }
            self.folders[number].folders = (start as u32, at as u32);
        }
        self.folder_order = folders;
    }

    /// Gives `~2`, `~3` to later tensors of the same name, and separates files from folders of the same name. Answers whether anything was renamed, since a
    /// new name may meet another one.
    fn separate(&mut self, catalog: &Catalog, extensions: &dyn Extensions) -> bool {
        let twice = self.order.windows(2).filter(|pair| {
            let (a, b) = (pair[0], pair[1]);
            self.folder_of(a) == self.folder_of(b) && self.stem(catalog, a) == self.stem(catalog, b)
        });
        let mut later: Vec<u32> = twice.map(|pair| pair[1]).collect();
        let clashes: Vec<(u32, u32)> =
            (1..self.folder_count()).filter_map(|folder| Some((folder, self.file_of_folder_name(catalog, extensions, folder)?))).collect();
        // Found first and applied at the end: until then the folders are sorted, and can be looked up.
        let mut folders: HashMap<(u32, Vec<u8>), u32> = HashMap::new();
        for (number, tensor) in clashes {
            let Folder { parent, name, first, views, .. } = self.folder(number);
            if *first < tensor {
                later.push(tensor);
                continue;
            }
            let free = |name: &Vec<u8>| self.folder_named(*parent, name).is_none() && self.file_named(catalog, extensions, *parent, name, *views).is_none();
            let names = (2..).map(|n| numbered(name, n));
            if let Some(name) = names.filter(free).find(|name| !folders.contains_key(&(*parent, name.clone()))) {
                folders.insert((*parent, name), number);
            }
        }
        later.sort_unstable();
        later.dedup();
        let mut taken = HashSet::new();
        // The number to try next for each name, so that very many equal names stay linear.
        let mut next: HashMap<(u32, Vec<u8>), u64> = HashMap::new();
        let mut renamed = Vec::with_capacity(later.len());
        for tensor in later {
            let folder = self.folder_of(tensor);
            let stem = self.stem(catalog, tensor).to_vec();
            let room = catalog.tensor(tensor).map_or(0, |t| extensions.longest(t)) + 1;
            let n = next.entry((folder, stem.clone())).or_insert(2);
            loop {
                let suffix = format!("~{n}");
                *n += 1;
                let mut candidate = stem.clone();
                shorten(&mut candidate, FILE_NAME_BYTES - room - suffix.len());
                candidate.extend(suffix.into_bytes());
                let hidden = |extension: &str| {
                    let name = [&candidate, &b"."[..], extension.as_bytes()].concat();
                    self.folder_named(folder, &name).is_some() || folders.contains_key(&(folder, name))
                };
                let meets_folder = (!self.folders_in(folder).is_empty())
                    && catalog.tensor(tensor).is_some_and(|t| extensions.extensions(t).iter().any(|(extension, _)| hidden(extension)));
                if !meets_folder && self.find(catalog, folder, &candidate).is_none() && taken.insert((folder, candidate.clone())) {
                    renamed.push((tensor, candidate));
                    break;
                }
            }
        }
        let moved = !renamed.is_empty() || !folders.is_empty();
        for ((_, name), number) in folders {
            self.folders[number as usize].name = name;
        }
        for (tensor, stem) in renamed {
            let (start, len) = self.keep(&stem);
            let place = &mut self.places[tensor as usize];
            (place.start, place.len) = (start, len);
        }
        if moved {
            self.sort(catalog);
        }
        moved
    }

    /// The tensor that has a file with this folder's name in the same place, in a view where both are shown.
    fn file_of_folder_name(&self, catalog: &Catalog, extensions: &dyn Extensions, folder: u32) -> Option<u32> {
        let Folder { parent, name, views, .. } = &self.folders[folder as usize];
        self.file_named(catalog, extensions, *parent, name, *views)
    }

    /// The tensor that has a file with this name in a folder, in one of these views.
    fn file_named(&self, catalog: &Catalog, extensions: &dyn Extensions, folder: u32, name: &[u8], views: u16) -> Option<u32> {
        let dot = name.iter().rposition(|b| *b == b'.')?;
        let tensor = self.find(catalog, folder, &name[..dot])?;
        let extension = &name[dot + 1..];
        extensions.extensions(catalog.tensor(tensor)?).iter().any(|(e, own)| e.as_bytes() == extension && own & views != 0).then_some(tensor)
    }

    /// The name of a tensor's files without their extension.
    pub(crate) fn stem<'a>(&'a self, catalog: &'a Catalog, tensor: u32) -> &'a [u8] {
        let place = self.places[tensor as usize];
        if place.start == WHOLE {
            return catalog.tensor(tensor).map(Tensor::name).unwrap_or_default();
        }
        &self.arena[place.start as usize..][..place.len as usize]
    }

    /// The folder of a tensor.
    pub(crate) fn folder_of(&self, tensor: u32) -> u32 {
        self.places[tensor as usize].folder
    }

    /// How many folders there are, the root included.
    pub(crate) fn folder_count(&self) -> u32 {
        self.folders.len() as u32
    }

    /// One folder.
    pub(crate) fn folder(&self, folder: u32) -> &Folder {
        &self.folders[folder as usize]
    }

    /// The sub-folders of a folder, sorted by name.
    pub(crate) fn folders_in(&self, folder: u32) -> &[u32] {
        let (start, end) = self.folders[folder as usize].folders;
        &self.folder_order[start as usize..end as usize]
    }

    /// The tensors of a folder, sorted by stem.
    pub(crate) fn tensors_in(&self, folder: u32) -> &[u32] {
        let (start, end) = self.folders[folder as usize].files;
        &self.order[start as usize..end as usize]
    }

    /// The sub-folder with this name.
    pub(crate) fn folder_named(&self, parent: u32, name: &[u8]) -> Option<u32> {
        let folders = self.folders_in(parent);
        let at = folders.binary_search_by(|f| self.folders[*f as usize].name.as_slice().cmp(name)).ok()?;
        Some(folders[at])
    }

    /// The tensor with this stem in a folder (the first in file order, while names are still being separated).
    pub(crate) fn find(&self, catalog: &Catalog, folder: u32, stem: &[u8]) -> Option<u32> {
        let tensors = self.tensors_in(folder);
        let at = tensors.partition_point(|t| self.stem(catalog, *t) < stem);
        tensors.get(at).copied().filter(|t| self.stem(catalog, *t) == stem)
    }

    /// Writes the path of a folder, each component followed by `/`.
    pub(crate) fn write_folder_path(&self, folder: u32, out: &mut Vec<u8>) {
        let mut chain = Vec::new();
        let mut at = folder;
        while at != 0 {
            chain.push(at);
            at = self.folders[at as usize].parent;
        }
        for folder in chain.into_iter().rev() {
            out.extend_from_slice(&self.folders[folder as usize].name);
            out.push(b'/');
        }
    }
}
