//! Tensor containers as a tree of files.
pub mod quant;
