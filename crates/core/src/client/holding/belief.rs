//! For how long may a holder believe that the lock is its own?
//!
//! A value without I/O and without a clock of its own: whoever asks brings the time. A lease is believed in until its
//! deadline, which is the local time of **send** + ttl − a margin, on a clock that counts suspend. So belief ends
//! before the storage frees the lock, whatever became of replies, timers or the machine's sleep. Loss is for ever, and
//! a release never hides it.

use std::time::Duration;

use crate::{BootTime, LossReason, Timestamp, Ttl};

/// What a holder believes. Lives behind the mutex of its handle; every change is one method, so no half of one is ever
/// seen.
#[derive(Debug)]
pub(crate) struct Belief {
    /// When belief ends unless a renewal moves it. Only [`renew`](Self::renew) moves it later.
    deadline: BootTime,
    /// When the present lease counts from: its request left then, or it is as old as if it had. The pace of renewal
    /// counts from here, as the deadline does.
    since: BootTime,
    /// The longest hold that the request allowed, as a moment. The deadline never passes it.
    hold_until: Option<BootTime>,
    /// When the lease ends on the backend's clock. For people: no decision reads it.
    expires_at: Timestamp,
    /// The length of the present lease, for people and for the pace of renewal.
    ttl: Ttl,
    /// Why the lock is not held any more. Written once.
    loss: Option<LossReason>,
    /// How far giving the lock back has come. Only moves forward.
    release: Release,
}

/// How far giving the lock back has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Release {
    NotBegun,
    /// Begun, and maybe failed: it may be tried again, and the lock is not believed in.
    Begun,
    /// Answered, or left to the lease on purpose: there is nothing more to send.
    Done,
}

/// A lease as it was asked for and granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    /// The local time before the request left.
    pub(crate) sent: BootTime,
    pub(crate) ttl: Ttl,
    pub(crate) expires_at: Timestamp,
    /// How much of the lease was left when the backend answered, where it said so.
    pub(crate) left: Option<Duration>,
}

/// What became of a question: the answer, and whether asking it was what noticed the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Noticed {
    /// Still believed in.
    Held,
    /// Noticed by this very question: somebody must be told.
    JustLost(LossReason),
    /// Known before.
    Over(LossReason),
}

impl Belief {
    pub(crate) fn new(granted: Granted, hold_until: Option<BootTime>) -> Self {
        Self {
            deadline: capped(granted.deadline(), hold_until),
            since: granted.since(),
            hold_until,
            expires_at: granted.expires_at,
            ttl: granted.ttl,
            loss: None,
            release: Release::NotBegun,
        }
    }

    pub(crate) fn ttl(&self) -> Ttl {
        self.ttl
    }

    pub(crate) fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    /// Whether the lock may be believed in at `now`. Passing the deadline is noticed here, and only here.
    pub(crate) fn notice(&mut self, now: BootTime) -> Noticed {
        if let Some(reason) = self.loss {
            return Noticed::Over(reason);
        }
        if self.release != Release::NotBegun {
            return Noticed::Over(LossReason::Released);
        }
        if now < self.deadline {
            return Noticed::Held;
        }
        let reason = if self.ends_with_the_hold() { LossReason::MaxHold } else { LossReason::Expired };
        self.loss = Some(reason);
        Noticed::JustLost(reason)
    }

    /// How much longer it may be believed in; zero once it is over.
    pub(crate) fn remaining(&self, now: BootTime) -> Duration {
        if self.is_over() { Duration::ZERO } else { self.deadline.since(now) }
    }

    /// Ends the belief for a reason that came from outside. `true` when nothing had ended it before.
    pub(crate) fn lose(&mut self, reason: LossReason) -> bool {
        let first = !self.is_over();
        if first {
            self.loss = Some(reason);
        }
        first
    }

    /// A lease of this length may be in force from `sent` on, whether or not its reply arrives: belief never gets
    /// longer by it.
    pub(crate) fn may_shorten(&mut self, sent: BootTime, ttl: Ttl) {
        self.deadline = self.deadline.min(deadline(sent, ttl));
    }

    /// Takes over a renewed lease. `false` when the belief ended while the reply travelled: nothing revives it.
    pub(crate) fn renew(&mut self, renewed: Granted, now: BootTime) -> bool {
        if self.notice(now) != Noticed::Held {
            return false;
        }
        self.deadline = capped(renewed.deadline(), self.hold_until);
        self.since = renewed.since();
        self.expires_at = renewed.expires_at;
        self.ttl = renewed.ttl;
        true
    }

    /// When the lease is to be renewed next by a holder that renews it to `ttl` at every `every`, and whose last try
    /// failed at `failed`.
    ///
    /// Counted from where belief counts. From the grant, a lease that was owned up to late would be lost before its
    /// first renewal was due.
    pub(crate) fn next_renewal(&self, ttl: Ttl, every: Duration, failed: Option<BootTime>) -> BootTime {
        let due = if self.ttl < ttl {
            // Somebody shortened the lease by hand: it has to be renewed sooner.
            self.since + self.deadline.since(self.since) / 2
        } else {
            self.since + every
        };
        // After a failure sooner than the next turn, so that the lease has room for several.
        let pause = (every / 4).clamp(Duration::from_millis(5), Duration::from_secs(1));
        failed.map_or(due, |failed| failed + pause)
    }

    /// How long the lock may still be held before its longest hold is over; `None` without such a limit.
    pub(crate) fn hold_left(&self, now: BootTime) -> Option<Duration> {
        self.hold_until.map(|until| until.since(now))
    }

    /// Whether a release has anything to send. From here on nothing is renewed.
    pub(crate) fn begin_release(&mut self) -> bool {
        if self.release == Release::Done {
            return false;
        }
        self.release = Release::Begun;
        true
    }

    /// The release was answered, or the lock is left to its lease.
    pub(crate) fn end_release(&mut self) {
        self.release = Release::Done;
    }

    fn is_over(&self) -> bool {
        self.loss.is_some() || self.release != Release::NotBegun
    }

    /// Whether this lease was cut so that it ends with the longest hold (a part of a millisecond is lost in the
    /// cutting).
    fn ends_with_the_hold(&self) -> bool {
        let slack = margin(self.ttl) + Duration::from_millis(1);
        self.hold_until.is_some_and(|until| until.since(self.deadline) <= slack)
    }
}

impl Granted {
    /// From when on this lease counts, by its deadline.
    fn since(&self) -> BootTime {
        self.deadline() - self.ttl.duration().saturating_sub(margin(self.ttl))
    }

    /// When this lease stops being believed in.
    ///
    /// A grant may be older than the request that it answers, because it owns up to an earlier one. What is left of it
    /// on the backend's clock bounds it too, so an earlier failure that was wrongly called certain cannot make a
    /// holder believe too long.
    pub(crate) fn deadline(&self) -> BootTime {
        let by_request = deadline(self.sent, self.ttl);
        match self.left {
            Some(left) => by_request.min(self.sent + left.saturating_sub(margin(self.ttl))),
            None => by_request,
        }
    }
}

fn deadline(sent: BootTime, ttl: Ttl) -> BootTime {
    sent + ttl.duration().saturating_sub(margin(ttl))
}

/// How long before the end of its lease a holder stops believing: room for the difference of two clocks' rates.
fn margin(ttl: Ttl) -> Duration {
    (ttl.duration() / 100).max(Duration::from_millis(5))
}

fn capped(deadline: BootTime, hold_until: Option<BootTime>) -> BootTime {
    hold_until.map_or(deadline, |until| deadline.min(until))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const TTL_MS: i64 = 10_000;
    /// 1 % of the ttl before its end.
    const BELIEVED_MS: u64 = 9_900;

    fn at(millis: u64) -> BootTime {
        BootTime::from_start(Duration::from_millis(millis))
    }

    fn granted(sent: u64, ttl: i64) -> Granted {
        let ttl = Ttl::from_millis(ttl).unwrap();
        Granted { sent: at(sent), ttl, expires_at: Timestamp::from_millis(0), left: None }
    }

    fn belief() -> Belief {
        Belief::new(granted(0, TTL_MS), None)
    }

    #[test]
    fn a_lease_is_believed_in_until_a_hundredth_before_its_end() {
        let mut belief = belief();
        assert_eq!(belief.notice(at(BELIEVED_MS - 1)), Noticed::Held);
        assert_eq!(belief.remaining(at(BELIEVED_MS - 1)), Duration::from_millis(1));
        assert_eq!(belief.notice(at(BELIEVED_MS)), Noticed::JustLost(LossReason::Expired));
        assert_eq!(belief.notice(at(0)), Noticed::Over(LossReason::Expired), "a clock that went back revives nothing");
        assert_eq!(belief.remaining(at(0)), Duration::ZERO);
    }

    #[test]
    fn a_short_lease_keeps_five_milliseconds_of_margin() {
        let belief = Belief::new(granted(0, 100), None);
        assert_eq!(belief.remaining(at(0)), Duration::from_millis(95));
    }

    #[test]
    fn what_is_left_on_the_backends_clock_bounds_a_lease_that_is_owned_up_to() {
        let old = Granted { left: Some(Duration::from_secs(4)), ..granted(0, TTL_MS) };
        assert_eq!(Belief::new(old, None).remaining(at(0)), Duration::from_millis(3_900));
        let fresh = Granted { left: Some(Duration::from_secs(11)), ..granted(0, TTL_MS) };
        assert_eq!(Belief::new(fresh, None).remaining(at(0)), Duration::from_millis(BELIEVED_MS), "never longer");
    }

    #[test]
    fn a_renewal_moves_the_deadline_and_a_late_one_revives_nothing() {
        let mut belief = belief();
        assert!(belief.renew(granted(5_000, TTL_MS), at(5_100)));
        assert_eq!(belief.remaining(at(5_000)), Duration::from_millis(BELIEVED_MS));
        assert!(!belief.renew(granted(14_000, TTL_MS), at(14_900)));
        assert_eq!(belief.notice(at(14_900)), Noticed::Over(LossReason::Expired));
    }

    #[test]
    fn a_renewal_replaces_what_people_are_told_of_the_lease() {
        let mut belief = belief();
        let renewed = Granted { expires_at: Timestamp::from_millis(7), ..granted(5_000, 20_000) };
        assert!(belief.renew(renewed, at(5_000)));
        assert_eq!((belief.ttl().as_millis(), belief.expires_at().as_millis()), (20_000, 7));
    }

    #[test]
    fn a_lease_that_may_have_become_shorter_counts_as_shorter() {
        let mut belief = belief();
        belief.may_shorten(at(1_000), Ttl::from_millis(1_000).unwrap());
        assert_eq!(belief.remaining(at(1_000)), Duration::from_millis(990));
        belief.may_shorten(at(1_000), Ttl::from_millis(60_000).unwrap());
        assert_eq!(belief.remaining(at(1_000)), Duration::from_millis(990), "asking for more gives nothing yet");
    }

    #[test]
    fn renewals_count_from_where_belief_counts() {
        let (ttl, every) = (Ttl::from_millis(TTL_MS).unwrap(), Duration::from_secs(3));
        let mut belief = belief();
        assert_eq!(belief.next_renewal(ttl, every, None), at(3_000));
        assert_eq!(belief.next_renewal(ttl, every, Some(at(3_400))), at(4_150), "a failure is repeated sooner");
        assert!(belief.renew(granted(5_000, TTL_MS), at(5_100)));
        assert_eq!(belief.next_renewal(ttl, every, None), at(8_000));

        let owned_up = Granted { left: Some(Duration::from_secs(4)), ..granted(8_000, TTL_MS) };
        let late = Belief::new(owned_up, None);
        assert_eq!(late.remaining(at(8_000)), Duration::from_millis(3_900));
        assert_eq!(late.next_renewal(ttl, every, None), at(5_000), "at once");

        let short = Belief::new(granted(0, 1_000), None);
        assert_eq!(short.next_renewal(ttl, every, None), at(495), "a shortened lease is renewed in its middle");
        let capped = Belief::new(granted(0, TTL_MS), Some(at(4_000)));
        assert_eq!(capped.next_renewal(ttl, every, None), at(3_000), "the longest hold does not hurry it");
    }

    #[test]
    fn the_longest_hold_is_its_own_reason_and_no_renewal_passes_it() {
        let mut belief = Belief::new(granted(0, TTL_MS), Some(at(8_000)));
        assert!(belief.renew(granted(4_000, TTL_MS), at(4_000)));
        assert_eq!(belief.remaining(at(4_000)), Duration::from_secs(4));
        assert_eq!(belief.hold_left(at(4_000)), Some(Duration::from_secs(4)));
        assert_eq!(belief.notice(at(8_000)), Noticed::JustLost(LossReason::MaxHold));
    }

    #[test]
    fn a_release_never_hides_a_loss() {
        let mut belief = belief();
        assert!(belief.lose(LossReason::Absent));
        assert!(!belief.lose(LossReason::MaxHold), "the first reason stays");
        assert!(belief.begin_release(), "a lost lock may still be given back");
        belief.end_release();
        assert_eq!(belief.notice(at(1)), Noticed::Over(LossReason::Absent));
        assert!(!belief.begin_release());
    }

    #[test]
    fn a_release_ends_belief_and_may_be_tried_again_until_it_is_answered() {
        let mut belief = belief();
        assert!(belief.begin_release());
        assert_eq!(belief.notice(at(1)), Noticed::Over(LossReason::Released));
        assert!(!belief.renew(granted(1, TTL_MS), at(1)));
        assert!(belief.begin_release());
        belief.end_release();
        assert!(!belief.begin_release());
        assert_eq!(belief.remaining(at(1)), Duration::ZERO);
    }
}
