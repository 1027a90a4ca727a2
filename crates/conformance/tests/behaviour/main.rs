//! Does the suite judge rightly: the reference backend passes, and every impostor fails where it should?
#![allow(clippy::unwrap_used, reason = "tests")]

mod conformance;
mod crowd;
mod impostors;
mod seeded;
