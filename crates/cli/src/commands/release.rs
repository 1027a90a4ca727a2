//! How does a script give a lock back?

use serde::Serialize;
use syncguard::ReleaseOutcome;

use crate::args::ReleaseArgs;
use crate::config::Backend;
use crate::exit::{self, Failure, Stage};
use crate::output::Output;

#[derive(Serialize)]
struct Released {
    ok: bool,
}

pub(crate) async fn release(
    args: ReleaseArgs,
    resolve: impl FnOnce() -> Result<Backend, Failure>,
    output: Output,
) -> Result<u8, Failure> {
    let lock_id = super::lock_id(&args.handle)?;
    let locker = super::open(&resolve()?).await?;
    let outcome = locker.release_id(&lock_id).await;
    match outcome.map_err(|error| Failure::from_lock(&error, Stage::Operating))? {
        ReleaseOutcome::Released => {
            if output.json {
                output.object(&Released { ok: true });
            }
            output.detail("released");
            Ok(exit::OK)
        }
        ReleaseOutcome::Absent(_) => Err(super::extend::absent("released")),
    }
}
