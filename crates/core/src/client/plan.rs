//! What has been asked for, once it is known to make sense?

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::retry::RetryPolicy;
use crate::sync::Instant;
use crate::{Key, Label, ReleaseErrorHook, Ttl};

/// A validated request for one lock.
pub(crate) struct Plan {
    pub(crate) key: Key,
    pub(crate) ttl: Ttl,
    pub(crate) label: Option<Label>,
    pub(crate) policy: RetryPolicy,
    /// When the budget began, if that was before this key was asked for: several locks share one budget.
    pub(crate) started: Option<Instant>,
    /// Any of these ends the waiting.
    pub(crate) cancel: Vec<CancellationToken>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) on_release_error: Option<ReleaseErrorHook>,
}
