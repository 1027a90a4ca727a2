//! Which certificates are trusted and shown?
//!
//! The cryptography is named here explicitly: the driver would panic when two providers are compiled in.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use syncguard_core::{ErrorCode, LockError, Result};
use tokio_rustls::TlsConnector;

use crate::builder::TlsOptions;

/// Reads the certificates once, so that a wrong path is an error at opening and not at the first reconnect.
pub(crate) fn connector(options: &TlsOptions) -> Result<TlsConnector> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| LockError::internal("TLS is not available").with_source(error))?
        .with_root_certificates(roots(options)?);
    let config = match &options.client {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let chain = certificates(cert, "cert")?;
            let key = PrivateKeyDer::from_pem_file(key).map_err(|_| unreadable("key", "a private key"))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|_| LockError::invalid("`cert` and `key` do not belong together"))?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

fn roots(options: &TlsOptions) -> Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    let found = match &options.ca {
        Some(file) => certificates(file, "ca")?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    // The system's store may hold certificates that rustls does not read; the others count.
    store.add_parsable_certificates(found);
    if store.is_empty() {
        let error = LockError::new(ErrorCode::InvalidArgument, "no trusted certificates were found");
        return Err(
            error.with_hint("install the system's certificates (ca-certificates), or name a file with ?ca=FILE")
        );
    }
    Ok(store)
}

fn certificates(file: &std::path::Path, option: &'static str) -> Result<Vec<CertificateDer<'static>>> {
    let read = || CertificateDer::pem_file_iter(file)?.collect::<std::result::Result<Vec<_>, _>>();
    match read() {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(unreadable(option, "certificates")),
    }
}

fn unreadable(option: &'static str, what: &'static str) -> LockError {
    LockError::invalid(format!("the file of `{option}` cannot be read as {what}"))
        .with_hint("check the path and the rights; the form is PEM")
}
