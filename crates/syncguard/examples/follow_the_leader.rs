//! Several candidates, one leader, and a successor when it steps down.
//!
//! The term of a leader is its fence: work that carries the term can be refused when a later leader has been at it.
//! `cargo run -p syncguard --example follow_the_leader`

use syncguard::{Fence, LockError};

/// Each of three candidates leads for a moment; returns who led in which term, in order.
pub(crate) async fn story(url: &str) -> Result<Vec<(u32, Fence)>, LockError> {
    let locker = syncguard::connect(url).await?;
    let (record, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let candidates: Vec<_> = (1..=3)
        .map(|name| {
            let (locker, record) = (locker.clone(), record.clone());
            tokio::spawn(async move {
                let leader = locker.elect("leader:mailer").label(format!("host-{name}")).campaign().await?;
                // Whatever a leader does; `leader.lost()` tells it when it no longer is one.
                let _ = record.send((name, leader.term()));
                leader.resign().await
            })
        })
        .collect();
    for candidate in candidates {
        candidate.await.map_err(|error| LockError::internal("a candidate panicked").with_source(error))??;
    }
    drop(record);
    let mut terms = Vec::new();
    while let Some(term) = seen.recv().await {
        terms.push(term);
    }
    // Nothing is left to its lease when the program ends.
    locker.shutdown(std::time::Duration::from_secs(5)).await;
    Ok(terms)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), LockError> {
    let url = std::env::var("SYNCGUARD_URL").unwrap_or_else(|_| "memory:".to_owned());
    for (name, term) in story(&url).await? {
        println!("host-{name} led in term {term}");
    }
    Ok(())
}
