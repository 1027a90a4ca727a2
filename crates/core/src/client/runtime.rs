//! Can anything wait here?

use std::panic::catch_unwind;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::{LockError, Result};

/// Refuses to start where tokio would panic: without a runtime, or on one without timers.
pub(crate) fn require() -> Result<()> {
    if cfg!(all(test, syncguard_shuttle)) {
        return Ok(());
    }
    if Handle::try_current().is_err() {
        return Err(LockError::invalid("there is no tokio runtime here")
            .with_hint("call it inside a tokio runtime, or use the blocking API of the crate `syncguard`"));
    }
    // Asking is the only way to know: tokio has no question for it, and making a timer without a driver panics.
    if catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))).is_err() {
        return Err(LockError::invalid("the tokio runtime has no timers, and a lease needs them")
            .with_hint("build the runtime with enable_time() or enable_all()"));
    }
    Ok(())
}
