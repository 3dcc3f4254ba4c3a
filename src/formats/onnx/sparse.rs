//! SparseTensorProto: the places of the values that are not zero, and these values, as the dense tensor they stand for.
//!
//! Indices are i64, one an element of the flattened tensor (shape `[N]`) or one a dimension (shape `[N, rank]`), in ascending order.

use std::io;
use std::sync::{Arc, OnceLock};

use super::graph::Bytes;
use crate::catalog::{Tensor, product};
use crate::recipe::{Elements, Inputs};

/// A sparse tensor made dense when it is read.
#[derive(Clone)]
pub(super) struct Dense {
    values: Bytes,
    indices: Bytes,
    /// Bytes of an element.
    size: usize,
    count: u64,
    elements: u64,
    /// The distance of neighbours along each dimension, where there is one index a dimension.
    strides: Option<Vec<(u64, u64)>>,
    sorted: OnceLock<bool>,
}

/// Indices fetched at a time.
const STEP: u64 = 4096;

impl Dense {
    /// The dense tensor of a shape, or why there is none.
    pub(super) fn new(shape: &[u64], values: Tensor<'_>, indices: Tensor<'_>) -> Result<Self, String> {
        let elements = product(shape).ok_or_else(|| format!("the product of its shape {shape:?} is larger than 2^63"))?;
        let size = match values.dtype().block() {
            Some((1, bytes)) => usize::try_from(bytes).unwrap_or(1).max(1),
            _ => return Err(format!("is a sparse tensor of {}, which is not made dense", values.dtype())),
        };
        let count = match values.shape() {
            [count] => *count,
            other => return Err(format!("its values have shape {other:?}, expected one dimension")),
        };
        let strides = match indices.shape() {
            [n] if *n == count => None,
            [n, rank] if *n == count && *rank == shape.len() as u64 => {
                let mut step = 1u64;
                let mut strides: Vec<(u64, u64)> = Vec::new();
                for dimension in shape.iter().rev() {
                    strides.push((*dimension, step));
                    step = step.saturating_mul(*dimension);
                }
                strides.reverse();
                Some(strides)
            }
            other => return Err(format!("its indices have shape {other:?}, expected [{count}] or [{count}, {}]", shape.len())),
        };
        if indices.dtype().to_string() != "i64" {
            return Err(format!("its indices are {}, expected i64", indices.dtype()));
        }
        let (Some(values), Some(indices)) = (Bytes::of(values), Bytes::of(indices)) else {
            return Err("its indices or values are missing".to_string());
        };
        Ok(Self { values, indices, size, count, elements, strides, sorted: OnceLock::new() })
    }

    /// The places of `out.len()` values from number `first` on, in the flattened tensor.
    fn places(&self, inputs: Inputs<'_>, first: u64, out: &mut Vec<u64>, count: u64) -> io::Result<()> {
        let outside = || io::Error::new(io::ErrorKind::InvalidData, "an index of a sparse tensor lies outside of its shape");
        let rank = self.strides.as_ref().map_or(1, Vec::len);
        let numbers = usize::try_from(count).ok().and_then(|c| c.checked_mul(rank)).and_then(|n| n.checked_mul(8)).ok_or_else(outside)?;
        let mut bytes = vec![0; numbers];
        self.indices.read(inputs, first.saturating_mul(rank as u64), &mut bytes)?;
        let numbers: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b)).collect();
        out.clear();
        match &self.strides {
            None => out.extend_from_slice(&numbers),
            Some(strides) if strides.is_empty() => out.resize(usize::try_from(count).unwrap_or(0), 0),
            Some(strides) => {
                for index in numbers.chunks_exact(rank) {
                    let mut at = 0u64;
                    for (number, (dimension, stride)) in index.iter().zip(strides) {
                        if number >= dimension {
                            return Err(outside());
                        }
                        at = at.saturating_add(number.saturating_mul(*stride));
                    }
                    out.push(at);
                }
            }
        }
        if out.iter().any(|at| *at >= self.elements) { Err(outside()) } else { Ok(()) }
    }

    /// Whether the indices ascend, as they should: then a part of the tensor needs only a part of them.
    fn is_sorted(&self, inputs: Inputs<'_>) -> io::Result<bool> {
        if let Some(sorted) = self.sorted.get() {
            return Ok(*sorted);
        }
        let (mut first, mut last, mut places) = (0, None, Vec::new());
        let mut sorted = true;
        while first < self.count && sorted {
            let count = STEP.min(self.count.saturating_sub(first));
            self.places(inputs, first, &mut places, count)?;
            for place in &places {
                sorted &= last.is_none_or(|last| last < *place);
                last = Some(*place);
            }
            first = first.saturating_add(count);
        }
        Ok(*self.sorted.get_or_init(|| sorted))
    }

    /// The number of the first value at or after a place.
    fn find(&self, inputs: Inputs<'_>, place: u64) -> io::Result<u64> {
        let (mut low, mut high, mut one) = (0, self.count, Vec::new());
        while low < high {
            let middle = low.midpoint(high);
            self.places(inputs, middle, &mut one, 1)?;
            if one.first().is_some_and(|at| *at < place) {
                low = middle.saturating_add(1);
            } else {
                high = middle;
            }
        }
        Ok(low)
    }
}

/// The values that are stored, each with a look at its place.
struct Entries(Dense);

impl Elements for Entries {
    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [u8]) -> io::Result<()> {
        let (mut places, mut number) = (Vec::new(), first);
        for part in out.chunks_mut(self.0.size.saturating_mul(usize::try_from(STEP).unwrap_or(usize::MAX))) {
            let count = (part.len() as u64).checked_div(self.0.size as u64).unwrap_or(0);
            self.0.places(inputs, number, &mut places, count)?;
            self.0.values.read(inputs, number, part)?;
            number = number.saturating_add(count);
        }
        Ok(())
    }
}

impl Elements for Dense {
    fn once(&self) -> Option<(Arc<dyn Elements>, u64)> {
        // The places in between are zero.
        Some((Arc::new(Entries(self.clone())), self.count))
    }

    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [u8]) -> io::Result<()> {
        out.fill(0);
        let end = first.saturating_add((out.len() as u64).div_ceil(self.size as u64));
        let sorted = self.is_sorted(inputs)?;
        let mut number = if sorted { self.find(inputs, first)? } else { 0 };
        let (mut places, mut values) = (Vec::new(), Vec::new());
        while number < self.count {
            let count = STEP.min(self.count.saturating_sub(number));
            self.places(inputs, number, &mut places, count)?;
            if sorted && places.first().is_some_and(|at| *at >= end) {
                break;
            }
            values.resize(places.len().saturating_mul(self.size), 0);
            self.values.read(inputs, number, &mut values)?;
            for (place, value) in places.iter().zip(values.chunks_exact(self.size)) {
                let at = place.checked_sub(first).and_then(|at| usize::try_from(at).ok()?.checked_mul(self.size));
                if let Some(slot) = at.and_then(|at| out.get_mut(at..)?.get_mut(..self.size)) {
                    slot.copy_from_slice(value);
                }
            }
            number = number.saturating_add(count);
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "tests")]
mod tests {
    use super::*;
    use crate::catalog::{Builder, Spec};
    use crate::dtype::DType;
    use crate::source::Source;

    /// A dense [50, 400] tensor of i16 from its places and 1, 2, 3, ...
    fn check(places: &[u64], two: bool) {
        let indices: Vec<u8> = places.iter().flat_map(|p| if two { vec![p / 400, p % 400] } else { vec![*p] }).flat_map(u64::to_le_bytes).collect();
        let values: Vec<u8> = (1..=places.len() as u16).flat_map(u16::to_le_bytes).collect();
        let source = Source::from_bytes("sparse", [&indices[..], &values].concat());
        let mut builder = Builder::new("onnx");
        builder.source(source);
        let n = places.len() as u64;
        let shape = if two { vec![n, 2] } else { vec![n] };
        builder.tensor(&Spec::new(b"v", DType::native("i16").unwrap(), &[n], 0, Some(indices.len() as u64))).unwrap();
        builder.tensor(&Spec::new(b"i", DType::native("i64").unwrap(), &shape, 0, Some(0))).unwrap();
        let catalog = builder.catalog();
        let dense = Dense::new(&[50, 400], catalog.tensor(0).unwrap(), catalog.tensor(1).unwrap()).unwrap();
        let mut whole = vec![0u8; 40_000];
        for (value, place) in (1u16..).zip(places) {
            whole[*place as usize * 2..][..2].copy_from_slice(&value.to_le_bytes());
        }
        for (first, count) in [(0, 20_000), (0, 1), (399, 2), (19_999, 1), (5000, 5000), (7, 0)] {
            let mut out = vec![0xee; count * 2];
            dense.read(Inputs::new(catalog.sources()), first as u64, &mut out).unwrap();
            assert_eq!(out, whole[first * 2..(first + count) * 2], "{first} {count}");
        }
        let (once, count) = dense.once().unwrap();
        let mut out = vec![0; places.len() * 2];
        once.read(Inputs::new(catalog.sources()), 0, &mut out).unwrap();
        assert_eq!((out, count), ((1..=places.len() as u16).flat_map(u16::to_le_bytes).collect(), places.len() as u64));
    }

    #[test]
    fn any_part_is_dense() {
        let many: Vec<u64> = (0..6000).map(|i| i * 3 + 1).collect();
        for two in [false, true] {
            check(&many, two);
            check(&[0, 399, 400, 19_999], two);
            check(&[], two);
            check(&[19_999, 5, 400], two);
        }
    }
}
