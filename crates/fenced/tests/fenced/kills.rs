//! Does the order of fences hold while writers are killed in the middle?
//!
//! 64 writers (4 processes of 16) offer random fences that slowly grow. Twenty times one of the processes is killed
//! with SIGKILL, at a moment that follows from what it has said, and another one takes its place while the rest go on.
//! The ledger shows what was accepted, in order: it never decreases, and everything that a writer was told is in it.

use crate::support::children::{Worker, role, say};
use crate::support::ledger::{Ledger, Place};
use crate::support::world::{World, entries};
use syncguard_core::Fence;

const PROCESSES: u64 = 4;
const TASKS: u64 = 16;
const KILLS: u64 = 20;

macro_rules! kills {
    ($($name:ident $kind:literal,)*) => { $(
        #[test]
        fn $name() {
            the_order_holds(concat!("kills::", stringify!($name)), $kind);
        }
    )* };
}

kills! {
    files_keep_the_order_of_fences_over_twenty_kills "file",
    sqlite_keeps_the_order_of_fences_over_twenty_kills "sqlite",
    postgres_keeps_the_order_of_fences_over_twenty_kills "postgres",
    sqlx_keeps_the_order_of_fences_over_twenty_kills "sqlx",
    redis_keeps_the_order_of_fences_over_twenty_kills "redis",
    a_service_keeps_the_order_of_fences_over_twenty_kills "http",
    an_object_keeps_the_order_of_fences_over_twenty_kills "object",
}

fn the_order_holds(test: &str, kind: &str) {
    if let Some(role) = role() {
        return write_for_ever(&role);
    }
    let world = World::start(&[kind]);
    let [guarded, control] = runtime().block_on(world.places(kind));
    let start = |place: &Place, highest: u64, number: u64| {
        let words = [place.to_word(), highest.to_string(), number.to_string()];
        Worker::start(test, &words.each_ref().map(String::as_str))
    };
    let mut told = Vec::new();
    let mut workers: Vec<Worker> = (0..PROCESSES).map(|number| start(&guarded, 1, number)).collect();
    for kill in 0..KILLS {
        let place = usize::try_from(kill % PROCESSES).unwrap();
        told.extend(kill_in_the_middle(&mut workers[place], 1 + kill % 3));
        let highest = told.iter().copied().max().unwrap();
        workers[place] = start(&guarded, highest, PROCESSES + kill);
    }
    for worker in &mut workers {
        told.extend(kill_in_the_middle(worker, 0));
    }

    let accepted = runtime().block_on(entries(&guarded));
    assert!(accepted.is_sorted(), "a lower fence was accepted after a higher one: {accepted:?}");
    let lost: Vec<_> = told.iter().filter(|fence| accepted.binary_search(fence).is_err()).collect();
    assert!(lost.is_empty(), "accepted and gone: {lost:?}");
    println!("{kind}: {} entries accepted over {KILLS} kills among 64 writers, never decreasing", accepted.len());

    // The control: the same writers without the guard. That 60 random entries are in order by chance happens once in
    // 60!.
    let mut accepted = Vec::new();
    while accepted.len() < 60 {
        let mut workers: Vec<Worker> = (0..PROCESSES).map(|number| start(&control, 1, number)).collect();
        for worker in &mut workers {
            kill_in_the_middle(worker, 5);
        }
        accepted = runtime().block_on(entries(&control));
    }
    assert!(!accepted.is_sorted(), "the control is in order: the test would see nothing");
}

/// Waits until the process has been accepted `enough` times, kills it, and returns all it was told.
fn kill_in_the_middle(worker: &mut Worker, enough: u64) -> Vec<u64> {
    let mut told: Vec<String> = (0..enough).map(|_| worker.next().expect("it works until it is killed")).collect();
    worker.kill();
    told.extend(std::iter::from_fn(|| worker.next()));
    told.iter().map(|line| line.parse().unwrap_or_else(|_| panic!("a writer failed: {line}"))).collect()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn write_for_ever(role: &[String]) {
    let place = Place::from_word(&role[0]);
    let (highest, process): (u64, u64) = (role[1].parse().unwrap(), role[2].parse().unwrap());
    let writers: Vec<_> = (0..TASKS)
        .map(|task| {
            let place = place.clone();
            // One thread each: some ledgers block, and a writer must not wait for its neighbours.
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(write(&place, highest, process * TASKS + task));
            })
        })
        .collect();
    for writer in writers {
        writer.join().unwrap();
    }
}

async fn write(place: &Place, highest: u64, seed: u64) {
    let mut ledger = Ledger::open(place).await;
    let mut random = Random(seed * 7_919 + highest * 31 + 1);
    let mut base = highest;
    for _ in 0..100_000 {
        let offered = base + random.below(64);
        match ledger.append(Fence::new(offered).unwrap()).await {
            Ok(()) => {
                base += 2;
                say(offered);
            }
            // A slow writer stays near the others, or all it offers would be stale.
            Err(error) => match error.stale() {
                Some(stale) => base = base.max(stale.seen.get().saturating_sub(32)),
                None => say(format!("{error} {error:?}")),
            },
        }
    }
}

/// Enough chance for a test (xorshift), and the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
