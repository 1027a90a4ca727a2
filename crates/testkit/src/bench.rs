//! What do all benchmarks have in common?
//!
//! A benchmark says which parts, numbers and switches it has ([`Options`]), reads the command line by them, and notes
//! every figure that it prints in a [`Report`], which ends as JSON in the file of `--json`:
//!
//! ```no_run
//! use syncguard_testkit::bench::{Figure, Options, Report};
//!
//! let arguments = Options::new("redis").rounds(7).part("pairs", "acquire and release").read();
//! let mut report = Report::start(&arguments, arguments.rounds());
//! if arguments.wants("pairs") {
//!     let (ours, theirs) = ([95.0, 90.0], [100.0, 100.0]);
//!     let figure = Figure::of("throughput", "pairs/s", "syncguard", &ours).at("tasks", 16).beside("theirs", &theirs);
//!     println!("{:.0} pairs/s, {} of theirs", figure.median(), figure.ratio());
//!     report.note(figure);
//! }
//! report.finish();
//! ```

mod arguments;
mod figures;
mod machine;
mod processors;
mod report;

pub use arguments::{Arguments, Options};
pub use figures::{Figure, Ratio, Spread, median, percentile};
pub use machine::{Machine, commit, date};
pub use processors::Processors;
pub use report::{Report, command};
