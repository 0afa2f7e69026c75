#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandbox_agent_sdk::fuzzing::terminal_tail(data));
