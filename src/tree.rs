//! Names to nodes, made once: the files and folders of every source.
//!
//! Two kinds of node share one space of inode numbers. A *fixed* node (a folder, a JSON file, a file of `source/`) is an entry of an arena, inode = index
//! + 1. The tensors' files are not stored at all: a [`Set`] holds one name index for all its views, and an inode number is computed from view and tensor.
//!
//! Nothing changes after [`Tree::new`]: no lock is needed to look anything up, and the position of an entry in its folder is a stable directory offset.

pub(crate) mod names;
mod set;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::catalog::{Catalog, Section, SideBytes};
use crate::source::{Extent, SourceId};

pub use crate::view::{View, Views};
pub use set::Set;

/// An inode number; the root's is 1.
pub type Ino = u64;

/// The root's inode number.
pub const ROOT: Ino = 1;

/// A source to show: its catalogue and the containers below it.
pub struct Branch {
    /// The name of its folder; `None` puts it at the root of the mount.
    pub name: Option<Vec<u8>>,
    /// The tree at the top.
    pub top: Option<Catalog>,
    /// Further containers, under `parts/` if there is a top, beside each other otherwise.
    pub parts: Vec<(Vec<u8>, Catalog)>,
}

/// What an inode is.
#[derive(Clone, Copy)]
pub enum Node<'a> {
    /// A folder of the arena.
    Folder(&'a Folder),
    /// A file of the arena.
    File(&'a File),
    /// A folder of tensors.
    TensorFolder(&'a Set, View, u32),
    /// A tensor's file in a view.
    TensorFile(&'a Set, View, u32),
}

/// A folder of the arena.
pub struct Folder {
    /// Names and what they lead to, sorted by name.
    entries: Vec<(Box<[u8]>, Target)>,
}

/// A file of the arena.
pub struct File {
    /// The set it belongs to.
    pub set: u32,
    /// What it holds.
    pub what: What,
}

/// A document about one catalogue; what it says is not the tree's business.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Document {
    /// `info.json`
    Info,
    /// `issues.json`
    Issues,
    /// `tensors.json`
    Tensors,
    /// `metadata.json`
    Metadata,
    /// One key's value as JSON.
    Key(u32),
    /// One key's string, verbatim.
    Text(u32),
    /// `source/SHA256SUMS`
    Sums,
}

/// What a file of the arena holds.
#[derive(Clone, Copy, Debug)]
pub enum What {
    /// A document that is rendered on read: its number among all of them, and which it is.
    Document(u32, Document),
    /// Stored bytes.
    Stored(Extent),
    /// A whole container.
    Source(SourceId),
}

/// What a name in a folder of the arena leads to.
#[derive(Clone, Copy)]
enum Target {
    Node(u32),
    View(u32, View),
}

enum Fixed {
    Folder(Folder),
    File(File),
}

/// One entry of a folder.
pub struct Entry<'a> {
    /// Its name.
    pub name: std::borrow::Cow<'a, [u8]>,
    /// Its inode.
    pub ino: Ino,
    /// Whether it is a folder.
    pub folder: bool,
}

/// Every file and folder of a mount.
pub struct Tree {
    nodes: Vec<Fixed>,
    sets: Vec<Set>,
    documents: u32,
    modified: SystemTime,
}

impl Tree {
    /// Builds the tree of all branches with these views.
    pub fn new(branches: Vec<Branch>, views: Views) -> Self {
        let mut builder = Builder { views, nodes: vec![Pending::default()], sets: Vec::new(), documents: 0, next: HashMap::new() };
        for Branch { name, top, parts } in branches {
            let folder = match name {
                Some(name) => builder.folder_for(0, &name),
                None => 0,
            };
            let parts_folder = if top.is_some() && !parts.is_empty() { builder.folder(folder, b"parts") } else { folder };
            if let Some(catalog) = top {
                builder.add(folder, catalog);
            }
            for (name, catalog) in parts {
                let folder = builder.folder_for(parts_folder, &name);
                builder.add(folder, catalog);
            }
        }
        builder.finish()
    }

    /// What an inode is.
    pub fn node(&self, ino: Ino) -> Option<Node<'_>> {
        let fixed = usize::try_from(ino.checked_sub(1)?).ok().and_then(|i| self.nodes.get(i));
        match fixed {
            Some(Fixed::Folder(folder)) => Some(Node::Folder(folder)),
            Some(Fixed::File(file)) => Some(Node::File(file)),
            None => {
                let at = self.sets.partition_point(|set| set.base() <= ino);
                self.sets.get(at.checked_sub(1)?)?.node(ino)
            }
        }
    }

    /// One of the sets.
    pub fn set(&self, number: u32) -> Option<&Set> {
        self.sets.get(number as usize)
    }

    /// Every set.
    pub fn sets(&self) -> &[Set] {
        &self.sets
    }

    /// The newest source's time of modification: the time of folders that belong to no one source.
    pub fn modified(&self) -> SystemTime {
        self.modified
    }

    /// How many documents there are, which are numbered from 0.
    pub fn documents(&self) -> u32 {
        self.documents
    }

    /// How many files and folders there are.
    pub fn count(&self) -> u64 {
        self.nodes.len() as u64 + self.sets.iter().map(Set::count).sum::<u64>()
    }

    fn ino(&self, target: Target) -> Ino {
        match target {
            Target::Node(node) => u64::from(node) + 1,
            Target::View(set, view) => self.sets[set as usize].folder_ino(view, 0),
        }
    }

    fn is_folder(&self, target: Target) -> bool {
        match target {
            Target::View(..) => true,
            Target::Node(node) => matches!(self.nodes[node as usize], Fixed::Folder(_)),
        }
    }

    /// The inode of a name in a folder; `None` if there is none.
    pub fn lookup(&self, parent: Node<'_>, name: &[u8]) -> Option<Ino> {
        match parent {
            Node::Folder(folder) => {
                let at = folder.entries.binary_search_by(|(n, _)| (**n).cmp(name)).ok()?;
                Some(self.ino(folder.entries[at].1))
            }
            Node::TensorFolder(set, view, folder) => set.lookup(view, folder, name),
            Node::File(_) | Node::TensorFile(..) => None,
        }
    }

    /// Calls `each` with the entries of a folder from position `start` on, and the position after each, until it says false.
    pub fn list<'a>(&'a self, folder: Node<'a>, start: u64, each: &mut dyn FnMut(Entry<'a>, u64) -> bool) {
        match folder {
            Node::Folder(folder) => {
                let skip = usize::try_from(start).unwrap_or(usize::MAX);
                for (position, (name, target)) in folder.entries.iter().enumerate().skip(skip) {
                    let entry = Entry { name: (&**name).into(), ino: self.ino(*target), folder: self.is_folder(*target) };
                    if !each(entry, position as u64 + 1) {
                        return;
                    }
                }
            }
            Node::TensorFolder(set, view, folder) => set.list(view, folder, start, each),
            Node::File(_) | Node::TensorFile(..) => {}
        }
    }

    /// How many sub-folders a folder has.
    pub fn folders_in(&self, folder: Node<'_>) -> u32 {
        match folder {
            Node::Folder(folder) => folder.entries.iter().filter(|(_, target)| self.is_folder(*target)).count() as u32,
            Node::TensorFolder(set, view, folder) => set.folders_in(view, folder).count() as u32,
            Node::File(_) | Node::TensorFile(..) => 0,
        }
    }
}

/// A node that is still being filled.
enum Pending {
    Folder(BTreeMap<Vec<u8>, Target>),
    File(u32, What),
}

impl Default for Pending {
    fn default() -> Self {
        Self::Folder(BTreeMap::new())
    }
}

struct Builder {
    views: Views,
    nodes: Vec<Pending>,
    sets: Vec<Set>,
    documents: u32,
    /// The number to try next for a name that is taken, so that very many equal names stay linear.
    next: HashMap<(u32, Vec<u8>), u64>,
}

impl Builder {
    fn entries(&mut self, folder: u32) -> Option<&mut BTreeMap<Vec<u8>, Target>> {
        match self.nodes.get_mut(folder as usize) {
            Some(Pending::Folder(entries)) => Some(entries),
            _ => None,
        }
    }

    /// Puts a node into a folder under `name`, or under `name~2`, `name~3` if that is taken.
    fn put(&mut self, folder: u32, name: &[u8], target: Target) {
        let Some(Pending::Folder(entries)) = self.nodes.get_mut(folder as usize) else { return };
        let mut free = name.to_vec();
        if entries.contains_key(name) {
            let n = self.next.entry((folder, free.clone())).or_insert(2);
            while entries.contains_key(&free) {
                free = names::numbered(name, *n);
                *n += 1;
            }
        }
        entries.insert(free, target);
    }

    fn new_node(&mut self, node: Pending) -> u32 {
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }

    /// The folder `name` in `parent`, made if it is not there.
    fn folder(&mut self, parent: u32, name: &[u8]) -> u32 {
        if let Some(Target::Node(node)) = self.entries(parent).and_then(|e| e.get(name)).copied()
            && matches!(self.nodes.get(node as usize), Some(Pending::Folder(_)))
        {
            return node;
        }
        let node = self.new_node(Pending::default());
        self.put(parent, name, Target::Node(node));
        node
    }

    /// A new folder under a name that may hold `/`; a name that is taken gets `~2`.
    fn folder_for(&mut self, parent: u32, name: &[u8]) -> u32 {
        let mut parts = names::components(name, names::NUMBER_ROOM);
        let last = parts.pop().unwrap_or_default();
        let parent = parts.iter().fold(parent, |parent, part| self.folder(parent, part));
        let node = self.new_node(Pending::default());
        // A dot belongs to a folder's name: `v1.5` twice is `v1.5` and `v1.5~2`.
        let taken = |name: &[u8], this: &mut Self| this.entries(parent).is_some_and(|e| e.contains_key(name));
        let mut free = last.clone();
        let mut n = 2;
        while taken(&free, self) {
            free = [last.as_slice(), format!("~{n}").as_bytes()].concat();
            n += 1;
        }
        self.put(parent, &free, Target::Node(node));
        node
    }

    /// A file under a name that may hold `/`, with an extension.
    fn file(&mut self, folder: u32, name: &[u8], extension: &str, set: u32, what: What) {
        let mut parts = names::components(name, extension.len() + names::NUMBER_ROOM);
        let last = [parts.pop().unwrap_or_default().as_slice(), extension.as_bytes()].concat();
        let folder = parts.iter().fold(folder, |parent, part| self.folder(parent, part));
        self.leaf(folder, &last, set, what);
    }

    /// A file under a name that is safe already.
    fn leaf(&mut self, folder: u32, name: &[u8], set: u32, what: What) {
        let node = self.new_node(Pending::File(set, what));
        self.put(folder, name, Target::Node(node));
    }

    /// A document under a name that may hold `/`, with an extension.
    fn document(&mut self, folder: u32, name: &[u8], extension: &str, set: u32, document: Document) {
        let number = self.documents;
        self.documents += 1;
        self.file(folder, name, extension, set, What::Document(number, document));
    }

    /// Adds the whole tree of one catalogue to a folder.
    fn add(&mut self, root: u32, catalog: Catalog) {
        let number = self.sets.len() as u32;
        let set = Set::new(Arc::new(catalog), self.views);
        for (name, what) in
            [("info.json", Document::Info), ("issues.json", Document::Issues), ("tensors.json", Document::Tensors), ("metadata.json", Document::Metadata)]
        {
            self.document(root, name.as_bytes(), "", number, what);
        }
        let views = set.shown();
        self.sets.push(set);
        let catalog = Arc::clone(self.sets[number as usize].catalog());
        if self.views.metadata && !catalog.metadata().is_empty() {
            let folder = self.folder(root, b"metadata");
            for (index, (key, _)) in catalog.metadata().iter().enumerate() {
                self.document(folder, key, ".json", number, Document::Key(index as u32));
            }
        }
        for side in catalog.sides() {
            let (wanted, name) = match side.section {
                Section::Config => (self.views.config, &b"config"[..]),
                Section::Tokenizer => (self.views.tokenizer, &b"tokenizer"[..]),
            };
            if wanted {
                let folder = self.folder(root, name);
                match side.bytes {
                    SideBytes::Stored(extent) => self.file(folder, &side.name, "", number, What::Stored(extent)),
                    SideBytes::Json(index) => self.document(folder, &side.name, "", number, Document::Key(index as u32)),
                    SideBytes::Text(index) => self.document(folder, &side.name, "", number, Document::Text(index as u32)),
                }
            }
        }
        if self.views.source {
            let folder = self.folder(root, b"source");
            for (id, _) in catalog.containers() {
                let name = self.sets[number as usize].source_name(id).to_vec();
                self.leaf(folder, &name, number, What::Source(id));
            }
            self.document(folder, b"SHA256SUMS", "", number, Document::Sums);
        }
        for view in View::ALL.into_iter().filter(|view| views & view.bit() != 0) {
            let (parent, name) = match view.folder().split_once('/') {
                Some((parent, name)) => (self.folder(root, parent.as_bytes()), name),
                None => (root, view.folder()),
            };
            self.put(parent, name.as_bytes(), Target::View(number, view));
        }
    }

    fn finish(mut self) -> Tree {
        let mut base = self.nodes.len() as u64 + 1;
        for set in &mut self.sets {
            set.set_base(base);
            base += set.span();
        }
        let modified = self.sets.iter().map(Set::modified).max().unwrap_or(UNIX_EPOCH);
        let nodes = self.nodes.into_iter().map(|node| match node {
            Pending::Folder(entries) => Fixed::Folder(Folder { entries: entries.into_iter().map(|(name, t)| (name.into_boxed_slice(), t)).collect() }),
            Pending::File(set, what) => Fixed::File(File { set, what }),
        });
        Tree { nodes: nodes.collect(), sets: self.sets, documents: self.documents, modified }
    }
}
