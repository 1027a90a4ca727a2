//! What happens when the file is not what it should be?

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use super::support::mount::{Mount, skip};
use super::support::{Scene, acquire, holder, key, open, ttl};
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use syncguard_core::{AcquireRequest, ErrorCode, HealthStatus, LockBackend, LockError, LockId};
use syncguard_sqlite::SqliteBackend;

fn refused(path: &Path) -> LockError {
    open(path).expect_err("the path is not fit")
}

fn assert_config_error(path: &Path, word: &str) {
    let error = refused(path);
    assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error:?}");
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(error.to_string().contains(name), "the path is not in: {error}");
    assert!(error.to_string().contains(word), "no {word:?} in: {error}");
    assert!(error.hint().is_some());
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_new_file_and_those_beside_it_are_for_their_owner_only() {
    let scene = Scene::new();
    let _backend = scene.open();

    let mut names: Vec<_> = fs::read_dir(scene.directory.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    let shown: Vec<_> = names.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(shown, ["locks.db", "locks.db-queue", "locks.db-shm", "locks.db-wal"]);
    for path in names {
        assert_eq!(mode_of(&path), 0o600, "{}", path.display());
    }
}

#[test]
fn paths_that_cannot_hold_locks_are_refused_by_name() {
    let scene = Scene::new();
    let directory = scene.directory.path();
    fs::create_dir(directory.join("folder")).unwrap();
    assert_config_error(&directory.join("folder"), "a directory");
    assert_config_error(&directory.join("missing/locks.db"), "does not exist");
    assert_config_error(Path::new("/dev/null"), "a device");
    fs::write(directory.join("file"), "").unwrap();
    assert_config_error(&directory.join("file/locks.db"), "is not a directory");
    assert_eq!(refused(Path::new("/")).code(), ErrorCode::InvalidArgument);
    assert_eq!(refused(Path::new("")).code(), ErrorCode::InvalidArgument);
    assert!(refused(Path::new(":memory:")).hint().unwrap().contains("memory:"));
}

#[test]
fn a_symbolic_link_is_refused_and_its_target_untouched() {
    let scene = Scene::new();
    let (target, link) = (scene.directory.path().join("target"), scene.directory.path().join("link.db"));
    fs::write(&target, "").unwrap();
    symlink(&target, &link).unwrap();
    assert_config_error(&link, "a symbolic link");
    assert_eq!(fs::metadata(&target).unwrap().len(), 0);

    let dangling = scene.directory.path().join("dangling.db");
    symlink(scene.directory.path().join("nowhere"), &dangling).unwrap();
    assert_config_error(&dangling, "a symbolic link");
    assert!(!scene.directory.path().join("nowhere").exists());
}

#[test]
fn a_file_with_two_names_is_refused() {
    let scene = Scene::new();
    drop(scene.open());
    fs::hard_link(scene.path(), scene.directory.path().join("other.db")).unwrap();
    assert_config_error(&scene.directory.path().join("other.db"), "a hard link");
}

#[test]
fn a_directory_behind_a_link_is_the_same_place() {
    let scene = Scene::new();
    let link = scene.directory.path().join("here");
    symlink(scene.directory.path(), &link).unwrap();
    let through = open(link.join("locks.db")).unwrap();
    assert_eq!(through.path(), scene.open().path());
}

#[test]
fn a_read_only_file_is_refused() {
    let scene = Scene::new();
    drop(scene.open());
    fs::set_permissions(scene.path(), fs::Permissions::from_mode(0o444)).unwrap();
    assert_config_error(&scene.path(), "read-only");
}

#[test]
fn a_directory_in_which_everybody_may_replace_files_is_refused() {
    let scene = Scene::new();
    fs::set_permissions(scene.directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    assert_config_error(&scene.path(), "everybody may replace");
    fs::set_permissions(scene.directory.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    scene.open();
}

#[test]
fn a_read_only_directory_is_refused() {
    let Some(mount) = Mount::tmpfs("1m") else { return skip("a_read_only_directory_is_refused") };
    mount.remount_read_only();
    assert_config_error(&mount.path().join("locks.db"), "cannot be written");
}

#[test]
fn a_file_that_is_no_database_is_refused_and_kept() {
    let scene = Scene::new();
    let text = "dear diary\n".repeat(1_000);
    fs::write(scene.path(), &text).unwrap();
    assert_config_error(&scene.path(), "not an SQLite database");
    assert_eq!(fs::read_to_string(scene.path()).unwrap(), text);
    assert_eq!(fs::read_dir(scene.directory.path()).unwrap().count(), 1, "something was put beside it");
}

#[test]
fn another_programs_database_is_refused_and_kept() {
    for (shape, sql) in [
        ("its own id", "PRAGMA application_id = 77"),
        ("tables but no id", "CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)"),
        ("a version but no id", "PRAGMA user_version = 3"),
        ("a log of its own", "PRAGMA journal_mode = WAL; CREATE TABLE theirs (x)"),
    ] {
        let scene = Scene::new();
        let theirs = scene.sql();
        // As if its program had been killed: what is in its log stays there.
        theirs.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).unwrap();
        theirs.execute_batch(sql).unwrap();
        drop(theirs);
        let log = scene.directory.path().join("locks.db-wal");
        let before = (fs::read(scene.path()).unwrap(), fs::read(&log).ok());
        assert_config_error(&scene.path(), "another program's");
        assert_eq!((fs::read(scene.path()).unwrap(), fs::read(&log).ok()), before, "{shape}: it was changed");
        assert!(!scene.directory.path().join("locks.db-queue").exists(), "{shape}: something was put beside it");
    }
}

#[test]
fn a_newer_layout_is_refused() {
    let scene = Scene::new();
    drop(scene.open());
    scene.sql().execute_batch("PRAGMA user_version = 2").unwrap();
    assert_config_error(&scene.path(), "layout 2, this program knows 1");
}

#[test]
fn an_empty_file_becomes_a_file_of_locks() {
    let scene = Scene::new();
    fs::write(scene.path(), "").unwrap();
    scene.open();
}

/// Puts everything into the main file and damages each page but the first, where the header is.
fn corrupt(scene: &Scene) -> Vec<u8> {
    let db = scene.sql();
    db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(db);
    let mut bytes = fs::read(scene.path()).unwrap();
    for byte in &mut bytes[4096..] {
        *byte = 0x5a;
    }
    fs::write(scene.path(), &bytes).unwrap();
    bytes
}

#[tokio::test]
async fn a_damaged_page_is_an_internal_error_and_nothing_is_rewritten() {
    let scene = Scene::new();
    let backend = scene.open();
    holder(acquire(&backend, &key("k"), &LockId::random()).await).unwrap();
    drop(backend);
    let damaged = corrupt(&scene);

    let backend = scene.open();
    let (locked, lock_id) = (key("k"), LockId::random());
    let request = AcquireRequest::new(&locked, &lock_id, ttl());
    let error = backend.acquire(request).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Internal, "{error:?}");
    assert!(error.to_string().contains("malformed"), "{error}");
    assert_eq!(backend.is_locked(&key("k")).await.unwrap_err().code(), ErrorCode::Internal);
    let report = backend.health().await;
    assert_eq!(report.worst(), HealthStatus::Fail);

    drop(backend);
    assert_eq!(fs::read(scene.path()).unwrap(), damaged);
}

#[tokio::test]
async fn a_file_that_was_taken_away_is_noticed_at_once() {
    for victim in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        let scene = Scene::new();
        let backend = scene.open();
        let held = holder(acquire(&backend, &key("k"), &LockId::random()).await).unwrap();
        fs::remove_file(scene.directory.path().join(victim)).unwrap();

        let (locked, lock_id) = (key("other"), LockId::random());
        let request = AcquireRequest::new(&locked, &lock_id, ttl());
        let error = backend.acquire(request).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{victim}: {error:?}");
        assert!(error.to_string().contains("deleted or replaced"), "{error}");
        assert!(!error.is_ambiguous());
        assert_eq!(backend.release(&held.lock_id).await.unwrap_err().code(), ErrorCode::ServiceUnavailable);
        assert_eq!(backend.is_locked(&key("k")).await.unwrap_err().code(), ErrorCode::ServiceUnavailable);
        assert_eq!(backend.health().await.worst(), HealthStatus::Fail);
    }
}

#[tokio::test]
async fn a_replaced_file_is_not_written_to_and_a_new_open_finds_it() {
    let scene = Scene::new();
    let backend = scene.open();
    holder(acquire(&backend, &key("k"), &LockId::random()).await).unwrap();
    for suffix in ["", "-wal", "-shm"] {
        fs::remove_file(format!("{}{suffix}", scene.path().display())).unwrap();
    }

    let fresh = scene.open();
    let first = holder(acquire(&fresh, &key("k"), &LockId::random()).await).unwrap();

    assert_eq!(first.lease.fence.get(), 1, "it is another file");
    assert!(backend.is_locked(&key("k")).await.is_err(), "the old one does not answer from a file that is gone");
}

#[tokio::test]
async fn a_deleted_queue_file_is_made_anew() {
    let scene = Scene::new();
    let backend = scene.open();
    let queue = scene.directory.path().join("locks.db-queue");
    fs::remove_file(&queue).unwrap();

    let held = holder(acquire(&backend, &key("k"), &LockId::random()).await).unwrap();

    assert!(backend.release(&held.lock_id).await.unwrap().is_released());
    assert!(queue.exists());
}

#[tokio::test]
async fn a_full_disk_refuses_locks_and_repeats_no_fence() {
    let Some(mount) = Mount::tmpfs("1m") else { return skip("a_full_disk_refuses_locks_and_repeats_no_fence") };
    let backend = open(mount.path().join("locks.db")).unwrap();
    let filler = mount.path().join("filler");
    let mut highest = 0;
    for round in 0..5 {
        // Takes what is left to the last page.
        let _ = fs::write(&filler, vec![0; 1 << 20]);
        let error = loop {
            let (key, id) = (key("k"), LockId::random());
            let request = AcquireRequest::new(&key, &id, ttl());
            match backend.acquire(request).await {
                Ok(outcome) => {
                    let held = holder((id, outcome)).unwrap();
                    assert!(held.lease.fence.get() > highest, "a fence came twice");
                    highest = held.lease.fence.get();
                    if let Err(error) = backend.release(&held.lock_id).await {
                        break error;
                    }
                }
                Err(error) => break error,
            }
        };
        assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "round {round}: {error:?}");
        fs::remove_file(&filler).unwrap();
        free_by_hand(&backend).await;
    }
    let held = holder(acquire(&backend, &key("k"), &LockId::random()).await).unwrap();
    assert!(held.lease.fence.get() > highest);
}

/// Ends what a failed release left behind.
async fn free_by_hand(backend: &SqliteBackend) {
    let left = backend.lookup(syncguard_core::Lookup::Key(&key("k"))).await.unwrap();
    if let Some(left) = left {
        backend.release(left.reveal().lock_id).await.unwrap();
    }
}

#[tokio::test]
async fn a_damaged_row_fails_alone_among_sixty_four() {
    let scene = Scene::new();
    let backend = scene.open();
    let sql = "INSERT INTO syncguard_fence_counters (fence_key, fence) VALUES ('fence:k7', -5)";
    scene.sql().execute(sql, []).unwrap();

    let turn = scene.block_writers();
    let tasks: Vec<_> = (0..64)
        .map(|task| {
            let backend = backend.clone();
            tokio::spawn(async move {
                let (key, id) = (key(&format!("k{task}")), LockId::random());
                backend.acquire(AcquireRequest::new(&key, &id, ttl())).await
            })
        })
        .collect();
    tokio::task::yield_now().await;
    drop(turn);

    for (task, outcome) in tasks.into_iter().enumerate() {
        let outcome = outcome.await.unwrap();
        assert_eq!(outcome.is_err(), task == 7, "task {task}: {outcome:?}");
    }
}

#[tokio::test]
async fn one_lock_id_cannot_own_two_locks_and_its_company_does_not_suffer() {
    let scene = Scene::new();
    let backend = scene.open();
    let id = LockId::random();
    holder(acquire(&backend, &key("first"), &id).await).unwrap();

    let turn = scene.block_writers();
    let (second, other) = (key("second"), key("other"));
    let stranger = LockId::random();
    let both = async {
        tokio::join!(
            backend.acquire(AcquireRequest::new(&second, &id, ttl())),
            backend.acquire(AcquireRequest::new(&other, &stranger, ttl())),
        )
    };
    let release = async { drop(turn) };
    let ((twice, alone), ()) = tokio::join!(both, release);

    assert_eq!(twice.unwrap_err().code(), ErrorCode::InvalidArgument);
    assert!(holder((stranger.clone(), alone.unwrap())).is_some());
    assert!(!backend.is_locked(&second).await.unwrap());
}

#[test]
fn a_counter_cannot_be_lowered_or_deleted_even_by_hand() {
    let scene = Scene::new();
    drop(scene.open());
    let db: Connection = scene.sql();
    db.execute("INSERT INTO syncguard_fence_counters (fence_key, fence) VALUES ('fence:k', 5)", []).unwrap();
    assert!(db.execute("UPDATE syncguard_fence_counters SET fence = 4", []).is_err());
    assert!(db.execute("DELETE FROM syncguard_fence_counters", []).is_err());
    assert_eq!(db.execute("UPDATE syncguard_fence_counters SET fence = 6", []).unwrap(), 1);
}

#[tokio::test]
async fn a_healthy_file_has_nothing_to_complain_about() {
    let scene = Scene::new();
    let backend = scene.open();

    let report = backend.health().await;

    assert_eq!(report.worst(), HealthStatus::Pass, "{report:#?}");
    let names: Vec<_> = report.checks.iter().map(|check| check.name.as_ref()).collect();
    for name in ["file", "permissions", "filesystem", "space", "integrity", "journal", "durability", "probe", "wake-up"]
    {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
}

#[tokio::test]
async fn forty_first_opens_at_once_all_succeed() {
    let scene = Scene::new();
    let threads: Vec<_> = (0..40)
        .map(|_| {
            let path = scene.path();
            std::thread::spawn(move || open(path).map(drop))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap().unwrap();
    }
}
