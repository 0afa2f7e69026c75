#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandbox_agent_sdk::fuzzing::control_response(data));
