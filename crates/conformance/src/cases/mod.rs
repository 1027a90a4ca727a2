//! What must every backend do?
//!
//! One function per case, each a sentence that is true of a correct backend. They are public so that one of them
//! can be run alone; [`suite!`](crate::suite) runs them all.

pub mod cancel;
pub mod cleanup;
pub mod client;
pub mod exclusion;
pub mod failure;
pub mod fences;
pub mod guard;
pub mod inputs;
pub mod inspect;
pub mod keys;
pub mod liveness;
pub mod ownership;
pub mod several;
pub mod storage;
pub mod telemetry;
pub mod waking;
pub mod work;
