#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| syncguard_soak::inputs::url(bytes));
