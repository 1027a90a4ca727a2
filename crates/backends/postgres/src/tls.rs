//! How sure must a client be of whom it talks to?
//!
//! The six words of `sslmode`, as libpq means them, with one step up: `require` with roots at hand checks the certificate and the
//! host name instead of looking away.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use syncguard_core::{LockError, Result};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::wire::Encryption;

/// How a connection is encrypted and whom it trusts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SslMode {
    /// Never encrypt.
    Disable,
    /// Encrypt only if the server refuses otherwise.
    Allow,
    /// Encrypt if the server offers it. The default, as in libpq.
    #[default]
    Prefer,
    /// Encrypt or fail. The server is authenticated only if roots are given.
    Require,
    /// Encrypt and check that the certificate comes from a trusted root.
    VerifyCa,
    /// Encrypt and check the certificate and that it names this host.
    VerifyFull,
}

impl SslMode {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        Ok(match text {
            "disable" => Self::Disable,
            "allow" => Self::Allow,
            "prefer" => Self::Prefer,
            "require" => Self::Require,
            "verify-ca" => Self::VerifyCa,
            "verify-full" => Self::VerifyFull,
            _ => {
                return Err(LockError::invalid(
                    "sslmode is not one of disable, allow, prefer, require, verify-ca, verify-full",
                ));
            }
        })
    }
}

/// What the URL or the builder said about TLS.
#[derive(Clone, Debug, Default)]
pub(crate) struct TlsOptions {
    pub(crate) mode: SslMode,
    /// A PEM file, or `system`.
    pub(crate) root: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

/// The attempts that a mode makes at one server, in order.
#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) attempts: Vec<Encryption>,
    pub(crate) authenticated: bool,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tls({} attempts, authenticated: {})", self.attempts.len(), self.authenticated)
    }
}

impl Tls {
    pub(crate) fn new(options: &TlsOptions) -> Result<Self> {
        let check = match (options.mode, &options.root) {
            (SslMode::Disable, _) => return Ok(Self { attempts: vec![Encryption::Never], authenticated: false }),
            (SslMode::VerifyFull, _) | (SslMode::Require, Some(_)) => Check::ChainAndName,
            (SslMode::VerifyCa, _) => Check::Chain,
            _ => Check::Nothing,
        };
        let connect = MakeRustlsConnect::new(client_config(options, check)?);
        let attempts = match options.mode {
            SslMode::Disable => vec![Encryption::Never],
            SslMode::Allow => vec![Encryption::Never, Encryption::Always(connect)],
            SslMode::Prefer => vec![Encryption::IfOffered(connect), Encryption::Never],
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => vec![Encryption::Always(connect)],
        };
        Ok(Self { attempts, authenticated: check != Check::Nothing })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Check {
    Nothing,
    Chain,
    ChainAndName,
}

fn client_config(options: &TlsOptions, check: Check) -> Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| LockError::internal("the TLS library refuses its own defaults").with_source(error))?;
    let verified = match check {
        Check::ChainAndName => builder.with_root_certificates(roots(options.root.as_deref())?),
        Check::Chain | Check::Nothing => {
            let chain = match check {
                Check::Nothing => None,
                _ => Some(chain_verifier(options.root.as_deref(), provider.clone())?),
            };
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Lenient { chain, provider }))
        }
    };
    match (&options.cert, &options.key) {
        (None, None) => Ok(verified.with_no_client_auth()),
        (Some(cert), Some(key)) => {
            let (cert, key) = (certificates(cert)?, private_key(key)?);
            verified.with_client_auth_cert(cert, key).map_err(|error| {
                LockError::invalid("sslcert and sslkey do not belong together or are not usable").with_source(error)
            })
        }
        _ => Err(LockError::invalid("sslcert and sslkey are given together or not at all")),
    }
}

fn roots(file: Option<&Path>) -> Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    let certificates = match root_file(file) {
        Some(file) => certificates(&file)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    store.add_parsable_certificates(certificates);
    if store.is_empty() {
        return Err(LockError::invalid("there is no root certificate to check the server against")
            .with_hint("give sslrootcert=FILE, or install the system's root certificates"));
    }
    Ok(store)
}

/// The file to trust; `None` means the system's roots. libpq's `~/.postgresql/root.crt` counts if it is there.
fn root_file(given: Option<&Path>) -> Option<PathBuf> {
    match given {
        Some(file) if file == Path::new("system") => None,
        Some(file) => Some(file.to_owned()),
        None => {
            let file = PathBuf::from(std::env::var_os("HOME")?).join(".postgresql/root.crt");
            file.exists().then_some(file)
        }
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .ok()
        .filter(|certificates| !certificates.is_empty())
        .ok_or_else(|| LockError::invalid(format!("no certificate can be read from {}", file.display())))
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(file)
        .map_err(|_| LockError::invalid(format!("no private key can be read from {}", file.display())))
}

fn chain_verifier(root: Option<&Path>, provider: Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>> {
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots(root)?), provider)
        .build()
        .map_err(|error| LockError::invalid("the root certificates are not usable").with_source(error))
}

/// Checks less than the whole: the chain without the name (`verify-ca`), or nothing but that the key is the peer's.
#[derive(Debug)]
struct Lenient {
    chain: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is checked last, so that the chain has passed by then.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_sslmode_is_known_and_no_other() {
        for word in ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"] {
            assert!(SslMode::parse(word).is_ok(), "{word}");
        }
        for word in ["", "bogus", "VERIFY-FULL", "verify"] {
            assert!(SslMode::parse(word).is_err(), "{word}");
        }
    }

    #[test]
    fn require_looks_away_only_without_roots() {
        let tls = |mode| Tls::new(&TlsOptions { mode, ..TlsOptions::default() }).unwrap();
        assert!(!tls(SslMode::Require).authenticated);
        assert!(!tls(SslMode::Prefer).authenticated);
        assert_eq!(tls(SslMode::Require).attempts.len(), 1);
        let missing = TlsOptions { mode: SslMode::Require, root: Some("/nonexistent".into()), ..TlsOptions::default() };
        assert!(Tls::new(&missing).is_err());
    }

    #[test]
    fn a_certificate_without_its_key_is_refused() {
        let options = TlsOptions { mode: SslMode::Require, cert: Some("x".into()), ..TlsOptions::default() };
        assert!(Tls::new(&options).is_err());
    }
}
