//! Did at most one release of each acquisition free the lock? (P7)

use std::collections::HashMap;

use super::{Operation, Violation};
use crate::history::{Answer, Call};

/// Every lock id of which more releases say that they freed it than requests can have taken it. A request that was
/// delayed may take the lock again after a release; so each one whose outcome is unknown allows one release more.
pub fn at_most_one_release(operations: &[Operation]) -> Vec<Violation> {
    let mut counts: HashMap<&str, (u32, u32)> = HashMap::new();
    for operation in operations {
        let (released, in_doubt) = counts.entry(&operation.id).or_default();
        match (operation.call, operation.answer) {
            (Call::Release, Answer::Released) => *released += 1,
            (Call::Acquire, Answer::Unknown) => *in_doubt += 1,
            _ => {}
        }
    }
    counts
        .into_iter()
        .filter(|(_, (released, in_doubt))| *released > 1 + in_doubt)
        .map(|(id, (released, _))| Violation::new("one release", format!("lock id {id} was released {released} times")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::operations::sample::operation;
    use super::*;
    use crate::history::Call::{Acquire, Release};

    #[test]
    fn a_second_effective_release_is_caught_and_an_absent_one_is_fine() {
        let mut history = vec![
            operation(Release, "a", 0, 1, Answer::Released),
            operation(Release, "a", 2, 3, Answer::Absent),
            operation(Acquire, "b", 0, 9, Answer::Unknown),
            operation(Release, "b", 2, 3, Answer::Released),
            operation(Release, "b", 4, 5, Answer::Released),
        ];
        assert_eq!(at_most_one_release(&history), []);

        history.push(operation(Release, "a", 4, 5, Answer::Released));

        assert_eq!(at_most_one_release(&history).len(), 1);
    }
}
