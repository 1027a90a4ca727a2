//! Which mistakes must the tests be able to see?
//!
//! Built with `--cfg syncguard_seeded_bugs`, a test can switch one of the classic mistakes on for its own thread and
//! prove that it turns red. Without it these functions are the right rule and nothing else.

use crate::BootTime;

/// The mistakes that can be switched on.
#[cfg(syncguard_seeded_bugs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeededBug {
    /// The deadline counts from the reply: a slow reply lets the guard outlive its lease.
    DeadlineFromReply,
    /// A lease that is owned up to counts as new.
    IgnoresTheAge,
}

#[cfg(syncguard_seeded_bugs)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<SeededBug>> = const { std::cell::Cell::new(None) };
}

/// Switches a mistake on (or, with `None`, off) for this thread.
#[cfg(syncguard_seeded_bugs)]
pub fn plant(bug: Option<SeededBug>) {
    PLANTED.set(bug);
}

/// From when a lease counts: from the moment its request was sent.
#[cfg(syncguard_seeded_bugs)]
pub(crate) fn counted_from(sent: BootTime, received: BootTime) -> BootTime {
    if PLANTED.get() == Some(SeededBug::DeadlineFromReply) { received } else { sent }
}

/// From when a lease counts: from the moment its request was sent.
#[cfg(not(syncguard_seeded_bugs))]
pub(crate) fn counted_from(sent: BootTime, _received: BootTime) -> BootTime {
    sent
}

/// Whether a lease that is owned up to lasts only as long as the backend says.
#[cfg(syncguard_seeded_bugs)]
pub(crate) fn heeds_the_age() -> bool {
    PLANTED.get() != Some(SeededBug::IgnoresTheAge)
}

/// Whether a lease that is owned up to lasts only as long as the backend says.
#[cfg(not(syncguard_seeded_bugs))]
pub(crate) fn heeds_the_age() -> bool {
    true
}
