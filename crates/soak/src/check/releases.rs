//! Did at most one release of each acquisition free the lock? (P7)

use std::collections::HashMap;

use super::{Operation, Violation};
use crate::history::{Answer, Call};

/// Every lock id of which more releases say that they freed it than requests can have taken it. A request that was
/// delayed may take the lock again after a release; so each one whose outcome is unknown allows one release more.
///
/// Releases of one id that overlap count as one: a storage without transactions that answer learns the fate of a delete
/// from what is left, and cannot tell which of two requests of the same owner it was.
pub fn at_most_one_release(operations: &[Operation]) -> Vec<Violation> {
    let mut by_id: HashMap<&str, Vec<&Operation>> = HashMap::new();
    for operation in operations {
        by_id.entry(&operation.id).or_default().push(operation);
    }
    by_id.into_iter().filter_map(|(id, operations)| too_many(id, &operations)).collect()
}

fn too_many(id: &str, operations: &[&Operation]) -> Option<Violation> {
    let of = |call, answer| operations.iter().filter(move |one| (one.call, one.answer) == (call, answer));
    let in_doubt = of(Call::Acquire, Answer::Unknown).count();
    let effective = |release: &&&Operation| !repeats_another(release, operations.iter().copied());
    let released = of(Call::Release, Answer::Released).filter(effective).count();
    (released > 1 + in_doubt)
        .then(|| Violation::new("one release", format!("lock id {id} was released {released} times")))
}

/// Whether an earlier release of the same id was under way when this one was sent, and both say that they freed it.
pub(super) fn repeats_another<'a>(release: &Operation, all: impl IntoIterator<Item = &'a Operation>) -> bool {
    all.into_iter().any(|other| {
        other.id == release.id
            && (other.call, other.answer) == (Call::Release, Answer::Released)
            && (other.invoked, other.returned) < (release.invoked, release.returned)
            && other.returned.is_some_and(|returned| returned >= release.invoked)
    })
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

        history.push(operation(Release, "a", 1, 4, Answer::Released));
        assert_eq!(at_most_one_release(&history), [], "the two overlap");

        history.push(operation(Release, "a", 5, 6, Answer::Released));

        assert_eq!(at_most_one_release(&history).len(), 1);
    }
}
