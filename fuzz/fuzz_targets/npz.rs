//! Any bytes as a zip archive of arrays.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mount_tensors_fuzz::exercise("npz", data));
