//! TensorProto: what a tensor is and where its elements are.
//!
//! | field | meaning |
//! |---|---|
//! | 1 dims, 2 data_type, 8 name | |
//! | 9 raw_data | the elements, little-endian, in C order; 4 and 2 bits packed from the low end; 6 bits as a stream, four elements in three bytes |
//! | 4 float_data, 10 double_data | f32 and f64 and complex numbers of them |
//! | 5 int32_data | every type of up to 32 bits but u32: one number an element; of 4 and 2 bits one number a packed byte |
//! | 7 int64_data, 11 uint64_data, 6 string_data | i64; u32 and u64; strings |
//! | 13 external_data, 14 data_location | a range of a file beside the model |

use super::typed::{Coding, Piece, Pieces, Put};
use super::wire::{Fault, Field, Run, Value, Walk, Wire};
use crate::dtype::DType;
use crate::limits;

/// A TensorProto as far as it is understood.
#[derive(Debug, Default)]
pub(super) struct TensorProto {
    pub(super) name: Vec<u8>,
    pub(super) dims: Vec<i64>,
    pub(super) data_type: u64,
    pub(super) raw: Option<Run>,
    pub(super) typed: Pieces,
    pub(super) external: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) is_external: bool,
}

/// Most entries of one tensor's external_data; six are known.
const ENTRIES: usize = 64;

impl TensorProto {
    /// Reads a message into this one: a message that occurs twice is merged, as protobuf does.
    pub(super) fn read(&mut self, wire: &mut Wire<'_>, run: Run) -> Walk<()> {
        let mut cursor = wire.message(run);
        while let Some(Field { number, whole, value }) = wire.next(&mut cursor)? {
            match (number, value) {
                (1, Value::Varint(dimension)) => self.dimension(dimension),
                (1, Value::Bytes(run)) => wire.packed(run, |dimension| self.dimension(dimension))?,
                (2, Value::Varint(code)) => self.data_type = code,
                (8, Value::Bytes(run)) => self.name = wire.bytes(run, limits::NAME_BYTES)?,
                (9, Value::Bytes(run)) => self.raw = Some(run),
                (4 | 5 | 7 | 10 | 11, Value::Bytes(run)) => self.typed.add(number, true, run),
                (5 | 7 | 11, Value::Varint(_)) => self.typed.add(number, false, whole),
                (4, Value::Fixed(Run { len: 4, .. })) | (10, Value::Fixed(Run { len: 8, .. })) | (6, Value::Bytes(_)) => {
                    self.typed.add(number, false, whole);
                }
                (13, Value::Bytes(run)) => {
                    let entry = entry(wire, run)?;
                    if self.external.len() < ENTRIES {
                        self.external.push(entry);
                    }
                }
                (14, Value::Varint(location)) => self.is_external = location == 1,
                _ => {}
            }
        }
        if self.dims.len() > limits::DIMENSIONS {
            return Err(Fault::Damaged { at: run.start, what: "a tensor has more than 64 dimensions" });
        }
        Ok(())
    }

    fn dimension(&mut self, value: u64) {
        // One more than the limit tells that there are too many.
        if self.dims.len() <= limits::DIMENSIONS {
            self.dims.push(value.cast_signed());
        }
    }

    /// The shape, or the dimension that is none.
    pub(super) fn shape(&self) -> Result<Vec<u64>, i64> {
        self.dims.iter().map(|d| u64::try_from(*d).map_err(|_| *d)).collect()
    }
}

/// A StringStringEntryProto: a key and a value.
pub(super) fn entry(wire: &mut Wire<'_>, run: Run) -> Walk<(Vec<u8>, Vec<u8>)> {
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let mut cursor = wire.message(run);
    while let Some(field) = wire.next(&mut cursor)? {
        match (field.number, field.value) {
            (1, Value::Bytes(run)) => key = wire.bytes(run, limits::NAME_BYTES)?,
            (2, Value::Bytes(run)) => value = wire.bytes(run, limits::NAME_BYTES)?,
            _ => {}
        }
    }
    Ok((key, value))
}

/// A data_type of ONNX's.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    code: u64,
    /// Our name.
    pub(super) name: &'static str,
    /// The number of its typed field, and how its numbers stand there.
    pub(super) field: u32,
    pub(super) coding: Coding,
    pub(super) put: Put,
    /// Numbers and elements of the smallest whole group in the typed field.
    pub(super) numbers: u64,
    pub(super) elements: u64,
}

const fn kind(code: u64, name: &'static str, field: u32, coding: Coding, put: Put, numbers: u64, elements: u64) -> Kind {
    Kind { code, name, field, coding, put, numbers, elements }
}

/// Every data_type but UNDEFINED (0) and STRING (8).
static KINDS: [Kind; 27] = [
    kind(1, "f32", 4, Coding::Fixed(4), Put::Low(4), 1, 1),
    kind(2, "u8", 5, Coding::Varint, Put::Low(1), 1, 1),
    kind(3, "i8", 5, Coding::Varint, Put::Low(1), 1, 1),
    kind(4, "u16", 5, Coding::Varint, Put::Low(2), 1, 1),
    kind(5, "i16", 5, Coding::Varint, Put::Low(2), 1, 1),
    kind(6, "i32", 5, Coding::Varint, Put::Low(4), 1, 1),
    kind(7, "i64", 7, Coding::Varint, Put::Low(8), 1, 1),
    kind(9, "bool", 5, Coding::Varint, Put::Bool, 1, 1),
    kind(10, "f16", 5, Coding::Varint, Put::Low(2), 1, 1),
    kind(11, "f64", 10, Coding::Fixed(8), Put::Low(8), 1, 1),
    kind(12, "u32", 11, Coding::Varint, Put::Low(4), 1, 1),
    kind(13, "u64", 11, Coding::Varint, Put::Low(8), 1, 1),
    kind(14, "c64", 4, Coding::Fixed(4), Put::Low(4), 2, 1),
    kind(15, "c128", 10, Coding::Fixed(8), Put::Low(8), 2, 1),
    kind(16, "bf16", 5, Coding::Varint, Put::Low(2), 1, 1),
    kind(17, "f8_e4m3", 5, Coding::Varint, Put::Low(1), 1, 1),
    kind(18, "f8_e4m3fnuz", 5, Coding::Varint, Put::Low(1), 1, 1),
    kind(19, "f8_e5m2", 5, Coding::Varint, Put::Low(1), 1, 1),
    kind(20, "f8_e5m2fnuz", 5, Coding::Varint, Put::Low(1), 1, 1),
    kind(21, "u4", 5, Coding::Varint, Put::Low(1), 1, 2),
    kind(22, "i4", 5, Coding::Varint, Put::Low(1), 1, 2),
    kind(23, "f4", 5, Coding::Varint, Put::Low(1), 1, 2),
    kind(24, "f8_e8m0", 5, Coding::Varint, Put::Low(1), 1, 1),
    kind(25, "u2", 5, Coding::Varint, Put::Low(1), 1, 4),
    kind(26, "i2", 5, Coding::Varint, Put::Low(1), 1, 4),
    kind(27, "f6_e2m3", 5, Coding::Varint, Put::Six, 1, 1),
    kind(28, "f6_e3m2", 5, Coding::Varint, Put::Six, 1, 1),
];

/// The data_type of strings.
pub(super) const STRING: u64 = 8;
/// The data_type of 64-bit integers.
pub(super) const INT64: u64 = 7;

impl Kind {
    pub(super) fn of(code: u64) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.code == code)
    }

    pub(super) fn dtype(&self) -> DType {
        DType::by_name(self.name).unwrap_or(DType::Unknown(0))
    }

    /// How many numbers the typed field has for so many elements.
    pub(super) fn numbers(&self, elements: u64) -> Option<u64> {
        elements.div_ceil(self.elements.max(1)).checked_mul(self.numbers)
    }

    /// Where the elements stand in the file as they are, if they do: one packed run of numbers of a fixed width.
    pub(super) fn in_place(&self, pieces: &[&Piece]) -> Option<Run> {
        match (self.coding, pieces) {
            (Coding::Fixed(_), [Piece { packed: true, run, .. }]) => Some(*run),
            _ => None,
        }
    }
}

/// The type behind a data_type.
pub(super) fn dtype(code: u64) -> DType {
    match Kind::of(code) {
        Some(kind) => kind.dtype(),
        None if code == STRING => DType::Strings,
        None => DType::Unknown(u32::try_from(code).unwrap_or(u32::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_a_name_and_a_size() {
        for kind in &KINDS {
            let block = kind.dtype().block();
            assert!(block.is_some(), "{}", kind.name);
            assert!(!matches!(kind.dtype(), DType::Unknown(_)), "{}", kind.name);
        }
        assert!(matches!(dtype(0), DType::Unknown(0)));
        assert!(matches!(dtype(99), DType::Unknown(99)));
        assert_eq!(dtype(8), DType::Strings);
    }
}
