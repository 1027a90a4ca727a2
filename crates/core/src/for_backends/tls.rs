//! Whom does a backend trust, and as whom does it show itself?
//!
//! One loader of certificates for all backends that speak TLS, on `rustls` with `ring`. Files are PEM, and they are
//! read when a backend connects first, so that a wrong path is an error then and not at the first reconnect.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier};

use crate::{LockError, Result};

/// The files of a TLS client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsFiles {
    /// The PEM file with the roots to trust; without it, the system's.
    pub roots: Option<PathBuf>,
    /// The PEM files with the client's own certificate and its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

impl TlsFiles {
    /// Trusts the system's roots and shows no certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the roots in this PEM file instead of the system's.
    #[must_use]
    pub fn roots(mut self, file: impl Into<PathBuf>) -> Self {
        self.roots = Some(file.into());
        self
    }

    /// Shows this certificate, with its key, to the server.
    #[must_use]
    pub fn client(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.client = Some((certificate.into(), key.into()));
        self
    }

    /// Reads the files into a configuration that checks the server's certificate and its name.
    ///
    /// # Errors
    /// `InvalidArgument` when a file cannot be read or there is no root to trust.
    pub fn load(&self) -> Result<ClientConfig> {
        self.load_client(builder()?.with_root_certificates(self.load_roots()?))
    }

    /// Reads the roots: the file's, or the system's.
    ///
    /// # Errors
    /// `InvalidArgument` when the file cannot be read or there is no root to trust.
    pub fn load_roots(&self) -> Result<RootCertStore> {
        let found = match &self.roots {
            Some(file) => certificates(file)?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        let mut store = RootCertStore::empty();
        // The system's store may hold certificates that rustls does not read; the others count.
        store.add_parsable_certificates(found);
        if store.is_empty() {
            return Err(LockError::invalid("there is no root certificate to check the server against")
                .with_hint("name a PEM file, or install the system's root certificates (ca-certificates)"));
        }
        Ok(store)
    }

    /// Adds the client's own certificate, if there is one, to a configuration that knows whom to trust.
    ///
    /// # Errors
    /// `InvalidArgument` when a file cannot be read or the key is not the certificate's.
    pub fn load_client(&self, verified: ConfigBuilder<ClientConfig, WantsClientCert>) -> Result<ClientConfig> {
        let Some((certificate, key)) = &self.client else { return Ok(verified.with_no_client_auth()) };
        let key_file = key;
        let key = PrivateKeyDer::from_pem_file(key_file).map_err(|_| unreadable("private key", key_file))?;
        verified.with_client_auth_cert(certificates(certificate)?, key).map_err(|error| {
            LockError::invalid("the client's certificate and its key do not belong together or are not usable")
                .with_source(error)
        })
    }
}

/// Returns the cryptography that all backends use. It is named here because a process-wide default belongs to the
/// application.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Starts a configuration, for a backend that checks less or more than [`TlsFiles::load`] does.
///
/// # Errors
/// `Internal` when the TLS library was built without a protocol version.
pub fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>> {
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| LockError::internal("the TLS library refuses its own defaults").with_source(error))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = || CertificateDer::pem_file_iter(file)?.collect::<Result<Vec<_>, _>>();
    read().ok().filter(|found| !found.is_empty()).ok_or_else(|| unreadable("certificate", file))
}

fn unreadable(what: &str, file: &Path) -> LockError {
    LockError::invalid(format!("no {what} can be read from {}", file.display()))
        .with_hint("check the path and the rights; the form is PEM")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_there_or_not_pem_is_named() {
        let not_pem = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        for file in [PathBuf::from("/nonexistent/roots.pem"), not_pem] {
            let name = file.display().to_string();
            let error = TlsFiles::new().roots(&file).load().unwrap_err();
            assert!(error.to_string().contains(&name), "{error}");
            let with_client = TlsFiles::new().client(&file, &file);
            let trusting = builder().unwrap().with_root_certificates(RootCertStore::empty());
            let error = with_client.load_client(trusting).unwrap_err();
            assert!(error.to_string().contains(&name), "{error}");
        }
    }
}
