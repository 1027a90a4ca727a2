//! Answers in RESP, in PostgreSQL's protocol and in gRPC that are random, cut off, or right in the wrong place.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use syncguard::firestore::FirestoreBackend;
use syncguard::postgres::PostgresBuilder;
use syncguard::redis::RedisBuilder;
use syncguard::{AnyBackend, LockBackend, Result};
use tokio::task::JoinSet;

use crate::hostile::server::{Answer, as_is, serve};
use crate::hostile::{CANARY, count_panics, generate, judge, panics};

const CASES: usize = 96;
/// Short, because a silent server uses all of it; a busy machine may use it up too, which is no failure here.
const TIMEOUT: Duration = Duration::from_millis(150);

/// Answers made of such pieces: whole, cut off, with a byte changed, or nothing of the kind.
fn answers(pieces: Vec<Vec<u8>>, echo: (&'static [u8], &'static [u8])) -> impl Strategy<Value = Vec<Answer>> {
    let whole = vec(select(pieces), 1..6).prop_map(|pieces| pieces.concat());
    let changed = (whole.clone(), any::<proptest::sample::Index>(), any::<u8>()).prop_map(|(mut bytes, at, byte)| {
        let at = at.index(bytes.len());
        bytes[at] = byte;
        bytes
    });
    let cut = (whole.clone(), any::<proptest::sample::Index>()).prop_map(|(mut bytes, at)| {
        bytes.truncate(at.index(bytes.len()));
        bytes
    });
    let answer = prop_oneof![
        6 => whole.prop_map(Answer::Bytes),
        3 => changed.prop_map(Answer::Bytes),
        2 => cut.prop_map(Answer::Bytes),
        2 => vec(any::<u8>(), 0..64).prop_map(Answer::Bytes),
        2 => Just(Answer::Echo(echo.0.to_vec(), echo.1.to_vec())),
        1 => Just(Answer::Silence),
        1 => Just(Answer::Close),
    ];
    vec(answer, 1..12)
}

/// Lets every case be judged, a few at a time.
async fn all<F>(cases: Vec<Vec<Answer>>, adapt: fn(&[u8], &[u8]) -> Vec<u8>, connect: fn(u16) -> F)
where
    F: Future<Output = Result<AnyBackend>> + Send + 'static,
{
    count_panics();
    let before = panics();
    let (mut running, mut wrong, count) = (JoinSet::new(), Vec::new(), cases.len());
    for answers in cases {
        while running.len() >= 16 {
            wrong.extend(running.join_next().await.unwrap().unwrap());
        }
        running.spawn(async move {
            let port = serve(answers.clone(), adapt).await;
            judge(connect(port)).await.err().map(|what| format!("{what}\nafter {answers:?}"))
        });
    }
    while let Some(done) = running.join_next().await {
        wrong.extend(done.unwrap());
    }
    println!("{count} hostile servers");
    assert!(wrong.is_empty(), "{} of {count}: {}", wrong.len(), wrong[0]);
    assert_eq!(panics(), before, "something panicked");
}

fn texts(pieces: &[&str]) -> Vec<Vec<u8>> {
    pieces.iter().map(|piece| piece.as_bytes().to_vec()).collect()
}

async fn redis(port: u16) -> Result<AnyBackend> {
    let url = format!("redis://user:{CANARY}@127.0.0.1:{port}/");
    let builder = RedisBuilder::from_url(&url)?.timeout(TIMEOUT).connect_timeout(TIMEOUT);
    Ok(builder.connect().await?.into_any())
}

#[tokio::test]
async fn no_answer_in_resp_makes_us_panic_hang_or_tell() {
    let mut pieces = texts(&[
        "+OK\r\n",
        "+PONG\r\n",
        ":0\r\n",
        ":1\r\n",
        ":-1\r\n",
        ":9223372036854775807\r\n",
        "$-1\r\n",
        "$-2\r\n",
        "$0\r\n\r\n",
        "$5\r\nhello\r\n",
        "$2147483647\r\n",
        "*-1\r\n",
        "*0\r\n",
        "*1\r\n:1\r\n",
        "*1000000000\r\n",
        "*3\r\n:1\r\n$15\r\n000000000000001\r\n:1900000000000\r\n",
        "*4\r\n:1\r\n$1\r\nx\r\n$1\r\ny\r\n:-5\r\n",
        "_\r\n",
        "%1\r\n+a\r\n+b\r\n",
        ">2\r\n+message\r\n+x\r\n",
        "#t\r\n",
        ",1e308\r\n",
        "-ERR no\r\n",
        "-NOAUTH no\r\n",
        "-WRONGPASS no\r\n",
        "-NOSCRIPT no\r\n",
        "-MOVED 1 127.0.0.1:1\r\n",
        "-MOVED\r\n",
        "-ASK 99999 :\r\n",
        "-BUSY\r\n",
        "-READONLY\r\n",
        "-LOADING\r\n",
    ]);
    pieces.push("*1\r\n".repeat(20_000).into_bytes());
    let cases = generate(&answers(pieces, (b"-ERR unknown command ", b"\r\n")), CASES);
    all(cases, as_is, redis).await;
}

async fn postgres(port: u16) -> Result<AnyBackend> {
    let url = format!("postgres://user:{CANARY}@127.0.0.1:{port}/db?sslmode=disable");
    let builder = PostgresBuilder::from_url(&url)?.timeout(TIMEOUT).connect_timeout(TIMEOUT).pool_size(2);
    Ok(builder.connect().await?.into_any())
}

/// A message of PostgreSQL's protocol.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
    [&[kind], &length[..], body].concat()
}

#[tokio::test]
async fn no_answer_in_the_protocol_of_postgres_makes_us_panic_hang_or_tell() {
    let ready = message(b'Z', b"I");
    let error = |text: &str| message(b'E', format!("SERROR\0C{text}\0Mno\0\0").as_bytes());
    let columns = b"\0\x01fence\0\0\0\0\0\0\0\0\0\0\x14\0\x08\0\0\0\0\0\0";
    let mut pieces = vec![
        message(b'R', &[0, 0, 0, 0]),
        message(b'R', &[0, 0, 0, 3]),
        message(
            b'R',
            &[0, 0, 0, 10, b'S', b'C', b'R', b'A', b'M', b'-', b'S', b'H', b'A', b'-', b'2', b'5', b'6', 0, 0],
        ),
        message(b'R', &[0, 0, 0, 11, b'r', b'=', b'x', b',', b's', b'=', b'A', b',', b'i', b'=', b'1']),
        message(b'S', b"server_version\x0015.0\0"),
        message(b'S', b"server_version"),
        message(b'K', &[0, 0, 0, 1, 0, 0, 0, 2]),
        ready.clone(),
        [message(b'R', &[0, 0, 0, 0]), ready.clone()].concat(),
        message(b'1', b""),
        message(b'2', b""),
        message(b't', &[0, 0]),
        message(b't', &[0, 1, 0, 0, 0, 25]),
        message(b'n', b""),
        message(b'T', columns),
        message(b'T', &[255, 255]),
        message(b'D', &[0, 1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1]),
        message(b'D', &[0, 2, 255, 255, 255, 255]),
        message(b'D', &[0, 1, 127, 255, 255, 255]),
        message(b'C', b"SELECT 1\0"),
        message(b'C', b"SELECT 99999999999999999999\0"),
        message(b'A', b"\0\0\0\x01channel\0payload\0"),
        message(b'N', b"SWARNING\0C00000\0Mx\0\0"),
        error("28P01"),
        error("42P01"),
        error("55P03"),
        error("XX000"),
        message(b'E', b"\0"),
        [vec![b'D'], vec![0xff; 4]].concat(),
        [vec![b'T'], vec![0; 4]].concat(),
        [vec![b'S'], vec![0x7f, 0xff, 0xff, 0xff]].concat(),
    ];
    pieces.push([message(b'1', b""), message(b't', &[0, 0]), message(b'T', columns), ready].concat());
    // An error whose text is what we sent, the password among it.
    let echo: (&[u8], &[u8]) = (b"E\0\0\0\x60SFATAL\0C28P01\0M", b"\0\0");
    let cases = generate(&answers(pieces, echo), CASES);
    all(cases, as_is, postgres).await;
}

async fn firestore(port: u16) -> Result<AnyBackend> {
    let builder = FirestoreBackend::builder("project").emulator(format!("127.0.0.1:{port}")).timeout(TIMEOUT);
    Ok(builder.connect().await?.into_any())
}

/// A frame of HTTP/2. The stream is filled in when it is known.
fn frame(kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, 0], body].concat()
}

const SETTINGS: u8 = 4;
const HEADERS: u8 = 1;
const DATA: u8 = 0;

/// Puts the number of the newest stream of the client into the frames that belong to one.
fn on_their_stream(heard: &[u8], answer: &[u8]) -> Vec<u8> {
    let newest = streams(heard).last().copied().unwrap_or(1).to_be_bytes();
    let mut answer = answer.to_vec();
    let mut at = 0;
    while let Some(head) = answer.get(at..at + 9) {
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        if matches!(head[3], HEADERS | DATA | 3 | 9) {
            answer[at + 5..at + 9].copy_from_slice(&newest);
        }
        at += 9 + length;
    }
    answer
}

/// The streams on which something was heard.
fn streams(heard: &[u8]) -> Vec<u32> {
    let mut rest = heard.strip_prefix(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap_or(heard);
    let mut streams = Vec::new();
    while let Some((head, body)) = rest.split_at_checked(9) {
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        if head[3] == HEADERS {
            streams.push(u32::from_be_bytes([head[5], head[6], head[7], head[8]]));
        }
        rest = body.get(length..).unwrap_or(&[]);
    }
    streams
}

/// A header that is sent as it is.
fn header(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    [vec![0], text(name), text(value)].concat()
}

#[tokio::test]
async fn no_answer_in_grpc_makes_us_panic_hang_or_tell() {
    let settings = [frame(SETTINGS, 0, &[]), frame(SETTINGS, 1, &[])].concat();
    // 0x88 is `:status: 200`.
    let begin = frame(HEADERS, 4, &[vec![0x88], header("content-type", "application/grpc")].concat());
    let end = |status: &str| frame(HEADERS, 5, &header("grpc-status", status));
    let body = |bytes: &[u8]| {
        let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
        frame(DATA, 0, &[&[0], &length[..], bytes].concat())
    };
    let mut pieces = vec![
        settings.clone(),
        frame(SETTINGS, 0, &[0, 4, 0xff, 0xff, 0xff, 0xff]),
        frame(SETTINGS, 0, &[0, 3, 0, 0, 0, 0]),
        frame(6, 0, &[0; 8]),
        frame(3, 0, &[0, 0, 0, 8]),
        frame(7, 0, &[0, 0, 0, 0, 0, 0, 0, 1]),
        frame(8, 0, &[0xff; 4]),
        frame(9, 4, &[0xff; 16]),
        begin.clone(),
        frame(HEADERS, 5, &[0x88]),
        frame(HEADERS, 5, &[0x8d]),
        frame(HEADERS, 5, &[0xff; 40]),
        frame(HEADERS, 5, &[vec![0x88], header("content-type", "text/html")].concat()),
        body(&[]),
        body(&[0x0a, 0xff, 0xff, 0xff, 0x7f]),
        body(&[0x0a, 0x03, b'a', b'b', b'c', 0x12, 0x00]),
        body(&[0x1a, 0x02, 0x08, 0x01]),
        frame(DATA, 0, &[1, 0, 0, 0, 1, 0]),
        frame(DATA, 0, &[0, 0xff, 0xff, 0xff, 0xff]),
        frame(DATA, 1, &[]),
        end("0"),
        end("7"),
        end("16"),
        end("999"),
        end("x"),
        b"HTTP/1.1 200 OK\r\n\r\n".to_vec(),
    ];
    for status in ["0", "10"] {
        pieces.push([settings.clone(), begin.clone(), body(&[0x0a, 0x01, b't']), end(status)].concat());
    }
    let cases = generate(&answers(pieces, (b"", b"")), CASES);
    all(cases, on_their_stream, firestore).await;
}

/// The proof that a word too much would be seen.
#[tokio::test]
async fn an_error_that_repeats_a_password_is_caught() {
    let chatty = async { Err(syncguard::LockError::internal(format!("the server said: AUTH {CANARY}"))) };
    assert!(judge(chatty).await.unwrap_err().contains("a password is shown"));
}
