//! What happened to the locks since I last looked?
//!
//! Found by listing and comparing, so that it needs nothing from the storage but a listing, and so that news that got
//! lost (a reconnect, a restart of the server) only come later. A hint of the storage makes the next look come
//! sooner. Looks are paced by what they cost: whoever watches a hundred thousand locks must not hold up those who
//! lock.

use std::collections::HashMap;
use std::time::Duration;

use crate::sync::{Instant, sleep_until};

use crate::time::is_live;
use crate::{Inspector, Key, ListRequest, LockInfo, Result, WakeHint};

/// The pause between two looks when nothing hints at a change.
const SCHEDULE: Duration = Duration::from_secs(1);
/// The shortest pause between two looks, however many hints come.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
/// A look may take this part of the time; the rest is pause.
const SHARE: u32 = 20;
const PAGE_SIZE: u32 = 1000;

/// What happened to one lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Transition {
    /// What happened.
    pub kind: TransitionKind,
    /// The lock: as it is now, or as it was last seen if it is gone.
    pub lock: LockInfo,
    /// The lock that it took over from, for [`TransitionKind::Stolen`].
    pub previous: Option<LockInfo>,
}

/// The kinds of [`Transition`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransitionKind {
    /// It was held when watching began.
    Present,
    /// It was taken while it was free.
    Acquired,
    /// Its lease was replaced.
    Renewed,
    /// It was given back, or broken, before its lease ended.
    Released,
    /// Its lease ended.
    Expired,
    /// Its lease ended and somebody else took it.
    Stolen,
}

impl TransitionKind {
    /// One word, for people and for JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Acquired => "acquired",
            Self::Renewed => "renewed",
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Stolen => "stolen",
        }
    }
}

/// Locks under observation: [`Inspector::watch`]. Keeps what it saw last in memory.
#[derive(Debug)]
pub struct Watch {
    inspector: Inspector,
    prefix: String,
    /// What the last answered look found; `None` before the first.
    known: Option<HashMap<Key, Seen>>,
    hint: Option<WakeHint>,
    /// What the last look cost, and when it ended; `None` before the first.
    looked: Option<(Duration, Instant)>,
    /// Whether the last look gave an answer: after one that did not, the schedule is kept whatever hints say.
    answered: bool,
}

#[derive(Debug)]
struct Seen {
    lock: LockInfo,
    at: Instant,
}

impl Watch {
    pub(super) fn new(inspector: Inspector, prefix: String) -> Self {
        Self { inspector, prefix, known: None, hint: None, looked: None, answered: false }
    }

    /// The locks as they were at the last look, in no order.
    pub fn locks(&self) -> impl Iterator<Item = &LockInfo> {
        self.known.iter().flat_map(HashMap::values).map(|seen| &seen.lock)
    }

    /// Looks when it is time, and says what happened since; the first look is at once and finds everything
    /// [`Present`](TransitionKind::Present). May be empty: nothing happened.
    ///
    /// # Errors
    /// What the backend reports. Nothing is forgotten: call it again, and it looks again after a pause.
    ///
    /// # Cancel safety
    /// May be dropped and called again; no transition is lost.
    pub async fn next(&mut self) -> Result<Vec<Transition>> {
        self.pause().await;
        // Registered before the look, so that what happens after it is hinted at.
        if self.hint.is_none() {
            self.hint = Some(self.inspector.changes().await);
        }
        let begun = Instant::now();
        let fresh = self.look().await;
        self.looked = Some((begun.elapsed(), Instant::now()));
        self.answered = fresh.is_ok();
        Ok(self.compare(fresh?))
    }

    async fn pause(&self) {
        let Some((cost, ended)) = self.looked else { return };
        let at_most = ended + SCHEDULE.max(cost.saturating_mul(SHARE));
        match &self.hint {
            Some(hint) if self.answered => {
                sleep_until(ended + SHORTEST_PAUSE.max(cost.saturating_mul(SHARE))).await;
                tokio::select! {
                    () = hint.woken() => {}
                    () = sleep_until(at_most) => {}
                }
            }
            _ => sleep_until(at_most).await,
        }
    }

    async fn look(&self) -> Result<HashMap<Key, Seen>> {
        let mut fresh = HashMap::new();
        let mut cursor = None;
        loop {
            let request = ListRequest::new(&self.prefix).page_size(PAGE_SIZE).after(cursor.as_ref());
            let page = self.inspector.list(request).await?;
            let at = Instant::now();
            fresh.extend(page.locks.into_iter().map(|lock| (lock.reveal().key.clone(), Seen { lock, at })));
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(fresh),
            }
        }
    }

    fn compare(&mut self, fresh: HashMap<Key, Seen>) -> Vec<Transition> {
        let mut transitions = Vec::new();
        match self.known.take() {
            None => transitions.extend(fresh.values().map(|now| told(TransitionKind::Present, &now.lock))),
            Some(mut before) => {
                for (key, now) in &fresh {
                    match before.remove(key) {
                        None => transitions.push(told(TransitionKind::Acquired, &now.lock)),
                        Some(old) => changed(&old.lock, &now.lock, &mut transitions),
                    }
                }
                transitions.extend(before.values().map(gone));
            }
        }
        self.known = Some(fresh);
        // What ended comes first, so that a hand-over is told in the order in which it happened.
        transitions.sort_by_key(|transition| match transition.kind {
            TransitionKind::Released | TransitionKind::Expired => (0, transition.lock.expires_at),
            _ => (1, transition.lock.acquired_at),
        });
        transitions
    }
}

fn told(kind: TransitionKind, lock: &LockInfo) -> Transition {
    Transition { kind, lock: lock.clone(), previous: None }
}

fn changed(old: &LockInfo, now: &LockInfo, into: &mut Vec<Transition>) {
    if old.reveal().lock_id == now.reveal().lock_id {
        if old.expires_at != now.expires_at {
            into.push(told(TransitionKind::Renewed, now));
        }
    } else if is_live(old.expires_at, now.acquired_at) {
        into.push(told(TransitionKind::Released, old));
        into.push(told(TransitionKind::Acquired, now));
    } else {
        into.push(Transition { kind: TransitionKind::Stolen, lock: now.clone(), previous: Some(old.clone()) });
    }
}

/// A lock that is not listed any more: it ended by itself if its lease would be over by now.
fn gone(old: &Seen) -> Transition {
    let over = old.at.elapsed() >= old.lock.free_in();
    told(if over { TransitionKind::Expired } else { TransitionKind::Released }, &old.lock)
}
