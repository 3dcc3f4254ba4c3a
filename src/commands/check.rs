//! `check`: reads everything and tells what is wrong.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use mount_tensors::catalog::{Catalog, Tensor};
use mount_tensors::content::Content;
use mount_tensors::dtype::Endian;
use mount_tensors::error::{Result, counted, printable, quoted};
use mount_tensors::fs::Scratch;
use mount_tensors::tree::View;

use super::pieces::{self, Begun, Job};
use super::{output, written};
use crate::cli::{CheckArgs, open_fs};

/// Bytes that are read at a time.
const STEP: u64 = 256 << 10;

/// `check`: reads everything and tells what is wrong.
pub(crate) fn check(args: &CheckArgs) -> Result<u8> {
    let mut out = output()?;
    let mut issues = 0u64;
    for source in &args.sources {
        let fs = match open_fs(source) {
            Ok(fs) => fs,
            Err(e) => {
                issues += 1;
                let _ = writeln!(out, "{e}");
                continue;
            }
        };
        for set in fs.tree().sets() {
            let catalog = set.catalog();
            for issue in catalog.issues() {
                issues += 1;
                let _ = writeln!(out, "{}: {}: {}", printable(&issue.place), printable(&issue.what), printable(&issue.done));
            }
            let check = Check { catalog, report: Mutex::new(Report { out: &mut out, next: 0, waiting: BTreeMap::new(), issues: 0 }) };
            pieces::run(&check)?;
            issues += check.report.into_inner().unwrap_or_else(PoisonError::into_inner).issues;
            let bytes = catalog.containers().map(|(_, s)| s.len()).fold(0, u64::saturating_add);
            let path = catalog.containers().next().map_or_else(|| source.to_string_lossy().into_owned(), |(_, s)| s.path().to_string_lossy().into_owned());
            let _ = writeln!(out, "{}: {}, {}", printable(&path), counted(catalog.len(), "tensor", "tensors"), counted(bytes, "byte", "bytes"));
        }
    }
    written(writeln!(out, "{}", counted(issues, "issue", "issues")))?;
    Ok(u8::from(issues > 0))
}

/// All tensors of a catalogue.
struct Check<'a> {
    catalog: &'a Catalog,
    report: Mutex<Report<'a>>,
}

/// What is told about the tensors, in their order.
struct Report<'a> {
    out: &'a mut File,
    /// The first tensor of which nothing was told yet.
    next: usize,
    /// What is to be told of tensors that were done before those in front of them.
    waiting: BTreeMap<usize, String>,
    issues: u64,
}

/// A tensor that is being read.
struct Reading<'a> {
    index: usize,
    tensor: Tensor<'a>,
    content: Option<Content>,
    numbers: Numbers,
    found: Mutex<Found>,
}

/// What the bytes are that are looked at.
#[derive(Clone, Copy)]
enum Numbers {
    F32,
    F64(Endian),
    /// Nothing that f16 could hold.
    Other,
}

/// What was found out about a tensor.
#[derive(Default)]
struct Found {
    overflows: u64,
    largest: f64,
    /// The first part that cannot be read: where, and why.
    error: Option<(u64, io::Error)>,
}

impl<'a> Job for Check<'a> {
    type File = Reading<'a>;

    fn count(&self) -> usize {
        self.catalog.len() as usize
    }

    fn begin(&self, index: usize) -> Result<Begun<Reading<'a>>> {
        let Some(tensor) = u32::try_from(index).ok().and_then(|index| self.catalog.tensor(index)) else {
            return Err(mount_tensors::error::Error::unsupported("there is no such tensor"));
        };
        // A few stored elements that are shown again and again are read once.
        let once = self.catalog.once(tensor);
        let seen = once.as_ref().and_then(|once| once.tensor(0)).unwrap_or(tensor);
        // Doubles are judged as they are: rounding them to single precision first would hide some and make up others.
        let double = seen.scheme().is_none() && seen.dtype().to_string() == "f64";
        let wide = Content::new(View::RawF32, seen).filter(|_| !double);
        let numbers = match (double, &wide) {
            (true, _) => Numbers::F64(seen.endian()),
            (false, Some(_)) => Numbers::F32,
            (false, None) => Numbers::Other,
        };
        let content = wide.or_else(|| Content::new(View::Raw, seen));
        let len = content.as_ref().map_or(0, Content::len);
        Ok(Begun { file: Reading { index, tensor, content, numbers, found: Mutex::default() }, len, divisible: true })
    }

    fn piece(&self, reading: &Reading<'a>, range: Range<u64>, scratch: &mut Scratch) -> Result<()> {
        let Some(content) = &reading.content else { return Ok(()) };
        if lock(&reading.found).error.is_some() {
            return Ok(());
        }
        let (mut at, mut overflows, mut largest) = (range.start, 0, 0f64);
        while at < range.end {
            let bytes = match content.read_copied(self.catalog.sources(), at, STEP.min(range.end - at), scratch) {
                Ok([]) => break,
                Ok(bytes) => bytes,
                Err(e) => {
                    let mut found = lock(&reading.found);
                    if found.error.as_ref().is_none_or(|(first, _)| at < *first) {
                        found.error = Some((at, e));
                    }
                    return Ok(());
                }
            };
            let (more, large) = too_large(reading.numbers, bytes);
            overflows += more;
            largest = largest.max(large);
            at += bytes.len() as u64;
        }
        let mut found = lock(&reading.found);
        found.overflows += overflows;
        found.largest = found.largest.max(largest);
        Ok(())
    }

    fn end(&self, reading: &Reading<'a>) -> Result<()> {
        let found = lock(&reading.found);
        let name = quoted(reading.tensor.name());
        let text = match &*found {
            Found { error: Some((_, e)), .. } => format!("tensor {name}: {e}\n"),
            Found { overflows: 0, .. } => String::new(),
            Found { overflows, largest, .. } => {
                format!("note: tensor {name}: {overflows} finite values become infinite in f16, the largest is {largest:e}\n")
            }
        };
        lock(&self.report).add(reading.index, text, found.error.is_some());
        Ok(())
    }
}

impl Report<'_> {
    /// Tells what there is to tell of a tensor, after those in front of it.
    fn add(&mut self, index: usize, text: String, issue: bool) {
        self.issues += u64::from(issue);
        self.waiting.insert(index, text);
        while let Some(text) = self.waiting.remove(&self.next) {
            // A note that nobody reads is no fault of the tensor.
            let _ = self.out.write_all(text.as_bytes());
            self.next += 1;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many finite numbers half precision would make infinite, and the largest of them. The smallest that rounds to infinity is 65520.
///
/// Numbers of one sign are in the order of their bits, and comparing those is what compilers make vector code of.
fn too_large(numbers: Numbers, bytes: &[u8]) -> (u64, f64) {
    match numbers {
        Numbers::Other => (0, 0.0),
        Numbers::F32 => {
            let (first, infinity) = (65520f32.to_bits().cast_signed(), f32::INFINITY.to_bits().cast_signed());
            let (mut count, mut largest) = (0u32, 0i32);
            for value in bytes.as_chunks().0 {
                let size = i32::from_le_bytes(*value) & i32::MAX;
                let too_large = size >= first && size < infinity;
                count += u32::from(too_large);
                largest = largest.max(if too_large { size } else { 0 });
            }
            (count.into(), f32::from_bits(largest.cast_unsigned()).into())
        }
        Numbers::F64(endian) => {
            let (first, infinity) = (65520f64.to_bits(), f64::INFINITY.to_bits());
            let (mut count, mut largest) = (0, 0);
            for value in bytes.as_chunks().0 {
                let bits = if endian == Endian::Big { u64::from_be_bytes(*value) } else { u64::from_le_bytes(*value) };
                let size = bits & (u64::MAX >> 1);
                let too_large = size >= first && size < infinity;
                count += u64::from(too_large);
                largest = largest.max(if too_large { size } else { 0 });
            }
            (count, f64::from_bits(largest))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_ends_at_65520() {
        let values = [1.0, 65_519.996, 65_520.0, -70_000.0, f32::INFINITY, f32::NAN, f32::NEG_INFINITY, -0.0, 65_504.0];
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(too_large(Numbers::F32, &bytes), (2, 70_000.0));
        let wide = [65_519.999_999, 65_520.0, 1e300, f64::INFINITY, f64::NAN];
        let bytes: Vec<u8> = wide.iter().flat_map(|v: &f64| v.to_be_bytes()).collect();
        assert_eq!(too_large(Numbers::F64(Endian::Big), &bytes), (2, 1e300));
        assert_eq!(too_large(Numbers::Other, &bytes), (0, 0.0));
    }
}
