//! Upper bounds that are checked before anything is allocated or looped over.
//!
//! Each is far above what real files need; a number read from a file is first compared with the bytes that are left in it, then with these.

/// Longest safetensors header, in bytes. Real ones reach 126 MB (1.3 million tensors).
pub const HEADER_BYTES: u64 = 1 << 30;
/// Longest npy header text, in bytes. Structured dtypes reach 100 kB.
pub const NPY_HEADER_BYTES: u64 = 1 << 20;
/// Most tensors in one tree.
pub const TENSORS: u64 = 1 << 24;
/// Most keys in one tree's metadata.
pub const KEYS: u64 = 1 << 22;
/// Most dimensions of a tensor: NumPy's own limit.
pub const DIMENSIONS: usize = 64;
/// Longest tensor name or key, in bytes.
pub const NAME_BYTES: u64 = 1 << 20;
/// Deepest nesting of arrays in a metadata value and of structures in a NumPy dtype.
pub const NESTING: usize = 32;
/// Strings up to this length are kept in memory; longer ones stay in the file, in bytes.
pub const INLINE_STRING_BYTES: u64 = 4096;
/// Most values that nested metadata arrays may hold in memory.
pub const NESTED_VALUES: u64 = 1 << 20;
/// Most bytes of text in nested metadata arrays, which are rendered in one go.
pub const NESTED_BYTES: u64 = 64 << 20;
/// Most issues that are kept; what comes after them is counted.
pub const ISSUES: usize = 10_000;
/// Most folders that one tensor name may open; later slashes are encoded.
pub const FOLDER_DEPTH: usize = 100;
/// Longest file name that Linux takes, in bytes.
pub const FILE_NAME_BYTES: usize = 255;
/// Most files that are looked at in a model folder.
pub const FOLDER_FILES: usize = 100_000;
/// Most levels of sub-folders that are looked at in a model folder.
pub const FOLDER_LEVELS: usize = 8;
/// Most members of a zip archive.
pub const MEMBERS: u64 = 1 << 22;
/// A model folder's file above this size is not one of its small side files, in bytes.
pub const SIDE_FILE_BYTES: u64 = 256 << 20;
/// A pickle's values may take this much, counted in [`PICKLE_CELL_BYTES`], whatever its container's size: as much as a million tensors need.
pub const PICKLE_CELLS: u64 = 1 << 25;
/// A plain value takes one cell, a list or dict two, a call four.
pub const PICKLE_CELL_BYTES: usize = 32;
/// So many references to values take a cell: twice the four bytes of each, since what holds them grows by doubling.
pub const PICKLE_CELL_REFERENCES: u64 = 4;
/// All short strings of a pickle may take this much memory, in bytes.
pub const PICKLE_TEXT_BYTES: u64 = 256 << 20;
/// Longest pickle that is a member of an archive, in bytes.
pub const PICKLE_BYTES: u64 = 1 << 30;

/// What a pickle may take when its container has so many bytes: a compressed stream may be a thousand times as long as what is stored of it.
///
/// The most repetitive checkpoints of many small tensors that were measured, compressed as well as Deflate can, have 1.5 opcodes, 1.6 cells and 2.4 bytes of text for each byte of the
/// container; streams that are stored as they are have less than one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pickle {
    /// The size of the container, in bytes.
    pub container_bytes: u64,
    /// Most opcodes.
    pub opcodes: u64,
    /// Most cells of values.
    pub cells: u64,
    /// Most bytes of short strings and names.
    pub text_bytes: u64,
    /// Most bytes of the stream, where it is a member of an archive.
    pub stream_bytes: u64,
    /// Most bytes of JSON that its values other than tensors may become.
    pub json_bytes: u64,
}

impl Pickle {
    /// The bounds for a container of this size.
    pub fn of(container_bytes: u64) -> Self {
        let bound = |floor: u64, factor: u64| container_bytes.saturating_mul(factor).saturating_add(floor);
        Self {
            container_bytes,
            opcodes: bound(1 << 23, 16),
            cells: bound(1 << 20, 4).min(PICKLE_CELLS),
            text_bytes: bound(1 << 24, 16).min(PICKLE_TEXT_BYTES),
            stream_bytes: bound(1 << 29, 64).min(PICKLE_BYTES),
            json_bytes: bound(64 << 20, 4).min(PICKLE_TEXT_BYTES),
        }
    }
}
