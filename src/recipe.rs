//! Tensors whose elements are computed from stored bytes when they are read.
//!
//! A container may hold a tensor as a strided view of a larger run, as sparse parts, or as packed values with scales beside them. A recipe knows the extents
//! that it needs and computes any run of elements on its own. What one keeps from a read for the next (a tile, a place to go on from) is a cache of
//! bounded size: the elements do not depend on it.

use std::io;
use std::sync::Arc;

use crate::source::{Extent, Source};

/// The bytes that recipes read: those of their catalogue's sources.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    sources: &'a [Arc<Source>],
}

impl<'a> Inputs<'a> {
    /// The inputs of one catalogue.
    pub fn new(sources: &'a [Arc<Source>]) -> Self {
        Self { sources }
    }

    /// Fills `out` with the bytes at `offset` of an extent.
    ///
    /// # Errors
    /// The range leaves the extent, or its bytes are gone.
    pub fn read(self, extent: Extent, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let part = extent.sub(offset, out.len() as u64);
        let part = part.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a recipe reads outside of its input"))?;
        let source = usize::try_from(part.source()).ok().and_then(|id| self.sources.get(id));
        let source = source.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a recipe's source is missing"))?;
        source.read_at(part.offset(), out)
    }

    /// Reads a whole extent, which the caller has bounded.
    ///
    /// # Errors
    /// Its bytes are gone.
    pub fn read_all(self, extent: Extent) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(extent.len()).unwrap_or(usize::MAX)];
        self.read(extent, 0, &mut bytes)?;
        Ok(bytes)
    }
}

/// Computes elements of the stored type, in the tensor's order and byte order.
pub trait Elements: Send + Sync {
    /// Fills `out` with whole blocks from block number `first` on (for most types a block is one element; for strings it is one byte of their JSON text).
    ///
    /// # Errors
    /// Stored bytes are gone or damaged.
    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [u8]) -> io::Result<()>;

    /// Elements of the same type in which everything that is stored occurs, though not as often as in these, and how many they are: for whoever has to see
    /// every value, but not every place. `None` where these are no more than are stored.
    fn once(&self) -> Option<(Arc<dyn Elements>, u64)> {
        None
    }
}

/// Computes logical values, as a quantised layout's own library would.
pub trait Values: Send + Sync {
    /// Fills `out` with the values from element number `first` on, in C order of the logical shape.
    ///
    /// # Errors
    /// Stored bytes are gone or damaged.
    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [f32]) -> io::Result<()>;
}

/// A quantised layout made of several tensors, as it applies to one of them.
pub struct Scheme {
    /// What tensors.json says of it: the layout's name, its parameters and the names of its other inputs.
    pub facts: serde_json::Value,
    /// The values.
    pub values: Box<dyn Values>,
}

/// Elements at regular distances in a run of bytes: transposed, sliced and expanded views.
#[derive(Clone)]
pub struct Strided {
    base: Extent,
    element_bytes: u64,
    shape: Vec<u64>,
    /// Distance between neighbours along each dimension, in elements; never negative.
    strides: Vec<u64>,
    /// Number of the first element within the run.
    offset: u64,
}

impl Strided {
    /// The view of `base` with this shape and these strides (in elements of `element_bytes` bytes); `None` if any element leaves the run.
    pub fn new(base: Extent, element_bytes: u64, offset: u64, shape: &[u64], strides: &[u64]) -> Option<Self> {
        if shape.len() != strides.len() || element_bytes == 0 {
            return None;
        }
        if !shape.contains(&0) {
            let reach = shape.iter().zip(strides).try_fold(offset, |reach, (size, stride)| reach.checked_add(size.checked_sub(1)?.checked_mul(*stride)?))?;
            if reach.checked_add(1)?.checked_mul(element_bytes)? > base.len() {
                return None;
            }
        }
        Some(Self { base, element_bytes, shape: shape.to_vec(), strides: strides.to_vec(), offset })
    }

    /// Each element once: dimensions along which nothing moves have one, and where elements still overlap, their whole run is taken.
    pub(crate) fn distinct(&self) -> (Self, u64) {
        let moving = || self.shape.iter().zip(&self.strides).filter(|(size, stride)| **size != 1 && **stride != 0);
        if self.shape.contains(&0) {
            return (self.clone(), 0);
        }
        let reach = moving().fold(1u64, |reach, (size, stride)| reach.saturating_add(size.saturating_sub(1).saturating_mul(*stride)));
        let count = moving().fold(1u64, |count, (size, _)| count.saturating_mul(*size));
        let (shape, strides) = if count > reach { (vec![reach], vec![1]) } else { moving().unzip() };
        (Self { shape, strides, ..self.clone() }, count.min(reach))
    }

    /// The number of elements that follow each other without a gap along the last dimensions, and over how many dimensions.
    fn run(&self) -> (u64, usize) {
        let (mut run, mut dimensions) = (1u64, 0usize);
        for (size, stride) in self.shape.iter().zip(&self.strides).rev() {
            if *size != 1 && *stride != run {
                break;
            }
            run = run.saturating_mul(*size);
            dimensions = dimensions.saturating_add(1);
        }
        (run, dimensions)
    }
}

/// How far apart elements may lie for a row of them to be fetched in one read with what is between, in bytes.
const GATHER_SPAN: u64 = 1 << 20;

impl Elements for Strided {
    fn once(&self) -> Option<(Arc<dyn Elements>, u64)> {
        let (distinct, count) = self.distinct();
        let all = self.shape.iter().fold(1u64, |all, size| all.saturating_mul(*size));
        (count < all).then(|| (Arc::new(distinct) as Arc<dyn Elements>, count))
    }

    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [u8]) -> io::Result<()> {
        let size = usize::try_from(self.element_bytes).unwrap_or(usize::MAX);
        let (run, inner) = self.run();
        let outer = self.shape.len().saturating_sub(inner);
        let (outer_shape, outer_strides) = (self.shape.get(..outer).unwrap_or(&[]), self.strides.get(..outer).unwrap_or(&[]));
        let start_of = |row: u64| {
            let mut rest = row;
            let mut at = self.offset;
            for (size, stride) in outer_shape.iter().zip(outer_strides).rev() {
                let index = rest.checked_rem(*size).unwrap_or(0);
                rest = rest.checked_div(*size).unwrap_or(0);
                at = at.saturating_add(index.saturating_mul(*stride));
            }
            at
        };
        let (mut element, mut out) = (first, out);
        let mut gathered = Vec::new();
        while out.len() >= size {
            let (row, within) = (element.checked_div(run).unwrap_or(0), element.checked_rem(run).unwrap_or(0));
            let wanted = (out.len() as u64).checked_div(self.element_bytes).unwrap_or(0);
            let step = outer_strides.last().copied().unwrap_or(0);
            let row_len = outer_shape.last().copied().unwrap_or(1).max(1);
            let left_in_row = row_len.saturating_sub(row.checked_rem(row_len).unwrap_or(0));
            let done = if run == 1 && left_in_row > 1 {
                // Single elements at equal distances: fetch them with what is between, as far as that is not too much.
                let most = GATHER_SPAN.checked_div(step.saturating_mul(self.element_bytes).max(1)).unwrap_or(0).saturating_add(1);
                let count = wanted.min(left_in_row).min(most.max(1));
                let span = count.saturating_sub(1).saturating_mul(step).saturating_add(1).saturating_mul(self.element_bytes);
                gathered.resize(usize::try_from(span).unwrap_or(usize::MAX), 0);
                inputs.read(self.base, start_of(row).saturating_mul(self.element_bytes), &mut gathered)?;
                let distance = usize::try_from(step.saturating_mul(self.element_bytes)).unwrap_or(usize::MAX);
                for (index, target) in out.chunks_exact_mut(size).take(usize::try_from(count).unwrap_or(usize::MAX)).enumerate() {
                    let at = index.saturating_mul(distance);
                    if let Some(from) = gathered.get(at..at.saturating_add(size)) {
                        target.copy_from_slice(from);
                    }
                }
                count
            } else {
                let count = wanted.min(run.saturating_sub(within)).max(1);
                let bytes = usize::try_from(count.saturating_mul(self.element_bytes)).unwrap_or(usize::MAX);
                let at = start_of(row).saturating_add(within).saturating_mul(self.element_bytes);
                let target = out.get_mut(..bytes).ok_or(io::ErrorKind::InvalidInput)?;
                inputs.read(self.base, at, target)?;
                count
            };
            element = element.saturating_add(done);
            let bytes = usize::try_from(done.saturating_mul(self.element_bytes)).unwrap_or(usize::MAX);
            out = out.get_mut(bytes..).unwrap_or_default();
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "tests")]
mod tests {
    use super::*;

    fn ramp() -> (Vec<Arc<Source>>, Extent) {
        let bytes: Vec<u8> = (0..1000u32).flat_map(|i| (i as u16).to_le_bytes()).collect();
        let source = Source::from_bytes("ramp", bytes);
        let extent = Extent::new(0, &source, 0, 2000).unwrap();
        (vec![source], extent)
    }

    /// The view element by element, the slow way.
    fn slow(offset: u64, shape: &[u64], strides: &[u64]) -> Vec<u16> {
        let count: u64 = shape.iter().product();
        (0..count)
            .map(|mut flat| {
                let mut at = offset;
                for (size, stride) in shape.iter().zip(strides).rev() {
                    at += flat % size * stride;
                    flat /= size;
                }
                at as u16
            })
            .collect()
    }

    #[test]
    fn any_view_and_any_part_of_it_equals_the_slow_way() {
        let (sources, extent) = ramp();
        let views: [(u64, &[u64], &[u64]); 9] = [
            (0, &[10, 20], &[20, 1]),
            (0, &[20, 10], &[1, 20]),
            (5, &[3, 4, 5], &[100, 7, 2]),
            (3, &[4, 5], &[0, 0]),
            (0, &[2, 3, 4, 5], &[60, 1, 15, 3]),
            (7, &[], &[]),
            (0, &[1, 6, 1], &[999, 2, 17]),
            (1, &[6, 1, 4], &[8, 123, 1]),
            (0, &[3, 0], &[1, 1]),
        ];
        for (offset, shape, strides) in views {
            let view = Strided::new(extent, 2, offset, shape, strides).unwrap();
            let whole: Vec<u8> = slow(offset, shape, strides).into_iter().flat_map(u16::to_le_bytes).collect();
            for first in 0..=whole.len() / 2 {
                for end in first..=whole.len() / 2 {
                    let mut out = vec![0; (end - first) * 2];
                    view.read(Inputs::new(&sources), first as u64, &mut out).unwrap();
                    assert_eq!(out, whole[first * 2..end * 2], "{shape:?} {strides:?} {first}..{end}");
                }
            }
        }
    }

    #[test]
    fn what_is_stored_occurs_once_however_often_a_view_repeats_it() {
        let (sources, extent) = ramp();
        for (shape, strides, expected) in [
            (&[1 << 40, 3][..], &[0, 1][..], vec![5, 6, 7]),
            (&[2, 1 << 40, 2], &[10, 0, 3], vec![5, 8, 15, 18]),
            (&[6, 6], &[1, 1], (5..16).collect()),
            (&[1 << 40], &[0], vec![5]),
        ] {
            let (once, count) = Strided::new(extent, 2, 5, shape, strides).unwrap().once().unwrap();
            let mut out = vec![0; expected.len() * 2];
            once.read(Inputs::new(&sources), 0, &mut out).unwrap();
            let found: Vec<u16> = out.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
            assert_eq!((found, count), (expected, out.len() as u64 / 2), "{shape:?} {strides:?}");
        }
        assert!(Strided::new(extent, 2, 5, &[4, 3], &[1, 4]).unwrap().once().is_none());
        assert!(Strided::new(extent, 2, 5, &[0, 1 << 40], &[0, 0]).unwrap().once().is_none());
    }

    #[test]
    fn a_view_that_leaves_its_run_is_refused() {
        let (_, extent) = ramp();
        assert!(Strided::new(extent, 2, 0, &[1000], &[1]).is_some());
        assert!(Strided::new(extent, 2, 1, &[1000], &[1]).is_none());
        assert!(Strided::new(extent, 2, 0, &[2], &[1000]).is_none());
        assert!(Strided::new(extent, 2, 0, &[u64::MAX], &[u64::MAX]).is_none());
        assert!(Strided::new(extent, 2, 0, &[1 << 40], &[0]).is_some());
    }
}
