//! The tests of all guards, against the real thing. One program: it is linked once, and it is its own worker (see
//! `support::children`).
#![allow(clippy::unwrap_used)]

mod examples;
mod http;
mod impostors;
mod kills;
mod object;
mod paused;
mod postgres;
mod recipes;
mod redis;
mod run;
mod sqlite;
mod stopped;
mod suite;
mod support;
