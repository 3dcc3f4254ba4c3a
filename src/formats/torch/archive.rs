//! torch's zip archives: checkpoints since version 1.6, and TorchScript.
//!
//! | member | what |
//! |---|---|
//! | `ROOT/data.pkl` | the value; storages are named by persistent ids |
//! | `ROOT/data/KEY` | the bytes of a storage |
//! | `ROOT/byteorder` | `little` or `big`; absent before version 2.1: little |
//! | `ROOT/constants.pkl`, `ROOT/constants/KEY` | TorchScript: a tuple of what its code refers to |
//!
//! Written by torch/serialization.py and caffe2/serialize/inline_container.cc. Names are compared without regard to case, as torch does, and of two members with
//! one name the last counts. Sums are not checked, since torch may be told to leave them out.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use super::super::zip::{self, Directory, Entry, Members};
use super::storage::{Place, Storages};
use crate::catalog::Builder;
use crate::error::{Error, Result, quoted};
use crate::reader::Nearby;
use crate::source::{Member, Source, SourceId};

/// So many names are looked for in all of them, in any case of letters, before a table of them is made.
const SCANS: u32 = 16;

/// An open archive.
pub(super) struct Archive<'a> {
    main: &'a Arc<Source>,
    id: SourceId,
    directory: Directory,
    members: &'a Members,
    reader: RefCell<Nearby<'a>>,
    /// Numbers of the members that count, by name.
    exact: HashMap<&'a [u8], u32>,
    /// The first names that are the same in lower case, made once many were not found by their exact name.
    folded: OnceCell<HashMap<Vec<u8>, &'a [u8]>>,
    scans: Cell<u32>,
    /// The folder that holds everything, with its slash.
    pub(super) root: Vec<u8>,
}

impl<'a> Archive<'a> {
    /// Reads the directory.
    pub(super) fn directory(main: &Source) -> Result<(Directory, Members)> {
        let directory = Directory::find(main)?;
        let members = directory.members(main)?;
        Ok((directory, members))
    }

    /// The archive with this directory.
    pub(super) fn open(main: &'a Arc<Source>, id: SourceId, directory: Directory, members: &'a Members, builder: &mut Builder) -> Result<Self> {
        if let Some(what) = directory.wrong_count(members) {
            builder.issue(builder.path(id), what, "the directory is used");
        }
        let root = root(members)?;
        let mut exact = HashMap::with_capacity(members.len());
        for (index, entry) in (0u32..).zip(members.iter()) {
            if exact.insert(entry.name, index).is_some() {
                builder.issue(zip::place(&builder.path(id), entry.name), "the name occurs more than once", "the last is used, as torch does");
            }
        }
        let outside = members.iter().filter(|entry| !entry.name.starts_with(&root)).count();
        if outside > 0 {
            let what = format!("{outside} members are outside of its folder {}", quoted(&root));
            builder.issue(builder.path(id), what, "only those in the folder are read");
        }
        let reader = RefCell::new(Nearby::new(main));
        Ok(Self { main, id, directory, members, reader, exact, folded: OnceCell::new(), scans: Cell::new(0), root })
    }

    /// The number of the member with this name in the root folder.
    fn find(&self, name: &[u8]) -> Option<u32> {
        let full = [&self.root, name].concat();
        if let Some(index) = self.exact.get(full.as_slice()) {
            return Some(*index);
        }
        let other = match self.scans.replace(self.scans.get().saturating_add(1)) {
            ..SCANS => self.members.iter().find(|entry| entry.name.eq_ignore_ascii_case(&full)).map(|entry| entry.name),
            _ => self.folded().get(&full.to_ascii_lowercase()).copied(),
        };
        self.exact.get(other?).copied()
    }

    /// Whether the member with this number is the one with this name, where every name occurs once.
    fn is_at(&self, index: usize, name: &[u8]) -> bool {
        let entry = self.members.get(index).filter(|_| self.exact.len() == self.members.len());
        entry.is_some_and(|entry| entry.name.strip_prefix(self.root.as_slice()) == Some(name))
    }

    fn folded(&self) -> &HashMap<Vec<u8>, &'a [u8]> {
        self.folded.get_or_init(|| {
            let mut folded = HashMap::with_capacity(self.members.len());
            for entry in self.members.iter() {
                folded.entry(entry.name.to_ascii_lowercase()).or_insert(entry.name);
            }
            folded
        })
    }

    pub(super) fn has(&self, name: &[u8]) -> bool {
        self.find(name).is_some()
    }

    /// Names of the members in the root folder, sorted.
    pub(super) fn names(&self) -> Vec<&[u8]> {
        let mut names: Vec<&[u8]> = self.exact.keys().filter_map(|name| name.strip_prefix(self.root.as_slice())).collect();
        names.sort_unstable();
        names
    }

    /// Where a member's bytes are: in the archive, or in a source of their own if they are compressed.
    ///
    /// # Errors
    /// It is missing, encrypted, compressed in an unknown way, or not where the directory says.
    pub(super) fn place(&self, name: &[u8], builder: &mut Builder) -> Result<Place> {
        let index = self.find(name).ok_or_else(|| Error::format(format!("its member {} is missing", quoted(name))))?;
        self.place_of(index as usize, builder)
    }

    fn place_of(&self, index: usize, builder: &mut Builder) -> Result<Place> {
        let entry = self.members.get(index).ok_or_else(|| Error::format("its member is missing"))?;
        let Entry { name: full, place } = entry;
        let compression = place.compression()?;
        let located = self.directory.locate(&mut self.reader.borrow_mut(), &entry)?;
        if let Some(other) = &located.other_name {
            builder.issue(zip::place(&builder.path(self.id), full), format!("its local header has the name {}", quoted(other)), "the directory's name is used");
        }
        Ok(match compression {
            None => Place { source: self.id, offset: located.offset, bytes: located.len },
            Some(method) => {
                let path = [self.main.path().as_os_str().as_encoded_bytes(), b"/", full].concat();
                let member = Member::new(Arc::clone(self.main), located.offset, located.len, place.len, place.crc, method);
                let source = Source::from_member(OsString::from_vec(path), self.main.modified(), place.len, member);
                Place { source: builder.source(source), offset: 0, bytes: place.len }
            }
        })
    }

    /// The bytes of a small member.
    ///
    /// # Errors
    /// It cannot be read, or has more than `most` bytes.
    pub(super) fn small(&self, name: &[u8], most: u64, builder: &mut Builder) -> Result<Vec<u8>> {
        let place = self.place(name, builder)?;
        let len = usize::try_from(place.bytes).ok().filter(|_| place.bytes <= most);
        let len = len.ok_or_else(|| Error::limit(format!("its member {} has {} bytes, the limit is {most}", quoted(name), place.bytes)))?;
        let mut bytes = vec![0; len];
        let source = builder.source_of(place.source).ok_or_else(|| Error::format("its source is missing"))?;
        source.read_at(place.offset, &mut bytes).map_err(|e| Error::io(format!("cannot read its member {}", quoted(name)), e))?;
        Ok(bytes)
    }
}

/// The folder of the first member; if that holds no pickle, the folder of the first pickle.
fn root(members: &Members) -> Result<Vec<u8>> {
    let folder = |name: &[u8]| name.iter().position(|b| *b == b'/').and_then(|slash| name.get(..=slash)).unwrap_or_default().to_vec();
    let Some(first) = members.iter().next() else { return Err(Error::format("is an empty zip archive")) };
    let first = folder(first.name);
    let inside = |name: &[u8]| name.strip_prefix(first.as_slice()).is_some_and(|rest| !rest.contains(&b'/') && is_main(rest));
    if members.iter().any(|entry| inside(entry.name)) {
        return Ok(first);
    }
    let pickle = members.iter().find(|entry| is_main(entry.name.rsplit(|b| *b == b'/').next().unwrap_or_default()));
    let name = pickle.map(|entry| entry.name).unwrap_or_default();
    let end = name.iter().rposition(|b| *b == b'/').map_or(0, |slash| slash.saturating_add(1));
    Ok(name.get(..end).unwrap_or_default().to_vec())
}

/// Whether a member without its folder says that its folder is the archive's root.
fn is_main(name: &[u8]) -> bool {
    [b"data.pkl".as_slice(), b"constants.pkl", b"archive_format"].iter().any(|main| name.eq_ignore_ascii_case(main))
}

/// Whether an archive has the members of one of torch's.
pub(super) fn is_one(source: &Source) -> bool {
    let Ok(directory) = Directory::find(source) else { return false };
    let mut found = false;
    let walked = directory.walk(source, |entry| {
        found |= is_main(entry.name.rsplit(|b| *b == b'/').next().unwrap_or_default());
        Ok(if found { std::ops::ControlFlow::Break(()) } else { std::ops::ControlFlow::Continue(()) })
    });
    walked.is_ok() && found
}

/// The storages of one pickle of an archive.
pub(super) struct Records<'a> {
    archive: &'a Archive<'a>,
    /// The folder of the storages, with its slash.
    folder: &'static [u8],
    /// Those that were found, by the number of their member.
    found: Vec<Option<std::result::Result<Place, String>>>,
    /// The member after the one that was found last: storages are written in the order in which the pickle names them.
    next: usize,
}

impl<'a> Records<'a> {
    pub(super) fn new(archive: &'a Archive<'a>, folder: &'static [u8]) -> Self {
        Self { archive, folder, found: vec![None; archive.members.len()], next: 0 }
    }
}

impl Storages for Records<'_> {
    fn find(&mut self, key: &[u8], builder: &mut Builder) -> std::result::Result<Place, String> {
        let failed = |e: Error| format!("its storage {}: {}", quoted(key), e.message());
        let name = [self.folder, key].concat();
        let index = match self.archive.is_at(self.next, &name) {
            true => Some(self.next),
            false => self.archive.find(&name).and_then(|index| usize::try_from(index).ok()),
        };
        let Some((index, found)) = index.and_then(|index| Some((index, self.found.get_mut(index)?))) else {
            return Err(failed(Error::format(format!("its member {} is missing", quoted(&name)))));
        };
        self.next = index.saturating_add(1);
        found.get_or_insert_with(|| self.archive.place_of(index, builder).map_err(failed)).clone()
    }
}
