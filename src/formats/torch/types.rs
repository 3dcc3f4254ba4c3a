//! torch's element types: names, storage classes, sizes.

use crate::dtype::DType;

/// One element type.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Type {
    /// torch's name, without `torch.`.
    pub(super) torch: &'static str,
    /// The canonical name here.
    name: &'static str,
    /// Bytes of an element as torch counts them.
    pub(super) bytes: u64,
    /// The class of its storages, without `Storage`; empty where torch has none.
    storage: &'static str,
    /// Its number in a `.pt2` archive; 0 where it has none there.
    code: u64,
}

macro_rules! types {
    ($($torch:literal $name:literal $bytes:literal $storage:literal $code:literal;)*) => {
        static TYPES: &[Type] = &[$(Type { torch: $torch, name: $name, bytes: $bytes, storage: $storage, code: $code }),*];
    };
}

types! {
    "float64" "f64" 8 "Double" 8;
    "float32" "f32" 4 "Float" 7;
    "float16" "f16" 2 "Half" 6;
    "bfloat16" "bf16" 2 "BFloat16" 13;
    "int64" "i64" 8 "Long" 5;
    "int32" "i32" 4 "Int" 4;
    "int16" "i16" 2 "Short" 3;
    "int8" "i8" 1 "Char" 2;
    "uint8" "u8" 1 "Byte" 1;
    "uint16" "u16" 2 "" 28;
    "uint32" "u32" 4 "" 34;
    "uint64" "u64" 8 "" 35;
    "bool" "bool" 1 "Bool" 12;
    "complex32" "c32" 4 "ComplexHalf" 9;
    "complex64" "c64" 8 "ComplexFloat" 10;
    "complex128" "c128" 16 "ComplexDouble" 11;
    "float8_e4m3fn" "f8_e4m3" 1 "" 29;
    "float8_e5m2" "f8_e5m2" 1 "" 30;
    "float8_e4m3fnuz" "f8_e4m3fnuz" 1 "" 31;
    "float8_e5m2fnuz" "f8_e5m2fnuz" 1 "" 32;
    "float8_e8m0fnu" "f8_e8m0" 1 "" 33;
    "float4_e2m1fn_x2" "f4" 1 "" 0;
    "qint8" "qint8" 1 "QInt8" 0;
    "quint8" "quint8" 1 "QUInt8" 0;
    "qint32" "qint32" 4 "QInt32" 0;
    "quint4x2" "quint4x2" 1 "QUInt4x2" 0;
    "quint2x4" "quint2x4" 1 "QUInt2x4" 0;
    "bits8" "u8" 1 "" 0;
    "bits1x8" "u8" 1 "" 0;
    "bits2x4" "u8" 1 "" 0;
    "bits4x2" "u8" 1 "" 0;
    "bits16" "u16" 2 "" 0;
}

impl Type {
    /// The type of this name: `float32`, or another of torch's names for it.
    pub(super) fn by_name(name: &str) -> Option<&'static Self> {
        let name = match name {
            "double" => "float64",
            "float" => "float32",
            "half" => "float16",
            "long" => "int64",
            "int" => "int32",
            "short" => "int16",
            "chalf" => "complex32",
            "cfloat" => "complex64",
            "cdouble" => "complex128",
            other => other,
        };
        TYPES.iter().find(|t| t.torch == name)
    }

    /// The type that storages of a class hold; `Some(None)` for one that holds bytes of any type.
    pub(super) fn of_storage(class: &str) -> Option<Option<&'static Self>> {
        let stem = class.strip_suffix("Storage")?;
        match stem {
            "Untyped" | "Typed" => Some(None),
            "" => None,
            _ => TYPES.iter().find(|t| t.storage == stem).map(Some),
        }
    }

    /// The type with this number in a `.pt2` archive.
    pub(super) fn by_code(code: u64) -> Option<&'static Self> {
        TYPES.iter().find(|t| t.code == code && code != 0)
    }

    /// The type as the catalogue has it.
    pub(super) fn dtype(&self) -> DType {
        DType::by_name(self.name).unwrap_or(DType::Unknown(0))
    }

    /// How many elements one of torch's elements is for everybody else.
    pub(super) fn packs(&self) -> u64 {
        if self.name == "f4" { 2 } else { 1 }
    }

    /// Elements in a byte of a quantised type that packs them over the flat index.
    pub(super) fn in_byte(&self) -> u64 {
        match self.name {
            "quint4x2" => 2,
            "quint2x4" => 4,
            _ => 1,
        }
    }

    /// Bytes of each part of a complex number; `None` for any other type.
    pub(super) fn complex_part(&self) -> Option<usize> {
        match self.name {
            "c32" => Some(2),
            "c64" => Some(4),
            "c128" => Some(8),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_known_under_every_name() {
        for t in TYPES {
            assert!(!matches!(t.dtype(), DType::Unknown(_)), "{}", t.torch);
            assert_eq!(Type::by_name(t.torch), Some(t));
            if !t.storage.is_empty() {
                assert_eq!(Type::of_storage(&format!("{}Storage", t.storage)), Some(Some(t)));
            }
            if t.code != 0 {
                assert_eq!(Type::by_code(t.code), Some(t));
            }
            let block = t.dtype().block().unwrap_or_default();
            assert_eq!(block.1, t.bytes, "{}", t.torch);
            assert_eq!(block.0, t.packs().max(t.in_byte()), "{}", t.torch);
        }
        assert_eq!(Type::of_storage("UntypedStorage"), Some(None));
        assert_eq!(Type::of_storage("EvilStorage"), None);
        assert_eq!(Type::of_storage("system"), None);
        assert_eq!(Type::by_name("half"), Type::by_name("float16"));
    }
}
