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

use crate::logins::{Login, Logins};

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
    logins: Logins,
    announced_pid: AtomicI32,
    encrypted: AtomicBool,
}

impl Learned {
    /// For a connection that agrees to these ways of logging in only.
    pub(crate) fn new(logins: Logins) -> Self {
        Self { logins, ..Self::default() }
    }

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
            && greeting
                .read(&buf.filled()[start..])
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?
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
    /// How much has come altogether.
    bytes: usize,
    /// How the server had us log in.
    login: Login,
}

/// Why a greeting is not answered. The driver would make room for as much as the server announces, and would answer with a
/// password in whatever way the server likes.
#[derive(Debug)]
pub(crate) enum BadGreeting {
    TooLong,
    Refused(Login),
}

impl fmt::Display for BadGreeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => f.write_str("what answers does not greet as postgres does"),
            Self::Refused(login) => {
                write!(f, "postgres wants a login by `{}`, which require_auth excludes", login.word())
            }
        }
    }
}

impl std::error::Error for BadGreeting {}

impl Greeting {
    /// A greeting is a few hundred bytes. Whatever is longer is not one.
    const MAX_BYTES: usize = 64 * 1024;

    fn new(learned: Arc<Learned>) -> Self {
        Self { learned, pending: Vec::new(), bytes: 0, login: Login::None }
    }

    /// Takes in what was read; true when there is nothing more to learn.
    fn read(&mut self, bytes: &[u8]) -> Result<bool, BadGreeting> {
        self.pending.extend_from_slice(bytes);
        self.bytes += bytes.len();
        // Kind, length (which counts itself), body.
        while let Some((&[kind, l1, l2, l3, l4], rest)) = self.pending.split_first_chunk::<5>() {
            let length = usize::try_from(u32::from_be_bytes([l1, l2, l3, l4])).unwrap_or(usize::MAX);
            if length > Self::MAX_BYTES {
                return Err(BadGreeting::TooLong);
            }
            let Some(body) = length.checked_sub(4).and_then(|length| rest.get(..length)) else { break };
            match (kind, body.first_chunk::<4>()) {
                (b'K', Some(pid)) => {
                    self.learned.announced_pid.store(i32::from_be_bytes(*pid), Ordering::Release);
                    return Ok(true);
                }
                (b'R', Some(asked)) => self.login = self.agree_to(i32::from_be_bytes(*asked))?,
                // Ready for queries, or refused: no process id comes any more.
                (b'Z' | b'E', _) => return Ok(true),
                _ => {}
            }
            let message = 5 + body.len();
            self.pending.drain(..message);
        }
        if self.bytes > Self::MAX_BYTES { Err(BadGreeting::TooLong) } else { Ok(false) }
    }

    /// Whether the login that the server asks for, or declares done, is one of those agreed to.
    fn agree_to(&self, asked: i32) -> Result<Login, BadGreeting> {
        let login = match asked {
            3 => Login::Password,
            5 => Login::Md5,
            10 => Login::Scram,
            // Done, by what came before; steps in between; or what the driver does not know either.
            _ => self.login,
        };
        let is_step = asked == 11 || asked == 12;
        if is_step || self.learned.logins.include(login) { Ok(login) } else { Err(BadGreeting::Refused(login)) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Authentication ok, one parameter, the process id 0x0102, ready.
    const GREETING: &[u8] = b"R\0\0\0\x08\0\0\0\0S\0\0\0\x08a\0b\0K\0\0\0\x0c\0\0\x01\x02\0\0\0\x09Z\0\0\0\x05I";

    #[test]
    fn the_process_id_is_found_however_the_bytes_are_cut() {
        for cut in 1..GREETING.len() {
            let learned = Arc::new(Learned::default());
            let mut greeting = Greeting::new(learned.clone());
            let done = GREETING.chunks(cut).any(|chunk| greeting.read(chunk).unwrap());
            assert!(done);
            assert_eq!(learned.announced_pid(), 0x0102, "in pieces of {cut}");
        }
    }

    #[test]
    fn a_greeting_without_end_is_refused() {
        assert!(Greeting::new(Arc::default()).read(b"S\xff\xff\xff\xff").is_err());
        let mut greeting = Greeting::new(Arc::default());
        let notice = b"N\0\0\x08\x00".iter().copied().chain(vec![0; 0x7fc]).collect::<Vec<_>>();
        assert!((0..100).any(|_| greeting.read(&notice).is_err()));
    }

    #[test]
    fn only_the_logins_that_are_agreed_to_are_answered() {
        let asks = |asked: u8| [b'R', 0, 0, 0, 8, 0, 0, 0, asked];
        let scram = [&asks(10)[..], &asks(11), &asks(12), &asks(0)].concat();
        for (list, greeting, agreed) in [
            ("scram-sha-256", scram.as_slice(), true),
            ("scram-sha-256,md5", &asks(5), true),
            ("!password,!none", &scram, true),
            ("scram-sha-256", &asks(3), false),
            ("scram-sha-256", &asks(0), false),
            ("!password", &asks(3), false),
            ("!password", &asks(0), true),
            ("none", &asks(0), true),
        ] {
            let learned = Arc::new(Learned::new(Logins::parse(list).unwrap()));
            assert_eq!(Greeting::new(learned).read(greeting).is_ok(), agreed, "{list} {greeting:?}");
        }
        for bad in ["", "canary", "md5,!password", "md5,,md5"] {
            assert!(!format!("{:?}", Logins::parse(bad).unwrap_err()).contains("canary"));
        }
    }
}
