//! Do the fences of each key rise strictly, and is none given twice? (P3)

use std::collections::{BTreeMap, HashMap};

use super::{Operation, Violation};
use crate::history::Answer;

/// Every fence that was given to two acquisitions, and every grant that came, from its beginning, after the end of one
/// with the same or a higher fence.
pub fn fences_rise(operations: &[Operation]) -> Vec<Violation> {
    let mut by_key: HashMap<&str, Vec<(&Operation, u64)>> = HashMap::new();
    for operation in operations {
        if let Answer::Acquired(fence) = operation.answer {
            by_key.entry(&operation.key).or_default().push((operation, fence));
        }
    }
    by_key.into_iter().flat_map(|(key, grants)| [repeats(key, &grants), falls(key, &grants)].concat()).collect()
}

fn repeats(key: &str, grants: &[(&Operation, u64)]) -> Vec<Violation> {
    let mut owners: HashMap<u64, &str> = HashMap::new();
    let mut fences: HashMap<&str, u64> = HashMap::new();
    let mut found = Vec::new();
    for &(operation, fence) in grants {
        let id = operation.id.as_str();
        if *owners.entry(fence).or_insert(id) != id {
            found.push(Violation::new("fences rise", format!("{key}: fence {fence} was given to two acquisitions")));
        }
        let first = *fences.entry(id).or_insert(fence);
        if first != fence {
            found.push(Violation::new("fences rise", format!("{key}: one acquisition has fences {first} and {fence}")));
        }
    }
    found
}

fn falls(key: &str, grants: &[(&Operation, u64)]) -> Vec<Violation> {
    // The highest fence that was known to anybody, by the moment at which it was.
    let mut known: BTreeMap<u64, u64> = BTreeMap::new();
    let mut returns: Vec<(u64, u64)> =
        grants.iter().filter_map(|(operation, fence)| operation.returned.map(|at| (at, *fence))).collect();
    returns.sort_unstable();
    let mut highest = 0;
    for (at, fence) in returns {
        highest = highest.max(fence);
        known.insert(at, highest);
    }
    let mut invoked: HashMap<&str, u64> = HashMap::new();
    for (operation, _) in grants {
        let first = invoked.entry(&operation.id).or_insert(operation.invoked);
        *first = operation.invoked.min(*first);
    }
    grants
        .iter()
        .filter_map(|(operation, fence)| {
            let began = invoked.get(operation.id.as_str()).copied().unwrap_or(operation.invoked);
            let (_, before) = known.range(..began).next_back()?;
            (fence <= before).then(|| {
                Violation::new("fences rise", format!("{key}: fence {fence} was given after {before} was known"))
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::operations::sample::operation;
    use super::*;
    use crate::history::Call::Acquire;

    #[test]
    fn rising_fences_pass_whatever_the_order_of_replies_and_so_does_owning_up() {
        let history = [
            operation(Acquire, "a", 0, 30, Answer::Acquired(1)),
            operation(Acquire, "b", 10, 20, Answer::Acquired(2)),
            operation(Acquire, "b", 25, 28, Answer::Acquired(2)),
            operation(Acquire, "c", 40, 50, Answer::Acquired(5)),
        ];
        assert_eq!(fences_rise(&history), []);
    }

    #[test]
    fn a_repeated_and_a_fallen_fence_are_caught() {
        let repeated =
            [operation(Acquire, "a", 0, 10, Answer::Acquired(1)), operation(Acquire, "b", 5, 15, Answer::Acquired(1))];
        assert_eq!(fences_rise(&repeated).len(), 1);
        let swapped =
            [operation(Acquire, "a", 0, 10, Answer::Acquired(2)), operation(Acquire, "b", 20, 30, Answer::Acquired(1))];
        assert_eq!(fences_rise(&swapped).len(), 1);
        let changed =
            [operation(Acquire, "a", 0, 10, Answer::Acquired(1)), operation(Acquire, "a", 20, 30, Answer::Acquired(2))];
        assert_eq!(fences_rise(&changed).len(), 1);
    }
}
