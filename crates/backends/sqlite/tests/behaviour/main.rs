//! Does this backend keep the contract of all backends (`conformance`), and what does it promise beyond it?
#![allow(clippy::unwrap_used)]

mod clock;
mod conformance;
mod crash;
mod files;
mod inspect;
#[cfg(target_os = "linux")]
mod leaks;
mod logs;
mod processes;
mod reserve;
mod sharing;
mod support;
mod users;
