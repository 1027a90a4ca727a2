//! How is a lock got that somebody else may hold?

pub(crate) mod acquisition;
pub(crate) mod queue;
pub mod retry;
