//! What happens when the storage misbehaves at exactly the wrong moment?
//!
//! [`Faulty`] stands in front of any backend and breaks chosen calls: before the storage hears of them, after
//! it has acted, or late. Its counters prove that a fault fired; a test whose fault never fired proves nothing.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use syncguard_core::telemetry::Operation;
use syncguard_core::time::Clock;
use syncguard_core::wake::WakeHint;
use syncguard_core::{
    AcquireOutcome, AcquireRequest, Capabilities, ErrorCode, ExtendOutcome, HealthReport, Inspector, Key, LockBackend,
    LockError, LockId, LockInfo, Lookup, ReleaseOutcome, Result, Ttl,
};

/// What goes wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request is on its way for this long, then all is well.
    Delay(Duration),
    /// All is well with the storage, but the reply takes this long.
    LateReply(Duration),
    /// The storage never hears of it; the caller gets this code.
    Refuse(ErrorCode),
    /// The storage acts; the reply is lost, and the caller gets an ambiguous `NetworkTimeout`.
    ReplyLost,
    /// The storage never hears of it and nobody ever answers.
    Hang,
    /// The storage acts, and nobody ever answers.
    HangAfterActing,
}

/// A backend that breaks chosen calls. Clones share their faults and counters.
///
/// ```
/// use syncguard_conformance::{Fault, Faulty, Operation};
/// use syncguard_core::{Key, LockBackend, MemoryBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), syncguard_core::LockError> {
/// let backend = Faulty::new(MemoryBackend::new());
/// backend.nth(Operation::IsLocked, 2, Fault::ReplyLost);
///
/// let key = Key::new("k")?;
/// assert!(backend.is_locked(&key).await.is_ok());
/// assert!(backend.is_locked(&key).await.unwrap_err().is_ambiguous());
/// assert!(backend.is_locked(&key).await.is_ok());
/// assert_eq!((backend.calls(Operation::IsLocked), backend.fired(Operation::IsLocked)), (3, 1));
/// # Ok(())
/// # }
/// ```
pub struct Faulty<B> {
    inner: Arc<B>,
    plans: Arc<Mutex<HashMap<Operation, Plan>>>,
    pushes: bool,
}

#[derive(Default)]
struct Plan {
    calls: u64,
    fired: u64,
    nth: HashMap<u64, Fault>,
    always: Option<Fault>,
}

impl<B> Clone for Faulty<B> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), plans: self.plans.clone(), pushes: self.pushes }
    }
}

impl<B> fmt::Debug for Faulty<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").finish_non_exhaustive()
    }
}

impl<B> Faulty<B> {
    /// A backend without faults yet.
    pub fn new(inner: B) -> Self {
        Self { inner: Arc::new(inner), plans: Arc::default(), pushes: true }
    }

    /// The same without wake hints: waiters have their schedule alone, and attempts can be counted.
    #[must_use]
    pub fn without_hints(self) -> Self {
        Self { pushes: false, ..self }
    }

    /// Breaks the nth call of an operation from now on; 1 is the next.
    pub fn nth(&self, operation: Operation, nth: u64, fault: Fault) {
        let mut plans = self.plans();
        let plan = plans.entry(operation).or_default();
        plan.nth.insert(plan.calls + nth, fault);
    }

    /// Breaks the next calls of an operation.
    pub fn next(&self, operation: Operation, calls: u64, fault: Fault) {
        for nth in 1..=calls {
            self.nth(operation, nth, fault);
        }
    }

    /// Breaks every call of an operation from now on.
    pub fn always(&self, operation: Operation, fault: Fault) {
        self.plans().entry(operation).or_default().always = Some(fault);
    }

    /// Breaks every call from now on, as when the storage is gone.
    pub fn everything(&self, fault: Fault) {
        use Operation::{Acquire, Extend, IsLocked, Lookup, Purge, Release};
        for operation in [Acquire, Release, Extend, IsLocked, Lookup, Purge] {
            self.always(operation, fault);
        }
    }

    /// Breaks nothing any more. Calls that hang stay so.
    pub fn heal(&self) {
        for plan in self.plans().values_mut() {
            plan.nth.clear();
            plan.always = None;
        }
    }

    /// How often an operation was called.
    pub fn calls(&self, operation: Operation) -> u64 {
        self.plans().get(&operation).map_or(0, |plan| plan.calls)
    }

    /// How often a fault of this operation fired.
    pub fn fired(&self, operation: Operation) -> u64 {
        self.plans().get(&operation).map_or(0, |plan| plan.fired)
    }

    /// The backend behind, without faults.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    fn plans(&self) -> MutexGuard<'_, HashMap<Operation, Plan>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn draw(&self, operation: Operation) -> Option<Fault> {
        let mut plans = self.plans();
        let plan = plans.entry(operation).or_default();
        plan.calls += 1;
        let calls = plan.calls;
        let fault = plan.nth.remove(&calls).or(plan.always);
        plan.fired += u64::from(fault.is_some());
        fault
    }

    async fn through<T>(&self, operation: Operation, call: impl Future<Output = Result<T>>) -> Result<T> {
        match self.draw(operation) {
            None => call.await,
            Some(Fault::Delay(time)) => {
                tokio::time::sleep(time).await;
                call.await
            }
            Some(Fault::LateReply(time)) => {
                let answer = call.await;
                tokio::time::sleep(time).await;
                answer
            }
            Some(Fault::Refuse(code)) => Err(LockError::new(code, "a fault was injected before the call")),
            Some(Fault::ReplyLost) => {
                call.await?;
                Err(LockError::new(ErrorCode::NetworkTimeout, "a fault was injected after the call").ambiguous())
            }
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::HangAfterActing) => {
                call.await?;
                std::future::pending().await
            }
        }
    }
}

impl<B: LockBackend> LockBackend for Faulty<B> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        self.through(Operation::Acquire, self.inner.acquire(request)).await
    }

    async fn release(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        self.through(Operation::Release, self.inner.release(lock_id)).await
    }

    async fn extend(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        self.through(Operation::Extend, self.inner.extend(lock_id, ttl)).await
    }

    async fn is_locked(&self, key: &Key) -> Result<bool> {
        self.through(Operation::IsLocked, self.inner.is_locked(key)).await
    }

    async fn lookup(&self, query: Lookup<'_>) -> Result<Option<LockInfo>> {
        self.through(Operation::Lookup, self.inner.lookup(query)).await
    }

    async fn purge_expired(&self) -> Result<u64> {
        self.through(Operation::Purge, self.inner.purge_expired()).await
    }

    async fn subscribe(&self, key: &Key) -> WakeHint {
        if self.pushes { self.inner.subscribe(key).await } else { WakeHint::never() }
    }

    async fn health(&self) -> HealthReport {
        self.inner.health().await
    }

    fn inspector(&self) -> Option<Inspector> {
        self.inner.inspector()
    }

    fn new_lock_id(&self, key: &Key) -> LockId {
        self.inner.new_lock_id(key)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncguard_core::MemoryBackend;

    fn request<'a>(key: &'a Key, lock_id: &'a LockId) -> AcquireRequest<'a> {
        AcquireRequest::new(key, lock_id, Ttl::DEFAULT)
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_call_does_not_reach_the_storage_and_a_lost_reply_does() {
        let (backend, key, id) = (Faulty::new(MemoryBackend::new()), Key::new("k").unwrap(), LockId::random());
        backend.nth(Operation::Acquire, 1, Fault::Refuse(ErrorCode::ServiceUnavailable));
        backend.nth(Operation::Acquire, 2, Fault::ReplyLost);

        let refused = backend.acquire(request(&key, &id)).await.unwrap_err();
        assert!(!refused.is_ambiguous());
        assert!(!backend.inner().is_locked(&key).await.unwrap());

        let lost = backend.acquire(request(&key, &id)).await.unwrap_err();
        assert!(lost.is_ambiguous());
        assert!(backend.inner().is_locked(&key).await.unwrap());
        assert_eq!((backend.calls(Operation::Acquire), backend.fired(Operation::Acquire)), (2, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_hangs_ends_only_with_its_caller_and_healing_helps_the_next() {
        let (backend, key) = (Faulty::new(MemoryBackend::new()), Key::new("k").unwrap());
        backend.everything(Fault::Hang);

        assert!(tokio::time::timeout(Duration::from_secs(9), backend.is_locked(&key)).await.is_err());
        backend.heal();

        assert!(!backend.is_locked(&key).await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_delay_acts_late_and_a_late_reply_acts_at_once() {
        let (backend, key) = (Faulty::new(MemoryBackend::new()), Key::new("k").unwrap());
        let second = Duration::from_secs(1);
        for (fault, acted) in [(Fault::Delay(second), false), (Fault::LateReply(second), true)] {
            let id = LockId::random();
            backend.nth(Operation::Acquire, 1, fault);
            let half = second / 2;
            let cut = tokio::time::timeout(half, backend.acquire(request(&key, &id))).await;
            assert!(cut.is_err());
            assert_eq!(backend.inner().is_locked(&key).await.unwrap(), acted);
        }
    }
}
