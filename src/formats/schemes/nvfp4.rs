//! GGUF NVFP4: a tensor `X.weight` of blocks with `X.scale` beside it (one number, or one for each expert) is `X.weight.scaled` with the scale applied.
//!
//! llama.cpp's converter writes the per-tensor scale of NVFP4 apart from the blocks; ggml's own decoder ignores it, so the plain tensor stays what ggml says.

use std::io;

use serde_json::json;

use super::{Context, Numbers, text};
use crate::dtype::DType;
use crate::quant::Codec;
use crate::recipe::{Inputs, Values};
use crate::source::Extent;

pub(super) fn find(context: &mut Context<'_>) {
    let scales: Vec<_> = context.stems(".scale").collect();
    for (stem, scale) in scales {
        let Some(weight) = context.part(stem, ".weight") else { continue };
        let DType::Coded(codec) = weight.dtype() else { continue };
        let (Some(numbers), Some(extent), "nvfp4") = (Numbers::of(scale), weight.stored(), codec.name) else { continue };
        let experts = weight.shape().first().copied().unwrap_or(1);
        if scale.elements() != 1 && scale.elements() != experts {
            context.doubt(weight, format!("its .scale has {} numbers, expected 1 or {experts}", scale.elements()));
            continue;
        }
        let each = if scale.elements() == 1 { weight.elements() } else { weight.elements().checked_div(experts).unwrap_or(1) };
        let facts = json!({"layout": "gguf_nvfp4_scaled", "scale": text(scale.name()), "blocks": text(weight.name())});
        let name = [weight.name(), b".scaled"].concat();
        context.add(weight, Some(name), weight.shape().to_vec(), facts, Box::new(Scaled { extent, codec, numbers, each: each.max(1) }));
    }
}

struct Scaled {
    extent: Extent,
    codec: &'static Codec,
    numbers: Numbers,
    /// Elements that share one scale.
    each: u64,
}

impl Values for Scaled {
    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [f32]) -> io::Result<()> {
        let (per_block, bytes) = (self.codec.elements as u64, self.codec.bytes as u64);
        let first_block = first.checked_div(per_block).unwrap_or(0);
        let last_block = first.saturating_add(out.len() as u64).div_ceil(per_block);
        let count = usize::try_from(last_block.saturating_sub(first_block)).unwrap_or(0);
        let mut blocks = vec![0; count.saturating_mul(self.codec.bytes)];
        inputs.read(self.extent, first_block.saturating_mul(bytes), &mut blocks)?;
        let mut values = vec![0.0; count.saturating_mul(self.codec.elements)];
        self.codec.decoder()(&blocks, &mut values);
        let skip = usize::try_from(first.checked_rem(per_block).unwrap_or(0)).unwrap_or(0);
        let mut scale = (u64::MAX, [0.0f32]);
        for ((index, slot), value) in (first..).zip(out).zip(values.into_iter().skip(skip)) {
            let number = index.checked_div(self.each).unwrap_or(0);
            if scale.0 != number {
                self.numbers.read(inputs, number, &mut scale.1)?;
                scale.0 = number;
            }
            *slot = value * scale.1[0];
        }
        Ok(())
    }
}
