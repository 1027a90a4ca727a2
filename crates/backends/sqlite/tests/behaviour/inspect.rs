//! What do operators see, also in files and beside programs of the first version?

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, params};
use syncguard_core::{
    AcquireRequest, AskOutcome, Inspector, Label, ListRequest, LockBackend, LockId, LockInfo, Locker, Lookup, Renewal,
    Ttl,
};
use syncguard_sqlite::SqliteBackend;

use super::support::children::{Worker, hear, role, say};
use super::support::{Scene, acquire, holder, key, open, runtime, ttl};

/// Far more than a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(60);
/// An expiry that no test lives to see.
const FAR: i64 = 9_000_000_000_000;

fn inspector(backend: &SqliteBackend) -> Inspector {
    backend.inspector().expect("a file can be inspected")
}

/// All pages of a listing.
async fn list(backend: &SqliteBackend, prefix: &str, page_size: u32) -> Vec<LockInfo> {
    let (inspector, mut cursor, mut locks) = (inspector(backend), None, Vec::new());
    for _ in 0..1000 {
        let request = ListRequest::new(prefix).page_size(page_size).after(cursor.as_ref());
        let page = inspector.list(request).await.unwrap();
        locks.extend(page.locks);
        cursor = page.next;
        if cursor.is_none() {
            return locks;
        }
    }
    panic!("the listing has no end");
}

async fn seen(backend: &SqliteBackend, name: &str) -> LockInfo {
    backend.lookup(Lookup::Key(&key(name))).await.unwrap().expect("it is held")
}

fn told(info: &LockInfo) -> (Option<&str>, Option<Ttl>, bool) {
    (info.label().map(Label::as_str), info.ttl(), info.is_asked_for())
}

fn minutes(count: u64) -> Ttl {
    Ttl::new(Duration::from_secs(60 * count)).unwrap()
}

async fn take_labelled(backend: &SqliteBackend, name: &str, label: &str) -> LockId {
    let (key, id, label) = (key(name), LockId::random(), Label::new(label).unwrap());
    let request = AcquireRequest::new(&key, &id, minutes(10)).with_label(Some(&label));
    let outcome = backend.acquire(request).await.unwrap();
    holder((id, outcome)).unwrap().lock_id
}

#[tokio::test]
async fn a_holder_is_seen_with_its_label_and_hears_that_it_was_asked() {
    let scene = Scene::new();
    let backend = scene.open();
    let locker = Locker::new(backend.clone());
    let request = locker.lock("deploy").ttl(Duration::from_secs(600)).label("ada@web-1:77 migrate");
    let guard = request.acquire().await.unwrap();

    let info = seen(&backend, "deploy").await;
    assert_eq!(told(&info), (Some("ada@web-1:77 migrate"), Some(minutes(10)), false));
    assert_eq!(info.renewal(), Renewal::NotYet);
    assert_eq!(told(&list(&backend, "dep", 10).await[0]), told(&info));

    assert_eq!(inspector(&backend).ask(guard.lock_id()).await.unwrap(), AskOutcome::Asked);
    assert!(seen(&backend, "deploy").await.is_asked_for());
    assert!(!guard.is_asked_for(), "it has not spoken with the file since");
    // A renewal in the same millisecond as the acquisition could not be told from none.
    std::thread::sleep(Duration::from_millis(2));
    assert!(guard.extend(Duration::from_secs(1200)).await.unwrap().is_extended());
    assert!(guard.is_asked_for());
    let info = seen(&backend, "deploy").await;
    assert_eq!(told(&info), (Some("ada@web-1:77 migrate"), Some(minutes(20)), true));
    assert!(matches!(info.renewal(), Renewal::Renewed { .. }), "{:?}", info.renewal());

    // The mark ends with the lock.
    let id = guard.lock_id().clone();
    assert!(guard.release().await.unwrap().is_released());
    assert_eq!(inspector(&backend).ask(&id).await.unwrap(), AskOutcome::Absent);
    holder(acquire(&backend, &key("deploy"), &LockId::random()).await).unwrap();
    assert_eq!(told(&seen(&backend, "deploy").await), (None, Some(ttl()), false));
}

#[tokio::test]
async fn who_takes_a_dead_lock_over_is_not_shown_with_its_label_and_not_asked() {
    let scene = Scene::new();
    let backend = scene.open();
    let id = take_labelled(&backend, "k", "ada").await;
    assert_eq!(inspector(&backend).ask(&id).await.unwrap(), AskOutcome::Asked);
    scene.sql().execute("UPDATE syncguard_locks SET expires_at_ms = 0", []).unwrap();
    assert_eq!(inspector(&backend).ask(&id).await.unwrap(), AskOutcome::Absent, "it is dead");

    holder(acquire(&backend, &key("k"), &LockId::random()).await).unwrap();

    assert_eq!(told(&seen(&backend, "k").await), (None, Some(ttl()), false));
}

#[tokio::test]
async fn a_huge_label_is_not_read_out() {
    let scene = Scene::new();
    let backend = scene.open();
    take_labelled(&backend, "k", "ada").await;
    scene.sql().execute("UPDATE syncguard_locks SET label = CAST(zeroblob(64 << 20) AS TEXT)", []).unwrap();
    assert_eq!(told(&seen(&backend, "k").await).0, None);
    assert_eq!(told(&list(&backend, "", 10).await[0]).0, None);

    // For the whole process, from here on: what reads the label out has no memory for it.
    let db = scene.sql();
    db.pragma_update(None, "hard_heap_limit", 32 << 20).unwrap();
    let label = |sql: &str| db.query_row(sql, [], |row| row.get::<_, Option<String>>("label"));
    let error = label("SELECT label FROM syncguard_locks").unwrap_err();
    assert_eq!(error.sqlite_error_code(), Some(rusqlite::ErrorCode::OutOfMemory));
    for sql in [
        include_str!("../../sql/lock_of_key.sql"),
        include_str!("../../sql/lock_of_id.sql"),
        include_str!("../../sql/list.sql"),
    ] {
        // Without the search: in a table without row numbers SQLite holds a whole row to compare its key.
        assert_eq!(label(sql.split("\nWHERE").next().unwrap()).unwrap(), None, "{sql}");
    }
}

/// A program of the first version: its file and its statements, word for word.
pub(super) struct FirstVersion(Connection);

impl FirstVersion {
    pub(super) fn make(scene: &Scene) -> Self {
        let db = scene.sql();
        let (application, version) = (0x5347_4c4b, 1);
        db.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).unwrap();
        db.execute_batch(include_str!("support/first_version/schema.sql")).unwrap();
        db.pragma_update(None, "application_id", application).unwrap();
        db.pragma_update(None, "user_version", version).unwrap();
        std::fs::set_permissions(scene.path(), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        Self(db)
    }

    pub(super) fn take(&self, name: &str, lock_id: &LockId, label: Option<&str>) -> i64 {
        let name_of_counter = format!("fence:{name}");
        let counter = include_str!("support/first_version/counter.sql");
        let counter = self.0.prepare_cached(counter).unwrap().query_row([&name_of_counter], |row| row.get::<_, i64>(0));
        let fence = counter.unwrap_or(0) + 1;
        let raise = include_str!("support/first_version/raise_counter.sql");
        self.0.prepare_cached(raise).unwrap().execute(params![name_of_counter, fence]).unwrap();
        let take = include_str!("support/first_version/take.sql");
        let row = params![name, lock_id.as_str(), FAR, FAR - 30_000, format!("{fence:015}"), name, label];
        assert_eq!(self.0.prepare_cached(take).unwrap().execute(row).unwrap(), 1);
        fence
    }

    fn renew(&self, name: &str, lock_id: &LockId) -> usize {
        let renew = include_str!("support/first_version/renew.sql");
        self.0.prepare_cached(renew).unwrap().execute(params![name, lock_id.as_str(), FAR + 5]).unwrap()
    }

    pub(super) fn free(&self, name: &str, lock_id: &LockId) -> usize {
        let free = include_str!("support/first_version/free.sql");
        self.0.prepare_cached(free).unwrap().execute(params![name, lock_id.as_str()]).unwrap()
    }

    /// Lock id and label, found by the key and by the id.
    fn look(&self, name: &str) -> (String, Option<String>) {
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(1)?, row.get(6)?));
        let by_key = include_str!("support/first_version/lock_of_key.sql");
        let by_key: (String, Option<String>) = self.0.prepare_cached(by_key).unwrap().query_row([name], read).unwrap();
        let by_id = include_str!("support/first_version/lock_of_id.sql");
        let by_id = self.0.prepare_cached(by_id).unwrap().query_row([&by_key.0], read).unwrap();
        assert_eq!(by_key, by_id);
        by_key
    }
}

#[tokio::test]
async fn a_file_of_the_first_version_is_completed_and_stays_usable_for_its_programs() {
    let scene = Scene::new();
    let old = FirstVersion::make(&scene);
    let (before, plain) = (LockId::random(), LockId::random());
    old.take("before", &before, Some("bob"));
    old.take("plain", &plain, None);

    let backend = scene.open();

    assert_eq!(told(&seen(&backend, "before").await), (Some("bob"), None, false));
    assert_eq!(seen(&backend, "before").await.renewal(), Renewal::Unknown);
    assert_eq!(told(&seen(&backend, "plain").await), (None, None, false));
    // Both are asked for and renewed by us, who keep what the first version wrote.
    for (id, label) in [(&before, Some("bob")), (&plain, None)] {
        assert_eq!(inspector(&backend).ask(id).await.unwrap(), AskOutcome::Asked);
        let info = backend.lookup(Lookup::LockId(id)).await.unwrap().unwrap();
        assert_eq!(told(&info), (label, None, true));
        assert!(backend.extend(id, minutes(10)).await.unwrap().is_extended());
        let info = backend.lookup(Lookup::LockId(id)).await.unwrap().unwrap();
        assert_eq!(told(&info), (label, Some(minutes(10)), true));
    }

    // Its program was running all the time, with statements prepared before the columns came.
    let ours = take_labelled(&backend, "ours", "ada").await;
    assert_eq!(old.look("ours"), (ours.as_str().to_owned(), Some("ada".to_owned())));
    assert_eq!(old.renew("ours", &ours), 1);
    assert_eq!(seen(&backend, "ours").await.label().map(Label::as_str), Some("ada"));
    assert_eq!((old.free("ours", &ours), old.free("before", &before)), (1, 1));
    let theirs = LockId::random();
    assert!(old.take("ours", &theirs, Some("bob")) > 1, "fences go on");
    assert_eq!(told(&seen(&backend, "ours").await), (Some("bob"), None, false));
    assert!(backend.release(&theirs).await.unwrap().is_released());
    let version: i64 = scene.sql().query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(version, 1, "the first version refuses another number");
}

#[tokio::test]
async fn a_writer_that_does_not_know_the_columns_leaves_no_wrong_name_behind() {
    let scene = Scene::new();
    let backend = scene.open();
    let old = FirstVersion(scene.sql());
    let by_six_columns = |lock_id: &LockId| {
        let sql = "INSERT INTO syncguard_locks (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key)
                   VALUES ('k', ?1, 9000000000000, 1, '000000000000009', 'k')
                   ON CONFLICT (key) DO UPDATE SET lock_id = excluded.lock_id, expires_at_ms = excluded.expires_at_ms,
                   acquired_at_ms = excluded.acquired_at_ms, fence = excluded.fence, user_key = excluded.user_key";
        scene.sql().execute(sql, [lock_id.as_str()]).unwrap();
    };
    let by_first_version = |lock_id: &LockId| {
        old.take("k", lock_id, None);
    };
    let writers: [&dyn Fn(&LockId); 2] = [&by_six_columns, &by_first_version];
    for take_over in writers {
        let former = take_labelled(&backend, "k", "ada").await;
        assert_eq!(inspector(&backend).ask(&former).await.unwrap(), AskOutcome::Asked);
        let theirs = LockId::random();

        take_over(&theirs);

        let info = seen(&backend, "k").await;
        assert_eq!((info.reveal().lock_id, told(&info)), (&theirs, (None, None, false)));
        assert_eq!(told(&list(&backend, "", 10).await[0]), (None, None, false));
        // Not even once we have written to the row.
        assert!(backend.extend(&theirs, minutes(10)).await.unwrap().is_extended());
        assert_eq!(told(&seen(&backend, "k").await), (None, Some(minutes(10)), false));
        take_over(&theirs);
        assert_eq!(inspector(&backend).ask(&theirs).await.unwrap(), AskOutcome::Asked);
        assert_eq!(seen(&backend, "k").await.label(), None);
        assert!(backend.release(&theirs).await.unwrap().is_released());
    }
}

#[tokio::test]
async fn a_listing_is_complete_in_small_steps_and_shows_live_locks_only() {
    let scene = Scene::new();
    let backend = scene.open();
    for number in 1..=90 {
        let expires_at = if number % 3 == 0 { 0 } else { FAR };
        scene.put(&format!("a%_{number}"), &LockId::random(), expires_at);
        scene.put(&format!("ab_{number}"), &LockId::random(), expires_at);
    }
    // Whoever wrote this was no client of ours.
    let damaged = "INSERT INTO syncguard_locks (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key)
                   VALUES ('a%_x', 'short', 9000000000000, 1, 'abc', 'a%_x')";
    scene.sql().execute(damaged, []).unwrap();
    scene.put("\u{10ffff}last", &LockId::random(), FAR);
    let expected: BTreeSet<String> = (1..=90).filter(|n| n % 3 != 0).map(|n| format!("a%_{n}")).collect();

    for page_size in [1, 7, 1000] {
        let found = list(&backend, "a%_", page_size).await;
        let names: BTreeSet<String> = found.iter().map(|info| info.reveal().key.as_str().to_owned()).collect();
        assert_eq!((names, found.len()), (expected.clone(), 60), "{page_size} a page");
    }

    assert_eq!(list(&backend, "", 50).await.len(), 121);
    assert_eq!(list(&backend, "\u{10ffff}", 50).await.len(), 1);
    assert!(list(&backend, "b", 50).await.is_empty());
    let counts = inspector(&backend).count().await.unwrap();
    assert_eq!((counts.locks, counts.counters), (122, 0));
}

#[tokio::test]
async fn a_listing_neither_waits_for_writers_nor_writes() {
    let scene = Scene::new();
    let backend = scene.open();
    take_labelled(&backend, "k", "ada").await;
    let changes = |db: &Connection| db.query_row("PRAGMA data_version", [], |row| row.get::<_, i64>(0)).unwrap();
    let (onlooker, turn) = (scene.sql(), scene.block_writers());
    let before = changes(&onlooker);

    assert_eq!(list(&backend, "", 10).await.len(), 1);
    assert_eq!(inspector(&backend).count().await.unwrap().locks, 1);

    assert_eq!(changes(&onlooker), before);
    drop(turn);
}

fn take_and_give_back_when_told(path: &Path) {
    runtime().block_on(async {
        let backend = open(path).unwrap();
        let held = holder(acquire(&backend, &key("k"), &LockId::random()).await).unwrap();
        say("held");
        hear();
        assert!(backend.release(&held.lock_id).await.unwrap().is_released());
        say("released");
        hear();
    });
}

#[test]
fn a_release_in_another_process_hints_at_a_change() {
    let name = "inspect::a_release_in_another_process_hints_at_a_change";
    if let Some((_, path)) = role() {
        return take_and_give_back_when_told(&path);
    }
    let scene = Scene::new();
    let backend = scene.open();
    let mut other = Worker::start(name, "hold", &scene.path());
    assert_eq!(other.next().as_deref(), Some("held"));
    runtime().block_on(async {
        // A waiter and two onlookers of one process: none takes the hint of another kind away.
        let waiter = backend.subscribe(&key("k")).await;
        let onlooker = inspector(&backend).changes().await;
        other.tell("release");
        assert_eq!(other.next().as_deref(), Some("released"));
        tokio::time::timeout(PATIENCE, waiter.woken()).await.expect("the waiter hears the release");
        tokio::time::timeout(PATIENCE, onlooker.woken()).await.expect("the onlooker hears the release");

        // What this process does is heard as well.
        let held = holder(acquire(&backend, &key("other"), &LockId::random()).await).unwrap();
        tokio::time::timeout(PATIENCE, onlooker.woken()).await.expect("the onlooker hears the acquisition");
        assert!(backend.release(&held.lock_id).await.unwrap().is_released());
        tokio::time::timeout(PATIENCE, onlooker.woken()).await.expect("the onlooker hears the release");
    });
    other.tell("end");
    assert!(other.ended_well());
}
