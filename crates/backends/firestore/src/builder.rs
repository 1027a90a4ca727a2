//! What can be said about a Firestore to use, and what must not?
//!
//! All of it is checked here, before any I/O: names that Firestore would refuse, two collections that are one
//! (cleanup would then reach the counters), an emulator that is not on this machine.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use syncguard_core::protection::{Protection, Way, is_loopback};
use syncguard_core::tls::TlsFiles;
use syncguard_core::{Clock, LockError, Result, SystemClock};

use crate::FirestoreBackend;
use crate::names::is_document_id;

/// Settings of a [`FirestoreBackend`]. Made by [`FirestoreBackend::builder`] or from a URL.
#[derive(Clone)]
#[must_use]
#[allow(clippy::struct_excessive_bools, reason = "independent settings")]
pub struct FirestoreBuilder {
    pub(crate) project: String,
    pub(crate) database: String,
    pub(crate) collection: String,
    pub(crate) fence_collection: String,
    pub(crate) strict_clock: bool,
    pub(crate) fence_floor: bool,
    pub(crate) cleanup_in_is_locked: bool,
    pub(crate) timeout: Duration,
    pub(crate) credentials: Option<PathBuf>,
    pub(crate) emulator: Option<String>,
    /// Nobody asked for it: `FIRESTORE_EMULATOR_HOST` did.
    pub(crate) emulator_is_ambient: bool,
    pub(crate) require_tls: bool,
    pub(crate) endpoint: Option<String>,
    pub(crate) tls: TlsFiles,
    pub(crate) clock: Arc<dyn Clock>,
}

// The path of a key file is nobody's business in a log.
impl fmt::Debug for FirestoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FirestoreBuilder")
            .field("project", &self.project)
            .field("database", &self.database)
            .field("collection", &self.collection)
            .field("fence_collection", &self.fence_collection)
            .field("emulator", &self.emulator)
            .finish_non_exhaustive()
    }
}

impl FirestoreBuilder {
    pub(crate) fn new(project: impl Into<String>) -> Self {
        let ambient = std::env::var("FIRESTORE_EMULATOR_HOST").ok().filter(|host| !host.is_empty());
        Self {
            project: project.into(),
            database: "(default)".to_owned(),
            collection: "locks".to_owned(),
            fence_collection: "fence_counters".to_owned(),
            strict_clock: false,
            fence_floor: false,
            cleanup_in_is_locked: false,
            timeout: Duration::from_secs(5),
            credentials: None,
            emulator_is_ambient: ambient.is_some(),
            emulator: ambient,
            require_tls: false,
            endpoint: None,
            tls: TlsFiles::new(),
            clock: Arc::new(SystemClock),
        }
    }

    /// Another database of the project than `(default)`.
    pub fn database(mut self, database: impl Into<String>) -> Self {
        self.database = database.into();
        self
    }

    /// Where lock documents are. Default `locks`.
    pub fn collection(mut self, collection: impl Into<String>) -> Self {
        self.collection = collection.into();
        self
    }

    /// Where fence counters are. Default `fence_counters`; never the lock collection.
    pub fn fence_collection(mut self, collection: impl Into<String>) -> Self {
        self.fence_collection = collection.into();
        self
    }

    /// Refuses to acquire while this machine's clock is known to be 500 ms or more off the server's.
    pub fn strict_clock(mut self, strict: bool) -> Self {
        self.strict_clock = strict;
        self
    }

    /// Gives fences that are at least the server's time in milliseconds, so that they rise even if a counter is lost.
    pub fn fence_floor(mut self, on: bool) -> Self {
        self.fence_floor = on;
        self
    }

    /// Lets `is_locked` delete the key's lock if it has been dead for more than two seconds.
    pub fn cleanup_in_is_locked(mut self, on: bool) -> Self {
        self.cleanup_in_is_locked = on;
        self
    }

    /// The bound of one operation, with all its calls. Default 5 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// A credentials file (service account key, or workload identity configuration) in the place of the default ones.
    pub fn credentials(mut self, file: impl Into<PathBuf>) -> Self {
        self.credentials = Some(file.into());
        self
    }

    /// An emulator, as `host:port` on loopback. Default: the environment's `FIRESTORE_EMULATOR_HOST`.
    pub fn emulator(mut self, address: impl Into<String>) -> Self {
        self.emulator = Some(address.into());
        self.emulator_is_ambient = false;
        self
    }

    /// Refuses the emulator that `FIRESTORE_EMULATOR_HOST` names: it is spoken to in plaintext. Off by default.
    pub fn require_tls(mut self, require: bool) -> Self {
        self.require_tls = require;
        self
    }

    /// Returns the emulator that takes the place of Google's servers because `FIRESTORE_EMULATOR_HOST` is set.
    pub fn ambient_emulator(&self) -> Option<&str> {
        self.emulator.as_deref().filter(|_| self.emulator_is_ambient)
    }

    /// Returns how the way to the server is protected.
    ///
    /// # Errors
    /// [`InvalidArgument`](syncguard_core::ErrorCode::InvalidArgument) for settings that cannot work, or where
    /// [`require_tls`](Self::require_tls) refuses the way.
    pub fn protection(&self) -> Result<Protection> {
        self.check()?;
        let way = if self.emulator.is_some() { Way::Local } else { Way::Verified };
        Ok(Protection::new(way, self.emulator.is_none()))
    }

    /// Another endpoint than `https://firestore.googleapis.com`: a regional or a private one. Always TLS. It also
    /// switches off an emulator that the environment names.
    pub fn endpoint(mut self, url: impl Into<String>) -> Self {
        self.endpoint = Some(url.into());
        self.emulator = None;
        self
    }

    /// Trusts the authorities in this PEM file instead of the system's, for a private endpoint.
    pub fn tls_ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.tls.roots = Some(file.into());
        self
    }

    /// The clock that leases are written with. Tests set it wrong on purpose.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Checks the settings and prepares the connection, which is made by the first operation.
    ///
    /// # Errors
    /// [`InvalidArgument`](syncguard_core::ErrorCode::InvalidArgument) for settings that cannot work,
    /// [`AuthFailed`](syncguard_core::ErrorCode::AuthFailed) when there are no credentials.
    pub async fn connect(self) -> Result<FirestoreBackend> {
        FirestoreBackend::from_builder(self).await
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_resource("project", &self.project)?;
        check_resource("database", &self.database)?;
        check_collection("collection", &self.collection)?;
        check_collection("fence_collection", &self.fence_collection)?;
        if self.collection == self.fence_collection {
            return Err(LockError::invalid("the fence collection is the lock collection")
                .with_hint("counters must outlive locks: give `fence_collection` a name of its own"));
        }
        if self.timeout.is_zero() {
            return Err(LockError::invalid("timeout is zero"));
        }
        if let Some(address) = &self.emulator {
            check_loopback(address)?;
        }
        if let Some(address) = self.ambient_emulator().filter(|_| self.require_tls) {
            return Err(LockError::invalid(format!(
                "FIRESTORE_EMULATOR_HOST leads to the emulator at {address}, and TLS is required"
            ))
            .with_hint("unset FIRESTORE_EMULATOR_HOST"));
        }
        if let Some(endpoint) = &self.endpoint
            && !endpoint.starts_with("https://")
        {
            return Err(LockError::invalid("the endpoint is not an https URL")
                .with_hint("firestore is spoken over TLS; for an emulator on this machine use `emulator`"));
        }
        Ok(())
    }
}

fn check_resource(what: &str, name: &str) -> Result<()> {
    let fits = !name.is_empty()
        && name.len() <= 100
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:()".contains(&byte));
    if fits {
        return Ok(());
    }
    Err(LockError::invalid(format!("the {what} is not a name that google cloud allows"))
        .with_hint("letters, digits and hyphens; the database may also be (default)"))
}

fn check_collection(option: &str, name: &str) -> Result<()> {
    if is_document_id(name) && name.len() <= 1500 && !name.chars().any(char::is_control) {
        return Ok(());
    }
    Err(LockError::invalid(format!("`{option}` is not a name that firestore allows for a collection"))
        .with_hint("not empty, no `/`, not `.` or `..`, not `__…__`"))
}

fn check_loopback(address: &str) -> Result<()> {
    let refused = |message: &'static str| {
        Err(LockError::invalid(message)
            .with_hint("an emulator is spoken to without TLS and without credentials, so only on this machine"))
    };
    let Some((host, port)) = address.rsplit_once(':') else {
        return refused("the emulator address is not host:port");
    };
    if port.parse::<u16>().is_err() {
        return refused("the emulator address is not host:port");
    }
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if is_loopback(host) { Ok(()) } else { refused("the emulator address is not on loopback") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncguard_core::ErrorCode;

    #[test]
    fn every_loopback_form_is_an_emulator() {
        for address in ["127.0.0.1:1", "localhost:1", "[::1]:1", "127.9.9.9:1"] {
            assert!(check_loopback(address).is_ok(), "{address}");
        }
    }

    #[test]
    fn a_plaintext_endpoint_is_refused() {
        let builder = FirestoreBuilder::new("p").endpoint("http://firestore.example");
        assert_eq!(builder.check().unwrap_err().code(), ErrorCode::InvalidArgument);
    }
}
