//! What must a place offer to keep marks?
//!
//! Two methods. The first compares and stores in one atomic step; everything that this crate promises rests on that.
//! Prove yours with [`fenced_suite!`](crate::fenced_suite).

use std::sync::Arc;

use syncguard_core::{Fence, Key};

use crate::Result;

/// A store of marks: the highest fence seen, for each key.
///
/// Implement it for a place of your own, and the [HTTP layer](crate) can use it. Where the store also holds the data,
/// check inside the transaction that writes the data instead: a mark in one place and data in another are two steps.
///
/// Implementations may write the methods as plain `async fn`.
pub trait HighWater: Send + Sync + 'static {
    /// Accepts a fence that is not below the highest one seen for this key, and remembers it before returning.
    ///
    /// Comparing and storing are one atomic step, for all who share the store. After a refusal the mark is unchanged.
    ///
    /// # Errors
    /// [`Stale`](crate::FenceError::Stale) for a lower fence; [`Failed`](crate::FenceError::Failed) when the store
    /// cannot tell, and then nothing may be written.
    ///
    /// # Cancel safety
    /// A dropped call has either remembered the fence or not; both are safe, since the mark never moves down.
    fn advance(&self, key: &Key, fence: Fence) -> impl Future<Output = Result<()>> + Send;

    /// Returns the highest fence accepted for this key, for diagnostics. Never decide by it.
    ///
    /// # Errors
    /// [`Failed`](crate::FenceError::Failed) when the store cannot tell.
    fn highest(&self, key: &Key) -> impl Future<Output = Result<Option<Fence>>> + Send;
}

impl<M: HighWater> HighWater for Arc<M> {
    async fn advance(&self, key: &Key, fence: Fence) -> Result<()> {
        M::advance(self, key, fence).await
    }

    async fn highest(&self, key: &Key) -> Result<Option<Fence>> {
        M::highest(self, key).await
    }
}
