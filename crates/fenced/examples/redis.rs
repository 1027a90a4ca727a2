//! Keys of Redis that refuse a late holder, in one round trip.
//!
//! `REDIS_URL=redis://127.0.0.1 cargo run -p syncguard-fenced --features redis --example redis`

use syncguard_core::Fence;
use syncguard_fenced::StaleFence;
use syncguard_fenced::redis::{FencedScript, fenced_set};

/// Two holders write, and the first one comes back. Returns the value, and what the late one was told.
pub(crate) async fn story(url: &str, key: &str) -> Result<(i64, Option<StaleFence>), Box<dyn std::error::Error>> {
    let mut connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let (older, newer) = (Fence::new(41)?, Fence::new(42)?); // in a program: `lock.fence()`

    fenced_set(&mut connection, key, "100", older).await?;
    // A script of yours, which runs only under a current fence.
    let take = FencedScript::new("return redis.call('DECRBY', KEYS[1], ARGV[1])");
    take.key(key).arg(20).run(&mut connection, newer).await?;

    let late = fenced_set(&mut connection, key, "0", older).await.err().and_then(|error| error.stale());
    Ok((redis::cmd("GET").arg(key).query_async(&mut connection).await?, late))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (value, late) = story(&std::env::var("REDIS_URL")?, "syncguard:example:ledger").await?;
    println!("the value is {value}; the late holder was told: {late:?}");
    Ok(())
}
