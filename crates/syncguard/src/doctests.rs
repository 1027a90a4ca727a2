//! Do the examples of the documentation compile and run?
//!
//! Each page is the documentation of an item that exists for `cargo test --doc` alone, so that its Rust blocks are
//! doctests.

macro_rules! page {
    ($name:ident, $path:literal) => {
        #[doc = include_str!($path)]
        pub struct $name;
    };
}

page!(Readme, "../../../README.md");
page!(Guide, "../../../docs/guide.md");
page!(Fencing, "../../../docs/fencing.md");
page!(Errors, "../../../docs/errors.md");
page!(WriteABackend, "../../../docs/write-a-backend.md");
page!(TypeScript, "../../../docs/typescript.md");
