//! Is this a correct backend, on the emulator inside the process and on Google's own?

use std::collections::HashMap;

use crate::support::Project;
use crate::support::clock::WrongClock;
use crate::support::raw::{as_text, lock_fields, text};
use syncguard_conformance::{Budget, CASES, Harness, Poison, Unsupported, suite};
use syncguard_core::{Clock, HashId, Key, LockId, SystemClock};
use syncguard_firestore::FirestoreBackend;

struct FirestoreHarness {
    project: Project,
    skips: Vec<(&'static str, &'static str)>,
    budget: Budget,
}

impl FirestoreHarness {
    async fn in_process() -> Self {
        let budget = Budget { serial_cycles: 300, contended_cycles: 400, ..Budget::default() };
        Self { project: Project::start().await, skips: Vec::new(), budget }
    }

    /// Google's own emulator. It is no part of what the set-up installs: where it is absent, every case says so.
    fn google() -> Self {
        // A tenth of the speed of the one inside the process, and one of it for all cases at once.
        let budget = Budget { serial_cycles: 100, contended_cycles: 60, boundary_trials: 40, racers: 16 };
        let required = std::env::var_os("SYNCGUARD_REQUIRE_SERVERS").is_some();
        let given = std::env::var_os("SYNCGUARD_TEST_FIRESTORE_EMULATOR").is_some();
        // One Java per case would take minutes and every core, so a process per test wants one that runs already.
        let process_per_test = std::env::var("NEXTEST_EXECUTION_MODE").is_ok_and(|mode| mode == "process-per-test");
        let absent = |reason: &'static str| {
            let skips = CASES.iter().map(|case| (*case, reason)).collect();
            Self { project: Project::on(String::new()), skips, budget }
        };
        if process_per_test && !given && !required {
            return absent(
                "no google emulator is shared; run `cargo xtask test`, or name one in SYNCGUARD_TEST_FIRESTORE_EMULATOR",
            );
        }
        match syncguard_testkit::firestore_emulator() {
            Ok(address) => Self { project: Project::on(address), skips: Vec::new(), budget },
            Err(reason) => {
                assert!(!required, "google's firestore emulator is required and not there: {reason:#}");
                absent("google's firestore emulator is not on this machine")
            }
        }
    }
}

fn document_id(key: &Key) -> String {
    let name = key.as_str();
    let plain = !name.contains('/') && name != "." && name != ".." && !(name.starts_with("__") && name.ends_with("__"));
    if plain { name.to_owned() } else { HashId::of(name).to_string() }
}

impl Harness for FirestoreHarness {
    type Backend = FirestoreBackend;

    async fn backend(&self) -> FirestoreBackend {
        self.project.backend().await
    }

    async fn elsewhere(&self) -> FirestoreBackend {
        self.project.builder().collection("other_locks").fence_collection("other_counters").connect().await.unwrap()
    }

    async fn cleaning(&self) -> Result<FirestoreBackend, Unsupported> {
        Ok(self.project.builder().cleanup_in_is_locked(true).connect().await.unwrap())
    }

    async fn set_counter(&self, key: &Key, value: u64) -> Result<(), Unsupported> {
        let fields = HashMap::from([("fence".to_owned(), text(&format!("{value:015}")))]);
        self.project.raw().await.put("fence_counters", &format!("fence:{}", document_id(key)), fields).await;
        Ok(())
    }

    async fn counter(&self, key: &Key) -> Result<Option<u64>, Unsupported> {
        let fields = self.project.raw().await.get("fence_counters", &format!("fence:{}", document_id(key))).await;
        Ok(fields.map(|fields| as_text(&fields, "fence").parse().unwrap()))
    }

    async fn damage_counter(&self, key: &Key) -> Result<(), Unsupported> {
        let fields = HashMap::from([("fence".to_owned(), text("many"))]);
        self.project.raw().await.put("fence_counters", &format!("fence:{}", document_id(key)), fields).await;
        Ok(())
    }

    async fn backend_with_clock(&self, offset: i64) -> Result<FirestoreBackend, Unsupported> {
        Ok(self.project.builder().clock(WrongClock::by(offset)).connect().await.unwrap())
    }

    async fn poison(&self, key: &Key, poison: Poison) -> Result<(), Unsupported> {
        let live = SystemClock.wall().as_millis() + 60_000;
        let mut fields = lock_fields(key.as_str(), LockId::random().as_str(), 1, live);
        match poison {
            Poison::NotALock => fields = HashMap::from([("color".to_owned(), text("blue"))]),
            Poison::Empty => fields.clear(),
            Poison::NoExpiry => _ = fields.remove("expiresAtMs"),
            Poison::ExpiryIsText => _ = fields.insert("expiresAtMs".to_owned(), text("soon")),
            Poison::NoOwner => _ = fields.remove("lockId"),
            _ => return Err(Unsupported::because("this harness does not know how to write it")),
        }
        self.project.raw().await.put("locks", &document_id(key), fields).await;
        Ok(())
    }

    async fn restart(&self) -> Result<(), Unsupported> {
        let ours = self.project.restart().await;
        if ours { Ok(()) } else { Err(Unsupported::because("google's emulator keeps its documents in memory")) }
    }

    fn budget(&self) -> Budget {
        self.budget
    }

    fn skips(&self) -> &[(&'static str, &'static str)] {
        &self.skips
    }
}

suite!(hidane, FirestoreHarness::in_process().await);
suite!(google, FirestoreHarness::google());
