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

pub(crate) async fn acquire(args: AcquireArgs, backend: &Backend, output: Output) -> Result<u8, Failure> {
    let format = args.format;
    let conflict = args.taking.conflict_exit_code;
    match take(args, backend, output).await {
        Ok(()) => Ok(exit::OK),
        Err(mut failure) => {
            if failure.reason == "locked" {
                failure.code = conflict;
            }
            if format == Format::Env {
                // `eval "$(…)"` forgets our exit code; this hands it on.
                output.data(&format!("(exit {})", failure.code));
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
        label: taking.label.unwrap_or_else(super::default_label),
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
    hand_over(taken, &wanted, args.format, output)
}

fn hand_over(taken: Taken, wanted: &Wanted, format: Format, output: Output) -> Result<(), Failure> {
    taken.guard.check().map_err(|error| Failure::from_lock(&error, Stage::Operating))?;
    let (fence, expires_at) = (taken.guard.fence(), taken.guard.expires_at());
    let lock_id = taken.guard.leak();
    if output.json {
        output.object(&Acquired { ok: true, lock_id: lock_id.as_str(), fence, expires_at_ms: expires_at });
        return Ok(());
    }
    match format {
        Format::Id => output.data(lock_id.as_str()),
        Format::Env => {
            let mut text = format!("export SYNCGUARD_LOCK_ID={}", lock_id.as_str());
            let _ = write!(text, "\nexport SYNCGUARD_FENCE={fence}");
            let _ = write!(text, "\nexport SYNCGUARD_KEY={}", shell_quote(wanted.key.as_str()));
            let _ = write!(text, "\nexport SYNCGUARD_KEY_HASH={}", wanted.key.hash());
            let _ = write!(text, "\nexport SYNCGUARD_LOCK_ID_HASH={}", lock_id.hash());
            let _ = write!(text, "\nexport SYNCGUARD_TTL_MS={}", wanted.ttl.as_millis());
            output.data(&text);
        }
    }
    let lease = human(wanted.ttl.duration());
    output.detail(&format!("acquired with fence {fence}; the lease of {lease} is not renewed"));
    Ok(())
}
