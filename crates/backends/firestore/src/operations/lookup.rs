//! Who holds a key, as seen by an onlooker?

use syncguard_core::time::is_live;
use syncguard_core::{Key, LockId, LockInfo, Result};

use super::cleanup::earlier;
use crate::backend::FirestoreBackend;
use crate::document::{StoredLock, expect_key};
use crate::error::RpcError;
use crate::names::DocumentIds;

impl FirestoreBackend {
    pub(crate) async fn look_at_key(&self, key: &Key) -> Result<bool> {
        let Some((lock, read_time)) = self.read_lock(key).await? else { return Ok(false) };
        let now = self.now();
        if self.options.cleanup_in_is_locked {
            self.clean_up_later(&lock, earlier(now, read_time));
        }
        Ok(is_live(lock.expires_at, now))
    }

    pub(crate) async fn lookup_key(&self, key: &Key) -> Result<Option<LockInfo>> {
        let lock = self.read_lock(key).await?;
        let now = self.now();
        Ok(lock.filter(|(lock, _)| is_live(lock.expires_at, now)).map(|(lock, _)| lock.into_info(now)))
    }

    pub(crate) async fn lookup_lock_id(&self, lock_id: &LockId) -> Result<Option<LockInfo>> {
        let owned = self.find_owned(lock_id, &self.begin()).await?;
        Ok(owned.live.map(|lock| lock.into_info(owned.now)))
    }

    async fn read_lock(&self, key: &Key) -> Result<Option<(StoredLock, Option<prost_types::Timestamp>)>> {
        let name = self.lock_name(&DocumentIds::of(key)?);
        let read = self.rpc.read([name], self.begin().patience).await.map_err(RpcError::into_lock_error)?;
        let [document] = read.documents;
        let Some(document) = document else { return Ok(None) };
        let lock = StoredLock::read(document)?;
        expect_key(&lock.key, key)?;
        Ok(Some((lock, read.read_time)))
    }
}
