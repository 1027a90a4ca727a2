//! How does one case become one test?
//!
//! Each runs on a runtime of its own: two threads for real servers, one thread with paused time for backends that
//! live on tokio's clock. A case that hangs fails by itself, and a case that cannot run says so.

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::{Harness, Unsupported};

/// How time passes under a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// It is slept through, on two threads.
    Real,
    /// It is jumped over as soon as nobody has anything to do, on one thread.
    Paused,
}

/// How long a case may take. Real: enough for the heaviest on a slow server beside others. Paused: more than any case
/// passes, and jumped to at once when nobody has anything left to do.
const fn patience(time: Time) -> Duration {
    match time {
        Time::Real => Duration::from_secs(180),
        Time::Paused => Duration::from_secs(24 * 60 * 60),
    }
}

/// Runs one case against a fresh harness. [`suite!`](crate::suite) calls this; so may you, for a single case.
pub fn run<H: Harness>(time: Time, name: &str, start: impl Future<Output = H>, case: impl AsyncFnOnce(&H)) {
    runtime(time).block_on(async {
        let harness = start.await;
        if let Some((_, reason)) = harness.skips().iter().find(|(skipped, _)| *skipped == name) {
            return skip(name, &Unsupported::because(*reason));
        }
        let finished = tokio::time::timeout(patience(time), case(&harness)).await;
        assert!(finished.is_ok(), "{name} hangs");
    });
}

/// Says that a case did not run, and why. Test runners hide what a passed test prints, so there is a switch.
///
/// # Panics
/// With `SYNCGUARD_TEST_SKIPS=deny` in the environment.
pub(crate) fn skip(name: &str, reason: &Unsupported) {
    let denied = std::env::var("SYNCGUARD_TEST_SKIPS").is_ok_and(|word| word == "deny");
    assert!(!denied, "{name} is skipped, which SYNCGUARD_TEST_SKIPS=deny forbids: {reason}");
    println!("SKIPPED {name}: {reason}");
}

fn runtime(time: Time) -> Runtime {
    let runtime = match time {
        Time::Real => Builder::new_multi_thread().worker_threads(2).enable_all().build(),
        Time::Paused => Builder::new_current_thread().enable_all().start_paused(true).build(),
    };
    runtime.expect("the runtime of a case starts")
}
