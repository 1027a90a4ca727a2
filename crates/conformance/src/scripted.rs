//! How do I test *my* code's answer to a contended, lost or broken lock?
//!
//! [`ScriptedBackend`] answers each call with what its script says and writes down what it was asked. Where the script
//! has ended, or never began, it behaves as a [`MemoryBackend`], so a test scripts only what it is about.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use syncguard_core::time::Clock;
use syncguard_core::wake::WakeHint;
use syncguard_core::{
    AcquireOutcome, AcquireRequest, Capabilities, Contention, ErrorCode, ExtendOutcome, Key, LockBackend, LockError,
    LockId, LockInfo, Lookup, MemoryBackend, ReleaseOutcome, Result, Ttl,
};

use crate::Operation;

/// What the backend was asked. `Debug` shows hashes, as everywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// To take a lock.
    Acquire {
        /// Of this key,
        key: Key,
        /// for this owner,
        lock_id: LockId,
        /// for so long.
        ttl: Ttl,
    },
    /// To free a lock.
    Release(LockId),
    /// To renew a lock.
    Extend(LockId, Ttl),
    /// Whether a key is locked.
    IsLocked(Key),
    /// For the lock of a key.
    LookupKey(Key),
    /// For the lock of an id.
    LookupId(LockId),
    /// To remove the dead.
    Purge,
}

impl Call {
    /// Which operation this was.
    pub const fn operation(&self) -> Operation {
        match self {
            Self::Acquire { .. } => Operation::Acquire,
            Self::Release(_) => Operation::Release,
            Self::Extend(..) => Operation::Extend,
            Self::IsLocked(_) => Operation::IsLocked,
            Self::LookupKey(_) | Self::LookupId(_) => Operation::Lookup,
            Self::Purge => Operation::Purge,
        }
    }
}

/// A backend that answers by a script, for tests of code that uses locks. Clones share script and record.
///
/// ```
/// use syncguard_conformance::{Operation, ScriptedBackend};
/// use syncguard_core::{ErrorCode, Key, LockBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), syncguard_core::LockError> {
/// let backend = ScriptedBackend::new().is_locked_answers(Ok(true)).is_locked_fails(ErrorCode::RateLimited);
///
/// let key = Key::new("k")?;
/// assert!(backend.is_locked(&key).await?);
/// assert_eq!(backend.is_locked(&key).await.unwrap_err().code(), ErrorCode::RateLimited);
/// assert!(!backend.is_locked(&key).await?); // the script has ended: nothing is locked in memory
/// assert_eq!(backend.count(Operation::IsLocked), 3);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ScriptedBackend {
    memory: MemoryBackend,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    acquire: VecDeque<Result<Scripted<AcquireOutcome>>>,
    release: VecDeque<Result<Scripted<ReleaseOutcome>>>,
    extend: VecDeque<Result<Scripted<ExtendOutcome>>>,
    is_locked: VecDeque<Result<Scripted<bool>>>,
    calls: Vec<Call>,
}

enum Scripted<T> {
    /// This answer, whatever memory holds.
    Answer(T),
    /// What memory says; for a good call between bad ones.
    AsMemory,
}

impl Default for ScriptedBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ScriptedBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScriptedBackend({} calls)", self.state().calls.len())
    }
}

impl ScriptedBackend {
    /// An empty memory and an empty script.
    pub fn new() -> Self {
        Self { memory: MemoryBackend::new(), state: Arc::default() }
    }

    /// The next acquire finds the lock with somebody else.
    #[must_use]
    pub fn contended(self) -> Self {
        self.state().acquire.push_back(Ok(Scripted::Answer(AcquireOutcome::Contended(Contention::default()))));
        self
    }

    /// The next acquire fails with this error.
    #[must_use]
    pub fn acquire_fails(self, code: ErrorCode) -> Self {
        self.state().acquire.push_back(Err(scripted(code)));
        self
    }

    /// The next acquire is as good as memory makes it.
    #[must_use]
    pub fn acquire_works(self) -> Self {
        self.state().acquire.push_back(Ok(Scripted::AsMemory));
        self
    }

    /// The next release answers so.
    #[must_use]
    pub fn release_answers(self, outcome: ReleaseOutcome) -> Self {
        self.state().release.push_back(Ok(Scripted::Answer(outcome)));
        self
    }

    /// The next release fails with this error.
    #[must_use]
    pub fn release_fails(self, code: ErrorCode) -> Self {
        self.state().release.push_back(Err(scripted(code)));
        self
    }

    /// The next extend answers so: `ExtendOutcome::Absent(None)` is a lock that was lost.
    #[must_use]
    pub fn extend_answers(self, outcome: ExtendOutcome) -> Self {
        self.state().extend.push_back(Ok(Scripted::Answer(outcome)));
        self
    }

    /// The next extend fails with this error.
    #[must_use]
    pub fn extend_fails(self, code: ErrorCode) -> Self {
        self.state().extend.push_back(Err(scripted(code)));
        self
    }

    /// The next extend is as good as memory makes it.
    #[must_use]
    pub fn extend_works(self) -> Self {
        self.state().extend.push_back(Ok(Scripted::AsMemory));
        self
    }

    /// The next `is_locked` answers so.
    #[must_use]
    pub fn is_locked_answers(self, answer: Result<bool>) -> Self {
        self.state().is_locked.push_back(answer.map(Scripted::Answer));
        self
    }

    /// The next `is_locked` fails with this error.
    #[must_use]
    pub fn is_locked_fails(self, code: ErrorCode) -> Self {
        self.is_locked_answers(Err(scripted(code)))
    }

    /// Everything that was asked, in order.
    pub fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    /// How often an operation was asked.
    pub fn count(&self, operation: Operation) -> usize {
        self.state().calls.iter().filter(|call| call.operation() == operation).count()
    }

    /// The memory that answers where the script does not.
    pub fn memory(&self) -> &MemoryBackend {
        &self.memory
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn scripted(code: ErrorCode) -> LockError {
    let error = LockError::new(code, "the script says so");
    if code == ErrorCode::NetworkTimeout { error.ambiguous() } else { error }
}

impl LockBackend for ScriptedBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("scripted", self.memory.capabilities().time_authority)
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        let line = {
            let mut state = self.state();
            let AcquireRequest { key, lock_id, ttl, .. } = request;
            state.calls.push(Call::Acquire { key: key.clone(), lock_id: lock_id.clone(), ttl });
            state.acquire.pop_front()
        };
        match line.transpose()? {
            Some(Scripted::Answer(answer)) => Ok(answer),
            Some(Scripted::AsMemory) | None => self.memory.acquire(request).await,
        }
    }

    async fn release(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        let line = {
            let mut state = self.state();
            state.calls.push(Call::Release(lock_id.clone()));
            state.release.pop_front()
        };
        match line.transpose()? {
            Some(Scripted::Answer(answer)) => Ok(answer),
            Some(Scripted::AsMemory) | None => self.memory.release(lock_id).await,
        }
    }

    async fn extend(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        let line = {
            let mut state = self.state();
            state.calls.push(Call::Extend(lock_id.clone(), ttl));
            state.extend.pop_front()
        };
        match line.transpose()? {
            Some(Scripted::Answer(answer)) => Ok(answer),
            Some(Scripted::AsMemory) | None => self.memory.extend(lock_id, ttl).await,
        }
    }

    async fn is_locked(&self, key: &Key) -> Result<bool> {
        let line = {
            let mut state = self.state();
            state.calls.push(Call::IsLocked(key.clone()));
            state.is_locked.pop_front()
        };
        match line.transpose()? {
            Some(Scripted::Answer(answer)) => Ok(answer),
            Some(Scripted::AsMemory) | None => self.memory.is_locked(key).await,
        }
    }

    async fn lookup(&self, query: Lookup<'_>) -> Result<Option<LockInfo>> {
        let call = match query {
            Lookup::Key(key) => Call::LookupKey(key.clone()),
            Lookup::LockId(lock_id) => Call::LookupId(lock_id.clone()),
        };
        self.state().calls.push(call);
        self.memory.lookup(query).await
    }

    async fn purge_expired(&self) -> Result<u64> {
        self.state().calls.push(Call::Purge);
        self.memory.purge_expired().await
    }

    async fn subscribe(&self, key: &Key) -> WakeHint {
        self.memory.subscribe(key).await
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.memory.clock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_script_is_answered_line_by_line_and_then_memory_answers() {
        let backend = ScriptedBackend::new().contended().acquire_fails(ErrorCode::ServiceUnavailable).acquire_works();
        let (key, lock_id) = (Key::new("k").unwrap(), LockId::random());
        let request = AcquireRequest::new(&key, &lock_id, Ttl::DEFAULT);

        assert!(matches!(backend.acquire(request).await.unwrap(), AcquireOutcome::Contended(_)));
        assert_eq!(backend.acquire(request).await.unwrap_err().code(), ErrorCode::ServiceUnavailable);
        assert!(matches!(backend.acquire(request).await.unwrap(), AcquireOutcome::Acquired(_)));
        assert!(backend.release(&lock_id).await.unwrap().is_released());

        assert_eq!(backend.count(Operation::Acquire), 3);
        assert_eq!(backend.calls().last(), Some(&Call::Release(lock_id)));
    }

    #[tokio::test]
    async fn scripted_renewals_and_releases_override_memory() {
        let backend = ScriptedBackend::new()
            .extend_answers(ExtendOutcome::Absent(None))
            .extend_fails(ErrorCode::NetworkTimeout)
            .release_answers(ReleaseOutcome::Absent(None))
            .release_fails(ErrorCode::AuthFailed);
        let lock_id = LockId::random();

        assert!(!backend.extend(&lock_id, Ttl::DEFAULT).await.unwrap().is_extended());
        assert!(backend.extend(&lock_id, Ttl::DEFAULT).await.unwrap_err().is_ambiguous());
        assert!(!backend.release(&lock_id).await.unwrap().is_released());
        assert_eq!(backend.release(&lock_id).await.unwrap_err().code(), ErrorCode::AuthFailed);
    }
}
