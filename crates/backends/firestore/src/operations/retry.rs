//! What happens when a conditional write does not go through?
//!
//! *Lost*: somebody else changed a document since we read it. Read again, decide again, a bounded number of times with
//! jitter between. *Doubtful*: the connection broke or the server failed while it had our write. Reading again
//! tells: our lock id is there or it is not, and a write that is still on its way is conditioned on a version that the
//! next write changes. A timeout is not resolved here: the caller's time is over, and the error says so.

use std::time::Duration;

use syncguard_core::{ErrorCode, LockError, Result, Ttl};
use tokio::time::{Instant, sleep_until};

use crate::error::{Kind, RpcError};
use crate::pool::Patience;

/// Conflicts in a row before the caller hears of it. Each lost one means that somebody else went ahead.
const MAX_LOST: u32 = 8;
/// A server that fails this often under a write is not going to tell.
const MAX_DOUBTFUL: u32 = 2;
/// A busy machine or server is silent for a while for no reason at all, and new connections would only add to its load.
const LEAST_SILENCE: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(8);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// One operation: its deadline and what has happened to its writes so far.
pub(crate) struct WriteRetry {
    pub(crate) patience: Patience,
    lost: u32,
    doubtful: u32,
}

impl WriteRetry {
    /// Begins an operation that takes no longer than `bound`. One that keeps a lease alive suspects a silent connection
    /// after a sixth of the lease: renewal begins with a third gone, and the next try must come well before the end.
    pub(crate) fn begin(bound: Duration, lease: Option<Ttl>) -> Self {
        let silence = lease.map_or(bound / 3, |ttl| (ttl.duration() / 6).min(bound / 3)).max(LEAST_SILENCE);
        Self { patience: Patience { deadline: Instant::now() + bound, silence }, lost: 0, doubtful: 0 }
    }

    /// Whether another writer was in the way.
    pub(crate) fn was_disputed(&self) -> bool {
        self.lost > 0
    }

    /// Whether an earlier write of this operation may have been applied.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.doubtful > 0
    }

    /// A read failed: nothing was written by it, but perhaps by an earlier write.
    pub(crate) fn read_failed(&self, error: RpcError) -> LockError {
        self.mark(error.into_lock_error())
    }

    /// A write failed: waits until it is time to read again, or gives up.
    pub(crate) async fn write_failed(&mut self, error: RpcError) -> Result<()> {
        if error.is_conflict() {
            self.lost += 1;
            if self.lost >= MAX_LOST {
                return Err(self.mark(crowded(self.lost)));
            }
        } else if error.is_doubtful() {
            self.doubtful += 1;
            let out_of_time = matches!(error.kind, Kind::TimedOut | Kind::Answered(tonic::Code::DeadlineExceeded));
            if out_of_time || self.doubtful > MAX_DOUBTFUL {
                return Err(self.mark(error.into_lock_error()));
            }
        } else {
            return Err(self.mark(error.into_lock_error()));
        }
        self.pause().await;
        Ok(())
    }

    async fn pause(&self) {
        let rounds = self.lost + self.doubtful;
        let longest = FIRST_PAUSE.saturating_mul(1 << rounds.min(6)).min(LONGEST_PAUSE);
        sleep_until((Instant::now() + longest.mul_f64(random_fraction())).min(self.patience.deadline)).await;
    }

    fn mark(&self, error: LockError) -> LockError {
        if self.is_doubtful() { error.ambiguous() } else { error }
    }
}

/// Uniform in 0..=1.
fn random_fraction() -> f64 {
    // Without randomness every pause is the longest one: slower, never wrong.
    getrandom::u32().map_or(1.0, |random| f64::from(random) / f64::from(u32::MAX))
}

fn crowded(lost: u32) -> LockError {
    LockError::new(ErrorCode::ServiceUnavailable, format!("lost against other writers {lost} times in a row"))
        .with_hint("firestore takes about one write per second and document: use more keys or longer retry delays")
}
