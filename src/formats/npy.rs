//! NumPy's `.npy`: one array.
//!
//! | bytes | what |
//! |---|---|
//! | 6 | `\x93NUMPY` |
//! | 2 | version: 1.0, 2.0 or 3.0 |
//! | 2, or 4 from version 2.0 | length of the text, little-endian |
//! | length | a Python dictionary with `descr`, `fortran_order` and `shape`: Latin-1, UTF-8 from version 3.0 |
//! | rest | the elements |
//!
//! Definition: <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>. Writers other than NumPy pad and spell the text differently, so that
//! it is read as Python would read it ([`literal`]), and nothing in it is ever evaluated.

mod descr;
mod literal;

use std::io;
use std::sync::Arc;

pub(super) use self::literal::Value as Literal;
use self::literal::Value;
use super::{Format, Head, Opening};
use crate::catalog::{Builder, Order, Region, Spec};
use crate::dtype::DType;
use crate::error::{Error, Result, quoted};
use crate::limits;
use crate::reader::Endian;

pub(super) const FORMAT: Format =
    Format { name: "npy", title: "NumPy .npy 1.0, 2.0, 3.0, every dtype but objects", extensions: &["npy"], sniff, open, part: None };

/// The first bytes of every `.npy`.
pub(super) const MAGIC: &[u8] = b"\x93NUMPY";
/// What is said of an array of Python objects.
pub(super) const OBJECTS: &str = "holds Python objects (a pickle), which are never opened";
/// How many first bytes are fetched at once: nearly every header ends within them.
const FIRST: u64 = 512;

/// What a header says.
#[derive(Debug, Clone)]
pub(super) struct Header {
    pub(super) dtype: DType,
    pub(super) endian: Endian,
    pub(super) order: Order,
    pub(super) shape: Vec<u64>,
    /// Where the elements start.
    pub(super) data_offset: u64,
}

fn sniff(head: &Head<'_>) -> bool {
    head.bytes.starts_with(MAGIC)
}

fn open(opening: &mut Opening, builder: &mut Builder) -> Result<()> {
    let main = opening.main();
    let header = read_header(main.len(), |out| main.read_at(0, out))?;
    let source = builder.source(Arc::clone(main));
    builder.endian(header.endian);
    builder.region(Region { source, start: header.data_offset, end: main.len(), slack: 0 });
    let name = opening.stem();
    let objects = matches!(header.dtype, DType::Object);
    if objects {
        builder.tensor_issue(source, name, OBJECTS, "listed without files");
    }
    let offset = (!objects).then_some(header.data_offset);
    let (order, endian) = (header.order, header.endian);
    builder.tensor(&Spec { order, endian, ..Spec::new(name, header.dtype, &header.shape, source, offset) })
}

/// The type that a literal describes as `descr` does in a header: type, byte order, and the dimensions of a sub-array.
pub(super) fn described(literal: &Literal) -> Result<(DType, Endian, Vec<u64>)> {
    let descr::Described { dtype, endian, dimensions } = descr::read(literal)?;
    Ok((dtype, endian, dimensions))
}

/// Reads the header of an array in a file (or member) of `len` bytes; `read` fills a buffer with the file's first bytes.
pub(super) fn read_header(len: u64, read: impl FnMut(&mut [u8]) -> io::Result<()>) -> Result<Header> {
    read_next_header(len, &mut None, read)
}

/// A header and its bytes, for the next one: in an archive of many arrays most have the shape of the one before.
pub(super) type Before = Option<(Vec<u8>, Header)>;

/// The same after another one.
pub(super) fn read_next_header(len: u64, before: &mut Before, mut read: impl FnMut(&mut [u8]) -> io::Result<()>) -> Result<Header> {
    let failed = |e| Error::io("cannot read its header", e);
    let mut head = vec![0; usize::try_from(len.min(FIRST)).unwrap_or(0)];
    read(&mut head).map_err(failed)?;
    let preamble = Preamble::read(&head, len)?;
    if preamble.end > head.len() {
        head.resize(preamble.end, 0);
        read(&mut head).map_err(failed)?;
    }
    head.truncate(preamble.end);
    match before {
        Some((bytes, header)) if *bytes == head => Ok(header.clone()),
        _ => {
            let header = preamble.parse(&head)?;
            *before = Some((head, header.clone()));
            Ok(header)
        }
    }
}

/// Version and length of a header's text.
struct Preamble {
    utf8: bool,
    start: usize,
    end: usize,
}

impl Preamble {
    /// Reads the preamble of a file of `len` bytes from its first bytes.
    fn read(head: &[u8], len: u64) -> Result<Self> {
        let short = || Error::format(format!("ends within its npy header: it has only {len} bytes (a download that was cut short?)"));
        let rest = head.strip_prefix(MAGIC).ok_or_else(|| Error::format("does not start as an npy file does"))?;
        let (version, rest) = rest.split_first_chunk::<2>().ok_or_else(short)?;
        let (text, start) = match version {
            [1, 0] => (rest.first_chunk().map(|bytes| u64::from(u16::from_le_bytes(*bytes))), 10),
            [2 | 3, 0] => (rest.first_chunk().map(|bytes| u64::from(u32::from_le_bytes(*bytes))), 12),
            [major, minor] => return Err(Error::unsupported(format!("is npy version {major}.{minor}, expected 1.0, 2.0 or 3.0"))),
        };
        let text = text.ok_or_else(short)?;
        let left = len.saturating_sub(start);
        if text > left {
            return Err(Error::format(format!(
                "its npy header needs {text} bytes, {left} are left (a download that was cut short, or a damaged length field?)"
            )));
        }
        if text > limits::NPY_HEADER_BYTES {
            return Err(Error::limit(format!("its npy header has {text} bytes, the limit is {}", limits::NPY_HEADER_BYTES)));
        }
        let position = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        Ok(Self { utf8: version == &[3, 0], start: position(start), end: position(start.saturating_add(text)) })
    }

    /// Reads the text, which `head` holds whole.
    fn parse(&self, head: &[u8]) -> Result<Header> {
        let bytes = head.get(self.start..self.end).unwrap_or_default();
        let text = match self.utf8 {
            true => String::from_utf8(bytes.to_vec()).map_err(|_| Error::format("its npy header is not UTF-8, as version 3.0 has to be"))?,
            // Latin-1, which is UTF-8 as long as it is ASCII.
            false => match std::str::from_utf8(bytes) {
                Ok(text) if text.is_ascii() => text.to_string(),
                _ => bytes.iter().copied().map(char::from).collect(),
            },
        };
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        for (key, value) in literal::dictionary(&text)? {
            match key.as_str() {
                "descr" => descr = Some(value),
                "fortran_order" => fortran = Some(value),
                "shape" => shape = Some(value),
                other => {
                    return Err(Error::format(format!("its npy header has the key {}, expected descr, fortran_order and shape", quoted(other.as_bytes()))));
                }
            }
        }
        let missing = |key: &str| Error::format(format!("its npy header lacks the key {key}"));
        let descr::Described { dtype, endian, dimensions } = descr::read(&descr.ok_or_else(|| missing("descr"))?)?;
        let order = match fortran.ok_or_else(|| missing("fortran_order"))? {
            Value::Bool(false) => Order::C,
            Value::Bool(true) => Order::F,
            _ => return Err(Error::format("its npy header has a fortran_order that is neither True nor False")),
        };
        let mut shape = match shape.ok_or_else(|| missing("shape"))? {
            Value::Tuple(items) => descr::dimensions(&items)?,
            _ => return Err(Error::format("its npy header has a shape that is not a tuple")),
        };
        let order = if shape.iter().filter(|d| **d > 1).count() < 2 { Order::C } else { order };
        if order == Order::F && dimensions.iter().any(|d| *d > 1) {
            return Err(Error::unsupported("is an array in Fortran order whose elements are arrays in C order, which has no order of its own"));
        }
        shape.extend(dimensions);
        descr::check_rank(shape.len())?;
        Ok(Header { dtype, endian, order, shape, data_offset: self.end as u64 })
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use super::*;
    use crate::catalog::Catalog;
    use crate::formats::open_container;
    use crate::source::Source;

    fn npy(version: u8, text: &[u8], data: usize) -> Vec<u8> {
        let mut file = [MAGIC, &[version, 0]].concat();
        match version {
            1 => file.extend(u16::try_from(text.len()).unwrap().to_le_bytes()),
            _ => file.extend(u32::try_from(text.len()).unwrap().to_le_bytes()),
        }
        file.extend(text);
        file.extend(vec![0; data]);
        file
    }

    fn header_of(file: &[u8]) -> Result<Header> {
        read_header(file.len() as u64, |out| {
            out.copy_from_slice(&file[..out.len()]);
            Ok(())
        })
    }

    fn open_bytes(file: Vec<u8>) -> Result<Catalog> {
        open_container(&Source::from_bytes("folder/the.array.npy", file))
    }

    fn with_shape(shape: &str) -> Result<Header> {
        header_of(&npy(1, format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n").as_bytes(), 0))
    }

    #[test]
    fn one_array() {
        let file = npy(1, b"{'descr': '>i4', 'fortran_order': True, 'shape': (2, 3), }          \n", 24);
        let catalog = open_bytes(file).unwrap();
        let tensor = catalog.tensor(0).unwrap();
        assert_eq!((tensor.name(), tensor.shape(), tensor.order(), tensor.endian()), (b"the.array".as_slice(), [2, 3].as_slice(), Order::F, Endian::Big));
        assert_eq!(tensor.dtype().to_string(), "i32");
        assert_eq!((tensor.stored().unwrap().offset(), tensor.stored().unwrap().len()), (79, 24));
        assert!(catalog.issues().is_empty());
    }

    #[test]
    fn spellings_of_other_writers() {
        for (version, text) in [
            (1, "{'descr': '<f4', 'fortran_order': False, 'shape': (10, 4, ), }"),
            (1, "{'descr': '<f4', 'fortran_order': False, 'shape': (10,4,), }"),
            (1, "{'descr': '<f4', 'fortran_order': False, 'shape': (10L, 4L)}\n"),
            (1, "{\"shape\":(10,4),\"fortran_order\":False,\"descr\":\"f4\"}"),
            (2, "\n {'descr': u'=f4', 'fortran_order': False, 'shape': (0xa, 4)}\t\t# written by hand\n"),
            (3, "{'descr': '<' 'f4', 'fortran_order': True, 'fortran_order': False, 'shape': (10, 4)}"),
            (3, "{'descr': 'float32', 'fortran_order': False, 'shape': (10, (4))}"),
            (1, "{'descr': ('<f4', (4,)), 'fortran_order': True, 'shape': (10,)}"),
        ] {
            let header = header_of(&npy(version, text.as_bytes(), 160)).unwrap();
            assert_eq!((header.shape, header.order, header.dtype.to_string()), (vec![10, 4], Order::C, "f32".to_string()), "{text}");
            assert_eq!(header.data_offset, text.len() as u64 + if version == 1 { 10 } else { 12 });
        }
    }

    #[test]
    fn shapes() {
        assert!(with_shape("()").unwrap().shape.is_empty());
        assert_eq!(with_shape("(0, 9223372036854775807, 16)").unwrap().shape, [0, i64::MAX as u64, 16]);
        assert_eq!(with_shape(&format!("({})", "1,".repeat(64))).unwrap().shape.len(), 64);
        let too_many = format!("({})", "1,".repeat(65));
        for refused in ["2", "(2)", "[2]", "(-1,)", "(True,)", "('2',)", "(2.0,)", "((2,),)", "(1+1,)", "(9223372036854775808,)", "None", &too_many] {
            assert!(with_shape(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn headers_that_are_refused() {
        for text in [
            "{'descr': '<f4', 'fortran_order': False}",
            "{'descr': '<f4', 'shape': (2,)}",
            "{'fortran_order': False, 'shape': (2,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': 1}",
            "{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}",
            "{'descr': '<f4', 'fortran_order': None, 'shape': (2,)}",
            "{b'descr': '<f4', 'fortran_order': False, 'shape': (2,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}\0\0",
            "__import__('os').system('true')",
            "{'descr': ('<f4', (2,)), 'fortran_order': True, 'shape': (2, 3)}",
            "",
        ] {
            assert!(header_of(&npy(1, text.as_bytes(), 24)).is_err(), "{text}");
        }
        assert!(header_of(&npy(3, b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} # \xff", 8)).is_err());
        assert!(header_of(&npy(4, b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", 8)).is_err());
    }

    #[test]
    fn a_long_header_is_read_and_a_longer_one_is_refused() {
        let fields: Vec<String> = (0..4000).map(|i| format!("('field{i}', '<f4')")).collect();
        let descr = format!("[{}]", fields.join(", "));
        let header = header_of(&npy(2, format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (1,)}}").as_bytes(), 0)).unwrap();
        assert_eq!((header.dtype.descr(Endian::Little).unwrap(), header.dtype.block()), (descr, Some((1, 16_000))));
        let long = format!("{}{{}}", " ".repeat(1 << 20));
        assert_eq!(header_of(&npy(2, long.as_bytes(), 0)).unwrap_err().blame(), crate::error::Blame::Limit);
    }

    #[test]
    fn every_cut_is_an_error() {
        let file = npy(2, b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n", 8);
        for len in 0..file.len() {
            assert!(open_bytes(file[..len].to_vec()).is_err(), "{len}");
        }
        let mut lies = file;
        lies[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(header_of(&lies).unwrap_err().to_string().contains("needs 4294967295 bytes"));
    }

    #[test]
    fn trailing_bytes_are_an_issue() {
        let catalog = open_bytes(npy(1, b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n", 11)).unwrap();
        assert_eq!((catalog.len(), catalog.issues().len()), (1, 1));
        assert!(catalog.issues()[0].what.starts_with("3 bytes"), "{:?}", catalog.issues());
    }

    #[test]
    fn objects_are_never_opened() {
        let catalog = open_bytes(npy(1, b"{'descr': '|O', 'fortran_order': False, 'shape': (2,), }\n", 50)).unwrap();
        let tensor = catalog.tensor(0).unwrap();
        assert_eq!((tensor.dtype(), tensor.shape(), tensor.stored()), (&DType::Object, [2].as_slice(), None));
        assert_eq!((catalog.issues().len(), catalog.issues()[0].what.as_str()), (1, OBJECTS));
    }

    #[test]
    fn elements_without_bytes() {
        let catalog = open_bytes(npy(1, b"{'descr': '|V0', 'fortran_order': False, 'shape': (5,), }\n", 0)).unwrap();
        assert_eq!(catalog.tensor(0).unwrap().stored().unwrap().len(), 0);
        assert!(catalog.issues().is_empty());
    }
}
