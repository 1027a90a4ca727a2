//! What is between the driver and the network?
//!
//! [`Wire`] negotiates encryption as `sslmode` says (the driver knows three of the six words) and reads along while the
//! server introduces itself: the process id it announces there differs from `pg_backend_pid()` exactly when a pooler
//! stands in between. The driver is told to "negotiate directly", which hands the bare socket to this connector.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres_rustls::MakeRustlsConnect;

/// How one connection attempt treats encryption.
#[derive(Clone)]
pub(crate) enum Encryption {
    /// None at all.
    Never,
    /// If the server offers it. Its certificate is not checked: who could take the offer away could read along anyway.
    IfOffered(MakeRustlsConnect),
    /// Or no connection.
    Always(MakeRustlsConnect),
}

/// What was learned while connecting.
#[derive(Debug, Default)]
pub(crate) struct Learned {
    announced_pid: AtomicI32,
    encrypted: AtomicBool,
}

impl Learned {
    /// The process id in the server's greeting; 0 if it gave none.
    pub(crate) fn announced_pid(&self) -> i32 {
        self.announced_pid.load(Ordering::Acquire)
    }

    pub(crate) fn encrypted(&self) -> bool {
        self.encrypted.load(Ordering::Acquire)
    }
}

/// Makes [`Wire`]s for one attempt.
#[derive(Clone)]
pub(crate) struct Connector {
    pub(crate) encryption: Encryption,
    pub(crate) learned: Arc<Learned>,
}

enum Stream<S> {
    Plain(S),
    Encrypted(Box<dyn TlsStream + Send + Unpin>),
}

/// A connection that reads along until the server has introduced itself.
pub(crate) struct Wire<S> {
    stream: Stream<S>,
    greeting: Option<Greeting>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Connector {
    type Stream = Wire<S>;
    type TlsConnect = HostConnector;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<HostConnector> {
        Ok(HostConnector { connector: self.clone(), host: host.to_owned() })
    }
}

/// A [`Connector`] that knows whom it connects to.
pub(crate) struct HostConnector {
    pub(crate) connector: Connector,
    pub(crate) host: String,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for HostConnector {
    type Stream = Wire<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Wire<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let learned = self.connector.learned;
            let stream = negotiate(stream, self.connector.encryption, &self.host).await?;
            learned.encrypted.store(matches!(stream, Stream::Encrypted(_)), Ordering::Release);
            Ok(Wire { stream, greeting: Some(Greeting::new(learned)) })
        })
    }
}

/// Why there is no encrypted connection. A type of its own, so that the caller is told of certificates and not of hosts.
#[derive(Debug)]
pub(crate) struct HandshakeFailed(io::Error);

impl fmt::Display for HandshakeFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TLS handshake failed: {}", self.0)
    }
}

impl std::error::Error for HandshakeFailed {}

async fn negotiate<S>(mut stream: S, encryption: Encryption, host: &str) -> io::Result<Stream<S>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut tls, insists) = match encryption {
        Encryption::Never => return Ok(Stream::Plain(stream)),
        Encryption::IfOffered(tls) => (tls, false),
        Encryption::Always(tls) => (tls, true),
    };
    // Length 8, then the number that asks for encryption.
    stream.write_all(&[0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f]).await?;
    stream.flush().await?;
    match stream.read_u8().await? {
        b'S' => {
            let connect = <MakeRustlsConnect as MakeTlsConnect<S>>::make_tls_connect(&mut tls, host)
                .map_err(|_| io::Error::other("the TLS settings do not fit this host"))?;
            let encrypted =
                connect.connect(stream).await.map_err(|error| io::Error::new(error.kind(), HandshakeFailed(error)))?;
            Ok(Stream::Encrypted(Box::new(encrypted)))
        }
        _ if insists => {
            Err(io::Error::new(io::ErrorKind::Unsupported, "the server does not offer TLS and sslmode insists"))
        }
        _ => Ok(Stream::Plain(stream)),
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Wire<S> {
    fn channel_binding(&self) -> ChannelBinding {
        match &self.stream {
            Stream::Plain(_) => ChannelBinding::none(),
            Stream::Encrypted(stream) => stream.channel_binding(),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Wire<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let start = buf.filled().len();
        let wire = &mut *self;
        ready!(match &mut wire.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Encrypted(stream) => Pin::new(stream).poll_read(cx, buf),
        })?;
        if let Some(greeting) = &mut wire.greeting
            && greeting.read(&buf.filled()[start..])
        {
            wire.greeting = None;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Encrypted(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Encrypted(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Encrypted(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// Reads the server's first messages as they pass by, up to the one with its process id.
struct Greeting {
    learned: Arc<Learned>,
    /// The beginning of a message whose rest has not come yet.
    pending: Vec<u8>,
}

impl Greeting {
    /// A greeting is a few hundred bytes. Whatever is longer is not one, and is not kept.
    const MAX_BYTES: usize = 64 * 1024;

    fn new(learned: Arc<Learned>) -> Self {
        Self { learned, pending: Vec::new() }
    }

    /// Takes in what was read; true when there is nothing more to learn.
    fn read(&mut self, bytes: &[u8]) -> bool {
        self.pending.extend_from_slice(bytes);
        // Kind, length (which counts itself), body.
        while let Some((&[kind, l1, l2, l3, l4], rest)) = self.pending.split_first_chunk::<5>() {
            let length = usize::try_from(u32::from_be_bytes([l1, l2, l3, l4])).unwrap_or(usize::MAX);
            let Some(body) = length.checked_sub(4).and_then(|length| rest.get(..length)) else { break };
            match (kind, body.first_chunk::<4>()) {
                (b'K', Some(pid)) => {
                    self.learned.announced_pid.store(i32::from_be_bytes(*pid), Ordering::Release);
                    return true;
                }
                // Ready for queries, or refused: no process id comes any more.
                (b'Z' | b'E', _) => return true,
                _ => {}
            }
            let message = 5 + body.len();
            self.pending.drain(..message);
        }
        self.pending.len() > Self::MAX_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Authentication ok, one parameter, the process id 0x0102, ready.
    const GREETING: &[u8] = b"R\0\0\0\x08\0\0\0\0S\0\0\0\x08a\0b\0K\0\0\0\x0c\0\0\x01\x02\0\0\0\x09Z\0\0\0\x05I";

    #[test]
    fn the_process_id_is_found_however_the_bytes_are_cut() {
        for cut in 1..GREETING.len() {
            let learned = Arc::new(Learned::default());
            let mut greeting = Greeting::new(learned.clone());
            let done = GREETING.chunks(cut).any(|chunk| greeting.read(chunk));
            assert!(done);
            assert_eq!(learned.announced_pid(), 0x0102, "in pieces of {cut}");
        }
    }

    #[test]
    fn a_greeting_without_end_is_not_kept() {
        let mut greeting = Greeting::new(Arc::default());
        assert!(!greeting.read(b"S\xff\xff\xff\xff"));
        assert!(greeting.read(&vec![0; Greeting::MAX_BYTES]));
    }
}
