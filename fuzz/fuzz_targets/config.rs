#![no_main]

// The command is no library: its reader of config files stands alone, so that it can be taken as it is.
#[path = "../../crates/cli/src/config/file.rs"]
mod file;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| file::judge(bytes));
