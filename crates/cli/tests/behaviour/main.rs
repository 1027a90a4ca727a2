//! Does the real command do what its pages say?
#![allow(clippy::unwrap_used, reason = "tests")]

mod breaking;
mod configuration;
mod documentation;
mod exit_codes;
mod fence;
#[cfg(feature = "postgres")]
mod fence_postgres;
mod handles;
mod help;
mod jobs;
mod keeping;
mod listing;
mod loss;
mod readme;
mod recipes;
mod schema;
mod secrets;
mod signals;
mod stalls;
mod support;
mod terminal;
#[cfg(all(feature = "redis", feature = "postgres", feature = "firestore"))]
mod transport;
mod trees;
mod waiting;
mod watching;
