//! What may be said about looking at locks?

use std::num::NonZeroUsize;
use std::time::Duration;

use clap::{Args, ValueEnum};
use syncguard::Key;

use crate::values::{self, Wait};

// `status`
#[derive(Args)]
pub(crate) struct StatusArgs {
    /// The lock's name
    #[arg(value_name = "KEY", value_parser = values::KeyParser, required_unless_present = "id")]
    pub(crate) key: Option<Key>,

    /// Look by lock id instead
    #[arg(long, value_name = "ID", conflicts_with = "key", allow_hyphen_values = true)]
    pub(crate) id: Option<String>,
}

// The derived form would print the secret.
impl std::fmt::Debug for StatusArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StatusArgs").field("key", &self.key).finish_non_exhaustive()
    }
}

// `wait`
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// Wait at most this long, or `forever`
    #[arg(short, long, value_name = "DUR", default_value = "forever", value_parser = values::wait)]
    pub(crate) wait: Wait,

    /// The lock's name
    #[arg(value_name = "KEY", value_parser = values::KeyParser)]
    pub(crate) key: Key,
}

/// The order of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// The longest held first.
    Age,
    /// Those whose lease ends soonest first.
    Lease,
    /// By key, or by its hash without --raw.
    Key,
    /// By what the holder calls itself.
    Holder,
    /// As the backend finds them, each as soon as it is found.
    None,
}

impl Sort {
    /// The order that the key `s` of `watch` chooses next.
    pub(crate) fn next(self) -> Self {
        match self {
            Self::Age | Self::None => Self::Lease,
            Self::Lease => Self::Key,
            Self::Key => Self::Holder,
            Self::Holder => Self::Age,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Age => "age",
            Self::Lease => "lease",
            Self::Key => "key",
            Self::Holder => "holder",
            Self::None => "none",
        }
    }
}

// `list`
#[derive(Args)]
#[command(after_long_help = "\
Keys are shown as hashes, because lists are pasted into tickets; --raw shows the keys themselves.

Up to 200 locks are sorted by age. More than that are printed as they are found, because sorting them would mean to read \
them all first. With --sort, or with --limit, all are read and the first of the order are kept (1000 unless --limit says \
otherwise): memory stays bounded. With -q nothing is printed: exit 0 if a lock matches, 1 if none does.

Examples:
  syncguard list                              what is held?
  syncguard list --older-than 10m --raw       what is stuck?
  syncguard list deploy: --json | jq .label   who deploys?
  syncguard list -q deploy: && echo busy")]
pub(crate) struct ListArgs {
    /// Only keys that begin so
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,

    /// Show the keys themselves instead of their hashes
    #[arg(long)]
    pub(crate) raw: bool,

    /// The order; without it, by age as long as there are few
    #[arg(long, value_name = "ORDER")]
    pub(crate) sort: Option<Sort>,

    /// Show at most so many, the first of the order
    #[arg(long, value_name = "N", value_parser = values::at_least_one)]
    pub(crate) limit: Option<NonZeroUsize>,

    /// Only locks that have been held for at least this long
    #[arg(long, value_name = "DUR", value_parser = values::duration)]
    pub(crate) older_than: Option<Duration>,
}

// A prefix is the beginning of a key.
impl std::fmt::Debug for ListArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ListArgs").finish_non_exhaustive()
    }
}

// `watch`
#[derive(Args)]
#[command(after_long_help = "\
On a terminal a table is redrawn: q quits, s changes the order, r shows keys or hashes. Elsewhere each change is a line, with \
--json an object: present (held when watching began), acquired, renewed, released, expired, stolen (taken after its lease \
ended). A lock that is taken again just after its release is a hand-over in the table: somebody waited for it. A reader that is \
too slow misses changes and is told how many; a backend that is away is waited for.

Changes are found by looking about once a second and whenever the backend hints: a lock that was held for a shorter time \
may never be seen.

Examples:
  syncguard watch deploy:
  syncguard watch --json | jq -c 'select(.event == \"stolen\")'")]
pub(crate) struct WatchArgs {
    /// Only keys that begin so
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,

    /// Show the keys themselves instead of their hashes
    #[arg(long)]
    pub(crate) raw: bool,

    /// The order of the table at first
    #[arg(long, value_name = "ORDER", default_value = "age")]
    pub(crate) sort: Sort,
}

// A prefix is the beginning of a key.
impl std::fmt::Debug for WatchArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchArgs").finish_non_exhaustive()
    }
}
