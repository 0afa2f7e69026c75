#![no_main]

#[path = "../../src/fuzz/metadata.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::metadata(data));
