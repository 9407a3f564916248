#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| keyward_fuzz::framing(data));
