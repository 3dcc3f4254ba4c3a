//! Real mounts: what other programs see of the file system, and the life of the server behind it.
//!
//! Needs /dev/fuse; without it every test fails and says why, and `MOUNT_TENSORS_NO_FUSE=1` turns that into a skip that is said aloud. What needs root or
//! a tool that is not installed is skipped aloud as well. No test waits without a limit, and none leaves a mount or a server behind.
#![allow(clippy::unwrap_used, clippy::panic, clippy::missing_docs_in_private_items, reason = "in a test, a panic is the report of a failure")]

mod common;

#[path = "mount/attributes.rs"]
mod attributes;
#[path = "mount/changes.rs"]
mod changes;
#[path = "mount/large.rs"]
mod large;
#[path = "mount/life.rs"]
mod life;
#[path = "mount/options.rs"]
mod options;
#[path = "mount/places.rs"]
mod places;
#[path = "mount/reading.rs"]
mod reading;
#[path = "mount/tools.rs"]
mod tools;
#[path = "mount/tree.rs"]
mod tree;
#[path = "mount/ways.rs"]
mod ways;
