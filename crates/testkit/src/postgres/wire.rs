//! What does the server say, without the driver under test in between?
//!
//! The smallest client of the PostgreSQL protocol: start-up without a password, then the simple query protocol. Every
//! value comes as text.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// No statement of a test's set-up takes longer, unless the server hangs.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The rows of an answer; `None` is SQL's NULL.
pub type Rows = Vec<Vec<Option<String>>>;

/// One connection to a PostgreSQL server.
#[derive(Debug)]
pub struct PgClient {
    stream: BufReader<TcpStream>,
}

impl PgClient {
    /// Connects to a port of 127.0.0.1 and waits until the server takes queries.
    ///
    /// # Errors
    ///
    /// When nobody listens, or the server wants a password or is still starting.
    pub fn connect(port: u16, user: &str, database: &str) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))
            .with_context(|| format!("postgres did not accept the connection on port {port}"))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        let mut client = Self { stream: BufReader::new(stream) };
        // 196608 is protocol version 3.0.
        let mut body = 196_608_u32.to_be_bytes().to_vec();
        for word in ["user", user, "database", database, ""] {
            body.extend(word.as_bytes());
            body.push(0);
        }
        client.send(None, &body)?;
        client.read_until_ready()?;
        Ok(client)
    }

    /// Runs one or more statements and returns all their rows.
    ///
    /// # Errors
    ///
    /// When the server refuses a statement; the message starts with its SQLSTATE.
    pub fn query(&mut self, sql: &str) -> Result<Rows> {
        let mut body = sql.as_bytes().to_vec();
        body.push(0);
        self.send(Some(b'Q'), &body)?;
        self.read_until_ready()
    }

    fn send(&mut self, kind: Option<u8>, body: &[u8]) -> Result<()> {
        let length = u32::try_from(body.len() + 4).context("the message is too long")?;
        let mut message: Vec<u8> = kind.into_iter().collect();
        message.extend(length.to_be_bytes());
        message.extend(body);
        self.stream.get_mut().write_all(&message)?;
        Ok(())
    }

    fn read_until_ready(&mut self) -> Result<Rows> {
        let mut rows = Rows::new();
        let mut failure = None;
        loop {
            let (kind, body) = self.read_message()?;
            match kind {
                b'Z' => break,
                b'D' => rows.push(parse_row(&body)?),
                b'R' if body != [0; 4] => bail!("postgres asks for a password"),
                b'E' => {
                    let message = parse_error(&body);
                    // A refusal during start-up is followed by the end of the connection, not by ReadyForQuery.
                    if message.starts_with("FATAL") {
                        bail!("postgres refused: {message}");
                    }
                    failure = Some(message);
                }
                // Parameters, notices, row descriptions, completions.
                _ => {}
            }
        }
        match failure {
            Some(message) => bail!("postgres refused: {message}"),
            None => Ok(rows),
        }
    }

    fn read_message(&mut self) -> Result<(u8, Vec<u8>)> {
        let mut head = [0; 5];
        self.stream.read_exact(&mut head).context("postgres closed the connection")?;
        let [kind, length @ ..] = head;
        let length = usize::try_from(u32::from_be_bytes(length))?.checked_sub(4).context("a broken message")?;
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok((kind, body))
    }
}

fn parse_row(body: &[u8]) -> Result<Vec<Option<String>>> {
    let broken = "postgres sent a broken row";
    let (count, mut rest) = body.split_first_chunk::<2>().context(broken)?;
    let mut row = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (length, tail) = rest.split_first_chunk::<4>().context(broken)?;
        rest = tail;
        // -1 is NULL.
        let Ok(length) = usize::try_from(i32::from_be_bytes(*length)) else {
            row.push(None);
            continue;
        };
        let (value, tail) = rest.split_at_checked(length).context(broken)?;
        row.push(Some(String::from_utf8_lossy(value).into_owned()));
        rest = tail;
    }
    Ok(row)
}

/// `SEVERITY SQLSTATE message`, from the fields S, C and M.
fn parse_error(body: &[u8]) -> String {
    let fields: Vec<String> = body
        .split(|byte| *byte == 0)
        .filter_map(|field| field.split_first())
        .filter(|(kind, _)| b"VCM".contains(kind))
        .map(|(_, text)| String::from_utf8_lossy(text).into_owned())
        .collect();
    fields.join(" ")
}
