//! Codecs: how stored bytes become numbers.
//!
//! A [`Codec`] describes one block of a stored type and holds the pure function that decodes it: whole blocks in, f32 elements out, no state, no
//! allocation, no I/O. The scalar function is the definition of the type. Adding a type is one function in its family's file and one line in [`CODECS`];
//! `tests/quant.rs` holds every entry to the same rules.
//!
//! | file | types | defined by |
//! |---|---|---|
//! | `float` | f64, f32, f16, bf16, the 8-bit floats | IEEE 754, OCP OFP8 1.0, ONNX |
//! | `packed` | integers of 1, 2 and 4 bits | ONNX, safetensors |
//! | `mx` | f4, f6, e8m0 and the blocks made of them | OCP Microscaling 1.0, ggml |
//! | `legacy` | one scale a block: q4_0 to q8_1, q1_0, q2_0 | ggml |
//! | `k` | super-blocks of 256 with sub-scales | ggml |
//! | `iq`, `iq_tables` | code books and non-linear levels | ggml |
//! | `ternary` | tq1_0, tq2_0 | ggml |
//! | `narrow` | the way back: f32 and f64 to f16 and bf16 | IEEE 754 |
//! | `x86` | the same functions in AVX2 and F16C | the files above |
//!
//! "ggml" is `ggml-quants.c` and `ggml-common.h` at commit d99724f2 of <https://github.com/ggml-org/ggml>. Every value equals the one that the C code
//! computes, bit for bit, except that any NaN stands for any NaN. Products are written before sums and never fused: `mul_add` would round once
//! where C rounds twice.

/// The fast twin of a decoder, where there is one for this architecture.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! twin {
    ($name:ident) => {
        Some(super::x86::$name)
    };
}
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
macro_rules! twin {
    ($name:ident) => {
        None
    };
}

mod float;
mod iq;
mod iq_tables;
mod k;
mod legacy;
mod mx;
pub mod narrow;
mod packed;
mod ternary;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86;

use self::float::f16_to_f32;

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
    /// A floating-point value, exact in f32 (all but those of `f64`): the `.npy` holds `<f4`.
    Float,
    /// A signed integer that fits i8: the `.npy` holds `|i1`.
    Signed,
    /// An unsigned integer that fits u8: the `.npy` holds `|u1`.
    Unsigned,
}

impl Field {
    /// The 2-byte fields of a block that follow each other from `offset`: its f16 scales, as a rule.
    const fn halves(offset: usize, count: usize) -> Self {
        Self { offset, width: 2, count }
    }
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
    /// The fields to byte-swap before decoding a block of a big-endian file; `None` where no such layout is defined. See [`swap_fields`].
    pub swap: Option<&'static [Field]>,
    /// Decodes whole blocks: `blocks.len() == n * bytes`, `out.len() == n * elements`. A partial last block on either side is left alone.
    pub decode: Decode,
    /// The same function in the instructions of this architecture, bit for bit (but any NaN for any NaN); where the CPU lacks them it calls `decode`.
    pub fast: Option<Decode>,
}

/// Decodes whole blocks; see [`Codec::decode`].
pub type Decode = fn(blocks: &[u8], out: &mut [f32]);

impl Codec {
    /// Returns the fastest decoder that this CPU can run.
    pub fn decoder(&self) -> Decode {
        self.fast.unwrap_or(self.decode)
    }
}

/// Whether the fast decoders run on this CPU: if not, each does what the scalar one does.
pub fn has_fast() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    return x86::available();
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    return false;
}

/// Every type there is a decoder for; nothing else registers one.
pub static CODECS: &[Codec] = &[
    float::F64,
    float::F32,
    float::F16,
    float::BF16,
    float::F8_E4M3,
    float::F8_E5M2,
    float::F8_E4M3FNUZ,
    float::F8_E5M2FNUZ,
    mx::F8_E8M0,
    mx::F6_E2M3,
    mx::F6_E3M2,
    mx::F4,
    packed::I4,
    packed::U4,
    packed::I2,
    packed::U2,
    packed::U1,
    legacy::Q1_0,
    legacy::Q2_0,
    legacy::Q4_0,
    legacy::Q4_1,
    legacy::Q5_0,
    legacy::Q5_1,
    legacy::Q8_0,
    legacy::Q8_1,
    k::Q2_K,
    k::Q3_K,
    k::Q4_K,
    k::Q5_K,
    k::Q6_K,
    k::Q8_K,
    iq::IQ1_S,
    iq::IQ1_M,
    iq::IQ2_XXS,
    iq::IQ2_XS,
    iq::IQ2_S,
    iq::IQ3_XXS,
    iq::IQ3_S,
    iq::IQ4_NL,
    iq::IQ4_XS,
    ternary::TQ1_0,
    ternary::TQ2_0,
    mx::MXFP4,
    mx::NVFP4,
];

/// Returns the codec with this canonical name.
///
/// A scan: over so few entries it costs less than hashing the name.
pub fn by_name(name: &str) -> Option<&'static Codec> {
    CODECS.iter().find(|codec| codec.name == name)
}

/// Returns the codec of this ggml type number.
///
/// `None` for a number that is unknown, removed, or an integer type that NumPy has.
pub fn by_ggml(id: u32) -> Option<&'static Codec> {
    CODECS.iter().find(|codec| codec.ggml == Some(id))
}

/// Turns the blocks of a big-endian file into little-endian ones, in place (and back: it is its own inverse).
///
/// Does nothing where the codec has no such layout. A partial last block is left alone.
pub fn swap_fields(codec: &Codec, blocks: &mut [u8]) {
    for field in codec.swap.unwrap_or_default() {
        for block in blocks.chunks_exact_mut(codec.bytes.max(1)) {
            let fields = block.get_mut(field.offset..).unwrap_or_default();
            for bytes in fields.chunks_exact_mut(field.width.max(1)).take(field.count) {
                bytes.reverse();
            }
        }
    }
}

/// Calls `decode` for each whole block and its elements, until either side ends.
#[inline(always)]
fn each_block<const BYTES: usize, const ELEMENTS: usize>(blocks: &[u8], out: &mut [f32], decode: impl Fn(&[u8; BYTES], &mut [f32; ELEMENTS])) {
    let (blocks, _partial) = blocks.as_chunks();
    let (out, _partial) = out.as_chunks_mut();
    for (block, out) in blocks.iter().zip(out) {
        decode(block, out);
    }
}

/// Returns the `N` bytes of a block that start at `offset`.
///
/// The decoders ask only for what is inside their block; zeros for anything else keep this function, and so every decoder, free of panics at the cost of
/// one comparison that the compiler removes where the offset is constant.
#[inline(always)]
fn part<const N: usize, const BYTES: usize>(block: &[u8; BYTES], offset: usize) -> [u8; N] {
    let found = block.get(offset..).and_then(|rest| rest.first_chunk());
    debug_assert!(found.is_some(), "a decoder reads past its block");
    found.copied().unwrap_or([0; N])
}

/// Returns the f16 at `offset` of a block as f32.
#[inline(always)]
fn f16_at<const BYTES: usize>(block: &[u8; BYTES], offset: usize) -> f32 {
    f16_to_f32(u16_at(block, offset))
}

/// Returns the little-endian u16 at `offset` of a block.
#[inline(always)]
fn u16_at<const BYTES: usize>(block: &[u8; BYTES], offset: usize) -> u16 {
    u16::from_le_bytes(part(block, offset))
}

/// Returns the little-endian u32 at `offset` of a block.
#[inline(always)]
fn u32_at<const BYTES: usize>(block: &[u8; BYTES], offset: usize) -> u32 {
    u32::from_le_bytes(part(block, offset))
}
