//! Any bytes as a GGUF file.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mount_tensors_fuzz::exercise("gguf", data));
