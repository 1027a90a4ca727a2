//! How do requests that wrap another one offer its settings?
//!
//! By the methods that this macro writes, each of which hands on to the wrapped request: one list of settings for all
//! of them.

macro_rules! settings_of_the_wrapped_request {
    () => {
        /// Sets the length of each lease.
        pub fn ttl(mut self, ttl: impl $crate::IntoTtl) -> Self {
            self.request = self.request.ttl(ttl);
            self
        }

        /// Sets what the holder calls itself, for people who wonder who holds the lock.
        pub fn label(mut self, label: impl $crate::IntoLabel) -> Self {
            self.request = self.request.label(label);
            self
        }

        /// Ends waiting at once when the token fires. When it is called twice, either token does.
        pub fn cancel(mut self, token: tokio_util::sync::CancellationToken) -> Self {
            self.request = self.request.cancel(token);
            self
        }

        /// Sets the whole budget for getting the lock, as [`LockRequest::timeout`](crate::LockRequest::timeout) does.
        pub fn timeout(mut self, timeout: std::time::Duration) -> Self {
            self.request = self.request.timeout(timeout);
            self
        }

        /// Waits without limit (the cancellation token still ends it).
        pub fn wait_forever(mut self) -> Self {
            self.request = self.request.wait_forever();
            self
        }

        /// Sets how many attempts may follow the first.
        pub fn max_retries(mut self, retries: u32) -> Self {
            self.request = self.request.max_retries(retries);
            self
        }

        /// Sets the delay before the first retry.
        pub fn retry_delay(mut self, delay: std::time::Duration) -> Self {
            self.request = self.request.retry_delay(delay);
            self
        }

        /// Sets the longest delay between attempts.
        pub fn max_delay(mut self, delay: std::time::Duration) -> Self {
            self.request = self.request.max_delay(delay);
            self
        }

        /// Renews at this interval instead of a third of the lease.
        pub fn renew_every(mut self, interval: std::time::Duration) -> Self {
            self.request = self.request.renew_every(interval);
            self
        }

        /// Sets the longest time that the lock is held, as [`LockRequest::max_hold`](crate::LockRequest::max_hold)
        /// does.
        pub fn max_hold(mut self, longest: std::time::Duration) -> Self {
            self.request = self.request.max_hold(longest);
            self
        }

        /// Sets what becomes of the work when the lock is lost. Default: it is stopped.
        pub fn on_lost(mut self, on_lost: $crate::OnLost) -> Self {
            self.on_lost = on_lost;
            self
        }

        /// Calls the hook when a release of this lock failed.
        pub fn on_release_error(
            mut self,
            hook: impl Fn(&$crate::LockError, &$crate::Key, &$crate::LockId) + Send + Sync + 'static,
        ) -> Self {
            self.request = self.request.on_release_error(hook);
            self
        }
    };
}

pub(crate) use settings_of_the_wrapped_request;
