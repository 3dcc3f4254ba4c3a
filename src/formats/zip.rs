//! Zip directories.
