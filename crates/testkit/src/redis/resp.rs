//! What does the server say, without the driver under test in between?
//!
//! The smallest client of the Redis protocol: one blocking connection, one command, one reply.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};

/// No reply of a test server takes longer, unless the server hangs.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A reply of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// There is no such value.
    Nil,
    /// A number.
    Integer(i64),
    /// A status or a string; bytes that are not UTF-8 are replaced.
    Text(String),
    /// An error reply, code first.
    Error(String),
    /// Several replies.
    Array(Vec<Reply>),
}

impl Reply {
    /// The replies inside an array; a plain reply is an array of one, nil is empty.
    pub fn items(self) -> Vec<Reply> {
        match self {
            Reply::Array(items) => items,
            Reply::Nil => Vec::new(),
            other => vec![other],
        }
    }
}

/// Text and numbers as they are, nil as nothing, arrays one item per line.
impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::Nil => Ok(()),
            Reply::Integer(number) => write!(f, "{number}"),
            Reply::Text(text) | Reply::Error(text) => f.write_str(text),
            Reply::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    let separator = if index == 0 { "" } else { "\n" };
                    write!(f, "{separator}{item}")?;
                }
                Ok(())
            }
        }
    }
}

/// One connection to a Redis server.
#[derive(Debug)]
pub struct RespClient {
    stream: BufReader<TcpStream>,
}

impl RespClient {
    /// Connects to a port of 127.0.0.1.
    ///
    /// # Errors
    ///
    /// When nobody listens there.
    pub fn connect(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))
            .with_context(|| format!("redis did not accept the connection on port {port}"))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends one command and returns its reply; an error reply is an error.
    ///
    /// # Errors
    ///
    /// When the connection breaks, the server does not answer, or answers with an error.
    pub fn command(&mut self, words: &[&str]) -> Result<Reply> {
        match self.command_raw(words)? {
            // The arguments stay out of the message: they may be a password.
            Reply::Error(text) => Err(anyhow!("{} failed: {text}", words.first().unwrap_or(&"command"))),
            reply => Ok(reply),
        }
    }

    /// Sends one command and returns its reply, error replies included.
    ///
    /// # Errors
    ///
    /// When the connection breaks or the server does not answer.
    pub fn command_raw(&mut self, words: &[&str]) -> Result<Reply> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend(format!("${}\r\n", word.len()).into_bytes());
            request.extend(word.as_bytes());
            request.extend(b"\r\n");
        }
        self.stream.get_mut().write_all(&request)?;
        self.read_reply()
    }

    /// Waits for the next reply: for a subscriber, whose messages come unasked.
    ///
    /// # Errors
    ///
    /// When the connection breaks or nothing comes.
    pub fn read_reply(&mut self) -> Result<Reply> {
        let line = self.read_line()?;
        let (kind, rest) = line.split_at_checked(1).context("redis sent an empty line")?;
        Ok(match kind {
            "+" => Reply::Text(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(rest.parse()?),
            "$" => match usize::try_from(rest.parse::<i64>()?) {
                Ok(length) => Reply::Text(self.read_text(length)?),
                Err(_) => Reply::Nil,
            },
            "*" => match usize::try_from(rest.parse::<i64>()?) {
                Ok(count) => Reply::Array((0..count).map(|_| self.read_reply()).collect::<Result<_>>()?),
                Err(_) => Reply::Nil,
            },
            _ => bail!("redis sent a reply of an unknown kind: {kind}"),
        })
    }

    fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line).context("redis did not answer")?;
        ensure!(line.ends_with("\r\n"), "redis closed the connection");
        line.truncate(line.len() - 2);
        Ok(line)
    }

    fn read_text(&mut self, length: usize) -> Result<String> {
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}
