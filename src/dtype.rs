//! Element types by meaning, and what NumPy calls them.

use std::fmt;
use std::sync::Arc;

use crate::quant::Codec;

/// Byte order of numbers of more than one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Endian {
    /// Least significant byte first.
    #[default]
    Little,
    /// Most significant byte first.
    Big,
}

/// A type that NumPy has under one of its one-letter kinds.
#[derive(Debug, PartialEq, Eq)]
pub struct Native {
    /// Canonical lower-case name: `f32`, `i64`, `c64`, `bool`.
    pub name: &'static str,
    /// NumPy's kind letter.
    pub kind: char,
    /// Bytes of an element.
    pub bytes: u8,
}

/// Every type that NumPy has and whose name is canonical.
pub static NATIVES: [Native; 14] = [
    Native { name: "f64", kind: 'f', bytes: 8 },
    Native { name: "f32", kind: 'f', bytes: 4 },
    Native { name: "f16", kind: 'f', bytes: 2 },
    Native { name: "i64", kind: 'i', bytes: 8 },
    Native { name: "i32", kind: 'i', bytes: 4 },
    Native { name: "i16", kind: 'i', bytes: 2 },
    Native { name: "i8", kind: 'i', bytes: 1 },
    Native { name: "u64", kind: 'u', bytes: 8 },
    Native { name: "u32", kind: 'u', bytes: 4 },
    Native { name: "u16", kind: 'u', bytes: 2 },
    Native { name: "u8", kind: 'u', bytes: 1 },
    Native { name: "bool", kind: 'b', bytes: 1 },
    Native { name: "c64", kind: 'c', bytes: 8 },
    Native { name: "c128", kind: 'c', bytes: 16 },
];

/// A type that only NumPy has: structured, strings, dates, long doubles, void.
#[derive(Debug, PartialEq, Eq)]
pub struct NumPyOnly {
    /// NumPy's own text for it: `<U12`, or the Python list that describes a structured type.
    pub descr: String,
    /// Bytes of an element.
    pub bytes: u64,
}

/// A quantised type of torch's: stored integers without a value of their own.
#[derive(Debug, PartialEq, Eq)]
pub struct Quantised {
    /// torch's name: `quint8`, `qint8`, `qint32`, `quint4x2`, `quint2x4`.
    pub name: &'static str,
    /// Elements in a byte, or in an element's bytes.
    pub elements: u8,
    /// Bytes that these take.
    pub bytes: u8,
}

/// Every quantised type of torch's.
pub static QUANTISED: [Quantised; 5] = [
    Quantised { name: "quint8", elements: 1, bytes: 1 },
    Quantised { name: "qint8", elements: 1, bytes: 1 },
    Quantised { name: "qint32", elements: 1, bytes: 4 },
    Quantised { name: "quint4x2", elements: 2, bytes: 1 },
    Quantised { name: "quint2x4", elements: 4, bytes: 1 },
];

/// The type of a tensor's elements.
#[derive(Clone, Debug)]
pub enum DType {
    /// A type that NumPy has.
    Native(&'static Native),
    /// A type that is decoded to be used: halves of other makes, eight bits and less, blocks.
    Coded(&'static Codec),
    /// Pairs of f16 that make a complex number; NumPy has none so small.
    C32,
    /// A quantised type of torch's, whose values need a scale that stands beside it.
    Quantised(&'static Quantised),
    /// Strings, shown as a JSON array.
    Strings,
    /// A type that only NumPy has; its bytes are served as they are.
    NumPy(Arc<NumPyOnly>),
    /// A type code that is not known: its bytes are served as they are.
    Unknown(u32),
    /// Python objects, which are listed and never opened.
    Object,
}

impl DType {
    /// The type NumPy has under this canonical name.
    pub fn native(name: &str) -> Option<Self> {
        NATIVES.iter().find(|n| n.name == name).map(Self::Native)
    }

    /// The type with this canonical name, whether NumPy has it or a codec decodes it.
    pub fn by_name(name: &str) -> Option<Self> {
        match name {
            "c32" => Some(Self::C32),
            "string" => Some(Self::Strings),
            _ if QUANTISED.iter().any(|q| q.name == name) => QUANTISED.iter().find(|q| q.name == name).map(Self::Quantised),
            _ => Self::native(name).or_else(|| crate::quant::by_name(name).map(Self::Coded)),
        }
    }

    /// Elements and bytes of one block; `None` where the size of an element is not known.
    pub fn block(&self) -> Option<(u64, u64)> {
        match self {
            Self::Native(native) => Some((1, u64::from(native.bytes))),
            Self::Coded(codec) => Some((codec.elements as u64, codec.bytes as u64)),
            Self::C32 => Some((1, 4)),
            Self::NumPy(numpy) => Some((1, numpy.bytes)),
            Self::Quantised(quantised) => Some((u64::from(quantised.elements), u64::from(quantised.bytes))),
            Self::Unknown(_) | Self::Object | Self::Strings => None,
        }
    }

    /// Whether a block is more than one element, and rows of it are counted in whole blocks (every ggml block type).
    pub fn is_block(&self) -> bool {
        matches!(self, Self::Coded(codec) if codec.ggml.is_some() && codec.elements > 1)
    }

    /// The codec that turns stored bytes into f32, where there is one; f16, f32 and f64 have one as well.
    pub fn codec(&self) -> Option<&'static Codec> {
        match self {
            Self::Coded(codec) => Some(codec),
            Self::Native(native) if native.kind == 'f' => crate::quant::by_name(native.name),
            _ => None,
        }
    }

    /// NumPy's description of the stored type with its byte order, where NumPy has it: `<f4`, `|b1`, `>i8`.
    pub fn descr(&self, endian: Endian) -> Option<String> {
        match self {
            Self::Native(Native { kind, bytes, .. }) => Some(format!("{}{kind}{bytes}", order_mark(u64::from(*bytes), endian))),
            Self::NumPy(numpy) => Some(numpy.descr.clone()),
            _ => None,
        }
    }

    /// The extension of a raw file.
    pub fn extension(&self) -> String {
        match self {
            Self::NumPy(_) => "bin".to_string(),
            Self::Strings => "json".to_string(),
            other => other.to_string(),
        }
    }
}

impl PartialEq for DType {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Native(a), Self::Native(b)) => a.name == b.name,
            (Self::Coded(a), Self::Coded(b)) => a.name == b.name,
            (Self::C32, Self::C32) | (Self::Object, Self::Object) | (Self::Strings, Self::Strings) => true,
            (Self::Quantised(a), Self::Quantised(b)) => a == b,
            (Self::NumPy(a), Self::NumPy(b)) => a == b,
            (Self::Unknown(a), Self::Unknown(b)) => a == b,
            _ => false,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Native(native) => f.write_str(native.name),
            Self::Coded(codec) => f.write_str(codec.name),
            Self::C32 => f.write_str("c32"),
            Self::NumPy(numpy) => f.write_str(&numpy.descr),
            Self::Unknown(code) => write!(f, "unknown_{code}"),
            Self::Quantised(quantised) => f.write_str(quantised.name),
            Self::Strings => f.write_str("string"),
            Self::Object => f.write_str("object"),
        }
    }
}

/// NumPy's mark of byte order: `|` where it does not matter.
pub fn order_mark(bytes: u64, endian: Endian) -> char {
    match endian {
        _ if bytes <= 1 => '|',
        Endian::Little => '<',
        Endian::Big => '>',
    }
}
