//! GGUF files as large as a test needs, written without any of the code under test.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

const ALIGNMENT: u64 = 32;
pub(crate) const F32: u32 = 0;
pub(crate) const F16: u32 = 1;
pub(crate) const Q4_K: u32 = 12;

/// A tensor: name, dimensions in the order of the file (innermost first), ggml type, bytes.
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dims: Vec<u64>,
    pub(crate) kind: u32,
    pub(crate) bytes: u64,
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// The header, padded to where the data starts.
fn header(tensors: &[Tensor]) -> Vec<u8> {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend(1u64.to_le_bytes());
    string(&mut out, "general.architecture");
    out.extend(8u32.to_le_bytes());
    string(&mut out, "llama");
    let mut offset = 0u64;
    for tensor in tensors {
        string(&mut out, &tensor.name);
        out.extend((tensor.dims.len() as u32).to_le_bytes());
        tensor.dims.iter().for_each(|n| out.extend(n.to_le_bytes()));
        out.extend(tensor.kind.to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset += tensor.bytes.next_multiple_of(ALIGNMENT);
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT as usize), 0);
    out
}

/// A file whose data is a hole.
pub(crate) fn sparse(path: &Path, tensors: &[Tensor]) {
    let head = header(tensors);
    let data: u64 = tensors.iter().map(|t| t.bytes.next_multiple_of(ALIGNMENT)).sum();
    let mut file = File::create(path).unwrap();
    file.write_all(&head).unwrap();
    file.set_len(head.len() as u64 + data).unwrap();
}

/// A file of `count` tensors `blk.I.weight` of four f32 each: tensor `I` holds I, I + 0.25, I + 0.5, I + 0.75.
pub(crate) fn many(path: &Path, count: u32) {
    let tensors: Vec<Tensor> = (0..count).map(|i| Tensor { name: format!("blk.{i}.weight"), dims: vec![4], kind: F32, bytes: 16 }).collect();
    let mut file = BufWriter::new(File::create(path).unwrap());
    file.write_all(&header(&tensors)).unwrap();
    for i in 0..count {
        file.write_all(&many_values(i)).unwrap();
        file.write_all(&[0; 16]).unwrap();
    }
    file.into_inner().unwrap();
}

pub(crate) fn many_values(i: u32) -> Vec<u8> {
    [0.0, 0.25, 0.5, 0.75].iter().flat_map(|part| (i as f32 + part).to_le_bytes()).collect()
}

/// A file of one f32 tensor `ramp` whose bytes count up modulo 251, so that a wrong offset is a wrong byte, and one small one `last` behind it.
pub(crate) fn ramp(path: &Path, elements: u64) {
    let bytes = elements * 4;
    let tensor = |name: &str, elements: u64| Tensor { name: name.to_string(), dims: vec![elements], kind: F32, bytes: elements * 4 };
    let mut out = header(&[tensor("first", 8), tensor("ramp", elements), tensor("last", 8)]);
    out.extend([1u8; 32]);
    out.extend((0..bytes).map(|i| (i % 251) as u8));
    out.resize(out.len().next_multiple_of(ALIGNMENT as usize), 0);
    out.extend([2u8; 32]);
    std::fs::write(path, out).unwrap();
}
