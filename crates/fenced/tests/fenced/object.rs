//! Does an object store refuse what it should?

use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use syncguard_core::{ErrorCode, Fence};
use syncguard_fenced::object::{FencedObject, FencedVersions};
use syncguard_fenced::{FenceError, StaleFence};

fn fence(number: u64) -> Fence {
    Fence::new(number).unwrap()
}

async fn read(store: &dyn ObjectStore, path: &str) -> Vec<u8> {
    store.get(&Path::from(path)).await.unwrap().bytes().await.unwrap().to_vec()
}

#[tokio::test]
async fn a_stale_holder_cannot_put() {
    let store = InMemory::new();
    let object = FencedObject::new(&store, Path::from("canary"));
    object.put(fence(42), "new").await.unwrap();

    let late = object.put(fence(41), "old").await.unwrap_err();

    assert_eq!(late.stale(), Some(StaleFence { offered: fence(41), seen: fence(42) }));
    assert_eq!(read(&store, "canary").await, b"new");
    object.put(fence(42), "newer").await.unwrap();
    assert_eq!(read(&store, "canary").await, b"newer");
}

#[tokio::test]
async fn of_many_that_add_at_once_none_is_lost() {
    let store = InMemory::new();
    let object = FencedObject::new(&store, Path::from("ledger"));
    let adders = (0..64).map(async |_| object.update(fence(7), |old| [old.unwrap_or_default(), b"x"].concat()).await);

    let accepted = futures_util::future::join_all(adders).await.into_iter().flatten().count();

    assert_eq!(accepted, 64);
    assert_eq!(read(&store, "ledger").await, "x".repeat(64).as_bytes());
}

#[tokio::test]
async fn an_object_without_a_fence_may_be_replaced_and_has_one_then() {
    let store = InMemory::new();
    store.put(&Path::from("k"), "before".into()).await.unwrap();
    let object = FencedObject::new(&store, Path::from("k"));

    object.put(fence(5), "five").await.unwrap();

    assert!(object.put(fence(4), "four").await.unwrap_err().stale().is_some());
}

#[tokio::test]
async fn a_store_without_conditional_puts_is_refused_with_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    let store = LocalFileSystem::new_with_prefix(folder.path()).unwrap();

    let error = FencedObject::new(&store, Path::from("canary")).put(fence(1), "x").await.unwrap_err();

    let FenceError::Failed(failure) = &error else { panic!("{error:?}") };
    assert_eq!(failure.code(), ErrorCode::InvalidArgument);
    assert!(failure.hint().unwrap().contains("FencedVersions"));
    assert!(!format!("{error:?}").contains("canary"), "{error:?}");
}

async fn versions_refuse_a_stale_holder(store: &dyn ObjectStore) {
    let versions = FencedVersions::new(store, Path::from("report"));
    assert_eq!(versions.get().await.unwrap(), None);
    versions.put(fence(9), "nine").await.unwrap();
    versions.put(fence(10), "ten").await.unwrap();
    versions.put(fence(10), "ten again").await.unwrap();

    let late = versions.put(fence(9), "late").await.unwrap_err();

    assert_eq!(late.stale(), Some(StaleFence { offered: fence(9), seen: fence(10) }));
    assert_eq!(versions.get().await.unwrap().unwrap(), b"ten again");
    // One that slips in all the same (here by hand) is read by nobody.
    store.put(&Path::from("report/000000000000009-000000007"), "slipped in".into()).await.unwrap();
    assert_eq!(versions.get().await.unwrap().unwrap(), b"ten again");
}

#[tokio::test]
async fn versions_in_a_folder_refuse_a_stale_holder() {
    let folder = tempfile::tempdir().unwrap();
    versions_refuse_a_stale_holder(&LocalFileSystem::new_with_prefix(folder.path()).unwrap()).await;
}

#[tokio::test]
async fn versions_in_memory_refuse_a_stale_holder() {
    versions_refuse_a_stale_holder(&InMemory::new()).await;
}

#[tokio::test]
async fn what_readers_of_versions_see_never_goes_back() {
    let folder = tempfile::tempdir().unwrap();
    let store = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
    let versions = FencedVersions::new(&store, Path::from("report"));
    let writers = (0..64_u64).map(async |number| {
        let offered = fence(1 + (number * 37) % 64);
        let _ = versions.put(offered, offered.to_string()).await;
    });
    let reader = async {
        let mut last = Vec::new();
        while last != fence(64).to_string().into_bytes() {
            let now = versions.get().await.unwrap().unwrap_or_default();
            assert!(now >= last, "a reader saw an older version after a newer one");
            last = now;
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(futures_util::future::join_all(writers), reader);
}
