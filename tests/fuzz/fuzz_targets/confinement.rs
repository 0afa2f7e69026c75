#![no_main]

#[path = "../../src/fuzz/confinement.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::confinement(data));
