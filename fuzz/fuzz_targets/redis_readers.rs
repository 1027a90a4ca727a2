//! Do the scripts and the library take the same values for locks? Asks the server at `SYNCGUARD_TEST_REDIS_URL`.
#![no_main]

use std::cell::RefCell;

thread_local! {
    static CONNECTION: RefCell<redis::Connection> = {
        let url = std::env::var("SYNCGUARD_TEST_REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
        RefCell::new(redis::Client::open(url).and_then(|client| client.get_connection()).expect("a redis server"))
    };
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| CONNECTION
    .with_borrow_mut(|connection| syncguard_redis::inputs::both_readers(connection, &[bytes.to_vec()])));
