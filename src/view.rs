//! The views of a tensor: the folders in which it is a file, and which of them hold the same bytes.
//!
//! It stands below the tree and the contents of files, which both ask it.

use crate::catalog::Tensor;
use crate::dtype::DType;
use crate::quant::Kind;
use crate::reader::Endian;

/// One way to show every tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum View {
    /// `raw/`: the stored elements.
    Raw,
    /// `npy/`: for stock NumPy.
    Npy,
    /// `as/f32/`.
    F32,
    /// `as/f16/`.
    F16,
    /// `as/bf16/`.
    Bf16,
    /// `as/raw-f32/`.
    RawF32,
    /// `as/raw-f16/`.
    RawF16,
    /// `as/raw-bf16/`.
    RawBf16,
    /// `as/bits/`.
    Bits,
}

impl View {
    /// Every view, in the order of the contract.
    pub const ALL: [Self; 9] = [Self::Raw, Self::Npy, Self::F32, Self::F16, Self::Bf16, Self::RawF32, Self::RawF16, Self::RawBf16, Self::Bits];

    /// Its place in [`View::ALL`].
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Its bit in a set of views.
    pub fn bit(self) -> u16 {
        1 << self.number()
    }

    /// Its folder.
    pub fn folder(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Npy => "npy",
            Self::F32 => "as/f32",
            Self::F16 => "as/f16",
            Self::Bf16 => "as/bf16",
            Self::RawF32 => "as/raw-f32",
            Self::RawF16 => "as/raw-f16",
            Self::RawBf16 => "as/raw-bf16",
            Self::Bits => "as/bits",
        }
    }

    /// Its key in the `files` of tensors.json.
    pub fn key(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Npy => "npy",
            Self::F32 => "f32_npy",
            Self::F16 => "f16_npy",
            Self::Bf16 => "bf16_npy",
            Self::RawF32 => "f32",
            Self::RawF16 => "f16",
            Self::RawBf16 => "bf16",
            Self::Bits => "bits",
        }
    }

    /// The extension of its files; `None` where it is the tensor's own type.
    pub fn extension(self) -> Option<&'static str> {
        match self {
            Self::Raw => None,
            Self::RawF32 => Some("f32"),
            Self::RawF16 => Some("f16"),
            Self::RawBf16 => Some("bf16"),
            Self::Npy | Self::F32 | Self::F16 | Self::Bf16 | Self::Bits => Some("npy"),
        }
    }

    /// Whether its files begin with a .npy header.
    pub fn has_header(self) -> bool {
        self.extension() == Some("npy")
    }
}

/// The folders that a mount shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Views {
    /// The views of tensors, as bits.
    pub tensors: u16,
    /// `metadata/`.
    pub metadata: bool,
    /// `tokenizer/`.
    pub tokenizer: bool,
    /// `config/`.
    pub config: bool,
    /// `source/`.
    pub source: bool,
}

impl Views {
    /// Everything.
    pub const ALL: Self = Self { tensors: (1 << 9) - 1, metadata: true, tokenizer: true, config: true, source: true };

    /// The views that a comma-separated list names: `raw,npy,as/f32,metadata`; `as` stands for all of `as/`.
    ///
    /// # Errors
    /// A name that is no view, or no name at all.
    pub fn parse(list: &str) -> Result<Self, String> {
        let mut views = Self { tensors: 0, metadata: false, tokenizer: false, config: false, source: false };
        for name in list.split([',', ':']).map(|name| name.trim().trim_end_matches('/')).filter(|name| !name.is_empty()) {
            match name {
                "metadata" => views.metadata = true,
                "tokenizer" => views.tokenizer = true,
                "config" => views.config = true,
                "source" => views.source = true,
                "all" => views = Self::ALL,
                "as" => View::ALL.iter().filter(|v| v.folder().starts_with("as/")).for_each(|v| views.tensors |= v.bit()),
                _ => match View::ALL.iter().find(|v| v.folder() == name || v.folder().strip_prefix("as/") == Some(name)) {
                    Some(view) => views.tensors |= view.bit(),
                    None => {
                        return Err(format!(
                            "unknown view {name:?}, expected some of raw, npy, as, f32, f16, bf16, raw-f32, raw-f16, raw-bf16, bits, metadata, tokenizer, config, source"
                        ));
                    }
                },
            }
        }
        if views.tensors == 0 && !(views.metadata || views.tokenizer || views.config || views.source) {
            return Err("expected a list of views, found an empty one".to_string());
        }
        Ok(views)
    }
}

/// The views in which a tensor is a file.
pub(crate) fn views_of(tensor: Tensor<'_>) -> u16 {
    if tensor.bytes().is_none() {
        return 0;
    }
    let raw = View::Raw.bit();
    let decoded = View::F32.bit() | View::F16.bit() | View::Bf16.bit() | View::RawF32.bit() | View::RawF16.bit() | View::RawBf16.bit();
    if tensor.scheme().is_some() {
        let bits = if matches!(tensor.dtype(), DType::Coded(_) | DType::C32) { View::Bits.bit() } else { 0 };
        return raw | View::Npy.bit() | decoded | bits;
    }
    match tensor.dtype() {
        DType::Native(_) if tensor.dtype().codec().is_some() => raw | View::Npy.bit() | decoded,
        DType::Native(_) | DType::NumPy(_) => raw | View::Npy.bit(),
        // Without a decoder a block's bits are still certain; six-bit elements of unknown packing are not.
        DType::Coded(codec) if tensor.is_opaque() => raw | if codec.ggml.is_some() { View::Bits.bit() } else { 0 },
        DType::Coded(_) => raw | View::Npy.bit() | View::Bits.bit() | decoded,
        DType::C32 => raw | View::Npy.bit() | View::Bits.bit(),
        DType::Unknown(_) | DType::Object | DType::Quantised(_) | DType::Strings => raw,
    }
}

/// The view with the same bytes as this one of a tensor, by which both are known.
pub(crate) fn canonical(view: View, tensor: Tensor<'_>) -> View {
    let little = tensor.endian() == Endian::Little;
    if tensor.scheme().is_some() {
        return if view == View::F32 { View::Npy } else { view };
    }
    match (tensor.dtype(), view) {
        (DType::Native(native), View::RawF32) if native.name == "f32" && little => View::Raw,
        (DType::Native(native), View::F32) if native.name == "f32" && little => View::Npy,
        (DType::Native(native), View::RawF16) if native.name == "f16" && little => View::Raw,
        (DType::Native(native), View::F16) if native.name == "f16" && little => View::Npy,
        (DType::Coded(codec), View::RawBf16) if codec.name == "bf16" && little => View::Raw,
        (DType::Coded(codec), View::F32) if codec.kind == Kind::Float => View::Npy,
        _ => view,
    }
}
