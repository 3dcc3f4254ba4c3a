//! Sparse tensors, dense when they are read.
//!
//! | layout | parts |
//! |---|---|
//! | COO | `indices` [dimensions, entries], `values` [entries, dense dimensions] |
//! | CSR, BSR | `crow_indices` [batch, rows + 1], `col_indices` [batch, entries], `values` [batch, entries, block, dense dimensions] |
//! | CSC, BSC | `ccol_indices` [batch, columns + 1], `row_indices` [batch, entries], `values` |
//!
//! A read looks at the entries in pieces and adds those that fall into it, in the tensor's own type and in their order, as torch's `to_dense()` does. Entries of CSR and BSR are found
//! by their rows; those of COO by a coarse table if they are in order; of all others every read looks at every entry.

use std::io;
use std::sync::{Arc, OnceLock};

use super::tensor::{Bad, Operand, View};
use super::types::Type;
use crate::catalog::{Builder, product};
use crate::reader::Endian;
use crate::recipe::{Elements, Inputs};
use crate::source::SourceId;

/// Entries that are looked at together.
const ENTRIES: u64 = 4096;
/// Bytes of values that are fetched together.
const VALUES: u64 = 256 << 10;

/// How a sparse tensor is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    Coo,
    /// Rows (true) or columns are counted; the entries are blocks or single places.
    Compressed {
        rows: bool,
        blocks: bool,
    },
}

impl Layout {
    /// The layout that torch calls so.
    pub(super) fn by_name(name: &str) -> Option<Self> {
        Some(match name.strip_prefix("torch.").unwrap_or(name) {
            "sparse_coo" => Self::Coo,
            "sparse_csr" => Self::Compressed { rows: true, blocks: false },
            "sparse_csc" => Self::Compressed { rows: false, blocks: false },
            "sparse_bsr" => Self::Compressed { rows: true, blocks: true },
            "sparse_bsc" => Self::Compressed { rows: false, blocks: true },
            _ => return None,
        })
    }
}

/// A sparse tensor.
pub(super) struct Sparse {
    layout: Layout,
    /// Indices, or compressed and plain indices.
    indices: Vec<View>,
    values: View,
    pub(super) shape: Vec<u64>,
    geometry: Geometry,
}

/// Where entries go.
#[derive(Clone, Debug, Default)]
struct Geometry {
    /// Entries in each batch.
    entries: u64,
    /// Distance between neighbours along each sparse dimension, in elements (COO).
    strides: Vec<u64>,
    /// Sizes of the sparse dimensions (COO), or rows and columns of blocks.
    sizes: Vec<u64>,
    /// Elements of a batch, and of a row of it.
    batch: u64,
    row: u64,
    /// Rows of a block.
    height: u64,
    /// Elements that an entry has in each row.
    run: u64,
}

impl Sparse {
    /// A sparse tensor of these parts.
    pub(super) fn new(layout: Layout, indices: Vec<View>, values: View, shape: Vec<u64>) -> Result<Self, Bad> {
        let bad = |what: String| Bad { what, known: Some((values.class.dtype(), shape.clone())) };
        let geometry = geometry(layout, &indices, &values, &shape).map_err(|what| bad(format!("its sparse parts do not fit its shape {shape:?}: {what}")))?;
        Ok(Self { layout, indices, values, shape, geometry })
    }

    pub(super) fn class(&self) -> &'static Type {
        self.values.class
    }

    pub(super) fn endian(&self) -> Endian {
        self.values.endian()
    }

    pub(super) fn source(&self) -> SourceId {
        self.values.source()
    }

    /// The parts under torch's names for them.
    pub(super) fn parts(&self) -> impl Iterator<Item = (&'static str, &View)> {
        let names: &[&'static str] = match self.layout {
            Layout::Coo => &["indices"],
            Layout::Compressed { rows: true, .. } => &["crow_indices", "col_indices"],
            Layout::Compressed { rows: false, .. } => &["ccol_indices", "row_indices"],
        };
        names.iter().copied().zip(&self.indices).chain([("values", &self.values)])
    }

    /// What computes the dense elements.
    pub(super) fn elements(&self, builder: &Builder) -> Result<Arc<dyn Elements>, String> {
        let indices = self.indices.iter().map(|view| view.elements(builder)).collect::<Result<Vec<_>, _>>()?;
        let values = self.values.elements(builder)?;
        Ok(Arc::new(Dense { layout: self.layout, indices, values, geometry: self.geometry.clone(), order: OnceLock::new() }))
    }
}

fn geometry(layout: Layout, indices: &[View], values: &View, shape: &[u64]) -> Result<Geometry, String> {
    if values.conjugate || values.negative || values.class.in_byte() != 1 || values.class.packs() != 1 {
        return Err(format!("values of type {} that are packed or turned", values.class.torch));
    }
    if indices.iter().any(|view| !matches!(view.class.torch, "int64" | "int32")) {
        return Err("indices that are no integers".to_string());
    }
    // Every read looks through the indices: more of them than are stored would have no end.
    if indices.iter().any(View::repeats) {
        return Err("more indices than are stored".to_string());
    }
    product(shape).ok_or("it is larger than 2^63")?;
    let size = |dimensions: &[u64]| product(dimensions).ok_or("it is larger than 2^63".to_string());
    match (layout, indices) {
        (Layout::Coo, [indices]) => {
            let &[dimensions, entries] = indices.shape.as_slice() else { return Err(format!("indices of shape {:?}", indices.shape)) };
            let split = usize::try_from(dimensions).unwrap_or(usize::MAX);
            let (sizes, dense) = shape.split_at_checked(split).ok_or_else(|| format!("indices of {dimensions} dimensions"))?;
            if values.shape.split_first() != Some((&entries, dense)) {
                return Err(format!("values of shape {:?}", values.shape));
            }
            let strides = (1..=sizes.len()).map(|next| size(shape.get(next..).unwrap_or_default())).collect::<Result<_, _>>()?;
            Ok(Geometry { entries, strides, sizes: sizes.to_vec(), height: 1, run: size(dense)?, ..Geometry::default() })
        }
        (Layout::Compressed { rows, blocks }, [compressed, plain]) => {
            let Some((pointers, batch)) = compressed.shape.split_last() else { return Err("pointers without dimensions".to_string()) };
            let Some((entries, plain_batch)) = plain.shape.split_last() else { return Err("indices without dimensions".to_string()) };
            let rest = values.shape.strip_prefix(batch).and_then(|rest| rest.strip_prefix(&[*entries]));
            let rest = rest.filter(|_| plain_batch == batch).ok_or_else(|| format!("values of shape {:?}", values.shape))?;
            let (block, dense) = rest.split_at_checked(if blocks { 2 } else { 0 }).ok_or("values without blocks")?;
            let (height, width) = match block {
                [height, width] => (*height, *width),
                _ => (1, 1),
            };
            let (rows_of, columns_of) = match shape.strip_prefix(batch) {
                Some([rows, columns, rest @ ..]) if rest == dense => (*rows, *columns),
                _ => return Err(format!("values of shape {:?}", values.shape)),
            };
            let fits = |whole: u64, part: u64| whole.checked_rem(part) == Some(0);
            if !fits(rows_of, height) || !fits(columns_of, width) {
                return Err(format!("blocks of {height} x {width}"));
            }
            let sizes = vec![rows_of.checked_div(height).unwrap_or(0), columns_of.checked_div(width).unwrap_or(0)];
            let counted = sizes.get(usize::from(!rows)).copied().unwrap_or(0);
            if *pointers != counted.saturating_add(1) {
                return Err(format!("{pointers} pointers, expected {}", counted.saturating_add(1)));
            }
            let dense = size(dense)?;
            let row = columns_of.saturating_mul(dense);
            Ok(Geometry { entries: *entries, strides: Vec::new(), sizes, batch: rows_of.saturating_mul(row), row, height, run: width.saturating_mul(dense) })
        }
        _ => Err("too few parts".to_string()),
    }
}

struct Dense {
    layout: Layout,
    indices: Vec<Operand>,
    values: Operand,
    geometry: Geometry,
    /// The first place of every [`ENTRIES`]th entry of COO, if they are in order.
    order: OnceLock<Option<Vec<u64>>>,
}

impl Dense {
    /// Where entries `from..to` of a batch begin; `None` for one whose index is outside of the tensor.
    fn places(&self, inputs: Inputs<'_>, batch: u64, from: u64, to: u64) -> io::Result<Vec<Option<u64>>> {
        let g = &self.geometry;
        let count = usize::try_from(to.saturating_sub(from)).unwrap_or(0);
        match (self.layout, self.indices.as_slice()) {
            (Layout::Coo, [indices]) => {
                let mut places = vec![Some(0_u64); count];
                for ((dimension, size), stride) in (0_u64..).zip(&g.sizes).zip(&g.strides) {
                    let along = indices.integers(inputs, dimension.saturating_mul(g.entries).saturating_add(from), count)?;
                    for (place, index) in places.iter_mut().zip(along) {
                        let index = u64::try_from(index).ok().filter(|index| index < size);
                        *place = place.zip(index).map(|(place, index)| place.saturating_add(index.saturating_mul(*stride)));
                    }
                }
                Ok(places)
            }
            (Layout::Compressed { rows, .. }, [compressed, plain]) => {
                let lines = self.lines(inputs, compressed, batch, from, count)?;
                let others = plain.integers(inputs, batch.saturating_mul(g.entries).saturating_add(from), count)?;
                let [high, wide] = g.sizes.as_slice() else { return Ok(Vec::new()) };
                let place = |line: Option<u64>, other: i64| {
                    let (line, other) = (line?, u64::try_from(other).ok()?);
                    let (row, column) = if rows { (line, other) } else { (other, line) };
                    if row >= *high || column >= *wide {
                        return None;
                    }
                    let row = row.saturating_mul(g.height).saturating_mul(g.row);
                    Some(batch.saturating_mul(g.batch).saturating_add(row).saturating_add(column.saturating_mul(g.run)))
                };
                Ok(lines.into_iter().zip(others).map(|(line, other)| place(line, other)).collect())
            }
            _ => Ok(Vec::new()),
        }
    }

    /// How many lines (rows or columns) are counted in a batch.
    fn counted(&self) -> u64 {
        let rows = matches!(self.layout, Layout::Compressed { rows: true, .. });
        self.geometry.sizes.get(usize::from(!rows)).copied().unwrap_or(0)
    }

    fn pointer(&self, inputs: Inputs<'_>, compressed: &Operand, batch: u64, line: u64) -> io::Result<u64> {
        let at = batch.saturating_mul(self.counted().saturating_add(1)).saturating_add(line);
        let pointer = compressed.integers(inputs, at, 1)?.first().copied().unwrap_or(0);
        Ok(u64::try_from(pointer).unwrap_or(0))
    }

    /// The lines of `count` entries from `from` on: the last line whose first entry is not behind the entry.
    fn lines(&self, inputs: Inputs<'_>, compressed: &Operand, batch: u64, from: u64, count: usize) -> io::Result<Vec<Option<u64>>> {
        let counted = self.counted();
        let (mut low, mut high) = (0, counted);
        while low < high {
            let middle = low.saturating_add(high).div_ceil(2);
            if self.pointer(inputs, compressed, batch, middle)? <= from {
                low = middle;
            } else {
                high = middle.saturating_sub(1);
            }
        }
        // `low` is the line of the first entry; the ends of the lines after it follow, in pieces.
        let mut line = low;
        let mut ends: std::vec::IntoIter<i64> = Vec::new().into_iter();
        let mut fetched = line;
        let mut end = None;
        let mut lines = Vec::with_capacity(count.min(4096));
        for entry in (from..).take(count) {
            loop {
                if end.is_none() && line < counted {
                    end = match ends.next() {
                        Some(end) => Some(end),
                        None => {
                            let more = counted.saturating_sub(fetched).min(ENTRIES);
                            let at = batch.saturating_mul(counted.saturating_add(1)).saturating_add(fetched).saturating_add(1);
                            ends = compressed.integers(inputs, at, usize::try_from(more).unwrap_or(0))?.into_iter();
                            fetched = fetched.saturating_add(more);
                            ends.next()
                        }
                    };
                }
                match end {
                    Some(last) if u64::try_from(last).unwrap_or(0) <= entry => {
                        line = line.saturating_add(1);
                        end = None;
                    }
                    _ => break,
                }
            }
            lines.push((line < counted).then_some(line));
        }
        Ok(lines)
    }

    /// The first place of every [`ENTRIES`]th entry, if the entries are in order.
    fn order(&self, inputs: Inputs<'_>) -> io::Result<Option<&[u64]>> {
        if self.order.get().is_none() {
            let mut table = Some(Vec::new());
            let mut before = 0;
            let mut from = 0;
            while let (true, Some(starts)) = (from < self.geometry.entries, &mut table) {
                let to = from.saturating_add(ENTRIES).min(self.geometry.entries);
                let places = self.places(inputs, 0, from, to)?;
                starts.push(places.first().copied().flatten().unwrap_or(0));
                for place in places {
                    match place {
                        Some(place) if place >= before => before = place,
                        _ => {
                            table = None;
                            break;
                        }
                    }
                }
                from = to;
            }
            // Another reader may have been quicker, with the same answer.
            let _ = self.order.set(table);
        }
        Ok(self.order.get().and_then(|table| table.as_deref()))
    }

    /// The entries of a batch that may touch the elements from `first` to `end`.
    fn candidates(&self, inputs: Inputs<'_>, batch: u64, first: u64, end: u64) -> io::Result<(u64, u64)> {
        let g = &self.geometry;
        match (self.layout, self.indices.as_slice()) {
            (Layout::Coo, _) => {
                let Some(starts) = self.order(inputs)? else { return Ok((0, g.entries)) };
                let from = starts.partition_point(|start| start.saturating_add(g.run) <= first).saturating_sub(1);
                let to = starts.partition_point(|start| *start < end);
                Ok(((from as u64).saturating_mul(ENTRIES), (to as u64).saturating_mul(ENTRIES).min(g.entries)))
            }
            (Layout::Compressed { rows: true, .. }, [compressed, _]) => {
                let start = batch.saturating_mul(g.batch);
                let line =
                    |element: u64| element.saturating_sub(start).checked_div(g.row.saturating_mul(g.height)).unwrap_or(0).min(self.counted().saturating_sub(1));
                let (top, bottom) = (line(first), line(end.saturating_sub(1)));
                let from = self.pointer(inputs, compressed, batch, top)?;
                let to = self.pointer(inputs, compressed, batch, bottom.saturating_add(1))?;
                Ok((from.min(g.entries), to.min(g.entries)))
            }
            _ => Ok((0, g.entries)),
        }
    }

    /// Adds the entries `from..to` of a batch to the elements from `first` on.
    fn add(&self, inputs: Inputs<'_>, batch: u64, (from, to): (u64, u64), first: u64, out: &mut [u8]) -> io::Result<()> {
        let g = &self.geometry;
        let size = self.values.class.bytes;
        let end = first.saturating_add((out.len() as u64).checked_div(size).unwrap_or(0));
        let of_entry = g.height.saturating_mul(g.run);
        let places = self.places(inputs, batch, from, to)?;
        let reach = g.height.saturating_sub(1).saturating_mul(g.row).saturating_add(g.run);
        let touches = |place: &Option<u64>| place.is_some_and(|place| place < end && place.saturating_add(reach) > first);
        if of_entry == 0 || !places.iter().any(touches) {
            return Ok(());
        }
        let together = of_entry.saturating_mul(to.saturating_sub(from)).saturating_mul(size) <= VALUES;
        let mut values = Vec::new();
        let start = batch.saturating_mul(g.entries).saturating_add(from).saturating_mul(of_entry);
        if together {
            values.resize(usize::try_from(of_entry.saturating_mul(to.saturating_sub(from)).saturating_mul(size)).unwrap_or(0), 0);
            self.values.read(inputs, start, &mut values)?;
        }
        for (entry, place) in (0_u64..).zip(places) {
            let Some(place) = place.filter(|place| touches(&Some(*place))) else { continue };
            for row in 0..g.height {
                let begin = place.saturating_add(row.saturating_mul(g.row));
                let (a, b) = (begin.max(first), begin.saturating_add(g.run).min(end));
                if a >= b {
                    continue;
                }
                let number = entry.saturating_mul(of_entry).saturating_add(row.saturating_mul(g.run)).saturating_add(a.saturating_sub(begin));
                let bytes = usize::try_from(b.saturating_sub(a).saturating_mul(size)).unwrap_or(0);
                let target = usize::try_from(a.saturating_sub(first).saturating_mul(size)).unwrap_or(usize::MAX);
                let Some(target) = out.get_mut(target..).and_then(|rest| rest.get_mut(..bytes)) else { continue };
                let own;
                let value = if together {
                    let at = usize::try_from(number.saturating_mul(size)).unwrap_or(usize::MAX);
                    values.get(at..).and_then(|rest| rest.get(..bytes)).unwrap_or_default()
                } else {
                    let mut read = vec![0; bytes];
                    self.values.read(inputs, start.saturating_add(number), &mut read)?;
                    own = read;
                    &own
                };
                let size = usize::try_from(size).unwrap_or(1);
                for (sum, value) in target.chunks_exact_mut(size).zip(value.chunks_exact(size)) {
                    accumulate(self.values.class, self.values.endian, sum, value);
                }
            }
        }
        Ok(())
    }
}

impl Elements for Dense {
    fn once(&self) -> Option<(Arc<dyn Elements>, u64)> {
        // The places in between are zero; the indices are tensors of their own.
        let (values, count) = self.values.distinct();
        Some((Arc::new(values), count))
    }

    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [u8]) -> io::Result<()> {
        out.fill(0);
        let g = &self.geometry;
        let end = first.saturating_add((out.len() as u64).checked_div(self.values.class.bytes).unwrap_or(0));
        if end == first {
            return Ok(());
        }
        let (top, bottom) = match self.layout {
            Layout::Coo => (0, 0),
            Layout::Compressed { .. } => (first.checked_div(g.batch).unwrap_or(0), end.saturating_sub(1).checked_div(g.batch).unwrap_or(0)),
        };
        for batch in top..=bottom {
            let start = batch.saturating_mul(g.batch);
            let (from, to) = match self.layout {
                Layout::Coo => self.candidates(inputs, 0, first, end)?,
                Layout::Compressed { .. } => self.candidates(inputs, batch, first.max(start), end.min(start.saturating_add(g.batch)))?,
            };
            let mut at = from;
            while at < to {
                let next = at.saturating_add(ENTRIES).min(to);
                self.add(inputs, batch, (at, next), first, out)?;
                at = next;
            }
        }
        Ok(())
    }
}

/// Adds one element to another, in their own type.
fn accumulate(class: &Type, endian: Endian, sum: &mut [u8], value: &[u8]) {
    if let Some(part) = class.complex_part() {
        let real = match part {
            2 => "float16",
            4 => "float32",
            _ => "float64",
        };
        let Some(real) = Type::by_name(real) else { return };
        for (sum, value) in sum.chunks_exact_mut(part).zip(value.chunks_exact(part)) {
            accumulate(real, endian, sum, value);
        }
        return;
    }
    let wide = |bytes: &[u8]| {
        let mut wide = [0; 8];
        match endian {
            Endian::Little => wide.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from),
            Endian::Big => wide.iter_mut().zip(bytes.iter().rev()).for_each(|(to, from)| *to = *from),
        }
        u64::from_le_bytes(wide)
    };
    let (a, b) = (wide(sum), wide(value));
    let single = |bits: u64| f32::from_bits(u32::try_from(bits & 0xFFFF_FFFF).unwrap_or(0));
    let result = match class.torch {
        "float64" => (f64::from_bits(a) + f64::from_bits(b)).to_bits(),
        "float32" => u64::from((single(a) + single(b)).to_bits()),
        "float16" => {
            let half = |bits: u64| half::f16::from_bits(bits as u16).to_f32();
            u64::from(half::f16::from_f32(half(a) + half(b)).to_bits())
        }
        "bfloat16" => {
            let half = |bits: u64| half::bf16::from_bits(bits as u16).to_f32();
            u64::from(half::bf16::from_f32(half(a) + half(b)).to_bits())
        }
        "bool" => u64::from(a != 0 || b != 0),
        name if name.starts_with("int") || name.starts_with("uint") => a.wrapping_add(b),
        // Types that torch does not add up hold each place once.
        _ => b,
    };
    let bytes = result.to_le_bytes();
    match endian {
        Endian::Little => sum.iter_mut().zip(bytes).for_each(|(to, from)| *to = from),
        Endian::Big => sum.iter_mut().rev().zip(bytes).for_each(|(to, from)| *to = from),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "tests")]

    use super::super::storage::{Place, Storage};
    use super::*;
    use crate::source::Source;

    /// A builder with storages of i64, and views of them.
    struct Parts {
        builder: Builder,
        sources: Vec<Arc<Source>>,
    }

    impl Parts {
        fn view(&mut self, values: &[i64], shape: &[u64]) -> View {
            let source = Source::from_bytes("storage", values.iter().flat_map(|v| v.to_le_bytes()).collect());
            self.sources.push(Arc::clone(&source));
            let place = Place { source: self.builder.source(source), offset: 0, bytes: values.len() as u64 * 8 };
            let strides = (1..=shape.len()).map(|next| shape[next..].iter().product()).collect();
            let class = Type::by_name("int64").unwrap();
            View::new(Storage { place, class: Some(class) }, class, 0, shape.to_vec(), strides, Endian::Little).unwrap()
        }

        /// Any part of the dense tensor is the part of the whole one.
        fn check(&self, sparse: &Sparse, whole: &[i64]) {
            let elements = sparse.elements(&self.builder).unwrap();
            for first in 0..=whole.len() {
                for end in first..=whole.len() {
                    let mut out = vec![1; (end - first) * 8];
                    elements.read(Inputs::new(&self.sources), first as u64, &mut out).unwrap();
                    let found: Vec<i64> = out.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect();
                    assert_eq!(found, whole[first..end], "{:?} {first}..{end}", sparse.layout);
                }
            }
        }
    }

    fn parts() -> Parts {
        Parts { builder: Builder::new("test"), sources: Vec::new() }
    }

    #[test]
    fn coo_in_and_out_of_order_with_an_index_twice() {
        for (rows, columns, whole) in [([2, 0, 2], [1, 0, 1], [2, 0, 0, 0, 0, 4]), ([0, 1, 1], [1, 0, 1], [0, 1, 2, 3, 0, 0])] {
            let mut parts = parts();
            let indices = parts.view(&[rows, columns].concat(), &[2, 3]);
            let values = parts.view(&[1, 2, 3], &[3]);
            let sparse = Sparse::new(Layout::Coo, vec![indices], values, vec![3, 2]).map_err(|bad| bad.what).unwrap();
            parts.check(&sparse, &whole);
        }
    }

    #[test]
    fn rows_columns_and_blocks() {
        let mut parts = parts();
        let (pointers, plain) = (parts.view(&[0, 2, 3], &[3]), parts.view(&[0, 2, 1], &[3]));
        let values = parts.view(&[1, 2, 3], &[3]);
        let csr = Sparse::new(Layout::by_name("torch.sparse_csr").unwrap(), vec![pointers.clone(), plain.clone()], values.clone(), vec![2, 3]);
        parts.check(&csr.map_err(|bad| bad.what).unwrap(), &[1, 0, 2, 0, 3, 0]);
        let csc = Sparse::new(Layout::by_name("sparse_csc").unwrap(), vec![pointers.clone(), plain.clone()], values, vec![3, 2]);
        parts.check(&csc.map_err(|bad| bad.what).unwrap(), &[1, 0, 0, 3, 2, 0]);
        let blocks = parts.view(&(1..=12).collect::<Vec<_>>(), &[3, 2, 2]);
        let bsr = Sparse::new(Layout::by_name("sparse_bsr").unwrap(), vec![pointers, plain], blocks, vec![4, 6]).map_err(|bad| bad.what).unwrap();
        parts.check(&bsr, &[1, 2, 0, 0, 5, 6, 3, 4, 0, 0, 7, 8, 0, 0, 9, 10, 0, 0, 0, 0, 11, 12, 0, 0]);
    }

    #[test]
    fn batches_and_dense_dimensions() {
        let mut parts = parts();
        let (pointers, plain) = (parts.view(&[0, 1, 1, 0, 0, 1], &[2, 3]), parts.view(&[1, 0], &[2, 1]));
        let values = parts.view(&[1, 2, 3, 4], &[2, 1, 2]);
        let csr = Sparse::new(Layout::by_name("sparse_csr").unwrap(), vec![pointers, plain], values, vec![2, 2, 2, 2]).map_err(|bad| bad.what).unwrap();
        parts.check(&csr, &[0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 3, 4, 0, 0]);
    }

    #[test]
    fn indices_that_are_expanded_are_refused() {
        let mut parts = parts();
        let values = parts.view(&[5], &[1]);
        let source = values.source();
        let storage = Storage { place: Place { source, offset: 0, bytes: 8 }, class: Some(values.class) };
        let many = |shape: &[u64]| View::new(storage, values.class, 0, shape.to_vec(), vec![0; shape.len()], Endian::Little).unwrap();
        let sparse = Sparse::new(Layout::Coo, vec![many(&[1, 1 << 40])], many(&[1 << 40]), vec![9]);
        assert!(sparse.is_err_and(|bad| bad.what.contains("more indices than are stored")));
    }

    #[test]
    fn parts_that_do_not_fit_are_refused_and_wild_indices_are_left_out() {
        let mut parts = parts();
        let indices = parts.view(&[0, 9, -1], &[1, 3]);
        let values = parts.view(&[5, 6, 7], &[3]);
        assert!(Sparse::new(Layout::Coo, vec![indices.clone()], values.clone(), vec![2, 2]).is_err());
        assert!(Sparse::new(Layout::by_name("sparse_csr").unwrap(), vec![indices.clone()], values.clone(), vec![2, 2]).is_err());
        let sparse = Sparse::new(Layout::Coo, vec![indices], values, vec![2]).map_err(|bad| bad.what).unwrap();
        parts.check(&sparse, &[5, 0]);
    }
}
