//! How does a lock get a new lease?

use syncguard_core::{ExtendOutcome, Extension, LockId, Result, Ttl};

use crate::backend::FirestoreBackend;
use crate::document::{delete, write_lease};

impl FirestoreBackend {
    pub(crate) async fn extend_lock(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        let mut retry = self.begin_for(ttl);
        loop {
            let owned = self.find_owned(lock_id, &retry).await?;
            let Some(lock) = &owned.live else { return Ok(ExtendOutcome::Absent(Some(owned.absent()))) };
            let expires_at = owned.now.plus(ttl);
            let mut writes = vec![write_lease(lock, expires_at, ttl)];
            writes.extend(owned.leftovers().map(delete));
            match self.rpc.commit(writes, retry.patience).await {
                Ok(()) => {
                    let extension = Extension::new(expires_at).asked_for(lock.holder.is_asked_for);
                    return Ok(ExtendOutcome::Extended(extension));
                }
                Err(error) => retry.write_failed(error).await?,
            }
        }
    }
}
