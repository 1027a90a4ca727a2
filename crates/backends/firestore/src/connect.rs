//! How is one connection to Firestore made?

use std::time::Duration;

use syncguard_core::{LockError, Result};
use tonic::transport::{ClientTlsConfig, Endpoint};

use crate::builder::FirestoreBuilder;

const GOOGLE: &str = "https://firestore.googleapis.com";

/// Where to connect to, and how.
pub(crate) fn endpoint(options: &FirestoreBuilder) -> Result<Endpoint> {
    let invalid = |_| LockError::invalid("the address of firestore is not a URL");
    if let Some(address) = &options.emulator {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(invalid)?;
        return Ok(kept_alive(endpoint, options));
    }
    let url = options.endpoint.as_deref().unwrap_or(GOOGLE).to_owned();
    let tls = ClientTlsConfig::new().trust_anchors(options.tls.load_roots()?.roots);
    let endpoint = Endpoint::from_shared(url)
        .map_err(invalid)?
        .tls_config(tls)
        .map_err(|error| LockError::invalid("the certificates cannot be used").with_source(error))?;
    Ok(kept_alive(endpoint, options))
}

/// A stream of changes that went silent is noticed within twelve seconds, so that waiters hear of releases again.
///
/// Pings are sent only while a call or a stream is open. Calls do not rely on them: see [`crate::pool`].
fn kept_alive(endpoint: Endpoint, options: &FirestoreBuilder) -> Endpoint {
    endpoint
        .connect_timeout(options.timeout)
        // For a connection that nobody uses, on which no pings are sent.
        .tcp_keepalive(Some(Duration::from_secs(9)))
        .tcp_keepalive_interval(Some(Duration::from_secs(2)))
        .tcp_keepalive_retries(Some(3))
        .http2_keep_alive_interval(Duration::from_secs(8))
        .keep_alive_timeout(Duration::from_secs(4))
}
