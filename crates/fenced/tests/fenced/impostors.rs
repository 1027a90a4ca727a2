//! Does every impostor fail at the case that is named for it?
//!
//! Each is the honest store with one flaw that a store of one's own may well have.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use syncguard_core::{Fence, Key};
use syncguard_fenced::suite::{self, CASES, Harness};
use syncguard_fenced::{FenceError, HighWater, Result, StaleFence};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    /// Compares, lets others in, then stores.
    TwoSteps,
    /// Takes the same holder for a stale one.
    RefusesEqual,
    /// Stores what it refuses.
    StoresRefused,
    /// Compares text that is not padded.
    ComparesText,
    /// Counts in 32 bits.
    Narrow,
    /// Forgets the case of letters.
    FoldsCase,
    /// Has one mark for everything.
    OneMark,
    /// Names the offered fence as the one it has seen.
    WrongSeen,
    /// Says yes and remembers nothing.
    Forgets,
    /// Refuses once, then gives in.
    GivesIn,
    /// Calls a lower fence an ordinary failure.
    Untyped,
    /// Keeps its marks to itself.
    Private,
}

const NAMED: [(Flaw, &str); 12] = [
    (Flaw::TwoSteps, "of_many_at_once_the_highest_remains"),
    (Flaw::RefusesEqual, "the_same_fence_is_accepted_again"),
    (Flaw::StoresRefused, "a_refused_fence_changes_nothing"),
    (Flaw::ComparesText, "fences_are_compared_as_numbers"),
    (Flaw::Narrow, "the_last_fence_is_understood"),
    (Flaw::FoldsCase, "keys_of_any_form_are_kept_apart"),
    (Flaw::OneMark, "each_key_has_its_own_mark"),
    (Flaw::WrongSeen, "a_lower_fence_is_refused_with_both_numbers"),
    (Flaw::Forgets, "the_first_fence_is_accepted_and_remembered"),
    (Flaw::GivesIn, "a_refused_fence_is_refused_again"),
    (Flaw::Untyped, "a_lower_fence_is_refused_with_both_numbers"),
    (Flaw::Private, "another_client_sees_the_mark"),
];

#[derive(Clone)]
struct Impostor {
    flaw: Option<Flaw>,
    marks: Arc<Mutex<HashMap<String, u64>>>,
}

impl Impostor {
    fn new(flaw: Option<Flaw>) -> Self {
        Self { flaw, marks: Arc::default() }
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    fn name(&self, key: &Key) -> String {
        match self.flaw {
            Some(Flaw::OneMark) => String::new(),
            Some(Flaw::FoldsCase) => key.as_str().to_lowercase(),
            _ => key.as_str().to_owned(),
        }
    }

    fn is_below(&self, offered: u64, seen: u64) -> bool {
        match self.flaw {
            Some(Flaw::ComparesText) => offered.to_string() < seen.to_string(),
            Some(Flaw::RefusesEqual) => offered <= seen,
            _ => offered < seen,
        }
    }
}

impl HighWater for Impostor {
    async fn advance(&self, key: &Key, fence: Fence) -> Result<()> {
        let name = self.name(key);
        let offered = if self.has(Flaw::Narrow) { fence.get() & 0xffff_ffff } else { fence.get() };
        let seen = self.marks.lock().unwrap().get(&name).copied();
        if self.has(Flaw::TwoSteps) {
            tokio::task::yield_now().await;
        }
        if let Some(seen) = seen.filter(|seen| self.is_below(offered, *seen)) {
            if self.has(Flaw::StoresRefused) || self.has(Flaw::GivesIn) {
                self.marks.lock().unwrap().insert(name, offered);
            }
            if self.has(Flaw::Untyped) {
                return Err(FenceError::Failed(syncguard_core::LockError::internal("no")));
            }
            let seen = if self.has(Flaw::WrongSeen) { fence } else { Fence::new(seen).unwrap() };
            return Err(StaleFence { offered: fence, seen }.into());
        }
        if !self.has(Flaw::Forgets) {
            self.marks.lock().unwrap().insert(name, offered);
        }
        Ok(())
    }

    async fn highest(&self, key: &Key) -> Result<Option<Fence>> {
        let stored = self.marks.lock().unwrap().get(&self.name(key)).copied();
        Ok(stored.map(|stored| Fence::new(stored.max(1)).unwrap()))
    }
}

impl Harness for Impostor {
    type Marks = Self;

    async fn open(&self) -> Self {
        if self.has(Flaw::Private) { Self::new(self.flaw) } else { self.clone() }
    }
}

fn passes(flaw: Option<Flaw>, case: &str) -> bool {
    let run = || suite::run(suite::run_named(case, &Impostor::new(flaw)));
    catch_unwind(AssertUnwindSafe(run)).is_ok()
}

#[test]
fn every_impostor_fails_at_its_named_case() {
    for (flaw, case) in NAMED {
        assert!(!passes(Some(flaw), case), "{flaw:?} passes {case}");
    }
}

#[test]
fn without_a_flaw_it_passes_everything() {
    for case in CASES {
        assert!(passes(None, case), "{case} fails without a flaw");
    }
}
