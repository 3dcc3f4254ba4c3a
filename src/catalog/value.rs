//! Metadata values, lossless. Long strings and arrays stay in the file and are rendered from there.

use crate::reader::Endian;
use crate::source::Extent;

/// The type of a metadata scalar or of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// Unsigned integer, 8 bits.
    U8,
    /// Signed integer, 8 bits.
    I8,
    /// Unsigned integer, 16 bits.
    U16,
    /// Signed integer, 16 bits.
    I16,
    /// Unsigned integer, 32 bits.
    U32,
    /// Signed integer, 32 bits.
    I32,
    /// Single precision.
    F32,
    /// One byte; anything but 0 is true.
    Bool,
    /// Length and bytes.
    String,
    /// Unsigned integer, 64 bits.
    U64,
    /// Signed integer, 64 bits.
    I64,
    /// Double precision.
    F64,
}

impl Scalar {
    /// Its name in metadata.json.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// Bytes of one value; `None` for a string.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String => None,
        }
    }
}

/// Values back to back in the file.
#[derive(Clone, Debug)]
pub struct StoredArray {
    /// Type of the elements.
    pub element: Scalar,
    /// How many there are.
    pub count: u64,
    /// Where they are.
    pub extent: Extent,
    /// Byte order of numbers and string lengths.
    pub endian: Endian,
    /// Bytes of a string's length field: 4 or 8.
    pub length_bytes: u8,
    /// Whether NUL bytes at the end of a string are no part of it (GGUF version 1).
    pub strip_nul: bool,
}

/// One metadata value.
#[derive(Clone, Debug)]
pub enum Value {
    /// An unsigned integer of this type.
    Unsigned(Scalar, u64),
    /// A signed integer of this type.
    Signed(Scalar, i64),
    /// Single precision.
    F32(f32),
    /// Double precision.
    F64(f64),
    /// True or false.
    Bool(bool),
    /// A short string.
    String(Vec<u8>),
    /// A long string, in the file.
    StoredString(Extent),
    /// An array of scalars, in the file.
    StoredArray(StoredArray),
    /// An array of arrays, each with its own element type.
    Arrays(Vec<Value>),
    /// A value that was JSON in the container, or is best said in JSON; the name is its type.
    Json(&'static str, serde_json::Value),
    /// JSON text that is ready to be shown, in which keys have an order and integers any size; the name is its type.
    Rendered(&'static str, Box<[u8]>),
}

impl Value {
    /// Its type in metadata.json: `u32`, `array<string>`, ...
    pub fn type_name(&self) -> String {
        match self {
            Self::Unsigned(scalar, _) | Self::Signed(scalar, _) => scalar.name().to_string(),
            Self::F32(_) => "f32".to_string(),
            Self::F64(_) => "f64".to_string(),
            Self::Bool(_) => "bool".to_string(),
            Self::String(_) | Self::StoredString(_) => "string".to_string(),
            Self::StoredArray(array) => format!("array<{}>", array.element.name()),
            Self::Arrays(items) => match items.first().map(Self::type_name) {
                Some(first) if items.iter().all(|item| item.type_name() == first) => format!("array<{first}>"),
                _ => "array<array>".to_string(),
            },
            Self::Json(name, _) | Self::Rendered(name, _) => (*name).to_string(),
        }
    }

    /// The value as an unsigned integer, if it is an integer and not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Unsigned(_, value) => Some(*value),
            Self::Signed(_, value) => u64::try_from(*value).ok(),
            _ => None,
        }
    }

    /// The bytes of a short string.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::String(bytes) => Some(bytes),
            _ => None,
        }
    }
}
