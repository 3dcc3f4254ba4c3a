//! The tree as a file system, without any kernel interface: lookups, attributes, listings, reads and extended attributes.
//!
//! It names neither a container format nor a FUSE library, so that the mount, the listing commands and the tests use the same code.

use std::io;
use std::sync::OnceLock;
use std::time::SystemTime;

use crate::catalog::Tensor;
use crate::content::Content;
use crate::render::{Index, tensors};
use crate::source::Health;
use crate::tree::{Branch, Document, Entry, File, Node, ROOT, Set, Tree, View, Views, What};

pub use crate::content::{Bytes, Scratch};
pub use crate::limits::FILE_NAME_BYTES as LONGEST_NAME;
pub use crate::tree::Ino;

/// Why a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errno {
    /// There is no such name or inode.
    NotFound,
    /// A file was expected.
    IsFolder,
    /// A folder was expected.
    NotFolder,
    /// No name is as long as that.
    NameTooLong,
    /// The bytes cannot be had: gone, damaged, or the source was rewritten.
    Io,
    /// There is no such extended attribute.
    NoAttribute,
    /// Attributes of this name space are not supported at all.
    NotSupported,
}

/// What an inode looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The inode number.
    pub ino: Ino,
    /// Length in bytes; 0 for a folder.
    pub size: u64,
    /// Whether it is a folder.
    pub folder: bool,
    /// How many names it has (2 + sub-folders for a folder).
    pub links: u32,
    /// Time of last modification: the source's.
    pub modified: SystemTime,
}

/// Sizes of the whole file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Bytes of all containers.
    pub bytes: u64,
    /// Files and folders.
    pub files: u64,
}

/// A file that was opened for reading.
#[derive(Clone, Copy, Debug)]
pub struct Opened<'a> {
    /// Bytes that were read before are still right.
    pub unchanged: bool,
    /// Length in bytes; 0 for text, which is counted when somebody asks.
    pub size: u64,
    /// What it is made of.
    pub nature: Nature<'a>,
}

/// What a file is made of.
#[derive(Clone, Copy, Debug)]
pub enum Nature<'a> {
    /// Rendered text.
    Text,
    /// A tensor's elements, or some other part of a container.
    Part,
    /// A whole container, which may be read in place of it.
    Whole(&'a std::fs::File),
}

/// One line of a folder's listing.
pub struct Listed<'a> {
    /// The name and inode.
    pub entry: Entry<'a>,
    /// Where to go on after it.
    pub next: u64,
}

/// The file system.
pub struct Fs {
    tree: Tree,
    /// Counted when they are first asked for: nothing changes.
    totals: OnceLock<Totals>,
    /// Where each document's text stands, made when its size is first asked for; by the document's number.
    indexes: Vec<OnceLock<Index>>,
}

impl Fs {
    /// Builds it from sources.
    pub fn new(branches: Vec<Branch>, views: Views) -> Self {
        let tree = Tree::new(branches, views);
        let indexes = (0..tree.documents()).map(|_| OnceLock::new()).collect();
        Self { tree, totals: OnceLock::new(), indexes }
    }

    /// The tree behind it.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    fn node(&self, ino: Ino) -> Result<Node<'_>, Errno> {
        self.tree.node(ino).ok_or(Errno::NotFound)
    }

    /// The attributes of a name in a folder.
    ///
    /// # Errors
    /// There is no such name, or `parent` is no folder.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr, Errno> {
        match self.node(parent)? {
            Node::File(_) | Node::TensorFile(..) => Err(Errno::NotFolder),
            _ if name.len() > LONGEST_NAME => Err(Errno::NameTooLong),
            folder => self.attr(self.tree.lookup(folder, name).ok_or(Errno::NotFound)?),
        }
    }

    /// The inode of a path relative to the root; empty components and `.` are passed over.
    ///
    /// # Errors
    /// There is no such path.
    pub fn resolve(&self, path: &[u8]) -> Result<Ino, Errno> {
        let names = path.split(|b| *b == b'/').filter(|name| !name.is_empty() && *name != b".");
        names.into_iter().try_fold(ROOT, |ino, name| Ok(self.lookup(ino, name)?.ino))
    }

    /// The attributes of an inode.
    ///
    /// # Errors
    /// There is no such inode, or a document's text cannot be rendered.
    pub fn attr(&self, ino: Ino) -> Result<Attr, Errno> {
        let node = self.node(ino)?;
        let (size, links, modified) = match node {
            Node::Folder(_) => (0, self.tree.folders_in(node).saturating_add(2), self.tree.modified()),
            Node::TensorFolder(set, ..) => (0, self.tree.folders_in(node).saturating_add(2), set.modified()),
            Node::File(file) => {
                let set = self.set(file)?;
                let modified = match file.what {
                    What::Source(id) => set.catalog().source(id).map_or(set.modified(), |s| s.modified()),
                    What::Stored(extent) => set.catalog().source(extent.source()).map_or(set.modified(), |s| s.modified()),
                    What::Document(..) => set.modified(),
                };
                (self.file_size(file)?, 1, modified)
            }
            Node::TensorFile(set, view, tensor) => {
                let tensor = set.catalog().tensor(tensor).ok_or(Errno::NotFound)?;
                let modified = set.catalog().source(tensor.source()).map_or(set.modified(), |s| s.modified());
                let content = Content::new(view, tensor).ok_or(Errno::NotFound)?;
                (content.len(), set.links(view, tensor), modified)
            }
        };
        Ok(Attr { ino, size, folder: matches!(node, Node::Folder(_) | Node::TensorFolder(..)), links, modified })
    }

    /// The attributes of an inode as far as they are known without work; false if its size is still to be counted.
    ///
    /// # Errors
    /// There is no such inode.
    pub fn attr_so_far(&self, ino: Ino) -> Result<(Attr, bool), Errno> {
        match self.node(ino)? {
            Node::File(file @ File { what: What::Document(number, _), .. })
                if self.indexes.get(*number as usize).is_some_and(|index| index.get().is_none()) =>
            {
                let modified = self.set(file)?.modified();
                Ok((Attr { ino, size: 0, folder: false, links: 1, modified }, false))
            }
            _ => Ok((self.attr(ino)?, true)),
        }
    }

    fn set(&self, file: &File) -> Result<&Set, Errno> {
        self.tree.set(file.set).ok_or(Errno::NotFound)
    }

    fn file_size(&self, file: &File) -> Result<u64, Errno> {
        let set = self.set(file)?;
        match file.what {
            What::Stored(extent) => Ok(extent.len()),
            What::Source(id) => Ok(set.catalog().source(id).ok_or(Errno::NotFound)?.len()),
            What::Document(number, document) => Ok(self.index(number, set, document)?.len()),
        }
    }

    fn index(&self, number: u32, set: &Set, document: Document) -> Result<&Index, Errno> {
        let slot = self.indexes.get(number as usize).ok_or(Errno::NotFound)?;
        if let Some(index) = slot.get() {
            return Ok(index);
        }
        let index = Index::new(set, document).map_err(|e| failed("rendering", &e))?;
        Ok(slot.get_or_init(|| index))
    }

    /// Calls `each` with the entries of a folder from position `start` on until it says false.
    ///
    /// # Errors
    /// There is no such inode, or it is no folder.
    pub fn list<'a>(&'a self, ino: Ino, start: u64, each: &mut dyn FnMut(Listed<'a>) -> bool) -> Result<(), Errno> {
        match self.node(ino)? {
            Node::File(_) | Node::TensorFile(..) => Err(Errno::NotFolder),
            folder => {
                self.tree.list(folder, start, &mut |entry, next| each(Listed { entry, next }));
                Ok(())
            }
        }
    }

    /// Prepares an inode for reading.
    ///
    /// # Errors
    /// There is no such file, it is a folder, or its source was rewritten.
    pub fn open(&self, ino: Ino) -> Result<Opened<'_>, Errno> {
        let (size, nature, health) = match self.node(ino)? {
            Node::Folder(_) | Node::TensorFolder(..) => return Err(Errno::IsFolder),
            Node::File(file) => {
                let catalog = self.set(file)?.catalog();
                match file.what {
                    What::Source(id) => {
                        let source = catalog.source(id).ok_or(Errno::NotFound)?;
                        (source.len(), source.file().map_or(Nature::Part, Nature::Whole), source.health())
                    }
                    What::Stored(extent) => (extent.len(), Nature::Part, catalog.source(extent.source()).map_or(Health::Same, |source| source.health())),
                    // Values and sums are read from the files; the other documents were read when they were opened.
                    What::Document(_, Document::Key(_) | Document::Text(_) | Document::Metadata | Document::Sums) => {
                        let health = catalog.containers().map(|(_, source)| source.health()).find(|health| *health != Health::Same);
                        (0, Nature::Text, health.unwrap_or(Health::Same))
                    }
                    What::Document(..) => (0, Nature::Text, Health::Same),
                }
            }
            Node::TensorFile(set, view, tensor) => {
                let tensor = set.catalog().tensor(tensor).ok_or(Errno::NotFound)?;
                let size = Content::new(view, tensor).ok_or(Errno::NotFound)?.len();
                (size, Nature::Part, set.catalog().source(tensor.source()).map_or(Health::Same, |source| source.health()))
            }
        };
        match health {
            Health::Rewritten => Err(Errno::Io),
            health => Ok(Opened { unchanged: health == Health::Same, size, nature }),
        }
    }

    /// Reads `size` bytes of a file at `offset`, fewer at its end.
    ///
    /// # Errors
    /// There is no such file, or its bytes cannot be had.
    pub fn read<'a>(&'a self, ino: Ino, offset: u64, size: u32, scratch: &'a mut Scratch) -> Result<Bytes<'a>, Errno> {
        let size = u64::from(size);
        if let Node::File(file @ File { what: What::Document(number, document), .. }) = self.node(ino)? {
            let set = self.set(file)?;
            let index = self.index(*number, set, *document)?;
            index.read(set, *document, offset, size, scratch.start()).map_err(|e| failed("rendering", &e))?;
            return Ok(Bytes::Copied(scratch.text()));
        }
        let (content, set) = self.content(ino)?;
        content.read(set.catalog().sources(), offset, size, scratch).map_err(|e| failed("reading", &e))
    }

    /// Fills `out` with the bytes of a file that is no rendered text, at `offset`.
    ///
    /// # Errors
    /// There is no such file, it ends before that, or its bytes cannot be had.
    pub fn read_into(&self, ino: Ino, offset: u64, out: &mut [u8], scratch: &mut Scratch) -> Result<(), Errno> {
        let (content, set) = self.content(ino)?;
        content.read_into(set.catalog().sources(), offset, out, scratch).map_err(|e| failed("reading", &e))
    }

    /// Has the system read what lies behind a part of a file, unless it is in memory; whoever reads it soon will not wait.
    pub fn prefetch(&self, ino: Ino, offset: u64, len: u64) {
        if let Ok((content, set)) = self.content(ino)
            && let Some(extent) = content.stored_part(offset, len)
            && let Some(source) = set.catalog().source(extent.source())
        {
            source.prefetch(extent.offset(), extent.len());
        }
    }

    /// The bytes of a file that is no rendered text.
    fn content(&self, ino: Ino) -> Result<(Content, &Set), Errno> {
        match self.node(ino)? {
            Node::Folder(_) | Node::TensorFolder(..) => Err(Errno::IsFolder),
            Node::TensorFile(set, view, tensor) => {
                let tensor = set.catalog().tensor(tensor).ok_or(Errno::NotFound)?;
                Ok((Content::new(view, tensor).ok_or(Errno::NotFound)?, set))
            }
            Node::File(file) => {
                let set = self.set(file)?;
                match file.what {
                    What::Document(..) => Err(Errno::NotFound),
                    What::Stored(extent) => Ok((Content::stored(extent), set)),
                    What::Source(id) => {
                        let source = set.catalog().source(id).ok_or(Errno::NotFound)?;
                        let extent = crate::source::Extent::new(id, source, 0, source.len()).ok_or(Errno::NotFound)?;
                        Ok((Content::stored(extent), set))
                    }
                }
            }
        }
    }

    /// One extended attribute of a tensor's file.
    ///
    /// # Errors
    /// There is no such attribute; names outside `user.` are not supported, which lets callers stop asking.
    pub fn attribute(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Errno> {
        if !name.starts_with(b"user.") {
            return Err(Errno::NotSupported);
        }
        let (set, tensor) = self.tensor_of(ino)?.ok_or(Errno::NoAttribute)?;
        tensors::attribute(set, tensor, name).ok_or(Errno::NoAttribute)
    }

    /// The names of an inode's extended attributes, each followed by NUL.
    ///
    /// # Errors
    /// There is no such inode.
    pub fn attributes(&self, ino: Ino) -> Result<&'static [u8], Errno> {
        Ok(self.tensor_of(ino)?.map_or(b"", |_| tensors::ATTRIBUTES))
    }

    /// The tensor behind an inode, if it is a tensor's file.
    ///
    /// # Errors
    /// There is no such inode.
    pub fn tensor_of(&self, ino: Ino) -> Result<Option<(&Set, Tensor<'_>)>, Errno> {
        Ok(match self.node(ino)? {
            Node::TensorFile(set, _, tensor) => set.catalog().tensor(tensor).map(|tensor| (set, tensor)),
            _ => None,
        })
    }

    /// The view of a tensor's file.
    pub fn view_of(&self, ino: Ino) -> Option<View> {
        match self.tree.node(ino) {
            Some(Node::TensorFile(_, view, _)) => Some(view),
            _ => None,
        }
    }

    /// Sizes of the whole.
    pub fn totals(&self) -> Totals {
        *self.totals.get_or_init(|| {
            let containers = self.tree.sets().iter().flat_map(|set| set.catalog().containers());
            Totals { bytes: containers.map(|(_, source)| source.len()).fold(0, u64::saturating_add), files: self.tree.count() }
        })
    }

    /// What has become of each source.
    pub fn health(&self) -> Vec<Health> {
        let sources = self.tree.sets().iter().flat_map(|set| set.catalog().sources());
        sources.filter(|source| !source.is_member()).map(|source| source.health()).collect()
    }
}

fn failed(what: &str, error: &io::Error) -> Errno {
    log::info!("{what}: {error}");
    Errno::Io
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::unwrap_used, reason = "a test")]
    fn root_is_a_folder_even_without_sources() {
        let fs = Fs::new(Vec::new(), Views::ALL);
        let root = fs.attr(ROOT).unwrap();
        assert!(root.folder);
        assert_eq!((root.ino, root.links), (1, 2));
        assert_eq!(fs.lookup(ROOT, b"raw"), Err(Errno::NotFound));
        assert_eq!(fs.attr(99), Err(Errno::NotFound));
    }
}
