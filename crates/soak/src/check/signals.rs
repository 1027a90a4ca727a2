//! Was every loss told in time? (P5)
//!
//! `lost()` resolves at the deadline while the runtime is polled. A process that was stopped, or that the machine did not
//! run, cannot be told anything; it writes down such pauses itself, and what falls into one is excused.

use super::{Hold, Violation};
use crate::history::{Event, History, What};
use crate::time::{MILLI, Nanos};

/// How late a signal may be: the storage frees the lock a whole tolerance after the deadline at the earliest.
const LIMIT: Nanos = 1_000 * MILLI;

/// How losses were told.
#[derive(Clone, Debug, Default)]
pub struct Signals {
    /// Losses that were signalled.
    pub told: u64,
    /// Those whose process had not run around the deadline.
    pub excused: u64,
    /// Those that came too late.
    pub late: Vec<Violation>,
}

/// Judges every loss by the deadline.
pub fn signals(histories: &[History], holds: &[Hold]) -> Signals {
    let pauses: Vec<Vec<(Nanos, Nanos)>> = histories.iter().map(pauses).collect();
    let mut signals = Signals::default();
    for hold in holds {
        let Some((at, reason)) = &hold.signalled else { continue };
        if reason != "expired" {
            continue;
        }
        signals.told += 1;
        if *at <= hold.deadline + LIMIT {
            continue;
        }
        let of_process = pauses.get(hold.process).into_iter().flatten();
        if of_process.into_iter().any(|(from, until)| *from <= *at && *until >= hold.deadline) {
            signals.excused += 1;
            continue;
        }
        let late = (at - hold.deadline) / MILLI;
        let what = format!("{}: fence {} was lost {late} ms before that was told", hold.key, hold.fence);
        signals.late.push(Violation::new("loss told in time", what));
    }
    signals
}

fn pauses(history: &History) -> Vec<(Nanos, Nanos)> {
    let pause = |Event(at, what): &Event| match what {
        What::Gap { from } => Some((*from, *at)),
        _ => None,
    };
    history.events.iter().filter_map(pause).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(signalled: Nanos) -> Hold {
        Hold {
            process: 0,
            key: "k".to_owned(),
            id: "a".to_owned(),
            fence: 1,
            from: 0,
            until: 0,
            was_over_at_once: false,
            deadline: 2_000 * MILLI,
            signalled: Some((signalled, "expired".to_owned())),
            releasing: None,
        }
    }

    #[test]
    fn a_late_signal_is_caught_unless_the_process_did_not_run() {
        let ran = [History::default()];
        let stopped = [History { events: vec![Event(5_000 * MILLI, What::Gap { from: 1_900 * MILLI })] }];

        let in_time = signals(&ran, &[hold(2_001 * MILLI)]);
        let late = signals(&ran, &[hold(5_001 * MILLI)]);
        let excused = signals(&stopped, &[hold(5_001 * MILLI)]);

        assert_eq!((in_time.told, in_time.late.len()), (1, 0));
        assert_eq!(late.late.len(), 1);
        assert_eq!((excused.excused, excused.late.len()), (1, 0));
    }
}
