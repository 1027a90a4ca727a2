//! How is a lock given back?

use syncguard_core::time::is_live;
use syncguard_core::{LockId, ReleaseOutcome, Result, Timestamp};

use crate::backend::FirestoreBackend;
use crate::document::delete;

impl FirestoreBackend {
    pub(crate) async fn release_lock(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        let mut retry = self.begin();
        let mut last_seen: Option<Timestamp> = None;
        loop {
            let owned = self.find_owned(lock_id, &retry).await?;
            let Some(lock) = &owned.live else {
                // We saw it alive, asked for its deletion, and nobody may have taken a living lease: that was us.
                let ours = retry.is_doubtful() && last_seen.is_some_and(|expiry| is_live(expiry, owned.now));
                return Ok(if ours { ReleaseOutcome::Released } else { ReleaseOutcome::Absent(Some(owned.absent())) });
            };
            let mut writes = vec![delete(lock)];
            writes.extend(owned.leftovers().map(delete));
            last_seen = Some(lock.expires_at);
            match self.rpc.commit(writes, retry.patience).await {
                Ok(()) => return Ok(ReleaseOutcome::Released),
                Err(error) => retry.write_failed(error).await?,
            }
        }
    }
}
