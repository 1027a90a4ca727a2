//! Can users of one machine share a file on purpose, and only then?

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use super::support::children::{User, Worker, hear, role, say};
use super::support::mount::skip;
use super::support::{Scene, acquire, connect, holder, key, runtime};
use syncguard_core::{ErrorCode, LockBackend, LockId};
use syncguard_sqlite::{SqliteBackend, SqliteBuilder};

const GROUP: u32 = 61_234;
const FIRST: User = User { id: 61_001, group: GROUP };
const SECOND: User = User { id: 61_002, group: GROUP };

/// A directory of the group in which new files belong to the group; none where we are not root.
fn shared_directory() -> Option<Scene> {
    let scene = Scene::new();
    chown(scene.directory.path(), Some(0), Some(GROUP)).ok()?;
    fs::set_permissions(scene.directory.path(), fs::Permissions::from_mode(0o2770)).unwrap();
    Some(scene)
}

fn modes_and_groups(scene: &Scene) -> Vec<(String, u32, u32)> {
    let mut files: Vec<_> = fs::read_dir(scene.directory.path())
        .unwrap()
        .map(|entry| {
            let (entry, name) = entry.map(|entry| (entry.metadata().unwrap(), entry.file_name())).unwrap();
            (name.into_string().unwrap(), entry.mode() & 0o777, entry.gid())
        })
        .collect();
    files.sort();
    files
}

/// Takes and frees the lock on the parent's word.
fn use_the_lock(builder: SqliteBuilder) {
    let backend = match connect(builder) {
        Ok(backend) => backend,
        Err(error) => return say(format_args!("refused {:?}", error.code())),
    };
    runtime().block_on(async {
        say("open");
        let mut held = None;
        loop {
            match hear().as_str() {
                "take" => {
                    held = holder(acquire(&backend, &key("k"), &LockId::random()).await);
                    say(if held.is_some() { "taken" } else { "contended" });
                }
                "wait" => {
                    let hint = backend.subscribe(&key("k")).await;
                    say("waiting");
                    hint.woken().await;
                    say("woken");
                }
                "free" => {
                    backend.release(&held.take().unwrap().lock_id).await.unwrap();
                    say("freed");
                }
                _ => return,
            }
        }
    });
}

fn ask(worker: &mut Worker, word: &str) -> String {
    worker.tell(word);
    worker.next().unwrap()
}

#[test]
fn users_of_a_group_share_a_file_of_mode_660() {
    if let Some((_, path)) = role() {
        return use_the_lock(SqliteBackend::builder(path).mode(0o660));
    }
    let name = "users::users_of_a_group_share_a_file_of_mode_660";
    let Some(scene) = shared_directory() else { return skip(name) };
    let mut first = Worker::start_as(FIRST, name, "use", &scene.path());
    assert_eq!(first.next().as_deref(), Some("open"));
    let mut second = Worker::start_as(SECOND, name, "use", &scene.path());
    assert_eq!(second.next().as_deref(), Some("open"));

    assert_eq!(ask(&mut first, "take"), "taken");
    assert_eq!(ask(&mut second, "take"), "contended");
    assert_eq!(ask(&mut second, "wait"), "waiting");
    assert_eq!(ask(&mut first, "free"), "freed");
    assert_eq!(second.next().as_deref(), Some("woken"), "a release of one user wakes a waiter of the other");
    assert_eq!(ask(&mut second, "take"), "taken");

    let expected: Vec<_> =
        ["", "-queue", "-shm", "-wal"].map(|suffix| (format!("locks.db{suffix}"), 0o660, GROUP)).into();
    assert_eq!(modes_and_groups(&scene), expected);
}

#[test]
fn a_file_without_a_mode_is_closed_to_other_users_of_the_group() {
    if let Some((_, path)) = role() {
        return use_the_lock(SqliteBackend::builder(path));
    }
    let name = "users::a_file_without_a_mode_is_closed_to_other_users_of_the_group";
    let Some(scene) = shared_directory() else { return skip(name) };
    let mut first = Worker::start_as(FIRST, name, "use", &scene.path());
    assert_eq!(first.next().as_deref(), Some("open"));

    let mut second = Worker::start_as(SECOND, name, "use", &scene.path());

    assert_eq!(second.next().as_deref(), Some("refused InvalidArgument"));
    assert!(modes_and_groups(&scene).iter().all(|(_, mode, _)| *mode == 0o600));
}

#[test]
fn what_root_puts_beside_a_users_file_stays_usable_for_that_user() {
    if let Some((_, path)) = role() {
        return use_the_lock(SqliteBackend::builder(path));
    }
    let name = "users::what_root_puts_beside_a_users_file_stays_usable_for_that_user";
    let Some(scene) = shared_directory() else { return skip(name) };
    let mut user = Worker::start_as(FIRST, name, "use", &scene.path());
    assert_eq!(user.next().as_deref(), Some("open"));
    drop(user);
    for suffix in ["-queue", "-shm", "-wal"] {
        fs::remove_file(format!("{}{suffix}", scene.path().display())).unwrap();
    }

    drop(scene.open());

    let mut user = Worker::start_as(FIRST, name, "use", &scene.path());
    assert_eq!(user.next().as_deref(), Some("open"));
    assert_eq!(ask(&mut user, "take"), "taken");
}

#[test]
fn a_file_that_exists_with_another_mode_is_refused_and_kept() {
    let scene = Scene::new();
    drop(scene.open());

    let error = connect(SqliteBackend::builder(scene.path()).mode(0o660)).unwrap_err();

    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    assert!(error.to_string().ends_with("has mode 600, not 660"), "{error}");
    assert_eq!(mode_of(&scene.path()), 0o600);
    let held_open = scene.open();
    assert!(connect(SqliteBackend::builder(scene.path()).mode(0o660)).is_err(), "also where it is open already");
    drop(held_open);
}

#[test]
fn files_that_a_stranger_put_where_everybody_may_are_refused() {
    let scene = Scene::new();
    drop(scene.open());
    let all = ["", "-queue", "-shm", "-wal"].map(|suffix| format!("{}{suffix}", scene.path().display()));
    let open_to = |mode| fs::set_permissions(scene.directory.path(), fs::Permissions::from_mode(mode)).unwrap();
    for file in &all {
        if chown(file, Some(FIRST.id), None).is_err() {
            return skip("users::files_that_a_stranger_put_where_everybody_may_are_refused");
        }
        open_to(0o1777);
        let error = connect(SqliteBackend::builder(scene.path())).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        assert!(error.to_string().starts_with(&format!("{file} belongs to another user")), "{error}");
        open_to(0o755);
        for file in &all {
            chown(file, Some(0), None).unwrap();
        }
    }
    open_to(0o1777);
    drop(scene.open());
}

#[test]
fn modes_that_make_no_sense_are_refused() {
    let scene = Scene::new();
    for mode in [0o666, 0o400, 0o777, 0] {
        let error = connect(SqliteBackend::builder(scene.path()).mode(mode)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{mode:o}");
    }
    assert!(!scene.path().exists());
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}
