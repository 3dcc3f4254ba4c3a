//! Tensor containers as a tree of read-only files.
//!
//! Bytes come in through [`source`], [`formats`] turn a container into a [`catalog`], a tree gives every tensor its files, and reads go out as slices of
//! the container's own mapping or as decoded blocks. Each step knows only the ones before it.

pub mod error;
pub mod limits;
#[warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub mod catalog;
#[warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub mod dtype;
#[warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub mod formats;
#[warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub mod quant;
#[warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub mod reader;
#[warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub mod source;
