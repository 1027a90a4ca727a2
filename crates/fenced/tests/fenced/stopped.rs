//! What does a holder that is stopped in the middle of its write do to its successor?
//!
//! A real process is stopped by SIGSTOP while its write is under way. On PostgreSQL its successor ends the session and goes
//! on; a file and an SQLite database can only be waited for, and how long is the successor's own choice (`busy_timeout`), or
//! that of whoever ends the stopped process.

use std::time::Duration;

use syncguard_core::{BootTime, Clock, ErrorCode, Fence, SystemClock};
use syncguard_fenced::file::FencedFile;
use syncguard_fenced::{FenceError, postgres, sqlite};

use crate::support::children::{Worker, hear, role, say};
use crate::support::ledger::{Ledger, Place, connect, key};
use crate::support::world::{World, entries};

fn fence(number: u64) -> Fence {
    Fence::new(number).unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A guarded ledger whose older holder is stopped in the middle of its write.
struct Scene {
    _world: World,
    place: Place,
    stopped: Worker,
    begun: BootTime,
}

impl Scene {
    fn new(test: &str, kind: &str) -> Self {
        let world = World::start(&[kind]);
        let [place, _] = runtime().block_on(world.places(kind));
        runtime().block_on(async { drop(Ledger::open(&place).await) });
        let mut stopped = Worker::start(test, &[&place.to_word()]);
        assert_eq!(stopped.next().as_deref(), Some("inside"));
        stopped.pause();
        stopped.tell("go on");
        Self { _world: world, place, stopped, begun: SystemClock.boot() }
    }

    fn took(&self) -> Duration {
        SystemClock.boot().since(self.begun)
    }

    fn entries(&self) -> Vec<u64> {
        runtime().block_on(entries(&self.place))
    }
}

/// The older holder: begins a write, and ends it when it is told to.
fn write_slowly(place: &Place) {
    let pause = || {
        say("inside");
        hear();
    };
    match place.kind.as_str() {
        "file" => {
            let written = FencedFile::new(&place.location).update(fence(41), |old| {
                pause();
                [old.unwrap_or_default(), format!("{}\n", fence(41)).into_bytes()].concat()
            });
            written.unwrap();
            say("written");
        }
        "sqlite" => {
            let mut db = rusqlite::Connection::open(&place.location).unwrap();
            let tx = sqlite::begin(&mut db, &key(), fence(41)).unwrap();
            tx.execute("INSERT INTO ledger (fence) VALUES (41)", []).unwrap();
            pause();
            tx.commit().unwrap();
            say("written");
        }
        _ => runtime().block_on(async {
            let mut client = connect(&place.location).await;
            let tx = postgres::begin(&mut client, &key(), fence(41)).await.unwrap();
            tx.execute("INSERT INTO guarded (fence) VALUES (41)", &[]).await.unwrap();
            pause();
            say(if tx.commit().await.is_ok() { "written" } else { "refused" });
        }),
    }
}

#[test]
fn a_successor_on_postgres_writes_within_two_seconds_and_the_stopped_one_never() {
    if let Some(role) = role() {
        return write_slowly(&Place::from_word(&role[0]));
    }
    let test = "stopped::a_successor_on_postgres_writes_within_two_seconds_and_the_stopped_one_never";
    let mut scene = Scene::new(test, "postgres");

    let ended = runtime().block_on(async {
        let mut client = connect(&scene.place.location).await;
        let ended = postgres::take_over(&client, &key(), fence(42)).await.unwrap();
        let tx = postgres::begin(&mut client, &key(), fence(42)).await.unwrap();
        tx.execute("INSERT INTO guarded (fence) VALUES (42)", &[]).await.unwrap();
        tx.commit().await.unwrap();
        ended
    });
    let took = scene.took();
    scene.stopped.resume();

    println!("postgres: the successor has written after {took:?}");
    assert_eq!(ended.len(), 1);
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert_eq!(scene.stopped.next().as_deref(), Some("refused"));
    assert_eq!(scene.entries(), [42]);
}

#[test]
fn a_successor_on_sqlite_is_told_after_its_busy_timeout_and_writes_when_the_stopped_one_is_gone() {
    if let Some(role) = role() {
        return write_slowly(&Place::from_word(&role[0]));
    }
    let test = "stopped::a_successor_on_sqlite_is_told_after_its_busy_timeout_and_writes_when_the_stopped_one_is_gone";
    let mut scene = Scene::new(test, "sqlite");
    let mut db = rusqlite::Connection::open(&scene.place.location).unwrap();
    db.busy_timeout(Duration::from_millis(500)).unwrap();

    let busy = sqlite::announce(&mut db, &key(), fence(42)).unwrap_err();
    let took = scene.took();
    scene.stopped.kill();
    assert_eq!(scene.stopped.next(), None);
    runtime().block_on(async { Ledger::open(&scene.place).await.append(fence(42)).await.unwrap() });

    println!("sqlite: the successor was told after {took:?}");
    let FenceError::Failed(failure) = busy else { panic!("{busy:?}") };
    assert_eq!(failure.code(), ErrorCode::NetworkTimeout);
    assert_eq!(scene.entries(), [42], "what was not committed is gone");
}

#[test]
fn a_successor_waits_for_a_file_until_the_stopped_one_has_ended() {
    if let Some(role) = role() {
        return write_slowly(&Place::from_word(&role[0]));
    }
    let mut scene = Scene::new("stopped::a_successor_waits_for_a_file_until_the_stopped_one_has_ended", "file");
    let file = FencedFile::new(&scene.place.location);
    let successor = std::thread::spawn(move || {
        file.update(fence(42), |old| [old.unwrap_or_default(), format!("{}\n", fence(42)).into_bytes()].concat())
    });

    scene.stopped.resume();

    assert_eq!(scene.stopped.next().as_deref(), Some("written"));
    successor.join().unwrap().unwrap();
    assert_eq!(scene.entries(), [41, 42], "in the order of their fences");
}
