//! Not here yet.
use super::Context;
pub(super) fn find(_: &mut Context<'_>) {}
