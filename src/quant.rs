//! Codecs: how stored bytes become numbers.
//!
//! A [`Codec`] describes one block of a stored type and holds the pure function that decodes it: whole blocks in, f32 elements out, no state, no
//! allocation, no I/O. The scalar function is the definition of the type. Adding a type is one function in its family's file and one line in [`CODECS`];
//! `tests/quant.rs` holds every entry to the same rules.

/// A run of equal multi-byte fields inside a block, for files written in big-endian byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Offset of the first field from the start of the block, in bytes.
    pub offset: usize,
    /// Width of one field, in bytes: 2, 4 or 8.
    pub width: usize,
    /// Number of fields that follow each other.
    pub count: usize,
}

/// What a decoded element is, which decides what its `.npy` holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A floating-point value, exact in f32: the `.npy` holds `<f4`.
    Float,
    /// A signed integer that fits i8: the `.npy` holds `|i1`.
    Signed,
    /// An unsigned integer that fits u8: the `.npy` holds `|u1`.
    Unsigned,
}

/// The static description of one stored type and its decoder.
#[derive(Debug)]
pub struct Codec {
    /// Canonical lower-case name, as in file extensions and JSON: `q4_k`, `bf16`, `f8_e4m3`.
    pub name: &'static str,
    /// Elements in one block.
    pub elements: usize,
    /// Bytes of one block.
    pub bytes: usize,
    /// What an element is.
    pub kind: Kind,
    /// The ggml type number, where the type is ggml's.
    pub ggml: Option<u32>,
    /// The fields to byte-swap before decoding a block of a big-endian file; `None` where no such layout is defined.
    pub swap: Option<&'static [Field]>,
    /// Decodes whole blocks: `blocks.len() == n * bytes`, `out.len() == n * elements`. A partial last block on either side is left alone.
    pub decode: fn(blocks: &[u8], out: &mut [f32]),
}

/// The codec with this canonical name.
pub fn by_name(_name: &str) -> Option<&'static Codec> {
    None
}

/// The codec of this ggml type number.
pub fn by_ggml(_id: u32) -> Option<&'static Codec> {
    None
}
