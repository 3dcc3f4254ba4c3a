//! Documents that are rendered when they are read: JSON about a container.
//!
//! A large document is never held whole. Its length is counted once, when it is first asked for, and a checkpoint is kept every 64 KiB; a read renders
//! again from the checkpoint before it.

mod info;
pub(crate) mod tensors;
mod values;

use std::io;

use crate::json;
use crate::tree::{Document, Set};

pub use tensors::row_bytes;

/// One tensor's object of tensors.json, on a line of its own.
pub fn tensor_json(set: &Set, tensor: crate::catalog::Tensor<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    tensors::object(set, tensor, &mut out);
    out.push(b'\n');
    out
}

/// Where the rendering of a document stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The item (tensor, key, issue) to render next.
    pub(crate) item: u64,
    /// How far inside that item: 0 before it begins, then counted by the item's own measure.
    pub(crate) inner: u64,
    /// Where in the source the item's next part is.
    pub(crate) at: u64,
    /// Whether the string being rendered is base64, because it is not UTF-8.
    pub(crate) base64: bool,
    /// The long string of an array that is being rendered.
    pub(crate) long: Option<values::Long>,
}

/// Renders the next part of a document onto `out`; false when there is nothing left.
fn next(set: &Set, document: Document, cursor: &mut Cursor, out: &mut Vec<u8>) -> io::Result<bool> {
    match document {
        Document::Info => Ok(once(cursor, || out.extend(info::info(set)))),
        Document::Issues => Ok(info::issues(set, cursor, out)),
        Document::Tensors => Ok(tensors::next(set, cursor, out)),
        Document::Metadata => values::metadata(set, cursor, out),
        Document::Key(key) => values::key(set, key as usize, cursor, out),
        Document::Text(key) => values::text(set, key as usize, cursor, out),
        Document::Sums => info::sums(set, cursor, out),
    }
}

fn once(cursor: &mut Cursor, render: impl FnOnce()) -> bool {
    if cursor.item > 0 {
        return false;
    }
    cursor.item = 1;
    render();
    true
}

/// The length of a document and where to take it up.
#[derive(Debug)]
pub struct Index {
    len: u64,
    checkpoints: Vec<(u64, Cursor)>,
}

/// Bytes of text between two checkpoints.
const INTERVAL: u64 = 64 << 10;

impl Index {
    /// Renders a document once, keeping nothing but its length and the checkpoints.
    ///
    /// # Errors
    /// A part of the document that lies in a source cannot be read.
    pub fn new(set: &Set, document: Document) -> io::Result<Self> {
        if document == Document::Sums {
            // The sums are computed when they are read; their length is known without them.
            return Ok(Self { len: info::sums_len(set), checkpoints: vec![(0, Cursor::default())] });
        }
        let mut index = Self { len: 0, checkpoints: Vec::new() };
        let mut cursor = Cursor::default();
        let mut due = 0;
        let mut part = Vec::new();
        loop {
            if index.len >= due {
                index.checkpoints.push((index.len, cursor));
                due = index.len.saturating_add(INTERVAL);
            }
            part.clear();
            if !next(set, document, &mut cursor, &mut part)? {
                return Ok(index);
            }
            index.len = index.len.saturating_add(part.len() as u64);
        }
    }

    /// The document's length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the document is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends the `size` bytes at `offset` (clamped to the end) to `out`.
    ///
    /// # Errors
    /// A part of the document that lies in a source cannot be read.
    pub fn read(&self, set: &Set, document: Document, offset: u64, size: u64, out: &mut Vec<u8>) -> io::Result<()> {
        let end = offset.saturating_add(size).min(self.len);
        if offset >= end {
            return Ok(());
        }
        let at = self.checkpoints.partition_point(|(start, _)| *start <= offset);
        let Some((mut position, mut cursor)) = self.checkpoints.get(at.saturating_sub(1)).copied() else { return Ok(()) };
        let mut part = Vec::new();
        while position < end {
            part.clear();
            if !next(set, document, &mut cursor, &mut part)? {
                break;
            }
            let after = position.saturating_add(part.len() as u64);
            if after > offset {
                let from = offset.saturating_sub(position) as usize;
                let to = end.min(after).saturating_sub(position) as usize;
                out.extend_from_slice(part.get(from..to).unwrap_or_default());
            }
            position = after;
        }
        Ok(())
    }
}
