//! NumPy's `.npz`: a zip archive of `.npy` members.
//!
//! A stored member's elements are a run of the archive itself. A compressed one becomes a source of its own that is decompressed when it is first read; when the
//! archive is opened, no more of it is decompressed than its header. Sums are not checked then either.

use std::collections::HashSet;
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use super::zip::{self, Directory, Entry};
use super::{Format, Head, Opening, npy, safetensors, unknown};
use crate::catalog::{Builder, Spec, product};
use crate::dtype::DType;
use crate::error::{Error, Result, counted, quoted};
use crate::reader::Nearby;
use crate::source::{Member, Source, SourceId};

pub(super) const FORMAT: Format =
    Format { name: "npz", title: "NumPy .npz, stored or compressed by deflate, bzip2 or LZMA", extensions: &["npz"], sniff, open, part: None };

/// How many members are looked into where no name ends in `.npy`.
const LOOKS: usize = 8;
/// How many first bytes of a member are looked at to say what it is.
const LOOK_BYTES: usize = 64;
const SUFFIX: &[u8] = b".npy";

fn sniff(head: &Head<'_>) -> bool {
    let plain = zip::is_magic(head.bytes);
    // A zip behind something else: a safetensors header in front means that the zip is what trails.
    if !plain && (head.bytes.len() < 22 || (safetensors::FORMAT.sniff)(head)) {
        return false;
    }
    let Ok(directory) = Directory::find(head.source) else { return false };
    match directory.is_empty() {
        true => plain && head.source.len() == 22, // np.savez of nothing
        false => holds_arrays(head.source, &directory, plain).unwrap_or(false),
    }
}

/// Whether a member is an array and none belongs to another format.
fn holds_arrays(source: &Source, directory: &Directory, look: bool) -> Result<bool> {
    let mut arrays = false;
    let mut others = false;
    let mut looks = 0;
    directory.walk(source, |entry| {
        if zip::is_torch_pickle(entry.name) || zip::has_suffix(entry.name, b".gguf") {
            others = true;
            return Ok(ControlFlow::Break(()));
        }
        if !arrays {
            arrays = entry.name.ends_with(SUFFIX);
            if !arrays && look && looks < LOOKS && entry.place.len > 0 {
                looks = looks.saturating_add(1_usize);
                arrays = starts_as_array(source, directory, &entry).unwrap_or(false);
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(arrays && !others)
}

/// Whether a stored member starts with npy's magic number. (A compressed one is not looked into before the archive is opened.)
fn starts_as_array(source: &Source, directory: &Directory, entry: &Entry<'_>) -> Result<bool> {
    if entry.place.compression()?.is_some() {
        return Ok(false);
    }
    let located = directory.locate(&mut Nearby::new(source), entry)?;
    let mut magic = [0; npy::MAGIC.len()];
    Ok(located.len >= magic.len() as u64 && source.read_at(located.offset, &mut magic).is_ok() && magic == npy::MAGIC)
}

fn open(opening: &mut Opening, builder: &mut Builder) -> Result<()> {
    let main = Arc::clone(opening.main());
    let archive = builder.source(Arc::clone(&main));
    let directory = Directory::find(&main)?;
    let members = directory.members(&main)?;
    if let Some(what) = directory.wrong_count(&members) {
        builder.issue(builder.path(archive), what, "the directory is used");
    }
    // The arrays `a` and `a.npy` of one archive are both called `a`; only a member that is there twice is a fault.
    builder.names_may_repeat();
    let mut names = HashSet::with_capacity(members.len());
    let mut ranges = Vec::new();
    let mut reader = Nearby::new(&main);
    let mut before = None;
    for (index, entry) in members.iter().enumerate() {
        if entry.name.ends_with(b"/") && entry.place.len == 0 {
            continue; // a folder
        }
        let place = |builder: &Builder| zip::place(&builder.path(archive), entry.name);
        if !names.insert(entry.name) {
            builder.issue(place(builder), "the name occurs more than once", "served beside the first under a name with ~2");
        }
        match Array::find(&main, &mut reader, &directory, &entry, &mut before) {
            Ok(array) => {
                if let Some(other) = &array.located.other_name {
                    builder.issue(place(builder), format!("its local header has the name {}", quoted(other)), "the directory's name is used");
                }
                let end = array.located.offset.saturating_add(array.located.len);
                ranges.push((entry.place.offset, end, index, array.member.is_some()));
                array.add(&main, archive, &entry, builder)?;
            }
            Err(e) => {
                builder.issue(place(builder), e.message(), "left out, shown in source/ only");
                if entry.name.ends_with(SUFFIX) {
                    builder.dropped();
                }
            }
        }
    }
    overlaps(ranges, |index, other| {
        let name = |index| members.get(index).map(|entry| entry.name).unwrap_or_default();
        let place = zip::place(&builder.path(archive), name(index));
        builder.issue(place, format!("its compressed bytes overlap member {}", quoted(name(other))), "both are served as they are");
    });
    Ok(())
}

/// Calls `report` for members that overlap one before them where one of the two is compressed; the builder sees where stored ones overlap.
fn overlaps(mut ranges: Vec<(u64, u64, usize, bool)>, mut report: impl FnMut(usize, usize)) {
    /// An archive made of overlaps is described well enough by these.
    const REPORTS: usize = 100;
    ranges.sort_unstable();
    let mut reports = 0;
    let mut reach: Option<(u64, usize, bool)> = None;
    for (start, end, index, compressed) in ranges {
        if let Some((furthest, other, other_compressed)) = reach {
            if furthest > start && (compressed || other_compressed) && reports < REPORTS {
                reports = reports.saturating_add(1_usize);
                report(index, other);
            }
            if furthest >= end {
                continue;
            }
        }
        reach = Some((end, index, compressed));
    }
}

/// An array in the archive.
struct Array {
    located: zip::Located,
    header: npy::Header,
    /// The way to its bytes where they are compressed.
    member: Option<Member>,
}

impl Array {
    fn find(main: &Arc<Source>, reader: &mut Nearby<'_>, directory: &Directory, entry: &Entry<'_>, before: &mut npy::Before) -> Result<Self> {
        let compression = entry.place.compression()?;
        let located = directory.locate(reader, entry)?;
        let len = entry.place.len;
        let (header, member) = match compression {
            None => (read_header(len, before, |out| reader.read_at(located.offset, out))?, None),
            Some(method) => {
                let member = Member::new(Arc::clone(main), located.offset, located.len, len, entry.place.crc, method);
                let header = read_header(len, before, |out| match member.head(out)? {
                    n if n == out.len() => Ok(()),
                    n => Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, format!("it gives only {n} bytes of the {len} that it declares"))),
                })?;
                (header, Some(member))
            }
        };
        Ok(Self { located, header, member })
    }

    fn add(self, main: &Source, archive: SourceId, entry: &Entry<'_>, builder: &mut Builder) -> Result<()> {
        let Self { located, header, member } = self;
        let name = entry.name.strip_suffix(SUFFIX).unwrap_or(entry.name);
        let (source, start) = match member {
            None => (archive, located.offset),
            Some(member) => {
                let path = [main.path().as_os_str().as_encoded_bytes(), b"/", entry.name].concat();
                (builder.source(Source::from_member(OsString::from_vec(path), main.modified(), entry.place.len, member)), 0)
            }
        };
        let left = entry.place.len.saturating_sub(header.data_offset);
        let needed = header.dtype.block().and_then(|(_, bytes)| product(&header.shape)?.checked_mul(bytes));
        let objects = matches!(header.dtype, DType::Object);
        if objects {
            builder.tensor_issue(archive, name, npy::OBJECTS, "listed without files");
        } else if let Some(rest) = needed.and_then(|needed| left.checked_sub(needed)).filter(|rest| *rest > 0) {
            builder.tensor_issue(
                archive,
                name,
                format!("{} to nothing, after its last element", counted(rest, "byte belongs", "bytes belong")),
                "shown in source/ only",
            );
        }
        let offset = (!objects).then(|| start.saturating_add(header.data_offset));
        // The builder compares with the archive's end only: a member that is too short says so here.
        let bytes = needed.filter(|needed| *needed > left).map(|_| left);
        let (order, endian) = (header.order, header.endian);
        builder.tensor(&Spec { order, endian, bytes, ..Spec::new(name, header.dtype, &header.shape, source, offset) })
    }
}

/// The header of a member, or what it is instead.
fn read_header(len: u64, before: &mut npy::Before, mut read: impl FnMut(&mut [u8]) -> std::io::Result<()>) -> Result<npy::Header> {
    let mut start: Option<Vec<u8>> = None;
    let header = npy::read_next_header(len, before, |out| {
        read(out)?;
        start.get_or_insert_with(|| out.iter().take(LOOK_BYTES).copied().collect());
        Ok(())
    });
    match start {
        Some(start) if !start.starts_with(npy::MAGIC) => Err(Error::unsupported(format!("is no array: {}", unknown::describe(&start, len)))),
        _ => header,
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use std::io::Write;

    use super::super::zip::tests::{Part, archive, stored};
    use super::*;
    use crate::catalog::Catalog;
    use crate::formats::open_container;

    /// An array of f32 from 0, in one dimension.
    fn array(n: u16) -> Vec<u8> {
        let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({n},), }}\n");
        let mut bytes = [npy::MAGIC, &[1, 0], &u16::try_from(text.len()).unwrap().to_le_bytes(), text.as_bytes()].concat();
        bytes.extend((0..n).flat_map(|i| f32::from(i).to_le_bytes()));
        bytes
    }

    fn deflated(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn crc(bytes: &[u8]) -> u32 {
        let mut crc = flate2::Crc::new();
        crc.update(bytes);
        crc.sum()
    }

    fn open_parts(parts: &[Part<'_>]) -> Result<Catalog> {
        open_container(&Source::from_bytes("a.npz", archive(parts)))
    }

    /// Name, and bytes where there are any, of each tensor.
    fn tensors(catalog: &Catalog) -> Vec<(String, Option<Vec<u8>>)> {
        catalog
            .tensors()
            .map(|tensor| {
                let bytes = tensor.stored().map(|extent| {
                    let mut out = vec![0; usize::try_from(extent.len()).unwrap()];
                    catalog.source(extent.source()).unwrap().read_at(extent.offset(), &mut out).unwrap();
                    out
                });
                (String::from_utf8_lossy(tensor.name()).into_owned(), bytes)
            })
            .collect()
    }

    #[test]
    fn stored_and_compressed_members() {
        let (plain, elements) = (array(500), array(500)[array(500).len() - 2000..].to_vec());
        let packed = deflated(&plain);
        let len = u32::try_from(plain.len()).unwrap();
        let parts = [
            stored("a.npy", &plain),
            Part { name: b"sub/b.npy", method: 8, len, data: &packed, crc: crc(&plain) },
            Part { name: b"c.npy.npy", method: 8, len, data: &packed, crc: crc(&plain) },
            stored("without", &plain),
        ];
        let catalog = open_parts(&parts).unwrap();
        assert_eq!(catalog.format(), "npz");
        assert!(catalog.issues().is_empty(), "{:?}", catalog.issues());
        let expected = ["a", "sub/b", "c.npy", "without"].map(|name| (name.to_string(), Some(elements.clone())));
        assert_eq!(tensors(&catalog), expected);
        assert_eq!(catalog.tensors().map(|t| t.source()).collect::<Vec<_>>(), [0, 1, 2, 0], "stored members are runs of the archive");
    }

    #[test]
    fn what_is_no_array_is_named_and_left_out() {
        let good = array(2);
        let catalog =
            open_parts(&[stored("x.npy", b"hello\n"), stored("e.npy", b""), stored("d/", b""), stored("in.npz", &archive(&[])), stored("ok.npy", &good)])
                .unwrap();
        assert_eq!(catalog.len(), 1);
        let what: Vec<&str> = catalog.issues().iter().map(|issue| issue.what.as_str()).collect();
        assert_eq!(what, ["is no array: plain text that begins \"hello\"", "is no array: an empty file", "is no array: a zip archive"]);
        assert!(open_parts(&[stored("x.npy", b"hello\n")]).is_err());
    }

    #[test]
    fn a_damaged_member_costs_only_itself() {
        let good = array(2);
        let packed = deflated(&good);
        let len = u32::try_from(good.len()).unwrap();
        let parts = [
            Part { len: len + 1, ..stored("two_sizes.npy", &good) },
            Part { method: 8, len, ..stored("garbage.npy", &[0xFF; 40]) },
            Part { method: 93, ..stored("zstd.npy", &good) },
            Part { method: 8, len: len + 9, crc: 0, ..stored("longer.npy", &packed) },
            stored("short.npy", &good[..good.len() - 3]),
            stored("good.npy", &good),
            stored("good.npy", &good),
        ];
        let catalog = open_parts(&parts).unwrap();
        let names: Vec<(String, bool)> = tensors_without_reading(&catalog);
        let expected = [("short", false), ("good", true), ("good", true)];
        assert_eq!(names, expected.map(|(name, served)| (name.to_string(), served)));
        assert_eq!(catalog.issues().len(), 6, "{:?}", catalog.issues());
    }

    fn tensors_without_reading(catalog: &Catalog) -> Vec<(String, bool)> {
        catalog.tensors().map(|t| (String::from_utf8_lossy(t.name()).into_owned(), t.stored().is_some())).collect()
    }

    #[test]
    fn objects_are_listed_without_files() {
        let text = "{'descr': '|O', 'fortran_order': False, 'shape': (2,), }\n";
        let object = [npy::MAGIC, &[1, 0, u8::try_from(text.len()).unwrap(), 0], text.as_bytes(), b"\x80\x04."].concat();
        let good = array(2);
        let catalog = open_parts(&[stored("o.npy", &object), stored("n.npy", &good)]).unwrap();
        assert_eq!(tensors_without_reading(&catalog), [("o".to_string(), false), ("n".to_string(), true)]);
        assert_eq!(catalog.issues().len(), 1);
    }

    #[test]
    fn which_archives_are_claimed() {
        let good = array(2);
        let claims = |bytes: &[u8]| open_container(&Source::from_bytes("x", bytes.to_vec())).is_ok_and(|catalog| catalog.format() == "npz");
        assert!(claims(&archive(&[])), "np.savez of nothing");
        assert!(claims(&archive(&[stored("arr", &good)])));
        assert!(claims(&[b"in front", &archive(&[stored("a.npy", &good)])[..]].concat()));
        assert!(!claims(&archive(&[stored("readme", b"text")])));
        assert!(!claims(&archive(&[stored("archive/data.pkl", b"."), stored("archive/data/0.npy", &good)])));
        assert!(!claims(&archive(&[stored("a.npy", &good), stored("m/constants.pkl", b".")])));
        assert!(!claims(&archive(&[stored("a.npy", &good), stored("m.gguf", b"GGUF")])));
        let safetensors = [&2u64.to_le_bytes()[..], b"{}", &archive(&[stored("a.npy", &good)])].concat();
        assert!(!claims(&safetensors));
    }

    #[test]
    fn overlapping_compressed_members_are_reported() {
        let mut reports = Vec::new();
        overlaps(vec![(0, 100, 0, true), (50, 60, 1, true), (70, 120, 2, false), (110, 130, 3, false), (130, 140, 4, true)], |a, b| reports.push((a, b)));
        assert_eq!(reports, [(1, 0), (2, 0)]);
    }
}
