//! How is a lock given back, also one whose owner has left?

pub(crate) mod background;
pub(crate) mod clean_up;
pub(crate) mod in_flight;
