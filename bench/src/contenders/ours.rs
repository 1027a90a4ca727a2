//! SyncGuard itself, with its defaults, through the same call that the README shows.

use anyhow::Result;
use syncguard::{Guard, Locker};

use crate::contender::{Contender, LEASE, Lock, Taken};

struct Ours(Locker);

pub(super) async fn connect(url: &str) -> Result<Box<dyn Contender>> {
    Ok(Taken::boxed(Ours(syncguard::connect(url).await?)))
}

impl Lock for Ours {
    type Held = Guard;

    async fn acquire(&self, key: &str) -> Result<Guard> {
        Ok(self.0.lock(key).ttl(LEASE).acquire().await?)
    }

    async fn release(&self, held: Guard) -> Result<()> {
        held.release().await?;
        Ok(())
    }

    async fn wait(&self, key: &str) -> Result<Guard> {
        Ok(self.0.lock(key).ttl(LEASE).wait_forever().acquire().await?)
    }
}
