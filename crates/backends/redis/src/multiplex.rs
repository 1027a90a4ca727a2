//! How do many calls share one stream?
//!
//! Callers put their requests into one piece of memory and wait for an answer each; a task writes whatever is there in
//! one go, and deals out replies in the order of the requests. When many replies come at once it deals out half of them,
//! lets their receivers ask the next thing, and writes that before it deals out the rest: so the server has work while
//! this process prepares more, and neither waits for the other.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use redis::{ErrorKind, RedisError, RedisResult, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use crate::resp;
use crate::stream::Stream;

/// So many replies are dealt out at once whatever else there is: halves of less are not worth a write of their own.
const WORTH_A_WRITE: usize = 4;
/// What one read takes in.
const READ_BYTES: usize = 16 * 1024;
/// No reply to anything that is asked here is nearly as long: a server that never ends one must not fill the memory.
const MAX_REPLY_BYTES: usize = 64 * 1024 * 1024;

/// The callers' end of a stream. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Multiplexed(Arc<Mutex<Queue>>);

/// What callers write and the task takes.
#[derive(Default)]
struct Queue {
    /// Requests that have not been taken yet, one after the other.
    requests: Vec<u8>,
    /// Who waits for their replies, in the same order.
    calls: Vec<Call>,
    /// The task, while it sleeps: whoever adds a request must wake it, and only the first need do so.
    sleeper: Option<Waker>,
    /// The task has ended: nothing would leave any more.
    is_closed: bool,
}

/// Who waits for how many replies.
enum Call {
    One(oneshot::Sender<RedisResult<Value>>),
    Several { left: usize, got: Vec<Value>, answer: oneshot::Sender<RedisResult<Vec<Value>>> },
}

impl Multiplexed {
    /// Takes over a stream on which nothing is under way. The second half is the task that must run.
    pub(crate) fn new(stream: Stream) -> (Self, Driver) {
        let queue = Arc::new(Mutex::new(Queue::default()));
        let driver = Driver {
            stream,
            queue: queue.clone(),
            owed: VecDeque::new(),
            heard: vec![0; READ_BYTES],
            dealt_out: 0,
            filled: 0,
            writing: Vec::new(),
            written: 0,
            is_flushed: true,
        };
        (Self(queue), driver)
    }

    /// Sends one packed request and awaits its reply.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the request on its way; its reply is thrown away.
    pub(crate) async fn one(&self, request: &[u8]) -> RedisResult<Value> {
        let (answer, awaited) = oneshot::channel();
        self.push(request, Call::One(answer))?;
        awaited.await.unwrap_or_else(|_| Err(broken()))
    }

    /// Sends packed requests and awaits `count` replies.
    ///
    /// # Cancel safety
    /// As [`one`](Self::one).
    pub(crate) async fn several(&self, requests: &[u8], count: usize) -> RedisResult<Vec<Value>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let (answer, awaited) = oneshot::channel();
        self.push(requests, Call::Several { left: count, got: Vec::with_capacity(count), answer })?;
        awaited.await.unwrap_or_else(|_| Err(broken()))
    }

    /// Whether the stream has ended.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.0).is_closed
    }

    /// From now on nothing leaves; the caller ends the task.
    pub(crate) fn close(&self) {
        lock(&self.0).is_closed = true;
    }

    // Requests that the stream does not take pile up here. Each caller has one, and a stream that is silent for a second
    // is given up: no further bound is needed.
    fn push(&self, requests: &[u8], call: Call) -> RedisResult<()> {
        let mut queue = lock(&self.0);
        if queue.is_closed {
            return Err(broken());
        }
        queue.requests.extend_from_slice(requests);
        queue.calls.push(call);
        let sleeper = queue.sleeper.take();
        drop(queue);
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
        Ok(())
    }
}

impl Call {
    fn fail(self, error: RedisError) {
        match self {
            Self::One(answer) => drop(answer.send(Err(error))),
            Self::Several { answer, .. } => drop(answer.send(Err(error))),
        }
    }
}

/// The task of a stream: reads and writes until either fails.
pub(crate) struct Driver {
    stream: Stream,
    queue: Arc<Mutex<Queue>>,
    /// Calls whose requests were taken, in the order of their replies.
    owed: VecDeque<Call>,
    /// What was read, up to `filled`; replies up to `dealt_out` have gone to their callers.
    heard: Vec<u8>,
    dealt_out: usize,
    filled: usize,
    /// What is being written; up to `written` it has left.
    writing: Vec<u8>,
    written: usize,
    /// TLS keeps what was written until it is told, and may not be able to send it at once.
    is_flushed: bool,
}

impl Driver {
    pub(crate) async fn run(mut self) {
        let failed = std::future::poll_fn(|context| self.poll(context)).await;
        // Nobody knows whose reply bytes were that are none; the first in line was waiting for them.
        if let (Err(error), Some(first)) = (failed, self.owed.pop_front()) {
            first.fail(error);
        }
    }

    /// Ready, with an error, when the stream has failed.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<RedisResult<()>> {
        loop {
            self.write(context)?;
            // Those who got a reply have their turn first: what they ask next leaves in one write.
            if self.read(context)? > 1 {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let mut queue = lock(&self.queue);
            // While a write is stuck, the stream wakes the task when it can go on.
            if queue.requests.is_empty() || self.is_writing() || !self.is_flushed {
                queue.sleeper = Some(context.waker().clone());
                return Poll::Pending;
            }
        }
    }

    fn is_writing(&self) -> bool {
        self.written < self.writing.len()
    }

    /// Writes what waits, until nothing does or the stream takes no more.
    fn write(&mut self, context: &mut Context<'_>) -> RedisResult<()> {
        loop {
            while self.is_writing() {
                let write = Pin::new(&mut self.stream).poll_write(context, &self.writing[self.written..]);
                match write? {
                    Poll::Ready(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                    Poll::Ready(count) => self.written += count,
                    Poll::Pending => return Ok(()),
                }
                self.is_flushed = false;
            }
            if !self.is_flushed {
                self.is_flushed = Pin::new(&mut self.stream).poll_flush(context)?.is_ready();
            }
            if !self.is_flushed || !self.take_requests() {
                return Ok(());
            }
        }
    }

    /// Whether there was anything to take.
    fn take_requests(&mut self) -> bool {
        self.writing.clear();
        self.written = 0;
        let mut queue = lock(&self.queue);
        if queue.requests.is_empty() {
            return false;
        }
        std::mem::swap(&mut queue.requests, &mut self.writing);
        self.owed.extend(queue.calls.drain(..));
        true
    }

    /// Deals out what was read, and reads until the stream has no more. Returns how many got a reply; if that is more
    /// than one, the rest waits until those have asked the next thing.
    fn read(&mut self, context: &mut Context<'_>) -> RedisResult<usize> {
        let (mut dealt, enough) = (0, WORTH_A_WRITE.max(self.owed.len().div_ceil(2)));
        loop {
            while let Some(length) = resp::length(&self.heard[self.dealt_out..self.filled])? {
                if dealt == enough {
                    return Ok(dealt);
                }
                let reply = resp::value(&self.heard[self.dealt_out..self.dealt_out + length])?;
                self.dealt_out += length;
                dealt += 1;
                self.deal_out(reply)?;
            }
            if self.fill(context)?.is_pending() {
                return Ok(dealt);
            }
        }
    }

    /// Reads once.
    fn fill(&mut self, context: &mut Context<'_>) -> RedisResult<Poll<()>> {
        let rest = self.dealt_out..self.filled;
        (self.dealt_out, self.filled) = (0, rest.len());
        self.heard.copy_within(rest, 0);
        if self.filled == self.heard.len() {
            if self.filled >= MAX_REPLY_BYTES {
                return Err((ErrorKind::Parse, "a reply of the redis server does not end").into());
            }
            self.heard.resize(self.filled * 2, 0);
        }
        let mut buffer = ReadBuf::new(&mut self.heard[self.filled..]);
        let read = Pin::new(&mut self.stream).poll_read(context, &mut buffer);
        let count = buffer.filled().len();
        self.filled += count;
        match read? {
            Poll::Ready(()) if count == 0 => Err(broken()),
            poll => Ok(poll),
        }
    }

    /// Gives a reply to whoever is first in line. One that nobody asked for ends the stream: the next would be taken for
    /// the answer to another question.
    fn deal_out(&mut self, reply: Value) -> RedisResult<()> {
        match self.owed.pop_front() {
            None => return Err((ErrorKind::Parse, "the redis server answers what nobody asked").into()),
            Some(Call::One(answer)) => drop(answer.send(Ok(reply))),
            Some(Call::Several { left: 1, mut got, answer }) => {
                got.push(reply);
                let _ = answer.send(Ok(got));
            }
            Some(Call::Several { left, mut got, answer }) => {
                got.push(reply);
                self.owed.push_front(Call::Several { left: left - 1, got, answer });
            }
        }
        Ok(())
    }
}

// Also when the task is dropped with its runtime: callers that are still waiting must hear of it.
impl Drop for Driver {
    fn drop(&mut self) {
        let mut queue = lock(&self.queue);
        queue.is_closed = true;
        let calls = std::mem::take(&mut queue.calls);
        drop(queue);
        drop(calls);
    }
}

// Every change is one step: a panic elsewhere leaves the value right.
fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

fn broken() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    fn connected() -> (Multiplexed, DuplexStream) {
        let (ours, theirs) = duplex(1 << 16);
        (over(ours), theirs)
    }

    fn over(stream: impl crate::stream::Duplex + 'static) -> Multiplexed {
        let (calls, driver) = Multiplexed::new(Stream::over(stream));
        tokio::spawn(driver.run());
        calls
    }

    #[tokio::test]
    async fn a_reply_goes_to_its_own_call_also_after_another_caller_left() {
        let (calls, mut server) = connected();
        let mut left = Box::pin(calls.one(b"a"));
        assert!(std::future::poll_fn(|context| Poll::Ready(left.as_mut().poll(context).is_pending())).await);
        drop(left);
        let (others, last) = (calls.clone(), calls.clone());
        let others = tokio::spawn(async move { others.several(b"bc", 2).await });
        let last = tokio::spawn(async move { last.one(b"d").await });
        let mut requests = [0; 4];
        server.read_exact(&mut requests).await.unwrap();
        assert_eq!(&requests, b"abcd");

        // In pieces, as networks do.
        for piece in [&b":1\r\n:"[..], b"2\r", b"\n$1\r\n3\r\n:4", b"\r\n"] {
            server.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }

        assert_eq!(others.await.unwrap().unwrap(), [Value::Int(2), Value::BulkString(b"3".to_vec())]);
        assert_eq!(last.await.unwrap().unwrap(), Value::Int(4));
    }

    #[tokio::test]
    async fn many_replies_at_once_all_arrive_in_order() {
        let (calls, mut server) = connected();
        let tasks: Vec<_> = (0..100)
            .map(|_| {
                let calls = calls.clone();
                tokio::spawn(async move { calls.one(b"x").await })
            })
            .collect();
        server.read_exact(&mut [0; 100]).await.unwrap();

        let replies: Vec<String> = (0..100).map(|number| format!(":{number}\r\n")).collect();
        server.write_all(replies.concat().as_bytes()).await.unwrap();

        for (number, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.unwrap().unwrap(), Value::Int(i64::try_from(number).unwrap()));
        }
    }

    #[tokio::test]
    async fn calls_on_a_stream_that_ended_fail_at_once() {
        let (calls, server) = connected();
        let waiting = tokio::spawn({
            let calls = calls.clone();
            async move { calls.one(b"a").await }
        });
        tokio::task::yield_now().await;

        drop(server);

        assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(calls.one(b"b").await.unwrap_err().kind(), ErrorKind::Io);
        assert!(calls.is_closed());
    }

    #[tokio::test]
    async fn after_bytes_that_are_no_reply_nobody_gets_one() {
        let (calls, mut server) = connected();
        let first = tokio::spawn({
            let calls = calls.clone();
            async move { calls.one(b"a").await }
        });
        server.read_exact(&mut [0; 1]).await.unwrap();

        server.write_all(b"HTTP/1.1 400 Bad Request\r\n:1\r\n").await.unwrap();

        assert_eq!(first.await.unwrap().unwrap_err().kind(), ErrorKind::Parse);
        assert!(calls.one(b"b").await.is_err());
    }

    /// Keeps what is written until it is flushed, as TLS does.
    struct Keeping {
        kept: Vec<u8>,
        inner: DuplexStream,
    }

    impl AsyncRead for Keeping {
        fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.inner).poll_read(cx, buf)
        }
    }

    impl AsyncWrite for Keeping {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            self.kept.extend_from_slice(buf);
            Poll::Ready(Ok(buf.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            let this = self.get_mut();
            while !this.kept.is_empty() {
                let count = std::task::ready!(Pin::new(&mut this.inner).poll_write(cx, &this.kept))?;
                this.kept.drain(..count);
            }
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn what_a_stream_keeps_back_is_sent_when_there_is_room() {
        let (near, mut far) = duplex(8);
        let multiplexed = over(Keeping { kept: Vec::new(), inner: near });
        let question = vec![b'x'; 100];
        let server = async {
            far.read_exact(&mut [0; 100]).await.unwrap();
            far.write_all(b":7\r\n").await.unwrap();
        };

        let (answer, ()) = tokio::join!(multiplexed.one(&question), server);

        assert_eq!(answer.unwrap(), Value::Int(7));
    }

    #[tokio::test]
    async fn replies_reach_their_callers_in_order_and_one_too_many_ends_the_stream() {
        let (multiplexed, mut far) = connected();
        let server = async {
            far.read_exact(&mut [0; 3]).await.unwrap();
            far.write_all(b":1\r\n:2\r\n:3\r\n").await.unwrap();
        };

        let (first, others, ()) = tokio::join!(multiplexed.one(b"a"), multiplexed.several(b"bc", 2), server);

        assert_eq!((first.unwrap(), others.unwrap()), (Value::Int(1), vec![Value::Int(2), Value::Int(3)]));
        far.write_all(b":4\r\n").await.unwrap();
        // Closed by the reader, who does not wait for a question.
        assert_eq!(far.read(&mut [0; 8]).await.unwrap(), 0);
        assert!(multiplexed.is_closed() && multiplexed.one(b"d").await.is_err());
    }

    #[tokio::test]
    async fn a_reply_without_end_is_given_up() {
        let (near, mut far) = duplex(1024 * 1024);
        let multiplexed = over(near);
        let server = async {
            far.write_all(b"$536870912\r\n").await.unwrap();
            let flood = vec![b'x'; 1024 * 1024];
            while far.write_all(&flood).await.is_ok() {}
        };

        let (answer, ()) = tokio::join!(multiplexed.one(b"a"), server);

        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Parse);
    }
}
