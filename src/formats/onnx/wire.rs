//! The protobuf wire format, walked in place: numbers, and where runs of bytes lie.
//!
//! A message is a sequence of fields, each a tag (field number and wire type) and a value: a varint, 4 or 8 bytes, or a length and bytes. Nothing that a
//! length announces is fetched here. Definition: <https://protobuf.dev/programming-guides/encoding/>.

use std::io;

use crate::error::Error;
use crate::reader::{Reader, Stop};
use crate::source::Source;

/// Bytes fetched at a time: a walk looks at little between two payloads.
const WINDOW_BYTES: u64 = 16 << 10;
/// Messages within messages that are followed: protobuf's own limit.
pub(super) const DEPTH: u32 = 100;
/// Groups within groups that are passed over.
const GROUPS: usize = 100;

/// A run of bytes of the file. Of a file that is cut short it may lead past the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) len: u64,
}

impl Run {
    pub(super) fn end(self) -> u64 {
        self.start.saturating_add(self.len)
    }
}

/// Where a walk stands in a message.
#[derive(Clone, Copy)]
pub(super) struct Cursor {
    position: u64,
    end: u64,
}

/// One field of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) number: u32,
    /// The field with its tag.
    pub(super) whole: Run,
    pub(super) value: Value,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Varint(u64),
    /// 4 or 8 bytes.
    Fixed(Run),
    Bytes(Run),
}

/// Why a walk ended early.
#[derive(Debug)]
pub(super) enum Fault {
    /// The bytes there are no message.
    Damaged { at: u64, what: &'static str },
    /// The whole container is given up.
    Stop(Error),
}

impl From<Error> for Fault {
    fn from(e: Error) -> Self {
        Self::Stop(e)
    }
}

impl From<io::Error> for Fault {
    fn from(e: io::Error) -> Self {
        Self::Stop(Error::io("cannot read its structure", e))
    }
}

pub(super) type Walk<T> = Result<T, Fault>;

/// Reads messages of one file.
pub(super) struct Wire<'a> {
    reader: Reader<'a>,
    file_len: u64,
    /// Where the file should at least end, if it was found to end within a field.
    pub(super) cut: Option<u64>,
}

impl<'a> Wire<'a> {
    pub(super) fn new(source: &'a Source) -> Self {
        Self { reader: Reader::new(source, 0, source.len()).with_window(WINDOW_BYTES), file_len: source.len(), cut: None }
    }

    /// The start of a message.
    pub(super) fn message(&self, run: Run) -> Cursor {
        Cursor { position: run.start, end: run.end().min(self.file_len) }
    }

    /// The next field, or `None` at the end of the message. Where the file itself ends within a field, a run of bytes is given as announced and the message ends.
    pub(super) fn next(&mut self, cursor: &mut Cursor) -> Walk<Option<Field>> {
        while cursor.position < cursor.end {
            match self.field(cursor) {
                Ok(Some(field)) => return Ok(Some(field)),
                Ok(None) => {} // a group
                Err(Fault::Damaged { what: PAST_END, .. }) if cursor.end >= self.file_len => {
                    self.note_cut(self.file_len.saturating_add(1));
                    cursor.position = cursor.end;
                }
                Err(fault) => return Err(fault),
            }
        }
        Ok(None)
    }

    fn note_cut(&mut self, end: u64) {
        self.cut = Some(self.cut.map_or(end, |before| before.max(end)));
    }

    fn field(&mut self, cursor: &mut Cursor) -> Walk<Option<Field>> {
        let start = cursor.position;
        self.reader.seek(start);
        let (number, kind) = self.tag(cursor.end)?;
        let value = match kind {
            0 => Value::Varint(self.varint(cursor.end)?),
            1 => Value::Fixed(self.run(8, cursor.end)?),
            5 => Value::Fixed(self.run(4, cursor.end)?),
            2 => {
                let len = self.varint(cursor.end)?;
                Value::Bytes(self.run(len, cursor.end)?)
            }
            3 => {
                self.skip_group(number, cursor.end)?;
                cursor.position = self.reader.position();
                return Ok(None);
            }
            _ => return Err(Fault::Damaged { at: start, what: "a field has no wire type that there is" }),
        };
        let end = match value {
            Value::Varint(_) => self.reader.position(),
            Value::Fixed(run) | Value::Bytes(run) => run.end(),
        };
        cursor.position = end.min(cursor.end);
        Ok(Some(Field { number, whole: Run { start, len: end.saturating_sub(start) }, value }))
    }

    /// A run of bytes from here on.
    fn run(&mut self, len: u64, end: u64) -> Walk<Run> {
        let start = self.reader.position();
        let run = Run { start, len };
        if len > end.saturating_sub(start) {
            if end < self.file_len {
                return Err(Fault::Damaged { at: start, what: "a length leads past the end of the message that holds it" });
            }
            self.note_cut(run.end());
        }
        Ok(run)
    }

    fn tag(&mut self, end: u64) -> Walk<(u32, u64)> {
        let at = self.reader.position();
        let tag = self.varint(end)?;
        match u32::try_from(tag >> 3) {
            Ok(number) if (1..1 << 29).contains(&number) => Ok((number, tag & 7)),
            _ => Err(Fault::Damaged { at, what: "a field has a number that there is not" }),
        }
    }

    fn varint(&mut self, end: u64) -> Walk<u64> {
        let at = self.reader.position();
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            if self.reader.position() >= end {
                return Err(Fault::Damaged { at, what: PAST_END });
            }
            let byte = self.reader.u8().map_err(|stop| match stop {
                Stop::Io(e) => e.into(),
                Stop::End { .. } => Fault::Damaged { at, what: PAST_END },
            })?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Fault::Damaged { at, what: "a number has more than 10 bytes" })
    }

    /// Passes over a group, an old form of nested message that ONNX does not use.
    fn skip_group(&mut self, number: u32, end: u64) -> Walk<()> {
        let mut open = vec![number];
        while let Some(innermost) = open.last().copied() {
            let at = self.reader.position();
            let (number, kind) = self.tag(end)?;
            let len = match kind {
                0 => {
                    self.varint(end)?;
                    0
                }
                1 => 8,
                2 => self.varint(end)?,
                5 => 4,
                3 if open.len() < GROUPS => {
                    open.push(number);
                    0
                }
                4 if number == innermost => {
                    open.pop();
                    0
                }
                _ => return Err(Fault::Damaged { at, what: "a group is not closed" }),
            };
            let after = self.reader.position().saturating_add(len);
            if after > end {
                return Err(Fault::Damaged { at, what: PAST_END });
            }
            self.reader.seek(after);
        }
        Ok(())
    }

    /// Calls `each` for every number of a packed run.
    pub(super) fn packed(&mut self, run: Run, mut each: impl FnMut(u64)) -> Walk<()> {
        let end = run.end().min(self.file_len);
        self.reader.seek(run.start);
        while self.reader.position() < end {
            each(self.varint(end)?);
        }
        Ok(())
    }

    /// The bytes of a run, which must not be more than `most`.
    pub(super) fn bytes(&mut self, run: Run, most: u64) -> Walk<Vec<u8>> {
        if run.len > most {
            return Err(Fault::Damaged { at: run.start, what: "a name or a number is far too long" });
        }
        self.reader.seek(run.start);
        match self.reader.take(usize::try_from(run.len).unwrap_or(usize::MAX)) {
            Ok(bytes) => Ok(bytes.to_vec()),
            Err(Stop::Io(e)) => Err(e.into()),
            Err(Stop::End { .. }) => Err(Fault::Damaged { at: run.start, what: "the file ends within a name" }),
        }
    }
}

/// What a varint lacks where its message ends.
const PAST_END: &str = "a number leads past the end of the message that holds it";

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn walk(bytes: &[u8]) -> (Walk<Vec<(u32, u64)>>, Option<u64>) {
        let source = Source::from_bytes("wire", bytes.to_vec());
        let mut wire = Wire::new(&source);
        let mut cursor = wire.message(Run { start: 0, len: source.len() });
        let mut fields = Vec::new();
        let result = loop {
            match wire.next(&mut cursor) {
                Ok(None) => break Ok(fields),
                Ok(Some(Field { number, value: Value::Varint(value), .. })) => fields.push((number, value)),
                Ok(Some(Field { number, value: Value::Bytes(run) | Value::Fixed(run), .. })) => fields.push((number, run.len)),
                Err(fault) => break Err(fault),
            }
        };
        (result, wire.cut)
    }

    #[test]
    fn every_wire_type_is_passed_over() {
        let bytes = b"\x08\x96\x01\x12\x03abc\x19\0\0\0\0\0\0\0\0\x25\0\0\0\0\x2b\x08\x01\x13\x14\x12\x01x\x2c\x30\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
        assert_eq!(walk(bytes).0.unwrap(), [(1, 150), (2, 3), (3, 8), (4, 4), (6, u64::MAX)]);
    }

    #[test]
    fn damage_is_an_error_and_the_end_of_the_file_is_a_cut() {
        for bytes in [&b"\x00\x01"[..], b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x0e\x01", b"\x0c", b"\x0b\x14", b"\xf8\xff\xff\xff\xff\x7f\x01"]
        {
            assert!(walk(bytes).0.is_err(), "{bytes:?}");
        }
        assert_eq!(walk(b"\x08\x01\x12\x05abc"), (walk(b"\x08\x01\x12\x03abc").0.map(|_| vec![(1, 1), (2, 5)]), Some(9)));
        assert_eq!(walk(b"\x08\x01\x08\x80").1, Some(5));
    }

    impl PartialEq for Fault {
        fn eq(&self, other: &Self) -> bool {
            format!("{self:?}") == format!("{other:?}")
        }
    }

    #[test]
    fn a_length_past_its_parent_is_damage() {
        let source = Source::from_bytes("wire", b"\x0a\x02\x12\x05abcdefgh".to_vec());
        let mut wire = Wire::new(&source);
        let mut inner = wire.message(Run { start: 2, len: 2 });
        assert!(matches!(wire.next(&mut inner), Err(Fault::Damaged { at: 4, .. })));
    }
}
