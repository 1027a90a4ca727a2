//! From when to when did a process certainly believe that it holds a lock?
//!
//! From the moment the guard was in its hands to the last moment at which it asked and was told yes. Where the guard
//! then ended by itself, at its deadline, belief lasted until there: nothing else could have ended it in between.

use std::collections::HashMap;

use crate::history::{Event, History, What};
use crate::time::Nanos;

/// One acquisition, as its process saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Which process, by its place in the list of histories.
    pub process: usize,
    /// The key.
    pub key: String,
    /// The hash of the lock id.
    pub id: String,
    /// The fence.
    pub fence: u64,
    /// When the guard was there.
    pub from: Nanos,
    /// Up to when it was certainly believed in.
    pub until: Nanos,
    /// Whether the first question was answered with no: the process was stopped before it could ask, and so never believed.
    pub was_over_at_once: bool,
    /// The deadline that was known last.
    pub deadline: Nanos,
    /// When `lost()` resolved, and why.
    pub signalled: Option<(Nanos, String)>,
    /// When giving it back began.
    pub releasing: Option<Nanos>,
}

/// The acquisitions of all processes.
pub fn holds(histories: &[History]) -> Vec<Hold> {
    histories.iter().enumerate().flat_map(|(process, history)| of_process(process, history)).collect()
}

fn of_process(process: usize, history: &History) -> Vec<Hold> {
    let mut holds: Vec<Hold> = Vec::new();
    let mut index: HashMap<&str, usize> = HashMap::new();
    for Event(at, what) in &history.events {
        match what {
            What::Granted { key, id, fence } => {
                index.insert(id, holds.len());
                holds.push(Hold {
                    process,
                    key: key.clone(),
                    id: id.clone(),
                    fence: *fence,
                    from: *at,
                    until: *at,
                    was_over_at_once: false,
                    deadline: *at,
                    signalled: None,
                    releasing: None,
                });
            }
            What::Believed { id, .. } | What::Over { id, .. } | What::Signalled { id, .. } | What::Releasing { id } => {
                if let Some(hold) = index.get(id.as_str()).and_then(|&place| holds.get_mut(place)) {
                    hold.hear(*at, what);
                }
            }
            _ => {}
        }
    }
    holds
}

impl Hold {
    fn hear(&mut self, at: Nanos, what: &What) {
        match what {
            What::Believed { deadline, .. } => {
                self.until = self.until.max(at);
                self.deadline = *deadline;
            }
            What::Over { .. } if self.deadline == self.from => self.was_over_at_once = true,
            What::Over { reason, .. } if reason == "expired" => self.until = self.until.max(self.deadline),
            What::Signalled { reason, .. } => self.signalled = Some((at, reason.clone())),
            What::Releasing { .. } => self.releasing = Some(at),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(events: Vec<(Nanos, What)>) -> History {
        History { events: events.into_iter().map(|(at, what)| Event(at, what)).collect() }
    }

    #[test]
    fn belief_lasts_to_the_last_yes_or_to_the_deadline_that_ended_it() {
        let id = || "a".to_owned();
        let granted = (10, What::Granted { key: "k".to_owned(), id: id(), fence: 1 });
        let believed = (20, What::Believed { id: id(), deadline: 100 });
        let over = |reason: &str| (120, What::Over { id: id(), reason: reason.to_owned() });

        let until = |events| holds(&[history(events)])[0].until;

        assert_eq!(until(vec![granted.clone()]), 10);
        assert_eq!(until(vec![granted.clone(), believed.clone()]), 20);
        assert_eq!(until(vec![granted.clone(), believed.clone(), over("expired")]), 100);
        assert_eq!(
            until(vec![granted.clone(), believed.clone(), over("absent")]),
            20,
            "it may have been told at any moment"
        );

        let never = |events| holds(&[history(events)])[0].was_over_at_once;
        assert!(never(vec![granted.clone(), over("expired")]));
        assert!(!never(vec![granted.clone()]) && !never(vec![granted, believed, over("expired")]));
    }
}
