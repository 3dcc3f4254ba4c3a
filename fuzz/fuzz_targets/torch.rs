//! Any bytes as a PyTorch file of any form: its archive and its pickles.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mount_tensors_fuzz::exercise("pt", data));
