//! What does the library itself say, and where?
//!
//! Through `tracing` when that feature is on, with hashes in the place of names, and through `metrics` when that one
//! is. Keys never become labels, and every label value is lower case.

use std::time::Duration;

use crate::telemetry::Operation;
use crate::{Fence, Key, LockError, LockId, LossReason};

/// Says once what each metric means, so that an exporter can show it.
pub(crate) fn describe_metrics(backend: &str) {
    #[cfg(feature = "metrics")]
    {
        use metrics::{Unit, describe_counter, describe_histogram};
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            describe_histogram!("syncguard_operation_seconds", Unit::Seconds, "Duration of one call to the backend");
            describe_histogram!("syncguard_wait_seconds", Unit::Seconds, "Time from asking for a lock to its outcome");
            describe_histogram!("syncguard_hold_seconds", Unit::Seconds, "Time from getting a lock to giving it back");
            describe_counter!("syncguard_lost_total", "Locks that were lost while they were held");
        });
        // An alert on the first loss needs the zero before it.
        for reason in [LossReason::Absent, LossReason::Expired, LossReason::MaxHold] {
            metrics::counter!("syncguard_lost_total", "backend" => backend.to_owned(), "reason" => reason.as_str())
                .increment(0);
        }
    }
    #[cfg(not(feature = "metrics"))]
    let _ = backend;
}

/// One call to the backend.
pub(crate) fn operation(backend: &str, operation: Operation, outcome: &'static str, elapsed: Duration) {
    #[cfg(feature = "metrics")]
    metrics::histogram!(
        "syncguard_operation_seconds",
        "backend" => backend.to_owned(),
        "operation" => operation.as_str(),
        "outcome" => outcome
    )
    .record(elapsed.as_secs_f64());
    #[cfg(not(feature = "metrics"))]
    let _ = (backend, operation, outcome, elapsed);
}

/// An effort to get a lock, from the first request to the outcome.
pub(crate) fn waited(backend: &str, elapsed: Duration, outcome: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::histogram!("syncguard_wait_seconds", "backend" => backend.to_owned(), "outcome" => outcome)
        .record(elapsed.as_secs_f64());
    #[cfg(not(feature = "metrics"))]
    let _ = (backend, elapsed, outcome);
}

/// A lock that was held and is not any more.
pub(crate) fn held(backend: &str, elapsed: Duration) {
    #[cfg(feature = "metrics")]
    metrics::histogram!("syncguard_hold_seconds", "backend" => backend.to_owned()).record(elapsed.as_secs_f64());
    #[cfg(not(feature = "metrics"))]
    let _ = (backend, elapsed);
}

/// A lock that was lost while it was held: somebody must know, whoever else looks away.
pub(crate) fn lost(backend: &str, key: &Key, lock_id: &LockId, reason: LossReason, held_for: Duration) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        target: "syncguard",
        backend,
        key_hash = %key.hash(),
        lock_id_hash = %lock_id.hash(),
        reason = reason.as_str(),
        held_ms = u64::try_from(held_for.as_millis()).unwrap_or(u64::MAX),
        "the lock was lost"
    );
    #[cfg(feature = "metrics")]
    metrics::counter!("syncguard_lost_total", "backend" => backend.to_owned(), "reason" => reason.as_str())
        .increment(1);
    let _ = (backend, key, lock_id, reason, held_for);
}

/// A counter that nears its limit: a restore went wrong, or something counts that should not.
pub(crate) fn fence_near_limit(fence: Fence, key: &Key) {
    if !fence.is_near_limit() {
        return;
    }
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "syncguard", key_hash = %key.hash(), %fence, "the fence counter nears its limit");
    #[cfg(not(feature = "tracing"))]
    let _ = key;
}

/// A release that did not succeed: the lease will end it.
pub(crate) fn release_failed(error: &LockError, key: &Key, lock_id: &LockId) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        target: "syncguard",
        key_hash = %key.hash(),
        lock_id_hash = %lock_id.hash(),
        code = error.code().as_label(),
        "release failed; the lease will end the lock"
    );
    #[cfg(not(feature = "tracing"))]
    let _ = (error, key, lock_id);
}

/// A renewal that its own runtime did not make, although somebody else can.
pub(crate) fn runtime_stands_still(key: &Key) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        target: "syncguard",
        key_hash = %key.hash(),
        "the runtime that the lock was acquired on does not run; its lease is renewed from a thread of its own"
    );
    #[cfg(not(feature = "tracing"))]
    let _ = key;
}

/// A renewal that did not succeed; it is tried again while the lease lasts.
pub(crate) fn renewal_failed(error: &LockError, key: &Key) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "syncguard", key_hash = %key.hash(), code = error.code().as_label(), "renewal failed, trying again");
    #[cfg(not(feature = "tracing"))]
    let _ = (error, key);
}
