//! Is the suite true of the reference backend, with nothing left out?

use syncguard_conformance::{CASES, MemoryHarness, run_named, suite};

suite!(memory, MemoryHarness::start(), paused);

/// Paused time has one thread; what many threads may do to memory needs real ones.
mod memory_on_threads {
    use super::*;

    #[test]
    fn no_two_holders_at_once_over_many_contended_cycles() {
        run_named!("no_two_holders_at_once_over_many_contended_cycles", MemoryHarness::start());
    }

    #[test]
    fn one_of_many_acquirers_of_a_released_key_wins() {
        run_named!("one_of_many_acquirers_of_a_released_key_wins", MemoryHarness::start());
    }

    #[test]
    fn an_extend_and_an_acquire_at_the_end_never_both_succeed() {
        run_named!("an_extend_and_an_acquire_at_the_end_never_both_succeed", MemoryHarness::start());
    }
}

#[test]
fn every_case_has_its_own_name() {
    let mut names = CASES.to_vec();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), CASES.len());
    println!("{} cases", CASES.len());
}

#[test]
fn no_case_was_written_and_then_forgotten() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cases");
    let mut written = Vec::new();
    for file in std::fs::read_dir(folder).expect("the cases are beside this test") {
        let text = std::fs::read_to_string(file.expect("a file").path()).expect("text");
        let names = text.lines().filter_map(|line| line.strip_prefix("pub async fn ")?.split_once('<'));
        written.extend(names.map(|(name, _)| name.to_owned()));
    }
    written.sort_unstable();
    let mut listed = CASES.to_vec();
    listed.sort_unstable();
    assert_eq!(written, listed);
}
