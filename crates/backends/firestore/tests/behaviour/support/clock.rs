//! How does a machine look whose clock is wrong?

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use syncguard_core::{BootTime, Clock, SystemClock, Timestamp};

/// The machine's clock with its wall hand set wrong by so many milliseconds.
#[derive(Clone, Debug)]
pub struct WrongClock(Arc<AtomicI64>);

impl WrongClock {
    pub fn by(millis: i64) -> Arc<Self> {
        Arc::new(Self(Arc::new(AtomicI64::new(millis))))
    }

    pub fn set(&self, millis: i64) {
        self.0.store(millis, Ordering::SeqCst);
    }
}

impl Clock for WrongClock {
    fn boot(&self) -> BootTime {
        SystemClock.boot()
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_millis(SystemClock.wall().as_millis() + self.0.load(Ordering::SeqCst))
    }
}
