//! Who is told what the locks do?

pub mod telemetry;
pub(crate) mod trace;
