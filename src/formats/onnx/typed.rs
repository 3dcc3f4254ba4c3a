//! Elements that stand in TensorProto's typed fields: numbers of varying length, and strings.
//!
//! They are decoded when they are read. So that a read need not start at the beginning, the place of every so many elements is noted as a read passes it.

use std::io;
use std::sync::{Mutex, PoisonError};

use super::wire::Run;
use crate::json;
use crate::recipe::{Elements, Inputs};
use crate::source::Extent;

/// A part of a repeated field: either packed (values alone), or unpacked (each value with its tag, nothing else between).
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) number: u32,
    pub(super) packed: bool,
    pub(super) run: Run,
}

/// The pieces of a tensor's repeated fields, in file order.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    pub(super) pieces: Vec<Piece>,
    /// There were more than are kept.
    pub(super) too_many: bool,
}

/// Most pieces of one tensor; writers make one.
const PIECES: usize = 4096;

impl Pieces {
    /// Adds a part, which is joined to the one before it where nothing lies between.
    pub(super) fn add(&mut self, number: u32, packed: bool, run: Run) {
        if let Some(last) = self.pieces.last_mut().filter(|last| !packed && !last.packed && last.number == number && last.run.end() == run.start) {
            last.run.len = last.run.len.saturating_add(run.len);
            return;
        }
        if self.pieces.len() < PIECES {
            self.pieces.push(Piece { number, packed, run });
        } else {
            self.too_many = true;
        }
    }

    /// The parts of one field.
    pub(super) fn of(&self, number: u32) -> impl Iterator<Item = &Piece> {
        self.pieces.iter().filter(move |piece| piece.number == number)
    }
}

/// How a value is written in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    Varint,
    /// So many bytes.
    Fixed(u8),
    /// A length and bytes.
    Bytes,
}

/// What becomes of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// Its lowest bytes.
    Low(u8),
    /// Whether it is not 0.
    Bool,
    /// Its lowest six bits, four values in three bytes.
    Six,
}

impl Put {
    /// Values and bytes of the smallest whole group.
    fn group(self) -> (usize, usize) {
        match self {
            Self::Low(bytes) => (1, bytes.into()),
            Self::Bool => (1, 1),
            Self::Six => (4, 3),
        }
    }
}

/// Numbers in typed fields.
pub(super) struct Numbers {
    pieces: Vec<(Extent, bool)>,
    coding: Coding,
    put: Put,
    /// How many numbers there should be.
    count: u64,
    /// Bytes of a block of the tensor's type.
    block_bytes: usize,
    marks: Mutex<Vec<Mark>>,
}

/// Where a value starts.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    piece: usize,
    at: u64,
    /// Of strings: offset in the JSON text.
    out: u64,
}

/// Numbers between two marks.
const NUMBERS_A_MARK: u64 = 8192;

impl Numbers {
    pub(super) fn new(pieces: Vec<(Extent, bool)>, coding: Coding, put: Put, count: u64, block_bytes: u64) -> Self {
        let block_bytes = usize::try_from(block_bytes).unwrap_or(1).max(1);
        Self { pieces, coding, put, count, block_bytes, marks: Mutex::new(vec![Mark::default()]) }
    }

    /// How many numbers there are, which reads them all.
    pub(super) fn count(&self, inputs: Inputs<'_>) -> io::Result<u64> {
        let mut stream = Stream::new(inputs, &self.pieces, Mark::default());
        let mut count = 0u64;
        while stream.number(self.coding)?.is_some() {
            count = count.saturating_add(1);
        }
        Ok(count)
    }
}

impl Elements for Numbers {
    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [u8]) -> io::Result<()> {
        let (values, bytes) = self.put.group();
        // A block of the tensor's type is a whole number of groups: two halves of a complex number, for instance.
        let groups_a_block = self.block_bytes.checked_div(bytes).unwrap_or(1).max(1) as u64;
        let first = first.saturating_mul(groups_a_block).saturating_mul(values as u64);
        let number = first.checked_div(NUMBERS_A_MARK).unwrap_or(0);
        let (mut index, mark) = {
            let marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
            let last = (marks.len() as u64).saturating_sub(1).min(number);
            let mark = usize::try_from(last).ok().and_then(|last| marks.get(last)).copied().unwrap_or_default();
            (last.saturating_mul(NUMBERS_A_MARK), mark)
        };
        let mut stream = Stream::new(inputs, &self.pieces, mark);
        let mut next = |index: &mut u64| -> io::Result<u64> {
            if index.is_multiple_of(NUMBERS_A_MARK) {
                let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
                if marks.len() as u64 == index.checked_div(NUMBERS_A_MARK).unwrap_or(0) {
                    marks.push(stream.mark);
                }
            }
            *index = index.saturating_add(1);
            stream.number(self.coding)?.ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "the tensor has fewer numbers than its shape asks for"))
        };
        while index < first {
            next(&mut index)?;
        }
        for group in out.chunks_mut(bytes) {
            let mut word = 0u64;
            for place in 0..values {
                if index < self.count {
                    let value = next(&mut index)?;
                    word |= match self.put {
                        Put::Low(_) => value,
                        Put::Bool => u64::from(value != 0),
                        Put::Six => (value & 0x3f) << place.saturating_mul(6),
                    };
                }
            }
            for (byte, from) in group.iter_mut().zip(word.to_le_bytes()) {
                *byte = from;
            }
        }
        Ok(())
    }
}

/// Strings in string_data as the text of a JSON array.
pub(super) struct Strings {
    pieces: Vec<(Extent, bool)>,
    marks: Mutex<Vec<Mark>>,
}

/// Bytes of JSON text between two marks.
const TEXT_A_MARK: u64 = 64 << 10;
/// Longest string that is shown, in bytes: it is held whole while it is written.
const STRING_BYTES: u64 = 64 << 20;

impl Strings {
    pub(super) fn new(pieces: Vec<(Extent, bool)>) -> Self {
        Self { pieces, marks: Mutex::new(vec![Mark::default()]) }
    }

    /// How many strings there are, and the length of their JSON text, which reads them all.
    pub(super) fn count(&self, inputs: Inputs<'_>) -> io::Result<(u64, u64)> {
        let mut stream = Stream::new(inputs, &self.pieces, Mark::default());
        let (mut count, mut len, mut text) = (0u64, 0u64, Vec::new());
        while stream.text(&mut text)? {
            count = count.saturating_add(1);
            len = len.saturating_add(text.len() as u64);
        }
        Ok((count, len.saturating_add(if count == 0 { 2 } else { 1 })))
    }
}

impl Elements for Strings {
    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [u8]) -> io::Result<()> {
        let mark = {
            let marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
            let after = marks.partition_point(|mark| mark.out <= first);
            marks.get(after.saturating_sub(1)).copied().unwrap_or_default()
        };
        let mut stream = Stream::new(inputs, &self.pieces, mark);
        let end = first.saturating_add(out.len() as u64);
        let (mut at, mut text) = (mark.out, Vec::new());
        while at < end {
            {
                let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
                if marks.last().is_some_and(|last| last.out.saturating_add(TEXT_A_MARK) <= at) {
                    marks.push(Mark { out: at, ..stream.mark });
                }
            }
            let more = stream.text(&mut text)?;
            if !more {
                text.clear();
                text.extend_from_slice(if at == 0 { b"[]" } else { b"]" });
            }
            let from = usize::try_from(first.saturating_sub(at)).unwrap_or(usize::MAX);
            let to = usize::try_from(at.saturating_sub(first)).unwrap_or(usize::MAX);
            if let (Some(from), Some(to)) = (text.get(from..), out.get_mut(to..)) {
                to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            }
            if !more {
                break;
            }
            at = at.saturating_add(text.len() as u64);
        }
        Ok(())
    }
}

/// Reads values one after the other.
struct Stream<'a> {
    inputs: Inputs<'a>,
    pieces: &'a [(Extent, bool)],
    mark: Mark,
    buffer: Vec<u8>,
    /// Where the buffer starts in the piece.
    buffer_at: u64,
}

/// Bytes that a stream fetches at a time.
const FETCH_BYTES: u64 = 16 << 10;

impl<'a> Stream<'a> {
    fn new(inputs: Inputs<'a>, pieces: &'a [(Extent, bool)], mark: Mark) -> Self {
        Self { inputs, pieces, mark, buffer: Vec::new(), buffer_at: 0 }
    }

    /// Whether a value follows, whose tag is passed over.
    fn enter(&mut self, coding: Coding) -> io::Result<bool> {
        loop {
            let Some((extent, packed)) = self.pieces.get(self.mark.piece) else { return Ok(false) };
            if self.mark.at < extent.len() {
                if !packed || coding == Coding::Bytes {
                    self.varint()?;
                }
                return Ok(true);
            }
            self.mark = Mark { piece: self.mark.piece.saturating_add(1), at: 0, out: 0 };
            self.buffer.clear();
        }
    }

    fn number(&mut self, coding: Coding) -> io::Result<Option<u64>> {
        if !self.enter(coding)? {
            return Ok(None);
        }
        match coding {
            Coding::Fixed(bytes) => {
                let mut word = [0; 8];
                for byte in word.iter_mut().take(bytes.into()) {
                    *byte = self.byte()?;
                }
                Ok(Some(u64::from_le_bytes(word)))
            }
            _ => self.varint().map(Some),
        }
    }

    /// The next string as JSON, with what stands before it in the array.
    fn text(&mut self, out: &mut Vec<u8>) -> io::Result<bool> {
        out.clear();
        let first = self.mark.piece == 0 && self.mark.at == 0;
        if !self.enter(Coding::Bytes)? {
            return Ok(false);
        }
        let len = self.varint()?;
        let extent = self.pieces.get(self.mark.piece).map(|(extent, _)| *extent).ok_or_else(damaged)?;
        if len > STRING_BYTES || len > extent.len().saturating_sub(self.mark.at) {
            return Err(damaged());
        }
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        self.inputs.read(extent, self.mark.at, &mut bytes)?;
        self.mark.at = self.mark.at.saturating_add(len);
        out.extend_from_slice(if first { b"[" } else { b", " });
        json::bytes(out, &bytes);
        Ok(true)
    }

    fn varint(&mut self) -> io::Result<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(damaged())
    }

    #[inline]
    fn byte(&mut self) -> io::Result<u8> {
        loop {
            let index = self.mark.at.checked_sub(self.buffer_at).and_then(|index| usize::try_from(index).ok());
            if let Some(byte) = index.and_then(|index| self.buffer.get(index)) {
                self.mark.at = self.mark.at.saturating_add(1);
                return Ok(*byte);
            }
            let (extent, _) = self.pieces.get(self.mark.piece).ok_or_else(damaged)?;
            let left = extent.len().checked_sub(self.mark.at).filter(|left| *left > 0).ok_or_else(damaged)?;
            self.buffer.resize(usize::try_from(left.min(FETCH_BYTES)).unwrap_or(0), 0);
            self.buffer_at = self.mark.at;
            if let Err(e) = self.inputs.read(*extent, self.mark.at, &mut self.buffer) {
                self.buffer.clear();
                return Err(e);
            }
        }
    }
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the tensor's data field is damaged")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "tests")]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::source::Source;

    fn varint(mut value: u64, out: &mut Vec<u8>) {
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }

    /// Packed, then unpacked: one extent each.
    fn pieces(values: &[u64], split: usize) -> (Vec<Arc<Source>>, Vec<(Extent, bool)>) {
        let (mut packed, mut unpacked) = (Vec::new(), Vec::new());
        values[..split].iter().for_each(|v| varint(*v, &mut packed));
        for value in &values[split..] {
            unpacked.push(0x28);
            varint(*value, &mut unpacked);
        }
        let source = Source::from_bytes("typed", [&packed[..], &unpacked].concat());
        let first = Extent::new(0, &source, 0, packed.len() as u64).unwrap();
        let second = Extent::new(0, &source, packed.len() as u64, unpacked.len() as u64).unwrap();
        (vec![source], vec![(first, true), (second, false)])
    }

    #[test]
    fn any_part_of_the_numbers_equals_the_slice_of_the_whole() {
        let values: Vec<u64> = (0..30_000u64).map(|i| if i % 3 == 0 { (-(i as i64)) as u64 } else { i * i }).collect();
        let (sources, extents) = pieces(&values, 10_000);
        let numbers = Numbers::new(extents, Coding::Varint, Put::Low(4), 30_000, 4);
        let whole: Vec<u8> = values.iter().flat_map(|v| (*v as u32).to_le_bytes()).collect();
        assert_eq!(numbers.count(Inputs::new(&sources)).unwrap(), 30_000);
        for (first, count) in [(29_999, 1), (0, 5), (9_998, 4), (8191, 3), (0, 30_000), (20_000, 9000), (16_384, 1)] {
            let mut out = vec![0; count * 4];
            numbers.read(Inputs::new(&sources), first as u64, &mut out).unwrap();
            assert_eq!(out, whole[first * 4..(first + count) * 4], "{first} {count}");
        }
        assert_eq!(numbers.marks.lock().unwrap().len(), 4);
    }

    #[test]
    fn six_bit_codes_fill_three_bytes() {
        let (sources, extents) = pieces(&[1, 2, 3, 63, 5], 2);
        let numbers = Numbers::new(extents, Coding::Varint, Put::Six, 5, 3);
        let mut out = [0xff; 6];
        numbers.read(Inputs::new(&sources), 0, &mut out).unwrap();
        assert_eq!(out, [0b10_000001, 0b0011_0000, 0b111111_00, 5, 0, 0]);
    }

    #[test]
    fn too_few_numbers_are_an_error_of_the_read() {
        let (sources, extents) = pieces(&[1, 2, 3], 1);
        let numbers = Numbers::new(extents, Coding::Varint, Put::Low(1), 4, 1);
        assert!(numbers.read(Inputs::new(&sources), 0, &mut [0; 3]).is_ok());
        assert!(numbers.read(Inputs::new(&sources), 0, &mut [0; 4]).is_err());
    }

    #[test]
    fn strings_are_a_json_array_at_any_offset() {
        let texts: Vec<Vec<u8>> = (0..9000).map(|i| format!("text \"{i}\" é\n").into_bytes()).chain([vec![0xff, 0xfe], vec![]]).collect();
        let mut bytes = Vec::new();
        for text in &texts {
            bytes.push(0x32);
            varint(text.len() as u64, &mut bytes);
            bytes.extend_from_slice(text);
        }
        let source = Source::from_bytes("strings", bytes);
        let extent = Extent::new(0, &source, 0, source.len()).unwrap();
        let sources = [source];
        let strings = Strings::new(vec![(extent, false)]);
        let (count, len) = strings.count(Inputs::new(&sources)).unwrap();
        assert_eq!(count, 9002);
        let mut whole = vec![0; len as usize];
        strings.read(Inputs::new(&sources), 0, &mut whole).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&whole).unwrap();
        assert_eq!(json[8999], "text \"8999\" é\n");
        assert_eq!(json[9000]["base64"], "//4=");
        assert_eq!(json[9001], "");
        for first in [0, 1, 70_000, 131_072, len as usize - 5] {
            let mut part = vec![0; 4];
            strings.read(Inputs::new(&sources), first as u64, &mut part).unwrap();
            assert_eq!(part, whole[first..first + 4], "{first}");
        }
        let empty = Strings::new(Vec::new());
        assert_eq!(empty.count(Inputs::new(&sources)).unwrap(), (0, 2));
        let mut out = [0; 2];
        empty.read(Inputs::new(&sources), 0, &mut out).unwrap();
        assert_eq!(&out, b"[]");
    }
}
