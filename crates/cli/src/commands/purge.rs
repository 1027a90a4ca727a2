//! How do dead locks leave the storage?
//!
//! By themselves where the storage expires things; elsewhere their rows stay until the key is taken again, or until this.

use serde::Serialize;
use syncguard::LockBackend;

use crate::config::Backend;
use crate::exit::{self, Failure, Stage};
use crate::output::Output;

#[derive(Serialize)]
struct Purged {
    ok: bool,
    removed: u64,
}

pub(crate) async fn purge(backend: &Backend, output: Output) -> Result<u8, Failure> {
    let locker = super::open(backend).await?;
    let purged = locker.backend().purge_expired().await;
    let removed = purged.map_err(|error| Failure::from_lock(&error, Stage::Operating))?;
    if output.json {
        output.object(&Purged { ok: true, removed });
    } else if !output.quiet {
        let locks = if removed == 1 { "dead lock" } else { "dead locks" };
        output.data(&format!("removed {removed} {locks}; fence counters stay"));
    }
    Ok(exit::OK)
}
