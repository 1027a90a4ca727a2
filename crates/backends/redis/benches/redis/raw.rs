//! What is the least a client can do?
//!
//! One socket, requests put together beforehand, replies counted by their line ends. With several tasks all their
//! requests are written at once and all replies are read: the ceiling of one pipelined connection.

use std::time::{Duration, Instant};

use syncguard_testkit::RedisServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A pair of scripts that the server knows.
pub(crate) struct Pair {
    pub(crate) acquire: String,
    pub(crate) release: String,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Ours,
    Specified,
}

const ID: &str = "AAAAAAAAAAAAAAAAAAAAAA";

impl Pair {
    pub(crate) fn ours(server: &RedisServer) -> Self {
        let load = |part: &str| server.command(&["SCRIPT", "LOAD", &stripped(part)]);
        let acquire = load(include_str!("../../scripts/acquire.lua"));
        let release = load(include_str!("../../scripts/release.lua"));
        Self { acquire, release, kind: Kind::Ours }
    }

    pub(crate) fn specified(server: &RedisServer) -> Self {
        let load = |part: &str| server.command(&["SCRIPT", "LOAD", part]);
        let acquire = load(include_str!("spec/acquire.lua"));
        Self { acquire, release: load(include_str!("spec/release.lua")), kind: Kind::Specified }
    }

    fn acquire_words(&self, key: &str) -> Vec<String> {
        let (lock, index, counter) =
            (format!("raw:{key}"), format!("raw:id:{ID}{key}"), format!("raw:fence:raw:{key}"));
        let head = ["EVALSHA", &self.acquire, "3", &lock, &index, &counter].map(str::to_owned);
        let rest = match self.kind {
            Kind::Ours => {
                vec!["31000".to_owned(), value_head(key), format!(r#","key":"{key}","ttlMs":30000,"fence":""#)]
            }
            Kind::Specified => [&format!("{ID}{key}"), "30000", "1000", &lock, key].map(str::to_owned).to_vec(),
        };
        head.into_iter().chain(rest).collect()
    }

    fn release_words(&self, key: &str) -> Vec<String> {
        let (lock, index, id) = (format!("raw:{key}"), format!("raw:id:{ID}{key}"), format!("{ID}{key}"));
        match self.kind {
            Kind::Ours => {
                let line = format!("raw:id:line of {key}");
                ["EVALSHA", &self.release, "3", &lock, &index, &line, &format!("{ID}{key}"), "first"]
                    .map(str::to_owned)
                    .to_vec()
            }
            Kind::Specified => ["EVALSHA", &self.release, "1", &index, &id, "1000"].map(str::to_owned).to_vec(),
        }
    }

    const fn acquire_lines(&self) -> usize {
        match self.kind {
            // One bulk string: its length and itself.
            Kind::Ours => 2,
            // The fence comes as a string: its length has a line too.
            Kind::Specified => 5,
        }
    }
}

fn value_head(key: &str) -> String {
    format!(r#"{{"lockId":"{ID}{key}","expiresAtMs":"#)
}

/// The same text that the backend sends.
fn stripped(source: &str) -> String {
    let source = source.replace("--#include own", include_str!("../../scripts/own.lua"));
    let source = source.replace("--#include read", include_str!("../../scripts/read.lua"));
    let source = source.replace("--#include line", include_str!("../../scripts/line.lua"));
    let source = source.replace("TOLERANCE_MS", &syncguard_core::time::TOLERANCE_MS.to_string());
    let lines: Vec<&str> =
        source.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("--")).collect();
    lines.join("\n")
}

fn packed(words: &[String]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
    }
    bytes
}

/// Pairs per second of `tasks` tasks over one socket.
pub(crate) async fn pairs(server: &RedisServer, pair: &Pair, tasks: usize, slice: Duration) -> f64 {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let all = |words: &dyn Fn(&str) -> Vec<String>| -> Vec<u8> {
        (0..tasks).flat_map(|task| packed(&words(&format!("k{task}")))).collect()
    };
    let acquires = all(&|key| pair.acquire_words(key));
    let releases = all(&|key| pair.release_words(key));
    let (start, mut done) = (Instant::now(), 0_usize);
    while start.elapsed() < slice {
        exchange(&mut stream, &acquires, tasks * pair.acquire_lines()).await;
        exchange(&mut stream, &releases, tasks).await;
        done += tasks;
    }
    done as f64 / start.elapsed().as_secs_f64()
}

async fn exchange(stream: &mut TcpStream, request: &[u8], lines: usize) {
    stream.write_all(request).await.unwrap();
    let mut buffer = vec![0; 16 * 1024];
    let mut left = lines;
    while left > 0 {
        let count = stream.read(&mut buffer).await.unwrap();
        let read = &buffer[..count];
        assert!(count > 0 && read[0] != b'-', "{}", String::from_utf8_lossy(read));
        left -= read.iter().map(|byte| usize::from(*byte == b'\n')).sum::<usize>();
    }
}
