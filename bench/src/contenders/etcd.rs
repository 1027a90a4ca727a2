//! etcd's lock service: a queue of keys under one name, on a log that is flushed to disk.

use anyhow::Result;
use etcd_client::{Client, LockOptions};

use crate::contender::{LEASE, Lock};

/// All locks belong to one lease, as in etcd's own sessions: its cheapest way.
pub(super) struct Etcd {
    client: Client,
    lease: i64,
}

impl Etcd {
    pub(super) async fn connect(url: &str) -> Result<Self> {
        let mut client = Client::connect([url], None).await?;
        let lease = client.lease_grant(i64::try_from(LEASE.as_secs())?, None).await?.id();
        Ok(Self { client, lease })
    }
}

impl Lock for Etcd {
    type Held = Vec<u8>;

    async fn acquire(&self, key: &str) -> Result<Vec<u8>> {
        let options = LockOptions::new().with_lease(self.lease);
        Ok(self.client.lock_client().lock(key, Some(options)).await?.key().to_vec())
    }

    async fn release(&self, held: Vec<u8>) -> Result<()> {
        self.client.lock_client().unlock(held).await?;
        Ok(())
    }
}
