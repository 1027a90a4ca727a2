//! What came out of a run?

use std::collections::BTreeMap;
use std::fmt;

use crate::check::Violation;
use crate::world::Storage;

/// The figures of a run.
#[derive(Clone, Debug)]
pub struct Scoreboard {
    /// The storage.
    pub storage: Storage,
    /// What chance began with.
    pub seed: u64,
    /// How long the workers contended.
    pub seconds: u64,
    /// How often each kind of fault was injected.
    pub faults: BTreeMap<String, u64>,
    /// How many pieces of replies were sent by a server and never arrived.
    pub replies_lost: u64,
    /// How often a proxy did something to bytes or connections.
    pub proxy_effects: u64,
    /// Calls to the backend.
    pub operations: u64,
    /// Of these, the ones whose outcome stayed unknown.
    pub unknown: u64,
    /// Calls that are part of an order that a correct lock could have answered.
    pub linearizable: u64,
    /// Calls of keys that were too busy to be searched.
    pub left_out: u64,
    /// Guards that were handed out.
    pub holds: u64,
    /// Losses that were signalled by `lost()`.
    pub losses: u64,
    /// Of these, the ones of processes that did not run around the deadline.
    pub excused: u64,
    /// Stale writes that the resource accepted that compares fences.
    pub stale_checked: u64,
    /// Stale writes that the resource accepted that takes everything.
    pub stale_unchecked: u64,
    /// Workers that did not leave by themselves.
    pub hung: u32,
    /// Violations of exclusion on a storage that may lose what it acknowledged. There the fences are promised.
    pub not_promised: Vec<Violation>,
    /// What must never be, and was.
    pub violations: Vec<Violation>,
}

impl Scoreboard {
    /// Whether nothing was seen that must never be.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    /// How many violations a check found.
    pub fn count(&self, check: &str) -> usize {
        self.violations.iter().filter(|violation| violation.check == check).count()
    }
}

impl fmt::Display for Scoreboard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} · seed {} · {} s", self.storage.as_str(), self.seed, self.seconds)?;
        let faults: u64 = self.faults.values().sum();
        writeln!(f, "  faults injected        {faults} (the proxies acted {} times)", self.proxy_effects)?;
        for (name, count) in &self.faults {
            writeln!(f, "    {count:>6}  {name}")?;
        }
        writeln!(f, "    {:>6}  replies lost after the server acted", self.replies_lost)?;
        writeln!(f, "  calls to the storage   {} ({} with unknown outcome)", self.operations, self.unknown)?;
        writeln!(f, "  linearizable           {} ({} left out)", self.linearizable, self.left_out)?;
        writeln!(f, "  locks held             {}", self.holds)?;
        writeln!(f, "  losses told            {} ({} to a process that did not run)", self.losses, self.excused)?;
        let (checked, unchecked) = (self.stale_checked, self.stale_unchecked);
        writeln!(f, "  stale writes accepted  {checked} with fences, {unchecked} without")?;
        writeln!(f, "  two believers          {}", self.count("no two believers"))?;
        writeln!(f, "  fence regressions      {}", self.count("fences rise"))?;
        writeln!(f, "  late signals           {}", self.count("loss told in time"))?;
        writeln!(f, "  orphans                {}", self.count("no orphans"))?;
        if !self.storage.keeps_what_it_acknowledged() {
            writeln!(f, "  two holders over lost writes (not promised)  {}", self.not_promised.len())?;
        }
        writeln!(f, "  violations             {}", self.violations.len())?;
        for violation in &self.violations {
            writeln!(f, "    {}: {}", violation.check, violation.what)?;
        }
        Ok(())
    }
}
