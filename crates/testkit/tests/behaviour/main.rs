//! Do the servers and the faults of the test kit behave as tests expect?
#![allow(clippy::unwrap_used, reason = "tests")]

mod disk;
mod firestore;
mod lifetime;
mod postgres;
mod proxy;
mod redis;
