//! Does guarded data accept the fences of another backend, as the page on moving says?
#![cfg(all(feature = "sqlite", feature = "redis", feature = "fenced"))]

use syncguard::fenced::{FenceError, RunFenced, sqlite};
use syncguard::{Fence, connect};

#[tokio::test]
async fn a_backend_that_starts_above_the_old_counter_is_accepted_and_one_that_starts_at_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let mut data = rusqlite::Connection::open_in_memory().unwrap();
    sqlite::install(&data).unwrap();
    let mut write = async |url: &str| {
        let request = connect(url).await.unwrap().lock("ledger");
        request.run_fenced(&mut data, |_| Ok::<_, FenceError>(())).await
    };
    let old = format!("sqlite:{}", folder.path().join("locks.db").display());
    for _ in 0..3 {
        write(&old).await.unwrap();
    }

    let new = format!("{}?prefix=moving-{}", syncguard_testkit::redis_url(), std::process::id());
    let refused = write(&new).await.unwrap_err();
    write(&format!("{new}&fence_floor=clock")).await.unwrap();

    assert_eq!(refused.stale().unwrap().seen, Fence::new(3).unwrap());
    assert_eq!(refused.http_status(), 412);
}
