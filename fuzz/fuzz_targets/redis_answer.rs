#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| syncguard_redis::inputs::answer(bytes));
