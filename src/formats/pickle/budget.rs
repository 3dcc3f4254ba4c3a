//! What a pickle has taken of what a container of its size may give it.

use super::Node;
use crate::limits::{PICKLE_CELL_BYTES, PICKLE_CELL_REFERENCES, Pickle};

/// That it asks for more, in words.
pub(super) struct TooMuch(pub(super) String);

pub(super) struct Budget {
    limits: Pickle,
    opcodes: u64,
    cells: u64,
    /// How often a value is referred to: from the stack, the memo, and what holds it.
    references: u64,
    /// Bytes of the names of globals, which are kept beside the text.
    names: u64,
}

impl Budget {
    pub(super) fn new(limits: Pickle) -> Self {
        Self { limits, opcodes: 0, cells: 0, references: 0, names: 0 }
    }

    /// Whether no more is taken than there may be; the words are made only when they are needed.
    fn within(&self, taken: u64, most: u64, what: impl FnOnce() -> String) -> Result<(), TooMuch> {
        if taken <= most {
            return Ok(());
        }
        Err(TooMuch(format!("its pickle's {}, the limit for a file of {} bytes", what(), self.limits.container_bytes)))
    }

    /// How many opcodes were carried out.
    pub(super) fn opcodes_so_far(&self) -> u64 {
        self.opcodes
    }

    /// Takes opcodes, or what costs as much time.
    pub(super) fn opcodes(&mut self, count: u64) -> Result<(), TooMuch> {
        self.opcodes = self.opcodes.saturating_add(count);
        self.within(self.opcodes, self.limits.opcodes, || format!("opcodes are more than {}", self.limits.opcodes))
    }

    /// Takes the memory of a node.
    pub(super) fn node(&mut self, node: &Node) -> Result<(), TooMuch> {
        self.cells = self.cells.saturating_add(match node {
            Node::Object(_) => 4,
            Node::List(_) | Node::Set(_) | Node::Dict(_) => 2,
            _ => 1,
        });
        self.memory()
    }

    /// Takes the memory of references to values. What leaves the stack is not given back: its room stays, and the values have gone somewhere.
    pub(super) fn references(&mut self, count: usize) -> Result<(), TooMuch> {
        self.references = self.references.saturating_add(count as u64);
        self.memory()
    }

    fn memory(&self) -> Result<(), TooMuch> {
        let bytes = || self.limits.cells.saturating_mul(PICKLE_CELL_BYTES as u64);
        let taken = self.cells.saturating_add(self.references / PICKLE_CELL_REFERENCES);
        self.within(taken, self.limits.cells, || format!("values take more than {} bytes", bytes()))
    }

    /// Takes the memory of a global's name, which is kept twice, each time with what a string and its place in a table take.
    pub(super) fn name(&mut self, module: &str, name: &str) -> Result<(), TooMuch> {
        let bytes = module.len().saturating_add(name.len()).saturating_add(100).saturating_mul(2) as u64;
        self.names = self.names.saturating_add(bytes);
        self.text(0)
    }

    /// Whether text may be added to this much.
    pub(super) fn text(&self, len: usize) -> Result<(), TooMuch> {
        let most = self.limits.text_bytes;
        self.within(self.names.saturating_add(len as u64), most, || format!("short strings take more than {most} bytes"))
    }

    /// The longest text there may be, in bytes.
    pub(super) fn most_text(&self) -> usize {
        usize::try_from(self.limits.text_bytes).unwrap_or(usize::MAX)
    }
}
