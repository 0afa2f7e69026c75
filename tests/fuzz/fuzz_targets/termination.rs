#![no_main]

#[path = "../../src/fuzz/termination.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::termination(data));
