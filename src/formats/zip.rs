//! Zip directories.
use crate::source::Source;
/// The first stored member whose name ends in `suffix`.
pub(super) fn stored_member(_source: &Source, _suffix: &[u8]) -> Option<(u64, u64)> { None }
