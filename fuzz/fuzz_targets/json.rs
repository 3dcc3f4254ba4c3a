//! Any bytes as the JSON of a shard index.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mount_tensors_fuzz::exercise("index.json", data));
