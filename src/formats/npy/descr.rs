//! What follows `'descr':` in an npy header, as a type and in NumPy's own spelling.

use std::collections::HashSet;
use std::sync::Arc;

use super::literal::{Value, repr};
use crate::catalog::product;
use crate::dtype::{DType, NATIVES, NumPyOnly};
use crate::error::{Error, Result, quoted};
use crate::limits;
use crate::reader::Endian;

/// The type of an array's elements.
pub(super) struct Described {
    pub(super) dtype: DType,
    pub(super) endian: Endian,
    /// Dimensions to append to the array's shape: those of a sub-array that is the whole type.
    pub(super) dimensions: Vec<u64>,
}

/// Reads the value of `descr`.
pub(super) fn read(value: &Value) -> Result<Described> {
    let Type { element, dimensions, .. } = Type::read(value)?;
    let dtype = match (element.object, element.dtype) {
        (true, _) => DType::Object,
        (false, Some(dtype)) => dtype,
        (false, None) => numpy_only(element.text, element.bytes),
    };
    Ok(Described { dtype, endian: element.endian, dimensions })
}

fn numpy_only(descr: String, bytes: u64) -> DType {
    DType::NumPy(Arc::new(NumPyOnly { descr, bytes }))
}

/// A type without its sub-array dimensions.
struct Element {
    /// The type on its own; `None` for a structure, which `text` describes.
    dtype: Option<DType>,
    /// How it is written inside a structure's list.
    text: String,
    bytes: u64,
    endian: Endian,
    /// Plain bytes without a meaning, which is padding if it has no name.
    void: bool,
    /// Whether a pointer to a Python object is in it.
    object: bool,
}

/// A type as one field of a structure has it.
struct Type {
    element: Element,
    /// The dimensions of the sub-array and those of the sub-arrays inside it.
    dimensions: Vec<u64>,
    /// How many of the dimensions are the outermost sub-array's own.
    outer: usize,
    bytes: u64,
}

impl Type {
    fn read(value: &Value) -> Result<Self> {
        let element = match value {
            Value::Text(text) => simple(text)?,
            Value::List(fields) => structure(fields)?,
            Value::Tuple(pair) => match pair.as_slice() {
                [base, shape] => return Self::read(base)?.of_shape(shape),
                _ => return Err(Error::format(format!("its header has a tuple of {} as a type, expected a type and a shape", pair.len()))),
            },
            _ => return Err(Error::format("its header has a descr that is neither a string nor a list")),
        };
        let bytes = element.bytes;
        Ok(Self { element, dimensions: Vec::new(), outer: 0, bytes })
    }

    /// The sub-array of this type with the shape that is given as a tuple, a list or one number.
    fn of_shape(mut self, shape: &Value) -> Result<Self> {
        let dimensions = match shape {
            Value::Integer(n) => vec![*n],
            Value::Tuple(items) | Value::List(items) => dimensions(items)?,
            _ => return Err(Error::format("its header has a field whose shape is not a tuple")),
        };
        if dimensions.is_empty() {
            return Ok(self);
        }
        if !self.dimensions.is_empty() {
            self.element.text = format!("({}, {})", self.element.text, tuple(self.own()));
        }
        self.bytes = product(&dimensions)
            .and_then(|n| n.checked_mul(self.bytes))
            .filter(|bytes| *bytes <= ITEM_BYTES)
            .ok_or_else(|| Error::format(format!("its header has a sub-array of shape {dimensions:?}, larger than NumPy's 2 GiB for one element")))?;
        self.outer = dimensions.len();
        self.dimensions.splice(..0, dimensions);
        check_rank(self.dimensions.len())?;
        Ok(self)
    }

    fn own(&self) -> &[u64] {
        self.dimensions.get(..self.outer).unwrap_or_default()
    }
}

/// NumPy's limit for one element, in bytes.
const ITEM_BYTES: u64 = i32::MAX as u64;

/// The numbers of a shape.
pub(super) fn dimensions(items: &[Value]) -> Result<Vec<u64>> {
    check_rank(items.len())?;
    items
        .iter()
        .map(|item| match item {
            Value::Integer(n) if *n <= i64::MAX as u64 => Ok(*n),
            Value::Integer(n) => Err(Error::format(format!("its shape has the dimension {n}, larger than 2^63"))),
            Value::Negative => Err(Error::format("its shape has a negative dimension")),
            _ => Err(Error::format("its shape has a dimension that is not an integer")),
        })
        .collect()
}

pub(super) fn check_rank(rank: usize) -> Result<()> {
    if rank > limits::DIMENSIONS {
        return Err(Error::limit(format!("has {rank} dimensions, NumPy's limit is {}", limits::DIMENSIONS)));
    }
    Ok(())
}

/// A Python tuple of integers.
fn tuple(numbers: &[u64]) -> String {
    match numbers {
        [one] => format!("({one},)"),
        many => format!("({})", many.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// A structure: its fields in order. NumPy merges neighbouring bytes of padding, and so does this.
fn structure(fields: &[Value]) -> Result<Element> {
    let malformed = || Error::format("its header has a structure with a field that is not (name, type) or (name, type, shape)");
    let mut parts = Vec::new();
    let mut names = HashSet::new();
    let mut offset: u64 = 0;
    let mut padding: u64 = 0;
    let mut object = false;
    for field in fields {
        let (Value::Tuple(field) | Value::List(field)) = field else { return Err(malformed()) };
        let (name, kind) = match field.as_slice() {
            [name, kind] => (name, Type::read(kind)?),
            [name, kind, shape] => (name, Type::read(kind)?.of_shape(shape)?),
            _ => return Err(malformed()),
        };
        offset =
            offset.checked_add(kind.bytes).filter(|sum| *sum <= ITEM_BYTES).ok_or_else(|| Error::format("its header has a structure of more than 2 GiB"))?;
        object |= kind.element.object;
        let (text, spellings) = match name {
            Value::Text(name) if name.is_empty() && (kind.element.void || !kind.dimensions.is_empty()) => {
                padding = padding.saturating_add(kind.bytes);
                continue;
            }
            Value::Text(name) => (repr(name), vec![name]),
            Value::Tuple(pair) | Value::List(pair) => match pair.as_slice() {
                [Value::Text(title), Value::Text(name)] => (format!("({}, {})", repr(title), repr(name)), vec![name, title]),
                _ => return Err(malformed()),
            },
            _ => return Err(malformed()),
        };
        for name in spellings {
            if !names.insert(name) {
                return Err(Error::format(format!("its header has a structure with two fields named {}", quoted(name.as_bytes()))));
            }
        }
        pad(&mut parts, &mut padding);
        parts.push(match kind.own() {
            [] => format!("({text}, {})", kind.element.text),
            own => format!("({text}, {}, {})", kind.element.text, tuple(own)),
        });
    }
    pad(&mut parts, &mut padding);
    Ok(Element { dtype: None, text: format!("[{}]", parts.join(", ")), bytes: offset, endian: Endian::Little, void: false, object })
}

fn pad(parts: &mut Vec<String>, padding: &mut u64) {
    if *padding > 0 {
        parts.push(format!("('', '|V{}')", std::mem::take(padding)));
    }
}

/// Names and letters for NumPy's types, on 64-bit Linux, and the code each stands for.
const NAMES: &[(&str, &str)] = &[
    ("?", "b1"),
    ("bool", "b1"),
    ("bool_", "b1"),
    ("b", "i1"),
    ("byte", "i1"),
    ("int8", "i1"),
    ("B", "u1"),
    ("ubyte", "u1"),
    ("uint8", "u1"),
    ("h", "i2"),
    ("short", "i2"),
    ("int16", "i2"),
    ("H", "u2"),
    ("ushort", "u2"),
    ("uint16", "u2"),
    ("i", "i4"),
    ("intc", "i4"),
    ("int32", "i4"),
    ("I", "u4"),
    ("uintc", "u4"),
    ("uint32", "u4"),
    ("l", "i8"),
    ("q", "i8"),
    ("p", "i8"),
    ("int", "i8"),
    ("int_", "i8"),
    ("intp", "i8"),
    ("long", "i8"),
    ("longlong", "i8"),
    ("int64", "i8"),
    ("L", "u8"),
    ("Q", "u8"),
    ("P", "u8"),
    ("uint", "u8"),
    ("uintp", "u8"),
    ("ulong", "u8"),
    ("ulonglong", "u8"),
    ("uint64", "u8"),
    ("e", "f2"),
    ("half", "f2"),
    ("float16", "f2"),
    ("f", "f4"),
    ("single", "f4"),
    ("float32", "f4"),
    ("d", "f8"),
    ("double", "f8"),
    ("float", "f8"),
    ("float64", "f8"),
    ("g", "f16"),
    ("longdouble", "f16"),
    ("float128", "f16"),
    ("F", "c8"),
    ("csingle", "c8"),
    ("complex64", "c8"),
    ("D", "c16"),
    ("cdouble", "c16"),
    ("complex", "c16"),
    ("complex128", "c16"),
    ("G", "c32"),
    ("clongdouble", "c32"),
    ("complex256", "c32"),
    ("c", "S1"),
    ("object", "O"),
    ("object_", "O"),
    ("T", "O"), // variable-length strings, which NumPy pickles
];

/// Names that ml_dtypes adds to NumPy: the type's own name where a codec reads it, and the bytes of an element.
///
/// ml_dtypes keeps types of less than a byte in one byte each, the upper bits unused: that is no packed i4, and no i8 either, so that these stay bytes without
/// a meaning, like the types that have no codec.
const ML_DTYPES: [(&str, &str, u64); 18] = [
    ("bfloat16", "bf16", 2),
    ("float8_e4m3fn", "f8_e4m3", 1),
    ("float8_e5m2", "f8_e5m2", 1),
    ("float8_e4m3fnuz", "f8_e4m3fnuz", 1),
    ("float8_e5m2fnuz", "f8_e5m2fnuz", 1),
    ("float8_e8m0fnu", "f8_e8m0", 1),
    ("complex32", "c32", 4),
    ("float8_e4m3", "", 1),
    ("float8_e4m3b11fnuz", "", 1),
    ("float8_e3m4", "", 1),
    ("float6_e2m3fn", "", 1),
    ("float6_e3m2fn", "", 1),
    ("float4_e2m1fn", "", 1),
    ("bcomplex32", "", 4),
    ("int4", "", 1),
    ("uint4", "", 1),
    ("int2", "", 1),
    ("uint2", "", 1),
];

/// A type that is given as a string: `<f4`, `|S12`, `M8[ns]`, `float32`.
fn simple(text: &str) -> Result<Element> {
    let unknown = || Error::unsupported(format!("its type {} is none that NumPy has", quoted(text.as_bytes())));
    if let Some((_, name, bytes)) = ML_DTYPES.iter().find(|(name, ..)| *name == text) {
        return Ok(foreign(name, *bytes, Endian::Little));
    }
    let (mark, code) = match text.split_at_checked(1) {
        Some((mark @ ("<" | ">" | "=" | "|"), code)) => (mark, code),
        _ => ("", text),
    };
    let endian = if mark == ">" { Endian::Big } else { Endian::Little };
    let code = NAMES.iter().find(|(name, _)| *name == code).map_or(code, |(_, code)| code);
    if let Some((letter, unit)) = date(code) {
        let order = order(8, endian);
        let unit = unit.ok_or_else(unknown)?;
        return Ok(described(format!("{order}{letter}8{unit}"), 8, endian));
    }
    let mut letters = code.chars();
    let kind = letters.next().ok_or_else(unknown)?;
    let digits = letters.as_str();
    let size: u64 = match digits {
        "" => 0,
        _ if digits.bytes().all(|b| b.is_ascii_digit()) => digits.parse().map_err(|_| unknown())?,
        _ => return Err(unknown()),
    };
    let native = NATIVES.iter().find(|native| native.kind == kind && u64::from(native.bytes) == size);
    let element = match (kind, size) {
        _ if native.is_some() => {
            let endian = if size == 1 { Endian::Little } else { endian };
            Element { dtype: native.map(DType::Native), ..described(format!("{}{kind}{size}", order(size, endian)), size, endian) }
        }
        // Long doubles: of this or another machine.
        ('f', 12 | 16) | ('c', 24 | 32) => described(format!("{}{kind}{size}", order(size, endian)), size, endian),
        ('S' | 'a', _) => described(format!("|S{size}"), size, Endian::Little),
        ('U', _) => described(format!("{}U{size}", order(4, endian)), size.checked_mul(4).ok_or_else(unknown)?, endian),
        ('V', _) => {
            // The file's own spelling: ml_dtypes writes `<V2` for bfloat16, NumPy `|V2` for two bytes.
            let own = if matches!(mark, "<" | ">") { mark } else { "|" };
            let dtype = numpy_only(format!("{own}V{size}"), size);
            Element { dtype: Some(dtype), void: true, ..described(format!("|V{size}"), size, Endian::Little) }
        }
        ('O', _) => Element { object: true, ..described("|O".to_string(), 8, Endian::Little) },
        // What ml_dtypes writes for float8_e5m2, and for nothing else.
        ('f', 1) => foreign("f8_e5m2", 1, Endian::Little),
        // ml_dtypes' complex32 or bcomplex32.
        ('W', 4) => foreign("", 4, endian),
        _ => return Err(unknown()),
    };
    if element.bytes > ITEM_BYTES { Err(unknown()) } else { Ok(element) }
}

fn order(bytes: u64, endian: Endian) -> char {
    crate::dtype::order_mark(bytes, endian)
}

/// A type that NumPy alone has.
fn described(descr: String, bytes: u64, endian: Endian) -> Element {
    Element { text: format!("'{descr}'"), dtype: Some(numpy_only(descr, bytes)), bytes, endian, void: false, object: false }
}

/// A type that NumPy lacks: the one with this name, or else bytes without a meaning.
fn foreign(name: &str, bytes: u64, endian: Endian) -> Element {
    let void = described(format!("|V{bytes}"), bytes, endian);
    match DType::by_name(name).filter(|dtype| dtype.block() == Some((1, bytes))) {
        Some(dtype) => Element { dtype: Some(dtype), ..void },
        None => void,
    }
}

/// The letter of a date or time span, and its unit as NumPy spells it (`None` if it is not a unit); `None` if the code is neither.
fn date(code: &str) -> Option<(char, Option<String>)> {
    const KINDS: [(&str, char); 4] = [("M8", 'M'), ("m8", 'm'), ("datetime64", 'M'), ("timedelta64", 'm')];
    const UNITS: [&str; 13] = ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"];
    let (rest, letter) = KINDS.iter().find_map(|(kind, letter)| code.strip_prefix(kind).map(|rest| (rest, *letter)))?;
    if rest.is_empty() {
        return Some((letter, Some(String::new())));
    }
    let inner = rest.strip_prefix('[')?.strip_suffix(']')?;
    let unit = inner.trim_start_matches(|c: char| c.is_ascii_digit());
    let count = inner.strip_suffix(unit).unwrap_or_default();
    let unit = if matches!(unit, "μs" | "µs") { "us" } else { unit };
    let text = match (count, count.parse::<u32>()) {
        ("", _) if unit == "generic" => Some(String::new()),
        _ if !UNITS.contains(&unit) => None,
        ("", _) | (_, Ok(1)) => Some(format!("[{unit}]")),
        (_, Ok(1..)) => Some(format!("[{}{unit}]", count.trim_start_matches('0'))),
        _ => None,
    };
    Some((letter, text))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::super::literal::dictionary;
    use super::*;

    fn described(descr: &str) -> Result<(String, u64, Vec<u64>)> {
        let value = dictionary(&format!("{{'descr': {descr}}}")).unwrap().pop().unwrap().1;
        let Described { dtype, endian, dimensions } = read(&value)?;
        let bytes = dtype.block().map_or(0, |(_, bytes)| bytes);
        Ok((dtype.descr(endian).unwrap_or_else(|| dtype.to_string()), bytes, dimensions))
    }

    /// Left what a file says, right what NumPy 2.4 says: `dtype_to_descr(descr_to_dtype(left))` and the size of an element.
    #[test]
    fn simple_types_as_numpy_spells_them() {
        for (input, expected, bytes) in [
            ("'f4'", "<f4", 4),
            ("'=f4'", "<f4", 4),
            ("'|f4'", "<f4", 4),
            ("'<f04'", "<f4", 4),
            ("'float32'", "<f4", 4),
            ("'>f4'", ">f4", 4),
            ("'<i1'", "|i1", 1),
            ("'>u1'", "|u1", 1),
            ("'>b1'", "|b1", 1),
            ("'?'", "|b1", 1),
            ("'b'", "|i1", 1),
            ("'h'", "<i2", 2),
            ("'>h'", ">i2", 2),
            ("'l'", "<i8", 8),
            ("'float'", "<f8", 8),
            ("'complex'", "<c16", 16),
            ("'g'", "<f16", 16),
            ("'<c32'", "<c32", 32),
            ("'S3'", "|S3", 3),
            ("'>S3'", "|S3", 3),
            ("'a3'", "|S3", 3),
            ("'S03'", "|S3", 3),
            ("'S'", "|S0", 0),
            ("'c'", "|S1", 1),
            ("'U3'", "<U3", 12),
            ("'>U3'", ">U3", 12),
            ("'U0'", "<U0", 0),
            ("'V'", "|V0", 0),
            ("'V3'", "|V3", 3),
            ("'=V3'", "|V3", 3),
            ("'M8'", "<M8", 8),
            ("'M8[generic]'", "<M8", 8),
            ("'>M8[s]'", ">M8[s]", 8),
            ("'M8[25s]'", "<M8[25s]", 8),
            ("'M8[025s]'", "<M8[25s]", 8),
            ("'m8[1s]'", "<m8[s]", 8),
            ("'M8[\\u03bcs]'", "<M8[us]", 8),
            ("'datetime64[ns]'", "<M8[ns]", 8),
            ("'timedelta64[D]'", "<m8[D]", 8),
            ("'O'", "object", 0),
            ("'|O4'", "object", 0),
            ("'object'", "object", 0),
        ] {
            assert_eq!(described(input).map_err(|e| e.to_string()), Ok((expected.to_string(), bytes, vec![])), "{input}");
        }
    }

    #[test]
    fn types_that_do_not_exist() {
        for input in [
            "''",
            "'<'",
            "'b2'",
            "'?1'",
            "'<i16'",
            "'<f3'",
            "'< f4'",
            "'f4 '",
            "'f4,i4'",
            "'str8'",
            "'Float32'",
            "'S3000000000'",
            "'U600000000'",
            "'M8[]'",
            "'M8[0s]'",
            "'M8[s'",
            "'M8[B]'",
            "'M8[s/4]'",
            "'M9'",
            "'é'",
            "'S99999999999999999999'",
            "'i4x'",
            "3",
            "True",
            "('f4',)",
            "('f4', 'x')",
            "('f4', (-1,))",
            "('f4', (True,))",
            "('<f8', (2000000000, 2000000000))",
            "['f4']",
            "[('a',)]",
            "[('a', 'f4', (2,), 1)]",
            "[(1, 'f4')]",
            "[('a', 'f4'), ('a', 'f4')]",
            "[(('a', 'a'), 'f4')]",
            "[(('t', 'a'), 'f4'), (('t', 'b'), 'f4')]",
            "[(('a', 'b'), 'f4'), ('a', 'f4')]",
            "[('a', 'V2000000000'), ('b', 'V2000000000')]",
        ] {
            assert!(described(input).is_err(), "{input}");
        }
    }

    #[test]
    fn void_keeps_its_spelling_and_is_not_guessed() {
        for (input, expected) in
            [("'<V2'", "<V2"), ("'|V2'", "|V2"), ("'V1'", "|V1"), ("'>V2'", ">V2"), ("'<W4'", "|V4"), ("'int4'", "|V1"), ("'float6_e2m3fn'", "|V1")]
        {
            assert_eq!(described(input).unwrap().0, expected, "{input}");
        }
    }

    #[test]
    fn ml_dtypes_by_name() {
        for (input, name) in
            [("'bfloat16'", "bf16"), ("'float8_e4m3fn'", "f8_e4m3"), ("'float8_e5m2'", "f8_e5m2"), ("'<f1'", "f8_e5m2"), ("'complex32'", "c32")]
        {
            let value = dictionary(&format!("{{'descr': {input}}}")).unwrap().pop().unwrap().1;
            assert_eq!(read(&value).unwrap().dtype, DType::by_name(name).unwrap(), "{input}");
        }
    }

    /// As above, from NumPy 2.4.
    #[test]
    fn structures_as_numpy_spells_them() {
        for (input, expected, bytes) in [
            ("[('a','f4')]", "[('a', '<f4')]", 4),
            ("[['a','f4']]", "[('a', '<f4')]", 4),
            ("[]", "[]", 0),
            ("[('a',[])]", "[('a', [])]", 0),
            ("[('a','<f4'),('b','<i2',(2,3)),('}','|S3')]", "[('a', '<f4'), ('b', '<i2', (2, 3)), ('}', '|S3')]", 19),
            ("[('a','i2',2)]", "[('a', '<i2', (2,))]", 4),
            ("[('a','i2',(1,))]", "[('a', '<i2', (1,))]", 2),
            ("[('a','i2',())]", "[('a', '<i2')]", 2),
            ("[('a','f4',[2,3])]", "[('a', '<f4', (2, 3))]", 24),
            ("[('a','f4',(0,))]", "[('a', '<f4', (0,))]", 0),
            ("[('a','<i1'),('','|V3'),('b','>i4')]", "[('a', '|i1'), ('', '|V3'), ('b', '>i4')]", 8),
            ("[('','V3'),('','V4'),('a','i1'),('','V2'),('','V2')]", "[('', '|V7'), ('a', '|i1'), ('', '|V4')]", 12),
            ("[('','|V4')]", "[('', '|V4')]", 4),
            ("[('','|V3',(2,)),('a','i1')]", "[('', '|V6'), ('a', '|i1')]", 7),
            ("[('a','f4'),('','f4',(2,))]", "[('a', '<f4'), ('', '|V8')]", 12),
            ("[('a','f4'),('','V0'),('b','i1')]", "[('a', '<f4'), ('b', '|i1')]", 5),
            ("[('','f4')]", "[('', '<f4')]", 4),
            ("[('f1','f4'),('','f4')]", "[('f1', '<f4'), ('', '<f4')]", 8),
            ("[(('title','a'),'<f4')]", "[(('title', 'a'), '<f4')]", 4),
            ("[(('t',''),'V4')]", "[(('t', ''), '|V4')]", 4),
            ("[('a',[('x','f4'),('y','S3')],(2,))]", "[('a', [('x', '<f4'), ('y', '|S3')], (2,))]", 14),
            ("[('a',[('','|V4'),('b','i1'),('','V3')],(2,))]", "[('a', [('', '|V4'), ('b', '|i1'), ('', '|V3')], (2,))]", 16),
            ("[('a',('f4',(2,)))]", "[('a', '<f4', (2,))]", 8),
            ("[('a',('f4',2))]", "[('a', '<f4', (2,))]", 8),
            ("[('a',('f4',(2,)),(3,))]", "[('a', ('<f4', (2,)), (3,))]", 24),
            ("[('a','<V2'),('b','>V2')]", "[('a', '|V2'), ('b', '|V2')]", 4),
            ("[('a','M8[ns]'),('b','m8')]", "[('a', '<M8[ns]'), ('b', '<m8')]", 16),
            ("[('it\\'s','f4'),('a\"b\\'c','f4'),('\\x7f\\u200b','f4')]", "[(\"it's\", '<f4'), ('a\"b\\'c', '<f4'), ('\\x7f\\u200b', '<f4')]", 12),
            ("[('a','O'),('b','f4')]", "object", 0),
            ("[('a',[('b',('O',(2,)))])]", "object", 0),
        ] {
            assert_eq!(described(input).map_err(|e| e.to_string()), Ok((expected.to_string(), bytes, vec![])), "{input}");
        }
    }

    #[test]
    fn a_sub_array_that_is_the_whole_type_goes_to_the_shape() {
        for (input, expected, bytes, dimensions) in [
            ("('<f4',(2,3))", "<f4", 4, vec![2, 3]),
            ("('f4',2)", "<f4", 4, vec![2]),
            ("('f4',())", "<f4", 4, vec![]),
            ("(('<f4',(2,)),(3,))", "<f4", 4, vec![3, 2]),
            ("([('a','f4'),('b','i1')],(2,))", "[('a', '<f4'), ('b', '|i1')]", 5, vec![2]),
        ] {
            assert_eq!(described(input).unwrap(), (expected.to_string(), bytes, dimensions), "{input}");
        }
    }
}
