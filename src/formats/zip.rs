//! Zip archives, as far as a container needs them: where each member's bytes lie.
//!
//! | part | what |
//! |---|---|
//! | members | local header (30 bytes, name, extra), data, perhaps a data descriptor |
//! | directory | one entry (46 bytes, name, extra, comment) a member |
//! | zip64 end record and its locator | the end record's numbers in 64 bits |
//! | end record | 22 bytes and a comment |
//!
//! Definition: APPNOTE.TXT, <https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT>. The directory is what counts. Of a local header only the lengths
//! are used, since torch and streaming writers leave its sizes empty. The directory is walked in one pass and never held whole.

use std::ops::ControlFlow;

use super::stopped;
use crate::error::{Error, Result, quoted};
use crate::limits;
use crate::reader::{Nearby, Reader};
use crate::source::{Compression, Source};

const LOCAL: [u8; 4] = *b"PK\x03\x04";
const CENTRAL: [u8; 4] = *b"PK\x01\x02";
const SIGNATURE: [u8; 4] = *b"PK\x05\x05";
const END: [u8; 4] = *b"PK\x05\x06";
const END64: [u8; 4] = *b"PK\x06\x06";
const LOCATOR: [u8; 4] = *b"PK\x06\x07";

const LOCAL_BYTES: u64 = 30;
const CENTRAL_BYTES: usize = 46;
const END_BYTES: usize = 22;
const END64_BYTES: usize = 56;
const LOCATOR_BYTES: usize = 20;
/// Longest name, extra field or comment.
const FIELD_BYTES: u64 = 0xFFFF;
/// All names together may take this much memory, in bytes.
const NAMES_BYTES: usize = 256 << 20;

/// Whether a file starts as a zip does that has nothing in front of it.
pub(super) fn is_magic(bytes: &[u8]) -> bool {
    bytes.starts_with(&LOCAL) || bytes.starts_with(&END)
}

/// A member as the directory lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry<'a> {
    pub(super) name: &'a [u8],
    pub(super) place: Place,
}

/// What the directory says about a member besides its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) crc: u32,
    /// Bytes in the archive.
    pub(super) compressed: u64,
    /// Bytes once decompressed.
    pub(super) len: u64,
    /// Where the local header is.
    pub(super) offset: u64,
    pub(super) method: u16,
    pub(super) flags: u16,
}

/// Where a member's bytes are.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Located {
    pub(super) offset: u64,
    pub(super) len: u64,
    /// The name in the local header, where it is another one.
    pub(super) other_name: Option<Vec<u8>>,
}

impl Place {
    /// How the member is compressed, `None` if it is not.
    ///
    /// # Errors
    /// It is encrypted or compressed in a way that is not read.
    pub(super) fn compression(&self) -> Result<Option<Compression>> {
        const ENCRYPTED: u16 = 1 | 1 << 6 | 1 << 13;
        const PATCH: u16 = 1 << 5;
        if self.flags & ENCRYPTED != 0 {
            return Err(Error::unsupported("is encrypted"));
        }
        if self.flags & PATCH != 0 {
            return Err(Error::unsupported("is a patch and not the data itself"));
        }
        match self.method {
            0 if self.compressed != self.len => Err(Error::format(format!("is stored, but has two sizes: {} and {} bytes", self.compressed, self.len))),
            0 => Ok(None),
            // Deflate's best is 258 bytes for two bits.
            8 if self.len > self.compressed.saturating_mul(1032).saturating_add(1032) => {
                Err(Error::format(format!("its {} compressed bytes cannot give the {} that it declares", self.compressed, self.len)))
            }
            8 => Ok(Some(Compression::Deflate)),
            12 => Ok(Some(Compression::Bzip2)),
            14 => Ok(Some(Compression::Lzma)),
            other => {
                let name = match other {
                    9 => " (deflate64)",
                    93 => " (zstd)",
                    95 => " (xz)",
                    98 => " (PPMd)",
                    99 => " (AES encryption)",
                    _ => "",
                };
                Err(Error::unsupported(format!("is compressed by method {other}{name}, expected stored, deflate, bzip2 or LZMA")))
            }
        }
    }
}

/// Where an archive's directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Directory {
    start: u64,
    size: u64,
    /// How many entries there should be.
    declared: u64,
    /// What was put in front of the archive after it was made: to be added to every offset in it.
    shift: u64,
}

/// All members, in the order of the directory.
pub(super) struct Members {
    names: Vec<u8>,
    /// Where each name ends, and the rest of the entry.
    places: Vec<(u32, Place)>,
}

impl Members {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn get(&self, index: usize) -> Option<Entry<'_>> {
        let (end, place) = self.places.get(index)?;
        let start = index.checked_sub(1).and_then(|before| self.places.get(before)).map_or(0, |(end, _)| *end);
        Some(Entry { name: self.names.get(start as usize..*end as usize)?, place: *place })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Entry<'_>> {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}

impl Directory {
    /// Finds the directory from the end of the file.
    ///
    /// # Errors
    /// There is no end record, or none that leads to a directory.
    pub(super) fn find(source: &Source) -> Result<Self> {
        let tail = source.len().min(FIELD_BYTES.saturating_add(END_BYTES as u64));
        let base = source.len().saturating_sub(tail);
        let mut bytes = vec![0; usize::try_from(tail).unwrap_or(0)];
        source.read_at(base, &mut bytes).map_err(|e| Error::io("cannot read its end", e))?;
        let mut empty = None;
        let mut refused = None;
        let last = bytes.len().saturating_sub(END_BYTES.saturating_sub(1));
        for i in (0..last).rev() {
            let Some(record) = bytes.get(i..).and_then(|rest| rest.first_chunk::<END_BYTES>()).filter(|record| record.starts_with(&END)) else { continue };
            // The signature may also occur in a comment or in data: the first record from the end that leads to a member is the one.
            match Self::of_end_record(source, base.saturating_add(i as u64), record) {
                Ok(found) if found.size > 0 => return Ok(found),
                Ok(found) => empty = empty.or(Some(found)),
                Err(e) => refused = refused.or(Some(e)),
            }
        }
        match (empty, refused) {
            (_, Some(refused)) => Err(refused),
            (Some(empty), None) => Ok(empty),
            (None, None) => Err(Error::format(format!("its end-of-archive record is missing, size {} bytes", source.len()))
                .hint("a download that was cut short? the directory of a zip is at its end")),
        }
    }

    fn of_end_record(source: &Source, at: u64, record: &[u8; END_BYTES]) -> Result<Self> {
        let [_, _, _, _, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r] = *record;
        let short = |low, high| u64::from(u16::from_le_bytes([low, high]));
        let mut disks = (short(a, b), short(c, d));
        let (mut here, mut declared) = (short(e, f), short(g, h));
        let mut size = u64::from(u32::from_le_bytes([i, j, k, l]));
        let mut offset = u64::from(u32::from_le_bytes([m, n, o, p]));
        if at.saturating_add(END_BYTES as u64).saturating_add(short(q, r)) > source.len() {
            return Err(Error::format("its end-of-archive record has a comment that leaves the file"));
        }
        let mut end = at;
        if let Some((at64, record)) = zip64(source, at)? {
            end = at64;
            let long = |at: usize| record.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |b| u64::from_le_bytes(*b));
            let replace = |value: &mut u64, full: u64, long: u64| {
                if *value == full {
                    *value = long;
                }
            };
            replace(&mut here, 0xFFFF, long(24));
            replace(&mut declared, 0xFFFF, long(32));
            replace(&mut size, 0xFFFF_FFFF, long(40));
            replace(&mut offset, 0xFFFF_FFFF, long(48));
            replace(&mut disks.0, 0xFFFF, long(16) & 0xFFFF_FFFF);
            replace(&mut disks.1, 0xFFFF, long(16) >> 32);
        }
        if disks != (0, 0) || here != declared {
            return Err(Error::unsupported("is one of several volumes of a split zip archive"));
        }
        let found = Self { start: offset, size, declared, shift: 0 };
        if size == 0 && declared == 0 {
            return Ok(found);
        }
        let starts = |at: u64| {
            let mut signature = [0; 4];
            source.read_at(at, &mut signature).is_ok() && signature == CENTRAL
        };
        if offset.checked_add(size).is_some_and(|o| o <= end) && starts(offset) {
            return Ok(found);
        }
        // Something was put in front of the archive: the directory still ends where the end records start.
        match end.checked_sub(size).filter(|actual| *actual > offset && starts(*actual)) {
            Some(actual) => Ok(Self { start: actual, shift: actual.saturating_sub(offset), ..found }),
            None => Err(Error::format(format!("its zip directory should be {size} bytes at {offset}, and is not there; the file has {} bytes", source.len()))
                .hint("a download that was cut short, or a damaged end-of-archive record?")),
        }
    }

    /// Whether the end record speaks of no member at all.
    pub(super) fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// Calls `visit` with each entry until it breaks.
    ///
    /// # Errors
    /// The directory cannot be read to its end, or `visit` failed.
    pub(super) fn walk(&self, source: &Source, mut visit: impl FnMut(Entry<'_>) -> Result<ControlFlow<()>>) -> Result<()> {
        let mut reader = Reader::new(source, self.start, self.start.saturating_add(self.size));
        let part = "its zip directory";
        let mut count: u64 = 0;
        while reader.left() > 0 {
            let at = reader.position();
            let fixed: [u8; CENTRAL_BYTES] =
                match reader.take(CENTRAL_BYTES.min(usize::try_from(reader.left()).unwrap_or(0))).map_err(|e| stopped(e, part, source))? {
                    [a, b, c, d, ..] if [*a, *b, *c, *d] == SIGNATURE => break,
                    bytes => match bytes.first_chunk() {
                        Some(fixed) if bytes.starts_with(&CENTRAL) => *fixed,
                        _ => return Err(Error::format(format!("its zip directory has no entry at {at}, where one should be"))),
                    },
                };
            count = count.saturating_add(1);
            if count > limits::MEMBERS {
                return Err(Error::limit(format!("has more than {} zip members", limits::MEMBERS)));
            }
            let short = |at: usize| fixed.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |b| u16::from_le_bytes(*b));
            let long = |at: usize| fixed.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |b| u32::from_le_bytes(*b));
            let (name, extra, comment) = (usize::from(short(28)), usize::from(short(30)), usize::from(short(32)));
            let variable = reader.take(name.saturating_add(extra).saturating_add(comment)).map_err(|e| stopped(e, part, source))?;
            let (name, rest) = variable.split_at_checked(name).unwrap_or_default();
            let extra = rest.get(..extra).unwrap_or_default();
            let [len, compressed, offset] = sizes(extra, [long(24), long(20), long(42)]);
            let offset = offset.saturating_add(self.shift);
            let place = Place { crc: long(16), compressed, len, offset, method: short(10), flags: short(8) };
            if visit(Entry { name, place })?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// All members.
    ///
    /// # Errors
    /// The directory cannot be read to its end, or its names are too many.
    pub(super) fn members(&self, source: &Source) -> Result<Members> {
        let mut members = Members { names: Vec::new(), places: Vec::new() };
        self.walk(source, |entry| {
            members.names.extend_from_slice(entry.name);
            let end = u32::try_from(members.names.len()).ok().filter(|_| members.names.len() <= NAMES_BYTES);
            let end = end.ok_or_else(|| Error::limit(format!("its zip members' names are longer than {NAMES_BYTES} bytes together")))?;
            members.places.push((end, entry.place));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(members)
    }

    /// What the end record says about the number of members, if the directory has another.
    pub(super) fn wrong_count(&self, members: &Members) -> Option<String> {
        let counted = members.len() as u64;
        // Old writers count modulo 2^16.
        let right = self.declared == counted || (self.declared < 0xFFFF && self.declared == counted & 0xFFFF);
        (!right).then(|| format!("its end-of-archive record counts {} members, its directory has {counted}", self.declared))
    }

    /// Where the member's bytes are, from its local header.
    ///
    /// # Errors
    /// The local header is not there, or the bytes leave the file or run into the directory.
    pub(super) fn locate(&self, reader: &mut Nearby<'_>, entry: &Entry<'_>) -> Result<Located> {
        let (place, source) = (entry.place, reader.source());
        let left = source.len().saturating_sub(place.offset);
        let mut buffer = [0; 512];
        let wanted = usize::try_from(left.min(LOCAL_BYTES.saturating_add(entry.name.len() as u64))).unwrap_or(0).min(buffer.len());
        let head = buffer.get_mut(..wanted).unwrap_or_default();
        if left < LOCAL_BYTES {
            return Err(Error::format(format!("its local header should be at byte {}, the file ends at {}", place.offset, source.len())));
        }
        reader.read_at(place.offset, head).map_err(|e| Error::io("cannot read its local header", e))?;
        if !head.starts_with(&LOCAL) {
            return Err(Error::format(format!("has no local header at byte {}", place.offset)));
        }
        let short = |at: usize| head.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |b| u64::from(u16::from_le_bytes(*b)));
        let (name, extra) = (short(26), short(28));
        let data = place.offset.saturating_add(LOCAL_BYTES).saturating_add(name).saturating_add(extra);
        let end = data.checked_add(place.compressed).filter(|end| *end <= source.len());
        let end = end.ok_or_else(|| Error::format(format!("its {} bytes at {data} leave the file of {}", place.compressed, source.len())))?;
        if place.offset < self.start.saturating_add(self.size) && self.start < end {
            return Err(Error::format(format!("its bytes, {data} to {end}, run into the zip directory at {}", self.start)));
        }
        let in_head = usize::try_from(LOCAL_BYTES).ok().and_then(|start| head.get(start..));
        let same = match in_head {
            Some(local) if name == entry.name.len() as u64 && local.len() == entry.name.len() => local == entry.name,
            _ => false,
        };
        let other_name = match same {
            true => None,
            false => {
                let mut local = vec![0; usize::try_from(name).unwrap_or(0)];
                source.read_at(place.offset.saturating_add(LOCAL_BYTES), &mut local).map_err(|e| Error::io("cannot read its local header", e))?;
                (local != entry.name).then_some(local)
            }
        };
        Ok(Located { offset: data, len: place.compressed, other_name })
    }
}

/// The zip64 end record that belongs to the end record at `at`, and where it is.
fn zip64(source: &Source, at: u64) -> Result<Option<(u64, [u8; END64_BYTES])>> {
    let mut locator = [0; LOCATOR_BYTES];
    let Some(before) = at.checked_sub(LOCATOR_BYTES as u64) else { return Ok(None) };
    if source.read_at(before, &mut locator).is_err() || !locator.starts_with(&LOCATOR) {
        return Ok(None);
    }
    let [_, _, _, _, _, _, _, _, a, b, c, d, e, f, g, h, ..] = locator;
    let declared = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    // Where it is declared to be, or else right before its locator: something may have been put in front of the archive.
    for place in [Some(declared), before.checked_sub(END64_BYTES as u64)].into_iter().flatten() {
        let mut record = [0; END64_BYTES];
        if place <= before && source.read_at(place, &mut record).is_ok() && record.starts_with(&END64) {
            return Ok(Some((place, record)));
        }
    }
    Err(Error::format(format!("its zip64 end record should be at byte {declared}, and is not there")))
}

/// Length, compressed length and offset of an entry: from its zip64 extra field where the 32-bit field is all ones, in this order.
fn sizes(extra: &[u8], short: [u32; 3]) -> [u64; 3] {
    let mut wide = short.map(u64::from);
    if !short.contains(&u32::MAX) {
        return wide;
    }
    let mut rest = extra;
    while let Some(([a, b, c, d], after)) = rest.split_first_chunk() {
        let size = usize::from(u16::from_le_bytes([*c, *d]));
        let Some((mut field, next)) = after.split_at_checked(size) else { break };
        if u16::from_le_bytes([*a, *b]) == 1 {
            for value in wide.iter_mut().filter(|value| **value == u64::from(u32::MAX)) {
                let Some((number, after)) = field.split_first_chunk() else { break };
                *value = u64::from_le_bytes(*number);
                field = after;
            }
            break;
        }
        rest = next;
    }
    wide
}

/// Where the bytes of the first stored member lie whose name ends in `suffix`, in any case of letters: offset and length.
pub(super) fn stored_member(source: &Source, suffix: &[u8]) -> Option<(u64, u64)> {
    let directory = Directory::find(source).ok()?;
    let mut found = None;
    let walked = directory.walk(source, |entry| {
        if has_suffix(entry.name, suffix) && entry.place.len > 0 && matches!(entry.place.compression(), Ok(None)) {
            found = directory.locate(&mut Nearby::new(source), &entry).ok().map(|located| (located.offset, located.len));
        }
        Ok(if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    });
    walked.ok().and(found)
}

/// Whether a name ends so, in any case of letters.
pub(super) fn has_suffix(name: &[u8], suffix: &[u8]) -> bool {
    name.len().checked_sub(suffix.len()).and_then(|start| name.get(start..)).is_some_and(|end| end.eq_ignore_ascii_case(suffix))
}

/// Whether these are the names of a PyTorch checkpoint's pickles.
pub(super) fn is_torch_pickle(name: &[u8]) -> bool {
    let last = name.rsplit(|b| *b == b'/').next().unwrap_or_default();
    last.eq_ignore_ascii_case(b"data.pkl") || last.eq_ignore_ascii_case(b"constants.pkl")
}

/// A member for messages.
pub(super) fn place(archive: &str, name: &[u8]) -> String {
    format!("{archive}: member {}", quoted(name))
}

#[cfg(test)]
pub(super) mod tests {
    #![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use std::sync::Arc;

    use super::*;

    /// A member to write; its data is taken as it is.
    pub(in crate::formats) struct Part<'a> {
        pub(in crate::formats) name: &'a [u8],
        pub(in crate::formats) method: u16,
        pub(in crate::formats) len: u32,
        pub(in crate::formats) data: &'a [u8],
        pub(in crate::formats) crc: u32,
    }

    /// A stored member.
    pub(in crate::formats) fn stored<'a>(name: &'a str, data: &'a [u8]) -> Part<'a> {
        Part { name: name.as_bytes(), method: 0, len: u32::try_from(data.len()).unwrap(), data, crc: 0 }
    }

    fn entry(part: &Part<'_>, offset: u32, extra: &[u8]) -> Vec<u8> {
        let mut out = CENTRAL.to_vec();
        for n in [20, 20, 0, part.method, 0, 0] {
            out.extend(n.to_le_bytes());
        }
        for n in [part.crc, u32::try_from(part.data.len()).unwrap(), part.len] {
            out.extend(n.to_le_bytes());
        }
        for n in [part.name.len(), extra.len(), 2, 0, 0] {
            out.extend(u16::try_from(n).unwrap().to_le_bytes());
        }
        out.extend([0; 4]);
        out.extend(offset.to_le_bytes());
        [&out, part.name, extra, b"??"].concat()
    }

    fn end(count: u16, size: u32, offset: u32, comment: &[u8]) -> Vec<u8> {
        let mut out = [&END[..], &[0; 4], &count.to_le_bytes(), &count.to_le_bytes(), &size.to_le_bytes(), &offset.to_le_bytes()].concat();
        out.extend(u16::try_from(comment.len()).unwrap().to_le_bytes());
        out.extend(comment);
        out
    }

    /// The bytes of an archive up to its end record, and the three numbers for that.
    fn without_end(parts: &[Part<'_>]) -> (Vec<u8>, u16, u32, u32) {
        let (mut archive, mut directory) = (Vec::new(), Vec::new());
        for part in parts {
            directory.extend(entry(part, u32::try_from(archive.len()).unwrap(), b""));
            archive.extend(LOCAL);
            archive.extend([0xFF; 22]); // nothing here counts
            archive.extend(u16::try_from(part.name.len()).unwrap().to_le_bytes());
            archive.extend(3u16.to_le_bytes());
            archive.extend([part.name, b"xyz", part.data].concat());
        }
        let offset = u32::try_from(archive.len()).unwrap();
        let size = u32::try_from(directory.len()).unwrap();
        archive.extend(directory);
        (archive, u16::try_from(parts.len()).unwrap(), size, offset)
    }

    /// A whole archive.
    pub(in crate::formats) fn archive(parts: &[Part<'_>]) -> Vec<u8> {
        let (mut archive, count, size, offset) = without_end(parts);
        archive.extend(end(count, size, offset, b""));
        archive
    }

    fn two() -> (Vec<u8>, u16, u32, u32) {
        without_end(&[stored("a.npy", b"first"), stored("b/c.npy", b"the second")])
    }

    fn source(bytes: Vec<u8>) -> Arc<Source> {
        Source::from_bytes("a.npz", bytes)
    }

    /// Names and contents of all members.
    fn read(bytes: &[u8]) -> Result<Vec<(String, String)>> {
        let source = source(bytes.to_vec());
        let directory = Directory::find(&source)?;
        let members = directory.members(&source)?;
        members
            .iter()
            .map(|entry| {
                let located = directory.locate(&mut Nearby::new(&source), &entry)?;
                let mut data = vec![0; usize::try_from(located.len).unwrap()];
                source.read_at(located.offset, &mut data).unwrap();
                Ok((String::from_utf8_lossy(entry.name).into_owned(), String::from_utf8_lossy(&data).into_owned()))
            })
            .collect()
    }

    fn assert_two(bytes: &[u8]) {
        let expected = [("a.npy", "first"), ("b/c.npy", "the second")].map(|(a, b)| (a.to_string(), b.to_string()));
        assert_eq!(read(bytes).unwrap(), expected);
    }

    #[test]
    fn plain_commented_prefixed_and_trailed() {
        let (start, count, size, offset) = two();
        assert_two(&[&start[..], &end(count, size, offset, b"")].concat());
        assert_two(&[&start[..], &end(count, size, offset, &[b'c'; 0xFFFF])].concat());
        assert_two(&[b"#!/bin/sh\nexit\n", &start[..], &end(count, size, offset, b"note")].concat());
        assert_two(&[&start[..], &end(count, size, offset, b""), b"trailing"].concat());
        assert!(read(&[&start[..], &end(count, size, offset, b""), &[0; 0x10000]].concat()).is_err());
    }

    #[test]
    fn an_end_record_inside_the_comment_does_not_hide_the_members() {
        let (start, count, size, offset) = two();
        for fake in [end(0, 0, 0, b""), end(1, 46, 0, b""), end(5, 9, 3, b"more than there is"), b"PK\x05\x06".repeat(1000)] {
            assert_two(&[&start[..], &end(count, size, offset, &fake)].concat());
        }
    }

    /// The end records of an archive of which all numbers are in the zip64 record, or only there as well.
    fn end64(count: u16, size: u32, offset: u32, at: u64, saturated: bool) -> Vec<u8> {
        let mut out = [&END64[..], &44u64.to_le_bytes(), &[45, 0, 45, 0], &[0; 8]].concat();
        for n in [u64::from(count), u64::from(count), u64::from(size), u64::from(offset)] {
            out.extend(n.to_le_bytes());
        }
        out.extend([&LOCATOR[..], &[0; 4], &at.to_le_bytes(), &1u32.to_le_bytes()].concat());
        out.extend(if saturated { end(0xFFFF, u32::MAX, u32::MAX, b"") } else { end(count, size, offset, b"") });
        out
    }

    #[test]
    fn zip64_end_records() {
        let (start, count, size, offset) = two();
        for saturated in [true, false] {
            let tail = end64(count, size, offset, start.len() as u64, saturated);
            assert_two(&[&start[..], &tail].concat());
            assert_two(&[b"in front", &start[..], &tail].concat());
        }
        assert!(read(&[&start[..], &end64(count, size, offset, 7, true)].concat()).is_ok(), "found before its locator");
        let mut broken = [&start[..], &end64(count, size, offset, 7, true)].concat();
        broken[start.len()] = b'Q';
        assert!(read(&broken).is_err());
    }

    #[test]
    fn zip64_fields_replace_only_what_is_full() {
        let extra = |numbers: &[u64]| {
            let field: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
            [b"\x42\x46\x02\x00zz\x01\x00", &u16::try_from(field.len()).unwrap().to_le_bytes()[..], &field].concat()
        };
        let full = u32::MAX;
        assert_eq!(sizes(&extra(&[5, 6, 7]), [full, full, full]), [5, 6, 7]);
        assert_eq!(sizes(&extra(&[5, 7]), [full, 1, full]), [5, 1, 7]);
        assert_eq!(sizes(&extra(&[7]), [1, 2, full]), [1, 2, 7]);
        assert_eq!(sizes(&extra(&[7]), [1, 2, 3]), [1, 2, 3]);
        assert_eq!(sizes(&extra(&[5]), [full, full, 3]), [5, u64::from(full), 3]);
        assert_eq!(sizes(b"", [full, 2, 3]), [u64::from(full), 2, 3]);
        assert_eq!(sizes(b"\x01\x00\xff\xff1234", [full, 2, 3]), [u64::from(full), 2, 3]);
    }

    #[test]
    fn every_cut_is_an_error() {
        let (start, count, size, offset) = two();
        let whole = [&start[..], &end(count, size, offset, b"")].concat();
        for len in 0..whole.len() {
            assert!(read(&whole[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn numbers_that_lie() {
        let (start, count, size, offset) = two();
        let lie = |count, size, offset| read(&[&start[..], &end(count, size, offset, b"")].concat());
        assert!(lie(count, size, u32::MAX / 2).is_err());
        assert!(lie(count, u32::MAX / 2, offset).is_err());
        assert!(lie(count, size - 1, offset).is_err());
        assert!(lie(count, size, offset + 1).is_err());
        assert_eq!(lie(9, size, offset).unwrap().len(), 2);
        let source = source([&start[..], &end(9, size, offset, b"")].concat());
        let directory = Directory::find(&source).unwrap();
        assert!(directory.wrong_count(&directory.members(&source).unwrap()).is_some());
        let mut disk = [&start[..], &end(count, size, offset, b"")].concat();
        disk[start.len() + 4] = 1;
        assert!(read(&disk).unwrap_err().to_string().contains("volumes"));
    }

    #[test]
    fn flipped_bytes_never_panic() {
        let (start, count, size, offset) = two();
        let whole = [&start[..], &end64(count, size, offset, start.len() as u64, true)].concat();
        for i in 0..whole.len() {
            for value in [0, 1, 0x7F, 0x80, 0xFF] {
                let mut bytes = whole.clone();
                bytes[i] = value;
                let _ = read(&bytes);
            }
        }
    }

    #[test]
    fn members_that_cannot_be_located() {
        let bytes = archive(&[stored("a.npy", b"first"), stored("b.npy", b"second")]);
        let source = source(bytes);
        let directory = Directory::find(&source).unwrap();
        let members = directory.members(&source).unwrap();
        let entry = members.iter().next().unwrap();
        let locate = |change: fn(&mut Place)| {
            let mut changed = entry;
            change(&mut changed.place);
            directory.locate(&mut Nearby::new(&source), &changed)
        };
        assert_eq!(locate(|_| ()).unwrap(), Located { offset: 38, len: 5, other_name: None });
        assert!(locate(|p| p.offset = 1).unwrap_err().to_string().contains("no local header"));
        assert!(locate(|p| p.offset = u64::MAX).unwrap_err().to_string().contains("the file ends"));
        assert!(locate(|p| p.compressed = u64::MAX).unwrap_err().to_string().contains("leave the file"));
        assert!(locate(|p| p.compressed = 90).unwrap_err().to_string().contains("run into the zip directory"));
        let other = Entry { name: b"A.npy", ..entry };
        assert_eq!(directory.locate(&mut Nearby::new(&source), &other).unwrap().other_name, Some(b"a.npy".to_vec()));
    }

    #[test]
    fn how_members_are_compressed() {
        let place = |method, flags, len| Place { crc: 0, compressed: 100, len, offset: 0, method, flags };
        assert_eq!(place(0, 0x0808, 100).compression().unwrap(), None);
        assert_eq!(place(8, 0, 3000).compression().unwrap(), Some(Compression::Deflate));
        assert_eq!(place(12, 0, 1 << 40).compression().unwrap(), Some(Compression::Bzip2));
        assert_eq!(place(14, 2, 3000).compression().unwrap(), Some(Compression::Lzma));
        for (place, text) in [
            (place(0, 0, 101), "two sizes"),
            (place(8, 0, 1 << 40), "cannot give"),
            (place(0, 1, 100), "encrypted"),
            (place(0, 0x2000, 100), "encrypted"),
            (place(0, 0x20, 100), "patch"),
            (place(93, 0, 100), "zstd"),
            (place(77, 0, 100), "method 77"),
        ] {
            assert!(place.compression().unwrap_err().to_string().contains(text), "{text}");
        }
    }

    #[test]
    fn a_stored_member_by_its_suffix() {
        let bytes = archive(&[stored("readme", b"text"), stored("model.GGUF", b"GGUF...."), stored("other.gguf", b"GGUF")]);
        let at = bytes.windows(4).position(|w| w == b"GGUF").unwrap(); // in the name
        let (offset, len) = stored_member(&source(bytes.clone()), b".gguf").unwrap();
        assert!(offset > at as u64 && bytes[usize::try_from(offset).unwrap()..].starts_with(b"GGUF....") && len == 8);
        assert_eq!(stored_member(&source(bytes), b".bin"), None);
        assert_eq!(stored_member(&source(vec![0; 100]), b".bin"), None);
    }
}
