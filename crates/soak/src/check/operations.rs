//! Which calls were made, and how did each end?

use std::collections::HashMap;

use crate::history::{Answer, Call, Event, History, What};
use crate::time::Nanos;

/// One call to a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Which one.
    pub call: Call,
    /// The key.
    pub key: String,
    /// The hash of the lock id.
    pub id: String,
    /// Before it left.
    pub invoked: Nanos,
    /// After it was answered; `None` if it never was.
    pub returned: Option<Nanos>,
    /// The answer; [`Unknown`](Answer::Unknown) without one.
    pub answer: Answer,
}

/// The calls of all processes, ordered by when they left.
pub fn operations(histories: &[History]) -> Vec<Operation> {
    let mut all: Vec<Operation> = histories.iter().flat_map(of_process).collect();
    all.sort_by_key(|operation| operation.invoked);
    all
}

fn of_process(history: &History) -> Vec<Operation> {
    let mut found = Vec::new();
    let mut open = HashMap::new();
    for Event(at, what) in &history.events {
        match what {
            What::Invoke { op, call, key, id } => {
                open.insert(*op, found.len());
                found.push(Operation {
                    call: *call,
                    key: key.clone(),
                    id: id.clone(),
                    invoked: *at,
                    returned: None,
                    answer: Answer::Unknown,
                });
            }
            What::Return { op, answer } => {
                if let Some(operation) = open.remove(op).and_then(|index: usize| found.get_mut(index)) {
                    operation.returned = Some(*at);
                    operation.answer = *answer;
                }
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
pub(super) mod sample {
    use super::*;

    /// An operation on the key `k`.
    pub(crate) fn operation(call: Call, id: &str, invoked: Nanos, returned: Nanos, answer: Answer) -> Operation {
        Operation { call, key: "k".to_owned(), id: id.to_owned(), invoked, returned: Some(returned), answer }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_without_an_answer_is_unknown() {
        let invoke = |op| What::Invoke { op, call: Call::Acquire, key: "k".to_owned(), id: format!("{op}") };
        let events = vec![
            Event(1, invoke(1)),
            Event(2, invoke(2)),
            Event(3, What::Return { op: 2, answer: Answer::Acquired(1) }),
        ];

        let found = operations(&[History { events }]);

        assert_eq!((found[0].returned, found[0].answer), (None, Answer::Unknown));
        assert_eq!((found[1].returned, found[1].answer), (Some(3), Answer::Acquired(1)));
    }
}
