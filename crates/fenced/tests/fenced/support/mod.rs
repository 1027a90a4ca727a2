//! What do the tests of this crate have in common?

pub(crate) mod children;
pub(crate) mod ledger;
pub(crate) mod marks;
pub(crate) mod service;
pub(crate) mod shelf;
pub(crate) mod world;
