//! What must every backend do?
//!
//! One function per case, each a sentence that is true of a correct backend. They are public so that one of them
//! can be run alone; [`suite!`](crate::suite) runs them all.

pub mod cleanup;
pub mod exclusion;
pub mod fences;
pub mod keys;
pub mod liveness;
pub mod ownership;
