//! How are bytes carried to a server?
//!
//! TCP, TLS over TCP, or a Unix socket, opened here and not by the driver: so the cryptography is named explicitly (the driver panics when
//! two providers are compiled in), failures keep their kind, and the reader counts what it hears.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use syncguard_core::{ErrorCode, LockError, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::options::{Address, TlsOptions};

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// An open stream that counts the reads that brought something.
pub(crate) struct Stream {
    inner: Box<dyn Duplex>,
    heard: Arc<AtomicU64>,
}

impl Stream {
    /// Opens a stream. The caller bounds the time; `handshake` bounds TLS alone, so that its silence can be told from the network's:
    /// a plaintext server answers a TLS greeting with nothing at all.
    pub(crate) async fn open(address: &Address, tls: Option<&TlsConnector>, handshake: Duration) -> io::Result<Self> {
        let inner: Box<dyn Duplex> = match address {
            Address::Tcp { host, port } => {
                let tcp = TcpStream::connect((host.as_str(), *port)).await?;
                tcp.set_nodelay(true)?;
                match tls {
                    None => Box::new(tcp),
                    Some(connector) => {
                        let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                        let greeted = tokio::time::timeout(handshake, connector.connect(name, tcp)).await;
                        Box::new(greeted.unwrap_or_else(|_| Err(io::Error::other(silent_handshake())))?)
                    }
                }
            }
            #[cfg(unix)]
            Address::Unix(path) => Box::new(tokio::net::UnixStream::connect(path).await?),
            #[cfg(not(unix))]
            Address::Unix(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(Self { inner, heard: Arc::default() })
    }

    /// The counter of reads: unchanged for a whole timeout means that the other side is silent.
    pub(crate) fn heard(&self) -> Arc<AtomicU64> {
        self.heard.clone()
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_read(cx, buf);
        if result.is_ready() {
            self.heard.fetch_add(1, Ordering::Relaxed);
        }
        result
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

fn silent_handshake() -> rustls::Error {
    rustls::Error::General("no answer to the handshake; the port may be for plaintext".to_owned())
}

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
