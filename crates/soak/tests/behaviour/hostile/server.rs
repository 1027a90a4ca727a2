//! A server on the loopback that answers what it is told to.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What a hostile server does when something was said to it.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Bytes(Vec<u8>),
    /// What was heard, between these.
    Echo(Vec<u8>, Vec<u8>),
    /// Nothing, for as long as the client waits.
    Silence,
    Close,
}

/// Says the answers one after the other, on every connection anew. After the last one it is silent.
pub(crate) async fn serve(answers: Vec<Answer>, adapt: fn(&[u8], &[u8]) -> Vec<u8>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let answers = Arc::new(answers);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(converse(stream, answers.clone(), adapt));
        }
    });
    port
}

async fn converse(mut stream: TcpStream, answers: Arc<Vec<Answer>>, adapt: fn(&[u8], &[u8]) -> Vec<u8>) {
    let mut heard = vec![0; 64 << 10];
    for answer in answers.iter() {
        let Ok(length @ 1..) = stream.read(&mut heard).await else { return };
        let said = match answer {
            Answer::Bytes(bytes) => adapt(&heard[..length], bytes),
            Answer::Echo(before, after) => [before, &heard[..length], after].concat(),
            Answer::Silence => break,
            Answer::Close => return,
        };
        if stream.write_all(&said).await.is_err() {
            return;
        }
    }
    // Until the client gives up.
    while matches!(stream.read(&mut heard).await, Ok(1..)) {}
}

/// Answers as they are.
pub(crate) fn as_is(_: &[u8], answer: &[u8]) -> Vec<u8> {
    answer.to_vec()
}
