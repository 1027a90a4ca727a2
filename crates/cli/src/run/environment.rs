//! What does the child know of its lock?
//!
//! The fence, the names and the lease, by environment. The lock id is a secret and goes along only with `--pass-lock-id`. One
//! more variable, `SYNCGUARD_HELD`, lists the locks of all runs around us: taking one of them again would wait for itself.

use std::ffi::OsString;

use syncguard::{Guard, HashId, Key};

use crate::exit::Failure;
use crate::output::escape;

const HELD: &str = "SYNCGUARD_HELD";
const LOCK_ID: &str = "SYNCGUARD_LOCK_ID";
const NAMES: [&str; 8] = [
    "SYNCGUARD_KEY",
    "SYNCGUARD_KEY_HASH",
    "SYNCGUARD_FENCE",
    "SYNCGUARD_LOCK_ID_HASH",
    "SYNCGUARD_TTL_MS",
    "SYNCGUARD_BACKEND",
    LOCK_ID,
    HELD,
];

/// Whether we set this variable ourselves.
pub(crate) fn is_ours(name: &str) -> bool {
    NAMES.contains(&name)
}

/// The locks of all runs around this one, each as a pseudonym of backend and key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held(Vec<String>);

impl Held {
    /// Those that our parents hold.
    pub(crate) fn inherited() -> Self {
        Self::parse(&std::env::var(HELD).unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        Self(text.split(',').filter(|entry| !entry.is_empty()).map(str::to_owned).collect())
    }

    /// Adds ours, unless a parent has it.
    pub(crate) fn with(mut self, backend: &str, key: &Key) -> Result<Self, Failure> {
        let entry = HashId::of(&format!("{backend}\n{}", key.as_str())).to_string();
        if self.0.contains(&entry) {
            return Err(Failure::usage(format!("{} is already held by a run around this one", escape(key.as_str())))
                .hint("locks are not re-entrant: it would wait for itself; use another key or drop the inner run"));
        }
        self.0.push(entry);
        Ok(self)
    }
}

/// The variables for a child under this lock.
pub(crate) fn variables(
    guard: &Guard,
    held: &Held,
    backend: &str,
    pass_lock_id: bool,
) -> Vec<(&'static str, OsString)> {
    let mut variables: Vec<(&'static str, OsString)> = vec![
        ("SYNCGUARD_KEY", guard.key().as_str().into()),
        ("SYNCGUARD_KEY_HASH", guard.key().hash().to_string().into()),
        ("SYNCGUARD_FENCE", guard.fence().to_string().into()),
        ("SYNCGUARD_LOCK_ID_HASH", guard.lock_id().hash().to_string().into()),
        ("SYNCGUARD_TTL_MS", guard.ttl().as_millis().to_string().into()),
        ("SYNCGUARD_BACKEND", backend.into()),
        (HELD, held.0.join(",").into()),
    ];
    if pass_lock_id {
        variables.push((LOCK_ID, guard.lock_id().as_str().into()));
    }
    variables
}

/// What a child must not inherit: the secret of a lock around ours would let it release the wrong one.
pub(crate) const NOT_INHERITED: &str = LOCK_ID;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_of_any_parent_is_refused_and_others_are_not() {
        let (a, b) = (Key::new("a").unwrap(), Key::new("b").unwrap());
        let outer = Held::default().with("sqlite:/x", &a).unwrap();
        let middle = Held::parse(&outer.0.join(",")).with("sqlite:/x", &b).unwrap();

        assert!(middle.clone().with("sqlite:/x", &a).is_err(), "two levels up");
        assert!(middle.clone().with("sqlite:/x", &b).is_err());
        assert!(middle.with("sqlite:/y", &a).is_ok(), "another backend has its own locks");
    }
}
