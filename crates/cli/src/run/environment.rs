//! What does the child know of its lock?
//!
//! The fence, the names and the lease, by environment. The lock id is a secret and goes along only with
//! `--pass-lock-id`. One more variable, `SYNCGUARD_HELD`, lists the locks of all runs around us: taking one of them
//! again would wait for itself.

use syncguard::{HashId, Key, Locker, RedactedUrl};

use super::locks::Locks;
use crate::config::Backend;
use crate::exit::{Failure, Stage};
use crate::output::escape;

const HELD: &str = "SYNCGUARD_HELD";
const LOCK_ID: &str = "SYNCGUARD_LOCK_ID";
const ALSO_FENCES: &str = "SYNCGUARD_ALSO_FENCES";
/// The session settings of a fence, for drivers that do not read `PGOPTIONS`.
pub(super) const PG_OPTIONS: &str = "SYNCGUARD_PG_OPTIONS";
const NAMES: [&str; 10] = [
    "SYNCGUARD_KEY",
    "SYNCGUARD_KEY_HASH",
    "SYNCGUARD_FENCE",
    "SYNCGUARD_LOCK_ID_HASH",
    "SYNCGUARD_TTL_MS",
    "SYNCGUARD_BACKEND",
    ALSO_FENCES,
    LOCK_ID,
    HELD,
    PG_OPTIONS,
];

/// Whether we set this variable ourselves.
pub(crate) fn is_ours(name: &str) -> bool {
    NAMES.contains(&name)
}

/// The locks of all runs around this one: `pseudonym of backend and key:hash of the lock id`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held {
    entries: Vec<String>,
    /// The backend's part of our own pseudonyms.
    backend: String,
}

impl Held {
    /// Those that our parents hold, or held when they started what started us.
    pub(crate) fn inherited() -> Self {
        Self::parse(&std::env::var(HELD).unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let entries = text.split(',').filter(|entry| !entry.is_empty()).map(str::to_owned).collect();
        Self { entries, backend: String::new() }
    }

    /// Refuses a key that a run around us holds, for we would wait for ourselves.
    ///
    /// The variable outlives its lock in whatever was left running, so the backend is asked whether that very lock is
    /// still there.
    pub(crate) async fn refuse_own(&mut self, backend: &Backend, keys: &[Key], locker: &Locker) -> Result<(), Failure> {
        self.backend = RedactedUrl::new(&backend.url).to_string();
        for key in keys {
            let Some(lock_id) = self.lock_id_hash(key) else { continue };
            let info = locker.inspect(key.as_str()).await;
            let info = info.map_err(|error| Failure::from_lock(&error, Stage::Operating))?;
            if info.is_some_and(|info| info.lock_id_hash().to_string() == lock_id) {
                return Err(Failure::usage(format!(
                    "{} is already held by a run around this one",
                    escape(key.as_str())
                ))
                .hint("locks are not re-entrant: it would wait for itself; use another key or drop the inner run"));
            }
        }
        Ok(())
    }

    fn pseudonym(&self, key: &Key) -> String {
        HashId::of(&format!("{}\n{}", self.backend, key.as_str())).to_string()
    }

    /// The lock that a run around us had on this key.
    fn lock_id_hash(&self, key: &Key) -> Option<&str> {
        let pseudonym = self.pseudonym(key);
        let mut pairs = self.entries.iter().rev().filter_map(|entry| entry.split_once(':'));
        pairs.find(|(held, _)| *held == pseudonym).map(|(_, lock_id)| lock_id)
    }

    /// For what we start: theirs and ours.
    fn with(&self, locks: &Locks) -> String {
        let ours =
            locks.all().iter().map(|guard| format!("{}:{}", self.pseudonym(guard.key()), guard.lock_id().hash()));
        self.entries.iter().cloned().chain(ours).collect::<Vec<_>>().join(",")
    }
}

/// The variables for a command under these locks.
pub(crate) fn variables(
    locks: &Locks,
    also: &[Key],
    held: &Held,
    backend: &str,
    pass_lock_id: bool,
) -> Vec<(String, String)> {
    let guard = locks.main();
    let mut variables = vec![
        ("SYNCGUARD_KEY", guard.key().as_str().to_owned()),
        ("SYNCGUARD_KEY_HASH", guard.key().hash().to_string()),
        ("SYNCGUARD_FENCE", guard.fence().to_string()),
        ("SYNCGUARD_LOCK_ID_HASH", guard.lock_id().hash().to_string()),
        ("SYNCGUARD_TTL_MS", guard.ttl().as_millis().to_string()),
        ("SYNCGUARD_BACKEND", backend.to_owned()),
        (HELD, held.with(locks)),
    ];
    if !also.is_empty() {
        let of = |key: &Key| locks.all().iter().find(|guard| guard.key() == key).map(|guard| guard.fence().to_string());
        variables.push((ALSO_FENCES, also.iter().filter_map(of).collect::<Vec<_>>().join(" ")));
    }
    if pass_lock_id {
        variables.push((LOCK_ID, guard.lock_id().as_str().to_owned()));
    }
    variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// What leads to a backend. Not the settings of Google's and AWS's own programs, nor `DATABASE_URL`, which is the
/// command's. Nobody here reads `REDISCLI_AUTH`, but it is the same password for the command's `redis-cli`.
const BACKEND: [&str; 18] = [
    "SYNCGUARD_URL",
    "SYNCGUARD_URL_FILE",
    "REDISCLI_AUTH",
    "PGHOST",
    "PGPORT",
    "PGUSER",
    "PGDATABASE",
    "PGPASSWORD",
    "PGPASSFILE",
    "PGSSLMODE",
    "PGSSLROOTCERT",
    "PGSSLCERT",
    "PGSSLKEY",
    "PGTARGETSESSIONATTRS",
    "PGREQUIREAUTH",
    "PGCHANNELBINDING",
    "FIRESTORE_EMULATOR_HOST",
    "GOOGLE_APPLICATION_CREDENTIALS",
];

/// What a child must not inherit: the secret of a lock around ours would let it release the wrong one.
pub(crate) fn not_inherited(clear_backend: bool) -> impl Iterator<Item = &'static str> {
    [LOCK_ID].into_iter().chain(BACKEND.into_iter().filter(move |_| clear_backend))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_of_any_parent_is_known_and_others_are_not() {
        let (a, b) = (Key::new("a").unwrap(), Key::new("b").unwrap());
        let at = |backend: &str, text: &str| Held { backend: backend.to_owned(), ..Held::parse(text) };
        let pseudonym = |key| at("sqlite:/x", "").pseudonym(key);
        let text = format!("{}:outer,{}:inner", pseudonym(&a), pseudonym(&b));

        assert_eq!(at("sqlite:/x", &text).lock_id_hash(&a), Some("outer"), "two levels up");
        assert_eq!(at("sqlite:/x", &text).lock_id_hash(&b), Some("inner"));
        assert_eq!(at("sqlite:/y", &text).lock_id_hash(&a), None, "another backend has its own locks");
        assert_eq!(at("sqlite:/x", "").lock_id_hash(&a), None);
    }
}
