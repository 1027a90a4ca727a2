//! How sure must a client be of whom it talks to?
//!
//! The six words of `sslmode`, as libpq means them, with one step up: `require` with roots at hand checks the
//! certificate and the host name instead of looking away.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WantsClientCert, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, SignatureScheme};
use syncguard_core::protection::Way;
use syncguard_core::tls::{TlsFiles, builder, provider};
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
    pub(crate) const WORDS: [(&str, Self); 6] = [
        ("disable", Self::Disable),
        ("allow", Self::Allow),
        ("prefer", Self::Prefer),
        ("require", Self::Require),
        ("verify-ca", Self::VerifyCa),
        ("verify-full", Self::VerifyFull),
    ];
}

/// What the URL or the builder said about TLS.
#[derive(Clone, Debug, Default)]
pub(crate) struct TlsOptions {
    /// libpq's `prefer` if nobody says.
    pub(crate) mode: Option<SslMode>,
    /// A PEM file, or `system`.
    pub(crate) root: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

impl TlsOptions {
    fn check(&self) -> Check {
        match (self.mode.unwrap_or_default(), &self.root) {
            (SslMode::VerifyFull, _) | (SslMode::Require, Some(_)) => Check::ChainAndName,
            (SslMode::VerifyCa, _) => Check::Chain,
            _ => Check::Nothing,
        }
    }

    /// How a connection to another machine is protected.
    pub(crate) fn way(&self) -> Way {
        match self.check() {
            Check::ChainAndName => Way::Verified,
            // Anybody has a certificate of the system's authorities, for some name.
            Check::Chain if root_file(self.root.as_deref()).is_some() => Way::Verified,
            Check::Nothing if self.mode == Some(SslMode::Disable) => Way::Plain,
            _ => Way::Unverified,
        }
    }
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
        let mode = options.mode.unwrap_or_default();
        let authenticated = options.way() == Way::Verified;
        if mode == SslMode::Disable {
            return Ok(Self { attempts: vec![Encryption::Never], authenticated });
        }
        let connect = MakeRustlsConnect::new(client_config(options, options.check())?);
        let attempts = match mode {
            SslMode::Disable => vec![Encryption::Never],
            SslMode::Allow => vec![Encryption::Never, Encryption::Always(connect)],
            SslMode::Prefer => vec![Encryption::IfOffered(connect), Encryption::Never],
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => vec![Encryption::Always(connect)],
        };
        Ok(Self { attempts, authenticated })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Check {
    Nothing,
    Chain,
    ChainAndName,
}

fn client_config(options: &TlsOptions, check: Check) -> Result<ClientConfig> {
    let files = files(options)?;
    let verified = match check {
        Check::ChainAndName => builder()?.with_root_certificates(files.load_roots()?),
        Check::Chain => lenient(Some(chain_verifier(&files)?))?,
        Check::Nothing => lenient(None)?,
    };
    files.load_client(verified)
}

fn files(options: &TlsOptions) -> Result<TlsFiles> {
    let mut files = TlsFiles::new();
    files.roots = root_file(options.root.as_deref());
    files.client = match (&options.cert, &options.key) {
        (None, None) => None,
        (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
        _ => return Err(LockError::invalid("sslcert and sslkey are given together or not at all")),
    };
    Ok(files)
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

fn chain_verifier(files: &TlsFiles) -> Result<Arc<WebPkiServerVerifier>> {
    WebPkiServerVerifier::builder_with_provider(Arc::new(files.load_roots()?), provider())
        .build()
        .map_err(|error| LockError::invalid("the root certificates are not usable").with_source(error))
}

fn lenient(chain: Option<Arc<WebPkiServerVerifier>>) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>> {
    let verifier = Arc::new(Lenient { chain, provider: provider() });
    Ok(builder()?.dangerous().with_custom_certificate_verifier(verifier))
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
    fn require_looks_away_only_without_roots() {
        let tls = |mode| Tls::new(&TlsOptions { mode: Some(mode), ..TlsOptions::default() }).unwrap();
        assert!(!tls(SslMode::Require).authenticated);
        assert!(!tls(SslMode::Prefer).authenticated);
        assert_eq!(tls(SslMode::Require).attempts.len(), 1);
        let missing =
            TlsOptions { mode: Some(SslMode::Require), root: Some("/nonexistent".into()), ..TlsOptions::default() };
        assert!(Tls::new(&missing).is_err());
    }

    #[test]
    fn a_certificate_without_its_key_is_refused() {
        let options = TlsOptions { mode: Some(SslMode::Require), cert: Some("x".into()), ..TlsOptions::default() };
        assert!(Tls::new(&options).is_err());
    }
}
