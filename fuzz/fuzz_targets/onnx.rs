//! Any bytes as an ONNX model or tensor.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mount_tensors_fuzz::exercise("onnx", data));
