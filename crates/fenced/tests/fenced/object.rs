//! Does an object store refuse what it should?

use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use syncguard_core::{ErrorCode, Fence};
use syncguard_fenced::object::FencedObject;
use syncguard_fenced::{FenceError, StaleFence};

use crate::support::shelf::{ETags, Shelf};

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
    assert!(failure.hint().unwrap().contains("FencedFile"));
    assert!(!format!("{error:?}").contains("canary"), "{error:?}");
}

/// Holder 41 has looked and is paused before its put; 42 writes the same bytes as before; 41 goes on.
async fn a_stale_put_on_the_version_it_saw(shelf: &Shelf, open: impl Fn(&Shelf) -> FencedObject<'_, Shelf>) {
    let elsewhere = shelf.of_another_process();
    let (object, late) = (open(shelf), open(&elsewhere));
    object.put(fence(41), "same").await.unwrap();
    elsewhere.pause_the_next_put();
    let late = late.put(fence(41), "late");

    let (stale, ()) = tokio::join!(late, async {
        elsewhere.somebody_is_paused().await;
        object.put(fence(42), "same").await.unwrap();
        elsewhere.go_on();
    });

    assert_eq!(stale.unwrap_err().stale(), Some(StaleFence { offered: fence(41), seen: fence(42) }));
    assert_eq!(object.get().await.unwrap().unwrap(), b"same");
    assert_eq!(object.highest().await.unwrap(), Some(fence(42)));
}

#[tokio::test]
async fn a_stale_put_is_refused_though_the_contents_are_the_same_again() {
    let path = || Path::from("report");
    for tags in [ETags::OfContents, ETags::Generations] {
        a_stale_put_on_the_version_it_saw(&Shelf::new(tags), |shelf| FencedObject::enveloped(shelf, path())).await;
    }
    let counting = Shelf::new(ETags::Generations);
    a_stale_put_on_the_version_it_saw(&counting, |shelf| FencedObject::new(shelf, path())).await;
}

#[tokio::test]
async fn a_store_that_cannot_tell_a_stale_writer_is_refused_before_anything_is_written() {
    let (mut careless, hashing) = (Shelf::new(ETags::Generations), Shelf::new(ETags::OfContents));
    careless.is_careless = true;
    let path = || Path::from("canary");
    let objects = [
        FencedObject::new(&hashing, path()),
        FencedObject::new(&careless, path()),
        FencedObject::enveloped(&careless, path()),
    ];
    for object in objects {
        let error = object.put(fence(1), "x").await.unwrap_err();
        let FenceError::Failed(failure) = &error else { panic!("{error:?}") };
        assert_eq!(failure.code(), ErrorCode::InvalidArgument);
        assert!(!format!("{error:?}").contains("canary"), "{error:?}");
        assert_eq!(object.get().await.unwrap(), None);
    }
}

#[tokio::test]
async fn a_change_whose_answer_was_lost_is_made_once() {
    for tags in [ETags::OfContents, ETags::Generations] {
        let shelf = Shelf::new(tags);
        let ledger = FencedObject::enveloped(&shelf, Path::from("ledger"));
        let append = |old: Option<&[u8]>| [old.unwrap_or_default(), b"x"].concat();
        ledger.update(fence(7), append).await.unwrap();

        shelf.lose_answers(1);
        futures_util::future::join_all((0..8).map(|_| ledger.update(fence(7), append))).await;

        assert_eq!(ledger.get().await.unwrap().unwrap(), b"xxxxxxxxx", "{tags:?}");
    }
}

#[tokio::test]
async fn the_fence_of_an_object_counts_in_either_form() {
    let store = InMemory::new();
    let (plain, enveloped) =
        (FencedObject::new(&store, Path::from("k")), FencedObject::enveloped(&store, Path::from("k")));
    plain.put(fence(7), "text").await.unwrap();
    assert!(enveloped.put(fence(6), "late").await.unwrap_err().stale().is_some());

    enveloped.announce(fence(8)).await.unwrap();

    assert!(read(&store, "k").await.starts_with(b"syncguard-fence 000000000000008 "));
    assert_eq!(plain.get().await.unwrap().unwrap(), b"text");
    assert!(plain.put(fence(7), "late").await.unwrap_err().stale().is_some());
}
