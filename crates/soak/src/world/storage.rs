//! Which kinds of storage are there, and what do they promise?

use crate::{TOLERANCE_MS, TTL_MS};

/// A kind of storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Storage {
    /// A file; no server, so only processes, clocks and the disk can fail.
    Sqlite,
    /// One Redis with an append-only file that is synced before every reply.
    Redis,
    /// Three masters with one replica each. Replicas are promoted in order and slots move, so nothing that was
    /// acknowledged is lost.
    Cluster,
    /// A master, a replica and three sentinels that promote it when the master is gone: what it had acknowledged and
    /// not passed on is lost.
    Sentinel,
    /// A `PostgreSQL`, for half of the workers behind `PgBouncer`.
    Postgres,
    /// The Firestore emulator inside this process.
    Firestore,
}

impl Storage {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Sqlite, Self::Redis, Self::Cluster, Self::Sentinel, Self::Postgres, Self::Firestore];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
            Self::Cluster => "cluster",
            Self::Sentinel => "sentinel",
            Self::Postgres => "postgres",
            Self::Firestore => "firestore",
        }
    }

    /// Whether a server's clock decides, and not that of the process that asks.
    pub fn has_a_clock(self) -> bool {
        matches!(self, Self::Redis | Self::Cluster | Self::Sentinel | Self::Postgres)
    }

    /// Whether the clock of the server can be stepped.
    pub fn has_a_clock_to_step(self) -> bool {
        matches!(self, Self::Redis | Self::Postgres)
    }

    /// Whether what was acknowledged outlives every fault of the run. Where it does not, two holders may be: then the
    /// fences are what is promised, and they rise over the loss of their counter.
    pub fn keeps_what_it_acknowledged(self) -> bool {
        self != Self::Sentinel
    }

    /// How far the clock of a client may be wrong, either way, while everything is still promised: as far as it likes
    /// where the server's clock decides.
    pub fn client_clock_steps_ms(self) -> u64 {
        if self.has_a_clock() { 3_600_000 } else { DECIDING_CLOCK_STEPS_MS }
    }

    /// After how long somebody else may get a lock that nobody renews, at the earliest, in milliseconds.
    pub fn shortest_lease_ms(self) -> u64 {
        let steps = if self.has_a_clock() && !self.has_a_clock_to_step() { 0 } else { 2 * DECIDING_CLOCK_STEPS_MS };
        TTL_MS + TOLERANCE_MS - steps - SLACK_MS
    }
}

/// How far a clock that decides may be wrong, either way: two of its readings differ by less than the tolerance.
pub const DECIDING_CLOCK_STEPS_MS: u64 = 400;

/// Room for a server's clock that counts in milliseconds, and for the scheduling between two reads of a clock.
pub const SLACK_MS: u64 = 50;
