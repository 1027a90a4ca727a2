//! What does this backend promise beyond the contract?
#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

mod clock;
mod crash;
mod files;
mod inspect;
#[cfg(target_os = "linux")]
mod leaks;
mod logs;
mod processes;
mod reserve;
mod sharing;
mod users;
