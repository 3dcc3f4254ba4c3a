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
/// Most values in one pickle; each takes at least a byte of its stream.
pub const PICKLE_NODES: u32 = 1 << 24;
/// All short strings of a pickle may take this much memory, in bytes.
pub const PICKLE_TEXT_BYTES: usize = 256 << 20;
/// Longest pickle, in bytes, without what is a bytes object in it.
pub const PICKLE_BYTES: u64 = 1 << 30;
