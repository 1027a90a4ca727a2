//! Objects that refuse a late holder: where each write is a version of its own, and where versions are hashes.
//!
//! `cargo run -p syncguard-fenced --features object --example object`

use object_store::memory::InMemory;
use object_store::path::Path;
use syncguard_core::Fence;
use syncguard_fenced::StaleFence;
use syncguard_fenced::object::FencedObject;

/// What the late one was told in each form.
pub(crate) async fn story() -> Result<[Option<StaleFence>; 2], Box<dyn std::error::Error>> {
    let (older, newer) = (Fence::new(41)?, Fence::new(42)?); // in a program: `lock.fence()`
    let store = InMemory::new(); // in a program: S3, GCS or Azure, by the features of `object_store`

    // GCS, Azure: the object holds what was put, and nothing else.
    let report = FencedObject::new(&store, Path::from("report.json"));
    report.announce(newer).await?; // before you read what you decide by
    report.put(newer, "{}").await?;
    let plain = report.put(older, "late").await.err().and_then(|error| error.stale());

    // S3, R2, MinIO: its first line is the fence.
    let report = FencedObject::enveloped(&store, Path::from("report.txt"));
    report.put(newer, "by the successor").await?;
    let enveloped = report.put(older, "late").await.err().and_then(|error| error.stale());
    assert_eq!(report.get().await?.as_deref(), Some(b"by the successor".as_slice()));
    Ok([plain, enveloped])
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("the late holder was told: {:?}", story().await?);
    Ok(())
}
