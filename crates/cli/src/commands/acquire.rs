//! How does a script hold a lock that outlives one process?
//!
//! It gets the handle, a secret, and has to come back before the lease ends: nobody renews it.

use std::fmt::Write as _;

use serde::Serialize;
use syncguard::{Fence, Locker, Timestamp};

use crate::args::{AcquireArgs, Format};
use crate::config::Backend;
use crate::exit::{self, Failure, Stage};
use crate::messages::Asking;
use crate::output::{Output, human, shell_quote};
use crate::signals::Signals;
use crate::taking::{self, Taken, Wanted};
use crate::values::Wait;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Acquired<'a> {
    ok: bool,
    lock_id: &'a str,
    fence: Fence,
    expires_at_ms: Timestamp,
}

/// What a shell gets to `eval` after a failure: our exit code, and none of the variables of a lock around us, which a
/// trap would release.
pub(crate) fn failing_text(code: u8) -> String {
    let names =
        "SYNCGUARD_LOCK_ID SYNCGUARD_FENCE SYNCGUARD_KEY SYNCGUARD_KEY_HASH SYNCGUARD_LOCK_ID_HASH SYNCGUARD_TTL_MS";
    format!("unset {names}; (exit {code})")
}

pub(crate) async fn acquire(args: AcquireArgs, backend: &Backend, output: Output) -> Result<u8, Failure> {
    let conflict = args.taking.conflict_exit_code;
    match take(args, backend, output).await {
        Ok(()) => Ok(exit::OK),
        Err(failure) => {
            let mut failure = failure.on(backend);
            if failure.reason == "locked" {
                failure.code = conflict;
            }
            Err(failure)
        }
    }
}

async fn take(args: AcquireArgs, backend: &Backend, output: Output) -> Result<(), Failure> {
    let mut signals = Signals::install().map_err(|error| {
        Failure::new(exit::INTERNAL, "internal", format!("cannot install signal handlers: {error}"))
    })?;
    let taking = args.taking;
    let wait = if taking.no_wait { Wait::AtMost(std::time::Duration::ZERO) } else { taking.wait };
    let locker = Locker::new(taking::open(backend, wait, &mut signals, output).await?);
    let wanted = Wanted {
        key: args.key,
        ttl: taking.ttl,
        label: taking.label.and_then(|given| given.0).unwrap_or_else(crate::label::of_caller),
        keep_alive: false,
        wait,
        asking: Asking::Acquire,
    };
    let taken = taking::take(&locker, &wanted, &mut signals, output).await?;
    if let Some(signal) = signals.pending_stop() {
        // Whoever interrupted us will not read the handle: a lock that nobody can release would stay for its lease.
        let _ = taken.guard.release().await;
        let code = exit::from_signal(signal.as_raw());
        return Err(Failure::new(code, "interrupted", "interrupted").dying_from(signal));
    }
    taken.guard.check().map_err(|error| Failure::from_lock(&error, Stage::Operating))?;
    if let Err(error) = hand_over(&taken, &wanted, args.format, output) {
        // Nobody has the handle: the lock would stay for its lease, and nobody could release it.
        let _ = taken.guard.release().await;
        let message = format!("the handle could not be written to stdout: {error}; the lock was released");
        return Err(Failure::new(exit::INTERNAL, "internal", message));
    }
    let (fence, lease) = (taken.guard.fence(), human(wanted.ttl.duration()));
    let _ = taken.guard.leak();
    output.detail(&format!("acquired with fence {fence}; the lease of {lease} is not renewed"));
    Ok(())
}

fn hand_over(taken: &Taken, wanted: &Wanted, format: Format, output: Output) -> std::io::Result<()> {
    let (fence, expires_at) = (taken.guard.fence(), taken.guard.expires_at());
    let lock_id = taken.guard.lock_id();
    if output.json {
        return output.deliver_object(&Acquired {
            ok: true,
            lock_id: lock_id.as_str(),
            fence,
            expires_at_ms: expires_at,
        });
    }
    match format {
        Format::Id => output.deliver(lock_id.as_str()),
        Format::Env => {
            let mut text = format!("export SYNCGUARD_LOCK_ID={}", lock_id.as_str());
            let _ = write!(text, "\nexport SYNCGUARD_FENCE={fence}");
            let _ = write!(text, "\nexport SYNCGUARD_KEY={}", shell_quote(wanted.key.as_str()));
            let _ = write!(text, "\nexport SYNCGUARD_KEY_HASH={}", wanted.key.hash());
            let _ = write!(text, "\nexport SYNCGUARD_LOCK_ID_HASH={}", lock_id.hash());
            let _ = write!(text, "\nexport SYNCGUARD_TTL_MS={}", wanted.ttl.as_millis());
            output.deliver(&text)
        }
    }
}
