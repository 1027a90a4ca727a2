//! Is the suite true of the reference backend, with nothing left out?

use syncguard_conformance::{CASES, MemoryHarness};

syncguard_conformance::suite!(memory, MemoryHarness::start(), paused);

#[test]
fn every_case_has_its_own_name() {
    let mut names = CASES.to_vec();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), CASES.len());
    println!("{} cases", CASES.len());
}
