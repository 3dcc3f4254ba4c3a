//! Any bytes as a Flax checkpoint.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mount_tensors_fuzz::exercise("msgpack", data));
