//! Tensor containers as a tree of read-only files.
//!
//! Bytes come in through [`source`], [`formats`] turn a container into a [`catalog`], the [`tree`] gives every tensor its files, and reads go out through
//! [`fs`] as slices of the container's own mapping or as decoded blocks. Each step knows only the ones before it.
//!
//! Modules that handle numbers from files are held to two more lints than the rest: no indexing, no unchecked arithmetic.

pub mod error;
#[cfg(feature = "mount")]
pub mod fuse;
pub mod limits;
#[cfg(feature = "mount")]
pub mod memory;
#[cfg(feature = "mount")]
pub mod opens;
#[cfg(feature = "mount")]
pub mod pool;
#[cfg(feature = "mount")]
pub mod sys;
pub mod tree;

#[warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub mod catalog;
#[warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub mod content;
#[warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub mod dtype;
#[warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub mod formats;
#[warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub mod fs;
#[warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod json;
#[warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub mod quant;
#[warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub mod reader;
#[warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub mod recipe;
#[warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub mod render;
#[warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub mod source;
#[warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub mod sources;
#[warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub mod view;
