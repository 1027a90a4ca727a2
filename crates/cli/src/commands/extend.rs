//! How does a script keep a lock that it took by hand?

use serde::Serialize;
use syncguard::{ExtendOutcome, Extension, Timestamp};

use crate::args::ExtendArgs;
use crate::config::Backend;
use crate::exit::{self, Failure, Stage};
use crate::output::{Output, human};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Extended {
    ok: bool,
    expires_at_ms: Timestamp,
}

pub(crate) async fn extend(
    args: ExtendArgs,
    resolve: impl FnOnce() -> Result<Backend, Failure>,
    output: Output,
) -> Result<u8, Failure> {
    let lock_id = super::lock_id(&args.handle)?;
    let locker = super::open(&resolve()?).await?;
    let outcome = locker.extend_id(&lock_id, args.ttl.duration()).await;
    match outcome.map_err(|error| Failure::from_lock(&error, Stage::Operating))? {
        ExtendOutcome::Extended(Extension { expires_at, .. }) => {
            if output.json {
                output.object(&Extended { ok: true, expires_at_ms: expires_at });
            }
            output.detail(&format!("the lease ends in {}", human(args.ttl.duration())));
            Ok(exit::OK)
        }
        ExtendOutcome::Absent(_) => Err(absent("extended")),
    }
}

/// No live lock has this id.
pub(crate) fn absent(not_done: &str) -> Failure {
    Failure::new(exit::NO, "absent", format!("nothing was {not_done}: no live lock has this id"))
        .hint("it was released, its lease ended, or the backend is another one")
}
