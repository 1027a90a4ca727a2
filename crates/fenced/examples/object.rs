//! Objects that refuse a late holder: by conditional put, and in a plain folder.
//!
//! `cargo run -p syncguard-fenced --features object --example object`

use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use syncguard_core::Fence;
use syncguard_fenced::StaleFence;
use syncguard_fenced::object::{FencedObject, FencedVersions};

/// What the late one was told by each store.
pub(crate) async fn story(folder: &std::path::Path) -> Result<[Option<StaleFence>; 2], Box<dyn std::error::Error>> {
    let (older, newer) = (Fence::new(41)?, Fence::new(42)?); // in a program: `lock.fence()`

    let store = InMemory::new(); // S3, GCS or Azure, by the features of `object_store`
    let report = FencedObject::new(&store, Path::from("report.json"));
    report.put(newer, "{}").await?;
    let by_condition = report.put(older, "late").await.err().and_then(|error| error.stale());

    // A folder has no conditional replace, but "create if absent".
    let store = LocalFileSystem::new_with_prefix(folder)?;
    let report = FencedVersions::new(&store, Path::from("report"));
    report.put(newer, "{}").await?;
    let by_name = report.put(older, "late").await.err().and_then(|error| error.stale());
    assert_eq!(report.get().await?.as_deref(), Some(b"{}".as_slice()));
    Ok([by_condition, by_name])
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    println!("the late holder was told: {:?}", story(folder.path()).await?);
    Ok(())
}
