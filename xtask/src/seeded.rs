//! Were the classic mistakes planted, and did the tests that are named for them see them?
//!
//! The list is the table of `docs/guarantees.md`, so that what readers are told is what is counted. A mistake is caught
//! when the test that plants it passed in this run: those of the core and of the impostors share one test each.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

use crate::cargo;
use crate::junit::TestCase;

/// How many there are. The table must not lose one.
pub(crate) const COUNT: usize = 28;

/// The tests that plant every mistake of the core, and every one of a backend.
const IN_THE_CORE: &str = "every_mistake_that_is_planted_in_the_core_is_caught";
const IN_A_BACKEND: &str = "every_impostor_fails_at_its_named_case_and_the_honest_one_passes_it";

/// One line of the table.
#[derive(Debug, PartialEq, Eq)]
struct Mistake {
    number: usize,
    planted_as: String,
    caught_by: String,
}

/// What is said at the end of a run of all tests, and whether every mistake was caught that is not planted in the core:
/// those take a build of their own, in `cargo xtask prove`.
pub(crate) fn report(tests: &[TestCase]) -> Result<(String, bool)> {
    Ok(judge(&read("docs/guarantees.md")?, &Sources::read()?, tests, &BTreeSet::from([IN_THE_CORE.to_owned()])))
}

/// Whether the test that plants every mistake of the core passed.
pub(crate) fn core_is_proved(passed: &BTreeSet<String>) -> bool {
    println!("every mistake of the core caught: {}", passed.contains(IN_THE_CORE));
    passed.contains(IN_THE_CORE)
}

fn judge(page: &str, sources: &Sources, tests: &[TestCase], seeded: &BTreeSet<String>) -> (String, bool) {
    let mistakes = table(page);
    let missed: Vec<String> = mistakes
        .iter()
        .filter(|mistake| !sources.plant(mistake, tests, seeded))
        .map(|mistake| format!("{} ({})", mistake.number, mistake.caught_by))
        .collect();
    let caught = mistakes.len() - missed.len();
    let complete = caught == COUNT && mistakes.iter().map(|mistake| mistake.number).eq(1..=COUNT);
    let elsewhere = mistakes.iter().filter(|mistake| sources.is_in_the_core(mistake)).count();
    let names = if missed.is_empty() { String::new() } else { format!(", NOT {}", missed.join(", ")) };
    (format!("seeded bugs: {caught} of {COUNT} caught{names} ({elsewhere} of them by `cargo xtask prove`)\n"), complete)
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(cargo::root().join(path)).with_context(|| path.to_owned())
}

/// The code in which mistakes are planted by name.
struct Sources {
    core: String,
    backend: String,
}

/// Whether code plants a mistake under the name of the table, for the check of the table.
fn names(code: &str, kind: &str, mistake: &Mistake) -> bool {
    let entry = code.lines().find(|line| line.contains(&format!("({kind}::{},", mistake.planted_as)));
    entry.is_some_and(|line| line.contains(&mistake.caught_by))
}

impl Sources {
    fn read() -> Result<Self> {
        let (core, backend) =
            ("crates/conformance/tests/behaviour/seeded.rs", "crates/conformance/src/impostors/flaw.rs");
        Ok(Self { core: read(core)?, backend: read(backend)? })
    }

    fn is_in_the_core(&self, mistake: &Mistake) -> bool {
        names(&self.core, "SeededBug", mistake)
    }

    /// Whether a mistake was planted in this run, as the table says it, and the test that does so passed.
    fn plant(&self, mistake: &Mistake, tests: &[TestCase], seeded: &BTreeSet<String>) -> bool {
        let passed = |name: &str| tests.iter().any(|test| test.passed && last_part(&test.name) == name);
        if self.is_in_the_core(mistake) {
            return seeded.contains(IN_THE_CORE);
        }
        if names(&self.backend, "Self", mistake) {
            return passed(IN_A_BACKEND);
        }
        passed(&mistake.caught_by)
    }
}

fn table(page: &str) -> Vec<Mistake> {
    let section = page.split("### Would the checks notice?").nth(1).unwrap_or_default();
    section.lines().filter_map(mistake).collect()
}

fn mistake(line: &str) -> Option<Mistake> {
    let cells: Vec<&str> = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect();
    let [number, _, planted_as, caught_by] = cells[..] else { return None };
    let bare = |cell: &str| cell.trim_matches('`').to_owned();
    Some(Mistake { number: number.parse().ok()?, planted_as: bare(planted_as), caught_by: bare(caught_by) })
}

fn last_part(name: &str) -> &str {
    name.rsplit("::").next().unwrap_or(name)
}

/// The tests that passed, by the lines `test NAME ... ok` of cargo test.
pub(crate) fn passed(line: &str) -> Option<String> {
    let name = line.strip_prefix("test ")?.strip_suffix(" ... ok")?;
    Some(last_part(name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources() -> Sources {
        Sources::read().unwrap()
    }

    fn page() -> String {
        read("docs/guarantees.md").unwrap()
    }

    fn all_passed(page: &str) -> (Vec<TestCase>, BTreeSet<String>) {
        let names = table(page).into_iter().map(|mistake| mistake.caught_by).chain([IN_A_BACKEND.to_owned()]);
        let tests = names.map(|name| TestCase {
            binary: "crate::binary".to_owned(),
            name: format!("module::{name}"),
            passed: true,
            flaky: false,
            skipped: Vec::new(),
            told_a_secret: false,
        });
        (tests.collect(), BTreeSet::from([IN_THE_CORE.to_owned()]))
    }

    #[test]
    fn the_table_of_the_guarantees_names_twenty_eight() {
        let page = page();
        let (tests, seeded) = all_passed(&page);
        let (said, complete) = judge(&page, &sources(), &tests, &seeded);
        assert_eq!(
            (said.as_str(), complete),
            ("seeded bugs: 28 of 28 caught (15 of them by `cargo xtask prove`)\n", true)
        );
    }

    #[test]
    fn every_name_of_a_mistake_is_found_where_it_is_planted() {
        let sources = sources();
        let named: Vec<Mistake> =
            table(&page()).into_iter().filter(|mistake| !mistake.planted_as.contains(' ')).collect();
        let seeded = BTreeSet::from([IN_THE_CORE.to_owned()]);
        let impostors = all_passed("").0;
        let lost: Vec<_> = named.iter().filter(|mistake| !sources.plant(mistake, &impostors, &seeded)).collect();
        assert!(lost.is_empty() && named.len() > 20, "{lost:?}");
    }

    #[test]
    fn a_test_that_did_not_pass_is_a_mistake_that_was_not_caught() {
        let page = page();
        let (tests, seeded) = all_passed(&page);
        let (said, complete) = judge(&page, &sources(), &tests, &BTreeSet::new());
        assert!(said.starts_with("seeded bugs: 13 of 28 caught, NOT 3 (") && !complete, "{said}");
        let without = tests.into_iter().filter(|test| !test.name.contains("row_lock")).collect::<Vec<_>>();
        let (said, complete) = judge(&page, &sources(), &without, &seeded);
        let missing = "27 of 28 caught, NOT 1 (without_the_row_lock_both_succeed_so_the_trials_can_fail)";
        assert!(said.contains(missing) && !complete, "{said}");
        assert!(!judge("", &sources(), &[], &seeded).1, "an empty table is not complete");
    }

    #[test]
    fn the_tests_that_passed_are_read_from_their_lines() {
        assert_eq!(passed("test schedules::a_b ... ok").as_deref(), Some("a_b"));
        assert_eq!(passed("test a_b ... FAILED"), None);
    }
}
