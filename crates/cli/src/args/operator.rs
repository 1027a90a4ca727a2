//! What may be said by whoever runs the backend?

use std::time::Duration;

use clap::Args;
use syncguard::{Fence, Key};

use crate::values;

// `break`
#[derive(Debug, Args)]
#[command(after_long_help = "\
The fence says which holder is meant: it is in `status`, `list` and in every message about a held lock. If another holder has the \
lock by now, nothing happens and the exit code is 1. The lock is released by its own id, so a holder that came in between is \
never hit. Fence counters are never touched: the next holder's fence is higher, and whoever checks fences refuses the old one.

--ask is the polite way: the holder hears of it with its next renewal. A `run` says so, and with --on-asked SIG signals its \
command; a program on the library hears of it by `asked_to_release()`.

Examples:
  syncguard status deploy:prod
  syncguard break deploy:prod --ask
  syncguard break deploy:prod --fence 42
  syncguard break deploy:prod --fence 42 --yes        in a script")]
pub(crate) struct BreakArgs {
    /// The lock's name
    #[arg(value_name = "KEY", value_parser = values::KeyParser)]
    pub(crate) key: Key,

    /// The fence of the holder that is meant; without it: the present one, after a question
    #[arg(long, value_name = "N", value_parser = values::fence)]
    pub(crate) fence: Option<Fence>,

    /// Do not take it away: ask the holder to let go
    #[arg(long, conflicts_with = "yes")]
    pub(crate) ask: bool,

    /// Do not ask back; needed where nobody can answer
    #[arg(long, requires = "fence")]
    pub(crate) yes: bool,
}

// `doctor`
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Make warnings fail too
    #[arg(long)]
    pub(crate) strict: bool,
}

// `bench`
#[derive(Debug, Args)]
#[command(after_long_help = "\
Three parts share the time: one client alone (latency), clients on a lock each (throughput), and all on one lock (hand-over, and \
whether two ever hold it at once or a fence fails to grow: exit 1). Only keys below `syncguard:bench:` are used. Every lock is \
released; the fence counters of those keys stay, as all counters do, and are the same ones at the next bench.

The figures are those of one process on this machine: they tell what a round trip and the backend cost from here.")]
pub(crate) struct BenchArgs {
    /// How long it may take in all
    #[arg(long, value_name = "DUR", default_value = "6s", value_parser = values::duration)]
    pub(crate) duration: Duration,

    /// How many clients at once
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u16).range(2..=256))]
    pub(crate) clients: u16,
}
