//! How does a token end a wait?

use std::task::Poll;

use tokio_util::sync::CancellationToken;

use crate::client::plan::Plan;
use crate::{ErrorCode, LockError, Result};

/// Does the work, unless one of the plan's tokens fires first.
pub(crate) async fn cancellable<T>(plan: &Plan, work: impl Future<Output = Result<T>>) -> Result<T> {
    if plan.cancel.is_empty() {
        return work.await;
    }
    tokio::select! {
        biased;
        () = any_cancelled(&plan.cancel) => {
            Err(LockError::new(ErrorCode::Aborted, "aborted before the lock was acquired").with_key(&plan.key))
        }
        result = work => result,
    }
}

/// Resolves when the first of the tokens fires.
async fn any_cancelled(tokens: &[CancellationToken]) {
    let mut waits: Vec<_> = tokens.iter().map(|token| Box::pin(token.cancelled())).collect();
    std::future::poll_fn(|context| {
        if waits.iter_mut().any(|wait| wait.as_mut().poll(context).is_ready()) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}
