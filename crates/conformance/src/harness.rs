//! What does the suite need to know about a storage that the contract does not tell?
//!
//! How to get a fresh client, how time passes, and how to put a counter or a stored value into a state that
//! no client would. Every method beyond the first two has a default, so that a harness starts small and a case that
//! needs more says so by a visible skip.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use syncguard_core::{Key, LockBackend};

/// One fresh namespace (prefix, tables, collections, file) on a storage under test.
///
/// The suite makes a new harness for each case, so give each its own random namespace: cases run at the same
/// time against one server. Implementations may write the methods as plain `async fn`.
pub trait Harness: Send + Sync + Sized + 'static {
    /// The backend under test.
    type Backend: LockBackend;

    /// A new client on this harness's namespace. Called several times: the clients must see the same locks.
    fn backend(&self) -> impl Future<Output = Self::Backend> + Send;

    /// A client on another namespace of the same storage: another prefix, table, collection or file.
    fn elsewhere(&self) -> impl Future<Output = Self::Backend> + Send;

    /// A client on this harness's namespace whose `is_locked` cleans up.
    fn cleaning(&self) -> impl Future<Output = Result<Self::Backend, Unsupported>> + Send {
        async { Err(Unsupported::because("the harness gives no client that cleans up")) }
    }

    /// Lets time pass. tokio's sleep, which a paused runtime jumps over.
    fn pass(&self, time: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(time)
    }

    /// Puts a key's fence counter to a value, as a bad restore would.
    fn set_counter(&self, key: &Key, value: u64) -> impl Future<Output = Result<(), Unsupported>> + Send {
        let _ = (key, value);
        async { Err(Unsupported::because("the harness cannot set a counter")) }
    }

    /// Reads a key's fence counter from storage; `None` when there is none yet.
    fn counter(&self, key: &Key) -> impl Future<Output = Result<Option<u64>, Unsupported>> + Send {
        let _ = key;
        async { Err(Unsupported::because("the harness cannot read a counter")) }
    }

    /// Writes a foreign value into the place where the key's lock would be.
    fn poison(&self, key: &Key, poison: Poison) -> impl Future<Output = Result<(), Unsupported>> + Send {
        let _ = (key, poison);
        async { Err(Unsupported::because("the harness cannot write a foreign value")) }
    }

    /// Puts something that is no number into the place of a key's fence counter.
    fn damage_counter(&self, key: &Key) -> impl Future<Output = Result<(), Unsupported>> + Send {
        let _ = key;
        async { Err(Unsupported::because("the harness cannot damage a counter")) }
    }

    /// How much of this namespace is in storage beside counters: locks, indexes, marks, dead or alive.
    fn entries(&self) -> impl Future<Output = Result<usize, Unsupported>> + Send {
        async { Err(Unsupported::because("the harness cannot count what is stored")) }
    }

    /// A client with short timeouts, and its line to the storage, which a case breaks and mends: a proxy, a firewall.
    fn on_a_line(&self) -> impl Future<Output = Result<(Self::Backend, Line), Unsupported>> + Send {
        async { Err(Unsupported::because("the harness cannot break the line to its storage")) }
    }

    /// Makes every change of this key wait in the storage until this time has passed: a lock of a row, a busy writer.
    /// Returns once they do.
    fn hold_up(&self, key: &Key, time: Duration) -> impl Future<Output = Result<(), Unsupported>> + Send {
        let _ = (key, time);
        async { Err(Unsupported::because("the harness cannot make the storage busy")) }
    }

    /// A client on this harness's namespace whose own wall clock is wrong by so many milliseconds.
    fn backend_with_clock(&self, offset: i64) -> impl Future<Output = Result<Self::Backend, Unsupported>> + Send {
        let _ = offset;
        async { Err(Unsupported::because("the harness cannot give a client a wrong clock")) }
    }

    /// Runs the storage's set-up (schema, scripts, indexes) once more, as the next deployment does.
    fn set_up_again(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Restarts the storage in an orderly way, if this harness owns it.
    fn restart(&self) -> impl Future<Output = Result<(), Unsupported>> + Send {
        async { Err(Unsupported::because("the harness does not own its server")) }
    }

    /// Whether a lock that is over stays in storage until somebody removes it. Not where the storage itself forgets it.
    fn keeps_dead_locks(&self) -> bool {
        true
    }

    /// Whether the backend refuses this key by design, with `InvalidArgument` and before any I/O.
    fn refuses(&self, key: &str) -> bool {
        let _ = key;
        false
    }

    /// Cases this backend cannot run, each with its reason. They are printed, never silent.
    fn skips(&self) -> &[(&'static str, &'static str)] {
        &[]
    }

    /// How much work the heavy cases do here.
    fn budget(&self) -> Budget {
        Budget::default()
    }

    /// How much later than promised an answer may come before a case calls it late. Busy test machines need some;
    /// paused time needs little.
    fn slack(&self) -> Duration {
        Duration::from_secs(1)
    }
}

/// How much work the heavy cases do. The defaults suit a server on the same machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Acquisitions on one key by one client after another.
    pub serial_cycles: u32,
    /// Acquisitions on few keys by many clients at once, all of them witnessed.
    pub contended_cycles: u32,
    /// Races between extend and acquire at the end of a lease.
    pub boundary_trials: u32,
    /// Clients that go for one key in the same moment.
    pub racers: u32,
}

impl Default for Budget {
    fn default() -> Self {
        Self { serial_cycles: 1_000, contended_cycles: 2_000, boundary_trials: 300, racers: 64 }
    }
}

/// A value that is no lock, in the place of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Poison {
    /// Something that is not of the stored form at all: text where JSON belongs.
    NotALock,
    /// The right form with nothing in it: `{}`, a document without fields.
    Empty,
    /// A lock whose expiry is missing.
    NoExpiry,
    /// A lock whose expiry is of the wrong type.
    ExpiryIsText,
    /// A live lock whose owner is missing.
    NoOwner,
}

/// What is wrong with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// Nothing.
    Mended,
    /// Requests arrive; their replies do not.
    RepliesLost,
    /// Nothing arrives on either side, and no side is told.
    Silent,
}

/// The line between one client and the storage.
pub struct Line(Box<dyn Fn(Break) + Send + Sync>);

impl Line {
    /// Makes a line that is broken and mended by this.
    pub fn new(set: impl Fn(Break) + Send + Sync + 'static) -> Self {
        Self(Box::new(set))
    }

    /// Breaks or mends it, from now on.
    pub fn set(&self, now: Break) {
        (self.0)(now);
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").finish_non_exhaustive()
    }
}

/// Why a harness cannot do something. The case that asked is skipped, with this reason.
#[derive(Clone, PartialEq, Eq)]
pub struct Unsupported(Cow<'static, str>);

impl Unsupported {
    /// Gives the reason, for people: "the column is NOT NULL", "the server is shared".
    pub fn because(reason: impl Into<Cow<'static, str>>) -> Self {
        Self(reason.into())
    }
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Unsupported({})", self.0)
    }
}
