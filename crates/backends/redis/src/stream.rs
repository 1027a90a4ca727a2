//! How does a stream to a server come to be, and when was it last heard?
//!
//! TCP, TLS over TCP, or a Unix socket, opened here and not by the driver: so failures keep their kind, and the reader
//! notes when it hears something.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::pki_types::ServerName;
use socket2::TcpKeepalive;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use crate::builder::Address;

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// An open stream that notes when it last heard something.
pub(crate) struct Stream {
    inner: Box<dyn Duplex>,
    pub(crate) heard: Arc<LastHeard>,
}

/// What a connection has heard. Written by its reader alone.
pub(crate) struct LastHeard {
    /// When, in microseconds of this process.
    moment: AtomicU64,
    /// How many bytes the rest of the greeting may have: whoever has not let us in may not fill our memory. All, later.
    left: AtomicUsize,
}

impl Default for LastHeard {
    fn default() -> Self {
        Self { moment: AtomicU64::new(0), left: AtomicUsize::new(GREETING) }
    }
}

/// The answers to a log-in are a few hundred bytes.
const GREETING: usize = 64 * 1024;

impl LastHeard {
    fn note(&self, bytes: usize) -> io::Result<()> {
        self.moment.store(micros(Instant::now()), Ordering::Relaxed);
        let left = self.left.load(Ordering::Relaxed);
        if left < usize::MAX {
            self.left.store(left.saturating_sub(bytes), Ordering::Relaxed);
            if self.is_too_much() {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        Ok(())
    }

    /// The server let us in: from now on it may say as much as it likes.
    pub(crate) fn greeted(&self) {
        self.left.store(usize::MAX, Ordering::Relaxed);
    }

    /// Whether more came than a greeting has.
    pub(crate) fn is_too_much(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn is_since(&self, moment: Instant) -> bool {
        self.moment.load(Ordering::Relaxed) >= micros(moment)
    }
}

fn micros(moment: Instant) -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(moment.saturating_duration_since(*START).as_micros()).unwrap_or(u64::MAX)
}

impl Stream {
    /// Opens a stream. The caller bounds the time; `handshake` bounds TLS alone, so that its silence can be told from
    /// the network's: a plaintext server answers a TLS greeting with nothing at all.
    pub(crate) async fn open(address: &Address, tls: Option<&TlsConnector>, handshake: Duration) -> io::Result<Self> {
        let inner: Box<dyn Duplex> = match address {
            Address::Tcp { host, port } => {
                let tcp = TcpStream::connect((host.as_str(), *port)).await?;
                tcp.set_nodelay(true)?;
                bound_silence(&tcp)?;
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
}

/// Has the system end a connection that stays silent for 15 s, also one that nobody uses: a network that forgot it is
/// found out before the next call has to. Calls do not wait for it, see [`pool`](crate::pool).
fn bound_silence(tcp: &TcpStream) -> io::Result<()> {
    let socket = socket2::SockRef::from(tcp);
    let ask = TcpKeepalive::new().with_time(Duration::from_secs(9)).with_interval(Duration::from_secs(2));
    #[cfg(not(target_os = "windows"))]
    let ask = ask.with_retries(3);
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(Duration::from_secs(15)))?;
    socket.set_tcp_keepalive(&ask)
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.inner).poll_read(cx, buf);
        if result.is_ready() {
            self.heard.note(buf.filled().len() - before)?;
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_silent_socket_is_ended_by_the_system_within_fifteen_seconds() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();

        bound_silence(&tcp).unwrap();

        let socket = socket2::SockRef::from(&tcp);
        assert!(socket.keepalive().unwrap());
        let (idle, interval) = (socket.tcp_keepalive_time().unwrap(), socket.tcp_keepalive_interval().unwrap());
        assert!(idle + interval * socket.tcp_keepalive_retries().unwrap() <= Duration::from_secs(15));
        assert!(socket.tcp_user_timeout().unwrap().unwrap() <= Duration::from_secs(15));
    }
}
