//! What if the server at the other end means harm, is broken, or is not the one we asked for?
//!
//! Every case is a server on the loopback that answers whatever a generator made up. Nothing may panic, hang past its
//! timeout, or repeat a password that the server sent back.

mod answers;
mod certificates;
mod damage;
mod rows;
mod server;

use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, TestRunner};
use syncguard::{AcquireRequest, AnyBackend, Key, LockBackend, LockError, LockId, Lookup, Result, Ttl};

/// A password that must never be shown.
const CANARY: &str = "canary-7Yq2";

/// Far beyond every timeout of these tests: a case that takes longer hangs.
const HANG: Duration = Duration::from_secs(90);

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Counts panics of all threads from now on: those of a driver's own task would go unseen.
fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.fetch_add(1, Ordering::SeqCst);
            before(panic);
        }));
    });
}

fn panics() -> usize {
    PANICS.load(Ordering::SeqCst)
}

/// Makes cases. More with `PROPTEST_CASES`, others with another seed of the day there.
fn generate<T>(strategy: &impl Strategy<Value = T>, cases: usize) -> Vec<T> {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|count| count.parse().ok());
    let mut runner = match asked {
        Some(_) => TestRunner::new(Config::default()),
        None => TestRunner::deterministic(),
    };
    (0..asked.unwrap_or(cases)).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

/// Every operation once. What fails is returned.
async fn use_all(backend: &AnyBackend, key: &Key) -> Vec<LockError> {
    let (id, ttl) = (LockId::random(), Ttl::from_millis(1000).unwrap());
    let mut errors = Vec::new();
    errors.extend(backend.acquire(AcquireRequest::new(key, &id, ttl)).await.err());
    errors.extend(backend.extend(&id, ttl).await.err());
    errors.extend(backend.is_locked(key).await.err());
    errors.extend(backend.lookup(Lookup::Key(key)).await.err());
    errors.extend(backend.lookup(Lookup::LockId(&id)).await.err());
    errors.extend(backend.release(&id).await.err());
    errors
}

/// Connects and uses a backend; judges every error.
async fn judge(connecting: impl Future<Output = Result<AnyBackend>>) -> Result<(), String> {
    let key = Key::new("hostile").unwrap();
    let work = async {
        match connecting.await {
            Ok(backend) => use_all(&backend, &key).await,
            Err(error) => vec![error],
        }
    };
    let errors = tokio::time::timeout(HANG, work).await.map_err(|_| "it hangs".to_owned())?;
    for error in errors {
        let mut shown = format!("{error}\n{error:?}\n{}", error.hint().unwrap_or(""));
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            shown = format!("{shown}\n{error}\n{error:?}");
            cause = error.source();
        }
        if shown.contains(CANARY) {
            return Err(format!("a password is shown: {shown}"));
        }
        if error.to_string().len() > 1024 {
            return Err(format!("a message of {} bytes", error.to_string().len()));
        }
    }
    Ok(())
}
