//! What do the backends share?
//!
//! Hearing of releases, the options of URLs, names in a storage, TLS, how a way is protected. An application needs none of it.

pub mod listener;
pub mod protection;
pub mod storage_key;
#[cfg(feature = "tls")]
pub mod tls;
pub mod url_options;
pub mod wake;
