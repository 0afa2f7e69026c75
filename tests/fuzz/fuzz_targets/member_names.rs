#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| acp_http_client::fuzzing::member_names(data));
