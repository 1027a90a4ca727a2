//! Does every impostor fail at the case that is named for it, and only because of its flaw?

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use syncguard_conformance::impostors::{Flaw, ImpostorHarness};
use syncguard_conformance::{CASES, run_named};

fn passes(flaw: Option<Flaw>, case: &str) -> bool {
    let start = || flaw.map_or_else(ImpostorHarness::honest, ImpostorHarness::with);
    catch_unwind(AssertUnwindSafe(|| run_named!(case, start(), paused))).is_ok()
}

#[test]
fn every_impostor_fails_at_its_named_case_and_the_honest_one_passes_it() {
    let mut escaped = Vec::new();
    for (flaw, case) in Flaw::ALL {
        assert!(CASES.contains(case), "{flaw:?} names {case}, which does not exist");
        assert!(passes(None, case), "{case} fails without a flaw");
        if passes(Some(*flaw), case) {
            escaped.push((flaw, case));
        }
    }
    assert!(escaped.is_empty(), "not caught: {escaped:?}");
    println!("{} impostors, all caught at their named cases", Flaw::ALL.len());
}

#[test]
fn every_flaw_is_listed_once() {
    let flaws: HashSet<_> = Flaw::ALL.iter().map(|(flaw, _)| flaw).collect();
    assert_eq!(flaws.len(), Flaw::ALL.len());
}
