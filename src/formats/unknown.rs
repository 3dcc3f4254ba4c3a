//! What a file is that is no tensor container.
use super::Head;
use crate::error::Error;
pub(super) fn explain(_head: &Head<'_>) -> Error { Error::unsupported("is not a tensor container") }
