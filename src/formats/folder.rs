//! Model folders.
use crate::catalog::Catalog;
use crate::error::Result;
use std::path::Path;
/// What one source argument holds.
pub struct Collection { /** The tree at the root. */ pub top: Option<Catalog>, /** Further containers, each under its name. */ pub parts: Vec<(Vec<u8>, Catalog)> }
/// Opens a file or a folder.
pub fn open(_path: &Path) -> Result<Collection> { Ok(Collection { top: None, parts: Vec::new() }) }
