//! torch's own quantised tensors: stored integers, and `(q - zero_point) * scale` as torch computes it.
//!
//! The arithmetic is that of ATen/native/quantized (affine_quantizer_base.cpp, and FBGEMM's `Dequantize` for a scale of the whole tensor), to the last bit.

use std::io;

use serde_json::json;

use super::tensor::{Operand, View};
use crate::catalog::{Builder, product};
use crate::recipe::{Inputs, Scheme, Values};

/// How stored integers become values.
pub(super) enum Affine {
    /// One scale and zero point.
    Tensor { scale: f64, zero_point: i64 },
    /// A scale and zero point for each index along an axis; with `floats`, the zero points are no integers.
    Channel { scales: Box<View>, zero_points: Box<View>, axis: u64, floats: bool },
}

impl Affine {
    /// The scheme of a tensor of these stored integers.
    pub(super) fn scheme(&self, view: &View, builder: &Builder) -> Result<Scheme, String> {
        let integers = view.elements(builder)?;
        match self {
            Self::Tensor { scale, zero_point } => {
                let facts = json!({"layout": "torch_per_tensor_affine", "scale": scale, "zero_point": zero_point});
                Ok(Scheme { facts, values: Box::new(PerTensor { integers, scale: *scale, zero_point: *zero_point }) })
            }
            Self::Channel { scales, zero_points, axis, floats } => {
                let at = usize::try_from(*axis).unwrap_or(usize::MAX);
                let channels = *view.shape.get(at).ok_or_else(|| format!("its axis {axis} is none of its {} dimensions", view.shape.len()))?;
                let inner = product(view.shape.get(at.saturating_add(1)..).unwrap_or_default()).ok_or("its shape is too large")?;
                if scales.shape != [channels] || zero_points.shape != [channels] {
                    return Err(format!("its scales and zero points have the shapes {:?} and {:?}, expected [{channels}]", scales.shape, zero_points.shape));
                }
                let name = if *floats { "torch_per_channel_affine_float_qparams" } else { "torch_per_channel_affine" };
                let mut facts = json!({"layout": name, "axis": axis, "channels": channels});
                for (key, parameter) in [("scales", scales), ("zero_points", zero_points)] {
                    if let (Some(extent), Some(object)) = (parameter.whole_extent(builder), facts.as_object_mut()) {
                        object.insert(key.to_string(), json!({"dtype": parameter.class.dtype().to_string(), "offset": extent.offset(), "bytes": extent.len()}));
                    }
                }
                let (scales, zero_points) = (scales.elements(builder)?, zero_points.elements(builder)?);
                Ok(Scheme { facts, values: Box::new(PerChannel { integers, scales, zero_points, channels, inner, floats: *floats }) })
            }
        }
    }
}

/// Stored integers from element number `first` on, unpacked.
fn stored(operand: &Operand, inputs: Inputs<'_>, first: u64, count: usize) -> io::Result<Vec<i64>> {
    let packed = operand.class.in_byte();
    if packed == 1 {
        return operand.integers(inputs, first, count);
    }
    // Low bits first, over the flat index.
    let bits = 8_u64.checked_div(packed).unwrap_or(8);
    let mask = (1_u64 << bits).wrapping_sub(1);
    let end = first.saturating_add(count as u64);
    let (from, to) = (first.checked_div(packed).unwrap_or(0), end.div_ceil(packed));
    let mut bytes = vec![0; usize::try_from(to.saturating_sub(from)).unwrap_or(0)];
    operand.read(inputs, from, &mut bytes)?;
    let code = |element: u64| {
        let at = element.checked_div(packed).unwrap_or(0).saturating_sub(from);
        let byte = usize::try_from(at).ok().and_then(|at| bytes.get(at)).copied().unwrap_or(0);
        let shift = element.checked_rem(packed).unwrap_or(0).saturating_mul(bits);
        (u64::from(byte) >> shift & mask).cast_signed()
    };
    Ok((first..end).map(code).collect())
}

struct PerTensor {
    integers: Operand,
    scale: f64,
    zero_point: i64,
}

impl Values for PerTensor {
    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [f32]) -> io::Result<()> {
        let (scale, zero_point) = (self.scale as f32, self.zero_point as i32);
        let codes = stored(&self.integers, inputs, first, out.len())?;
        for (value, code) in out.iter_mut().zip(codes) {
            // In 32 bits, as FBGEMM subtracts them.
            *value = scale * (code as i32).wrapping_sub(zero_point) as f32;
        }
        Ok(())
    }
}

struct PerChannel {
    integers: Operand,
    scales: Operand,
    zero_points: Operand,
    channels: u64,
    /// Elements for each index along the axis.
    inner: u64,
    floats: bool,
}

impl Values for PerChannel {
    fn read(&self, inputs: Inputs<'_>, first: u64, out: &mut [f32]) -> io::Result<()> {
        let codes = stored(&self.integers, inputs, first, out.len())?;
        let channel = |element: u64| element.checked_div(self.inner).unwrap_or(0).checked_rem(self.channels).unwrap_or(0);
        let last = first.saturating_add((out.len() as u64).saturating_sub(1));
        // The channels that are needed: a stretch, or all of them where it wraps around.
        let rows = last.checked_div(self.inner).unwrap_or(0).saturating_sub(first.checked_div(self.inner).unwrap_or(0));
        let (from, to) =
            if rows >= self.channels || channel(last) < channel(first) { (0, self.channels) } else { (channel(first), channel(last).saturating_add(1)) };
        let count = usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX);
        let (scales, zero_points) = (self.scales.floats(inputs, from, count)?, self.zero_points.floats(inputs, from, count)?);
        for ((value, code), element) in out.iter_mut().zip(codes).zip(first..) {
            let at = usize::try_from(channel(element).saturating_sub(from)).unwrap_or(usize::MAX);
            let (scale, zero_point) = (scales.get(at).copied().unwrap_or(0.0), zero_points.get(at).copied().unwrap_or(0.0));
            let difference = code as f32 - zero_point as f32;
            *value = if self.floats { difference * scale as f32 } else { (f64::from(difference) * scale) as f32 };
        }
        Ok(())
    }
}
