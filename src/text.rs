//! Numbers as text, as `np.savetxt` prints them: `%.18e`, a row of the last axis a line.

use std::fs::File;
use std::io::{self, BufWriter, Write};

use mount_tensors::catalog::{Order, Tensor};
use mount_tensors::content::{self, Content};
use mount_tensors::error::{Error, Result};
use mount_tensors::fs::{Attr, Fs, Scratch};
use mount_tensors::tree::View;

/// How the elements of a file are laid out.
#[derive(Clone, Copy)]
struct Layout {
    kind: char,
    bytes: usize,
    big: bool,
}

/// Prints the elements of a tensor's file.
pub(crate) fn print(fs: &Fs, attr: Attr, out: File) -> Result<u8> {
    let refuse = || Error::unsupported("holds no numbers that can be printed").hint("--text takes tensors' files: a .npy, or a raw file of a plain type");
    let (_, tensor) = fs.tensor_of(attr.ino).ok().flatten().ok_or_else(refuse)?;
    let view = fs.view_of(attr.ino).ok_or_else(refuse)?;
    let layout = layout(fs, attr, view, &tensor.dtype().to_string()).ok_or_else(refuse)?;
    let start = Content::new(view, tensor).map_or(0, |content| content.header_len());
    match write_numbers(fs, attr, start, layout, tensor, &mut BufWriter::new(out)) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(0),
        Err(e) => Err(Error::io("cannot print the numbers", e)),
        Ok(()) => Ok(0),
    }
}

/// A part of a tensor's file, never as mapped bytes, since this program looks at them.
fn read(fs: &Fs, attr: Attr, offset: u64, len: u32) -> io::Result<Vec<u8>> {
    let failed = || io::Error::other("its bytes cannot be read");
    let (set, tensor) = fs.tensor_of(attr.ino).ok().flatten().ok_or_else(failed)?;
    let content = fs.view_of(attr.ino).and_then(|view| Content::new(view, tensor)).ok_or_else(failed)?;
    Ok(content.read_copied(set.catalog().sources(), offset, len.into(), &mut Scratch::default())?.to_vec())
}

/// The layout of a view's elements: what its header says, or what its type is.
fn layout(fs: &Fs, attr: Attr, view: View, dtype: &str) -> Option<Layout> {
    let of = |kind, bytes| Some(Layout { kind, bytes, big: false });
    match view {
        View::F32 | View::RawF32 => of('f', 4),
        View::F16 | View::RawF16 => of('f', 2),
        View::Bf16 | View::RawBf16 => of('w', 2),
        View::Npy | View::Bits => {
            let header = read(fs, attr, 0, 4096).ok()?;
            let text = String::from_utf8_lossy(&header);
            let descr = text.split_once("'descr': '")?.1.split_once('\'')?.0.to_string();
            let mut chars = descr.chars();
            let big = chars.next()? == '>';
            let kind = chars.next().filter(|k| "fiubc".contains(*k))?;
            let bytes: usize = chars.as_str().parse().ok()?;
            let known = match kind {
                'f' => matches!(bytes, 2 | 4 | 8),
                'c' => matches!(bytes, 8 | 16),
                _ => matches!(bytes, 1 | 2 | 4 | 8),
            };
            known.then_some(Layout { kind, bytes, big })
        }
        View::Raw => {
            let native = mount_tensors::dtype::NATIVES.iter().find(|n| n.name == dtype);
            let (_, tensor) = fs.tensor_of(attr.ino).ok()??;
            let big = tensor.endian() == mount_tensors::reader::Endian::Big;
            match native {
                Some(native) => Some(Layout { kind: native.kind, bytes: usize::from(native.bytes), big }),
                None if dtype == "bf16" => Some(Layout { kind: 'w', bytes: 2, big }),
                None => None,
            }
        }
    }
}

/// Writes a tensor's elements in the order in which NumPy would print them, a row of the last axis a line.
fn write_numbers(fs: &Fs, attr: Attr, start: u64, layout: Layout, tensor: Tensor<'_>, out: &mut dyn Write) -> io::Result<()> {
    let shape = fs.view_of(attr.ino).map_or_else(Vec::new, |view| content::shape(view, tensor));
    let mut line = Line { left: row(&shape), row: row(&shape), out };
    if tensor.order() == Order::F {
        let width = layout.bytes as u64;
        for flat in 0..tensor.elements() {
            let offset = fortran_position(flat, &shape).saturating_mul(width).saturating_add(start);
            let element = read(fs, attr, offset, layout.bytes as u32)?;
            line.put(&number(layout, &element))?;
        }
        return line.out.flush();
    }
    // A multiple of every element's size.
    let step = 1 << 20;
    let mut at = start;
    while at < attr.size {
        let bytes = read(fs, attr, at, step)?;
        if bytes.is_empty() {
            break;
        }
        at = at.saturating_add(bytes.len() as u64);
        for element in bytes.chunks_exact(layout.bytes) {
            line.put(&number(layout, element))?;
        }
    }
    line.out.flush()
}

/// Elements of a line.
fn row(shape: &[u64]) -> u64 {
    match shape {
        [_, .., last] => (*last).max(1),
        _ => 1,
    }
}

/// Where in Fortran order the element stands that is number `flat` in C order.
fn fortran_position(flat: u64, shape: &[u64]) -> u64 {
    let mut indices = vec![0u64; shape.len()];
    let mut rest = flat;
    for (index, size) in indices.iter_mut().zip(shape).rev() {
        (*index, rest) = (rest.checked_rem(*size).unwrap_or(0), rest.checked_div(*size).unwrap_or(0));
    }
    indices.iter().zip(shape).rev().fold(0u64, |position, (index, size)| position.saturating_mul(*size).saturating_add(*index))
}

/// The line that is being written.
struct Line<'a> {
    left: u64,
    row: u64,
    out: &'a mut dyn Write,
}

impl Line<'_> {
    fn put(&mut self, number: &str) -> io::Result<()> {
        self.out.write_all(number.as_bytes())?;
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return self.out.write_all(b" ");
        }
        self.left = self.row;
        self.out.write_all(b"\n")
    }
}

fn number(layout: Layout, element: &[u8]) -> String {
    if layout.kind == 'c' {
        let (real, imaginary) = element.split_at(layout.bytes / 2);
        let half = Layout { kind: 'f', bytes: layout.bytes / 2, ..layout };
        let imaginary = number(half, imaginary);
        let sign = if imaginary.starts_with('-') { "" } else { "+" };
        return format!(" ({}{sign}{imaginary}j)", number(half, real));
    }
    let mut word = [0u8; 8];
    let place = |(to, from): (&mut u8, &u8)| *to = *from;
    if layout.big {
        word.iter_mut().zip(element.iter().rev()).for_each(place);
    } else {
        word.iter_mut().zip(element).for_each(place);
    }
    let bits = u64::from_le_bytes(word);
    // An integer has one to eight bytes.
    let unused = 64u32.saturating_sub((layout.bytes as u32).saturating_mul(8));
    match (layout.kind, layout.bytes) {
        ('f', 8) => exponent(f64::from_bits(bits)),
        ('f', 4) => exponent(f32::from_bits(bits as u32).into()),
        ('f', _) => exponent(half::f16::from_bits(bits as u16).into()),
        ('w', _) => exponent(f32::from_bits((bits as u32) << 16).into()),
        ('i', _) => exponent((bits.unbounded_shl(unused).cast_signed().unbounded_shr(unused)) as f64),
        _ => exponent(bits as f64),
    }
}

/// C's `%.18e`: an exponent of at least two digits, with its sign.
fn exponent(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_string();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_string();
    }
    let text = format!("{value:.18e}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |e| ('-', e));
            format!("{digits}e{sign}{exponent:0>2}")
        }
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::{exponent, fortran_position};

    #[test]
    fn fortran_arrays_are_printed_by_rows() {
        // np.arange(6).reshape(2, 3) in Fortran order lies as 0 3 1 4 2 5.
        let positions: Vec<u64> = (0..6).map(|flat| fortran_position(flat, &[2, 3])).collect();
        assert_eq!(positions, [0, 2, 4, 1, 3, 5]);
    }

    #[test]
    fn numbers_look_as_c_prints_them() {
        // '%.18e' % x in Python.
        assert_eq!(exponent(1.0), "1.000000000000000000e+00");
        assert_eq!(exponent(-0.1), "-1.000000000000000056e-01");
        assert_eq!(exponent(1e300), "1.000000000000000053e+300");
        assert_eq!(exponent(0.0), "0.000000000000000000e+00");
        assert_eq!(exponent(f64::NAN), "nan");
    }
}
