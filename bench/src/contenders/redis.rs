//! Locks on Redis that write one key and count nothing.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use distributed_lock_core::traits::{DistributedLock, LockHandle, LockProvider};
use distributed_lock_redis::{RedisLockHandle, RedisLockProvider};
use rslock::LockManager;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use crate::contender::{Boxed, Contender, LEASE, Lock, Pairs, Taken, free, millis};

/// Deletes the key if its value is still ours, as the documentation of `SET` recommends.
const COMPARE_AND_DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

const ID: &str = "AAAAAAAAAAAAAAAAAAAAAA";

/// The least that a client can do: one socket, requests put together beforehand, those of all tasks written at once.
pub(super) struct Raw {
    socket: Mutex<TcpStream>,
    script: String,
}

impl Raw {
    pub(super) async fn connect(port: u16) -> Result<Self> {
        let mut socket = TcpStream::connect(("127.0.0.1", port)).await?;
        socket.set_nodelay(true)?;
        socket.write_all(&packed(&["SCRIPT", "LOAD", COMPARE_AND_DELETE])).await?;
        let mut answer = [0; 128];
        let count = socket.read(&mut answer).await?;
        let script = String::from_utf8_lossy(&answer[..count]).lines().nth(1).context("no digest")?.to_owned();
        Ok(Self { socket: Mutex::new(socket), script })
    }
}

impl Contender for Raw {
    fn pairs(&self, tasks: usize, slice: Duration) -> Boxed<'_, Pairs> {
        Box::pin(async move {
            let mut socket = self.socket.lock().await;
            let lease = LEASE.as_millis().to_string();
            let all = |words: &dyn Fn(&str) -> Vec<u8>| -> Vec<u8> {
                (0..tasks).flat_map(|task| words(&format!("raw:{task}"))).collect()
            };
            let acquires = all(&|key| packed(&["SET", key, ID, "NX", "PX", &lease]));
            let releases = all(&|key| packed(&["EVALSHA", &self.script, "1", key, ID]));
            let (start, mut took, mut done) = (Instant::now(), Vec::new(), 0);
            while start.elapsed() < slice {
                let pair = Instant::now();
                exchange(&mut socket, &acquires, b"+OK\r\n", tasks).await?;
                exchange(&mut socket, &releases, b":1\r\n", tasks).await?;
                took.push(millis(pair.elapsed()));
                done += tasks;
            }
            Ok(Pairs { per_second: done as f64 / start.elapsed().as_secs_f64(), took })
        })
    }
}

async fn exchange(socket: &mut TcpStream, request: &[u8], answer: &[u8], count: usize) -> Result<()> {
    socket.write_all(request).await?;
    let mut answers = vec![0; answer.len() * count];
    socket.read_exact(&mut answers).await?;
    ensure!(answers.chunks(answer.len()).all(|one| one == answer), "{}", String::from_utf8_lossy(&answers));
    Ok(())
}

fn packed(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
    }
    bytes
}

/// Redlock over these servers.
pub(super) fn rslock(urls: &[String]) -> Box<dyn Contender> {
    Taken::boxed(Rslock(LockManager::new(urls.to_vec())))
}

struct Rslock(LockManager);

impl Lock for Rslock {
    type Held = rslock::Lock;

    async fn acquire(&self, key: &str) -> Result<rslock::Lock> {
        Ok(self.0.lock(format!("rslock:{key}").as_str(), LEASE).await?)
    }

    async fn release(&self, held: rslock::Lock) -> Result<()> {
        self.0.unlock(&held).await;
        Ok(())
    }

    /// It tries three times, up to 200 ms apart, and gives up; whoever wants the lock calls again.
    async fn wait(&self, key: &str) -> Result<rslock::Lock> {
        loop {
            match self.0.lock(format!("rslock:{key}").as_str(), LEASE).await {
                Ok(lock) => return Ok(lock),
                Err(rslock::LockError::Unavailable) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The crate `distributed-lock`. It does not wait: `acquire` gives up when the lock is held, whatever the timeout.
pub(super) async fn distributed_lock(url: &str) -> Result<Box<dyn Contender>> {
    let provider = RedisLockProvider::new(url).await?;
    Ok(Box::new(Impatient(Taken(std::sync::Arc::new(Distributed(provider))))))
}

/// A lock that nobody can wait for.
struct Impatient<L>(Taken<L>);

impl<L: Lock> Contender for Impatient<L> {
    fn pairs(&self, tasks: usize, slice: Duration) -> Boxed<'_, Pairs> {
        self.0.pairs(tasks, slice)
    }

    fn hold(&self, count: usize) -> Option<Boxed<'_, Box<dyn std::any::Any>>> {
        self.0.hold(count)
    }
}

struct Distributed(RedisLockProvider);

impl Lock for Distributed {
    type Held = RedisLockHandle;

    async fn acquire(&self, key: &str) -> Result<RedisLockHandle> {
        free(self.0.create_lock(key).try_acquire().await?)
    }

    async fn release(&self, held: RedisLockHandle) -> Result<()> {
        Ok(held.release().await?)
    }
}
