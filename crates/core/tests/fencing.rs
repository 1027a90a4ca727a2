//! Asking a fence of a backend that has none does not compile, and the message says why.

#[test]
fn asking_a_fence_of_an_unfenced_backend_does_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/fencing/a_fenced_backend_gives_a_plain_fence.rs");
    cases.pass("tests/fencing/an_unfenced_backend_locks_without_a_fence.rs");
    cases.compile_fail("tests/fencing/an_unfenced_guard_has_no_fence.rs");
    cases.compile_fail("tests/fencing/an_unfenced_leader_has_no_term.rs");
    cases.compile_fail("tests/fencing/an_unfenced_backend_does_not_fit_a_fenced_locker.rs");
}
