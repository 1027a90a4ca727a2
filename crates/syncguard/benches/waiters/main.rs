//! Can ten thousand tasks wait for one key over one client?
//!
//! Somebody holds the key until all of them wait. Then it is released, and each task takes it, gives it back and waits
//! again, until the last of them had it, or waited in vain. On every backend, one after the other:
//!
//! ```text
//! cargo xtask bench waiters [BACKEND …] [--waiters N] [--json FILE]
//! ```
//!
//! Each of them waits ten minutes at most, or twenty times what all the turns take one after the other if that is more.
//! It fails when a call ends in an error, when a waiter needs more memory than it should, when two tasks are inside at
//! once, and when one task waits until its timeout while another gets the lock more than twice as often as its share.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "a measurement reads the monotonic clock, shows figures to people, and may fail"
)]

mod crowd;
mod worlds;

use std::process::ExitCode;

use crowd::Crowd;
use syncguard_testkit::bench::{Options, Report};

fn main() -> ExitCode {
    let options = Options::new("waiters").number("waiters", 10_000, "how many tasks wait");
    let options = worlds::BACKENDS.iter().fold(options, |options, backend| options.part(backend, "this backend"));
    let arguments = options.read();
    let waiters = usize::try_from(arguments.number("waiters")).unwrap();
    let mut report = Report::start(&arguments, arguments.rounds());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (mut failed, resident_at_first) = (false, crowd::resident());
    println!("{waiters} tasks wait for one key");
    for backend in worlds::BACKENDS {
        if !arguments.wants(backend) {
            continue;
        }
        let crowd = runtime.block_on(async {
            let world = worlds::start(backend).await;
            Crowd::run(&world.locker, waiters, resident_at_first).await
        });
        println!("{backend:<10} {crowd}");
        report.extend(crowd.figures(backend));
        for failure in crowd.failures() {
            println!("FAILED  {backend}: {failure}");
            failed = true;
        }
    }
    let kept = report.finish();
    if failed { ExitCode::FAILURE } else { kept }
}
