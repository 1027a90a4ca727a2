//! Asking a fence of a backend that has none does not compile, and the message says why.

#[test]
fn asking_a_fence_of_an_unfenced_backend_does_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/fencing/an_unfenced_guard_has_no_fence.rs");
    cases.compile_fail("tests/fencing/an_unfenced_leader_has_no_term.rs");
    cases.compile_fail("tests/fencing/an_unfenced_backend_does_not_fit_a_fenced_locker.rs");
}

/// The counterpart, which must compile: an unfenced backend locks, and code generic over both kinds sees that there is
/// no fence.
#[allow(dead_code, reason = "compiling it is the proof")]
async fn an_unfenced_lock_needs_no_fence(
    locker: &syncguard_core::Locker<syncguard_core::Unfenced>,
) -> Result<Option<syncguard_core::Fence>, syncguard_core::LockError> {
    use syncguard_core::FenceToken;

    let guard = locker.lock("k").acquire().await?;
    Ok(guard.fence_token().fence())
}
