//! What does an impostor show to operators?

use syncguard_core::{
    AskOutcome, Counts, Cursor, Inspect, Label, ListRequest, LockId, LockInfo, Page, Result, Timestamp, WakeHint,
};

use super::{Flaw, Impostor, Place, Store, Stored};

/// The topic of those who watch everything. Every place has a namespace, so none is called like this.
pub(super) const EVERY_PLACE: &str = "";

impl Stored {
    pub(super) fn info(&self, now: Timestamp) -> LockInfo {
        LockInfo::new(self.key.clone(), self.lock_id.clone(), self.fence, self.acquired_at, self.expires_at, now)
            .with_label(self.label.clone())
            .with_ttl(Some(self.ttl))
            .with_asked_for(self.is_asked_for)
    }
}

impl Impostor {
    /// What a writer leaves behind that does not know of labels.
    pub(super) fn former_label(&self, store: &Store, place: &str) -> Option<Label> {
        match store.places.get(place) {
            Some(Place::Lock(former)) if self.has(Flaw::KeepsAFormerLabel) => former.label.clone(),
            _ => None,
        }
    }
}

impl Inspect for Impostor {
    async fn list(&self, request: ListRequest<'_>) -> Result<Page> {
        tokio::task::yield_now().await;
        let (store, now) = (self.store(), self.now());
        let after = request.cursor.map_or("", Cursor::as_str);
        let mut found: Vec<&Stored> = store
            .places
            .iter()
            .filter(|(place, _)| self.is_mine(place))
            .filter_map(|(_, place)| match place {
                Place::Lock(held) => Some(held),
                Place::Foreign => None,
            })
            .filter(|held| self.has(Flaw::ListsTheDead) || self.live(held.expires_at, now))
            .filter(|held| held.key.as_str().starts_with(request.prefix) && held.key.as_str() > after)
            .collect();
        found.sort_unstable_by_key(|held| held.key.as_str());
        let size = usize::try_from(request.page_size).unwrap_or(usize::MAX);
        let more = found.len() > size;
        // The flaw takes the first of the next page for the last of this one.
        let last = if self.has(Flaw::SkipsBetweenPages) { size } else { size - 1 };
        let next = found.get(last).filter(|_| more).map(|held| Cursor::new(held.key.as_str()));
        Ok(Page::new(found.into_iter().take(size).map(|held| held.info(now)).collect(), next))
    }

    async fn count(&self) -> Result<Counts> {
        let (store, now) = (self.store(), self.now());
        let is_live = |place: &Place| matches!(place, Place::Lock(held) if self.live(held.expires_at, now));
        let locks = store.places.iter().filter(|(name, place)| self.is_mine(name) && is_live(place)).count();
        let counters = store.counters.keys().filter(|name| self.is_mine(name)).count();
        let number = |count| u64::try_from(count).unwrap_or(u64::MAX);
        Ok(Counts::new(number(locks), number(counters)))
    }

    async fn ask(&self, lock_id: &LockId) -> Result<AskOutcome> {
        let mut store = self.store();
        let place = self.owned(&store, lock_id, self.now(), false);
        match place.and_then(|place| store.places.get_mut(&place)) {
            Some(Place::Lock(held)) => {
                held.is_asked_for = true;
                Ok(AskOutcome::Asked)
            }
            _ => Ok(AskOutcome::Absent),
        }
    }

    async fn changes(&self) -> WakeHint {
        self.hub.subscribe(EVERY_PLACE)
    }
}
