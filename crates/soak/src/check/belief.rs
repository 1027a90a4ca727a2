//! Did two holders believe in the same lock at one instant? (P4, P5)

use std::collections::HashMap;

use super::{Hold, Violation};

/// Every pair of neighbouring acquisitions of one key whose beliefs overlap.
pub fn no_two_believers(holds: &[Hold]) -> Vec<Violation> {
    let mut by_key: HashMap<&str, Vec<&Hold>> = HashMap::new();
    for hold in holds.iter().filter(|hold| !hold.was_over_at_once) {
        by_key.entry(&hold.key).or_default().push(hold);
    }
    by_key.into_values().flat_map(|mut holds| overlaps(&mut holds)).collect()
}

fn overlaps(holds: &mut [&Hold]) -> Vec<Violation> {
    holds.sort_by_key(|hold| hold.from);
    let mut found = Vec::new();
    let mut longest: Option<&Hold> = None;
    for &hold in holds.iter() {
        if let Some(earlier) = longest.filter(|earlier| hold.from < earlier.until) {
            let overlap = earlier.until.min(hold.until.max(hold.from)) - hold.from;
            found.push(Violation::new(
                "no two believers",
                format!(
                    "{}: fence {} (process {}) believed until {}, fence {} (process {}) from {}: {overlap} ns together",
                    hold.key, earlier.fence, earlier.process, earlier.until, hold.fence, hold.process, hold.from
                ),
            ));
        }
        if longest.is_none_or(|earlier| hold.until > earlier.until) {
            longest = Some(hold);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(key: &str, fence: u64, from: u64, until: u64) -> Hold {
        Hold {
            process: 0,
            key: key.to_owned(),
            id: format!("{key}{fence}"),
            fence,
            from,
            until,
            was_over_at_once: false,
            deadline: until,
            signalled: None,
            releasing: None,
        }
    }

    #[test]
    fn holders_in_turn_are_fine_and_so_are_those_of_different_keys() {
        let holds = [hold("a", 1, 0, 10), hold("a", 2, 10, 20), hold("b", 1, 5, 15), hold("a", 3, 25, 25)];
        assert_eq!(no_two_believers(&holds), []);
    }

    #[test]
    fn who_was_told_no_at_its_first_question_did_not_believe() {
        let mut late = hold("a", 1, 5, 5);
        assert_eq!(no_two_believers(&[hold("a", 2, 0, 10), late.clone()]).len(), 1);
        late.was_over_at_once = true;
        assert_eq!(no_two_believers(&[hold("a", 2, 0, 10), late]), []);
    }

    #[test]
    fn an_overlap_is_caught_even_with_a_short_hold_in_between() {
        let holds = [hold("a", 1, 0, 100), hold("a", 2, 10, 11), hold("a", 3, 50, 60)];
        assert_eq!(no_two_believers(&holds).len(), 2);
    }
}
