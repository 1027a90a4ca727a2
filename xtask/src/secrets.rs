//! Did any test print a secret?
//!
//! Passwords, keys and lock ids that the tests use as secrets have one word in them, and everything that all suites print is
//! kept in the report. Wherever the word stands there, something that was meant to be hidden came out. One test lets a
//! backend leak on purpose: there the word must be found, or the search is blind.

use std::fmt::Write as _;

use crate::junit::TestCase;

/// The word, in lower case. Not the name of this module, which the names of its tests begin with.
pub(crate) const WORD: &str = "canary";

/// Runs the impostor that shows raw names, and prints how it was caught.
const LEAKS_ON_PURPOSE: &str = "impostors::every_impostor_fails_at_its_named_case_and_the_honest_one_passes_it";

/// What is said about secrets, and whether they were kept.
pub(crate) fn report(tests: &[TestCase], bytes: usize) -> (String, bool) {
    let (on_purpose, others): (Vec<_>, Vec<_>) = tests.iter().partition(|test| test.name == LEAKS_ON_PURPOSE);
    let blind = on_purpose.iter().any(|test| test.passed && !test.told_a_secret);
    let told: Vec<_> = others.into_iter().filter(|test| test.told_a_secret).collect();
    let mut text = String::new();
    for test in &told {
        writeln!(text, "  printed a secret: {} {}", test.binary, test.name).expect("a string accepts text");
    }
    if blind {
        text.push_str("  the leak that is there on purpose was not found\n");
    }
    let count = tests.len();
    writeln!(text, "secrets: {} found in {} KiB that {count} tests printed", told.len(), bytes / 1024)
        .expect("a string accepts text");
    (text, told.is_empty() && !blind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(name: &str, told_a_secret: bool) -> TestCase {
        let (binary, name) = ("crate::binary".to_owned(), name.to_owned());
        TestCase { binary, name, passed: true, flaky: false, skipped: Vec::new(), told_a_secret }
    }

    #[test]
    fn a_secret_that_was_printed_is_found_and_its_test_named() {
        let (said, kept) = report(&[test("quiet", false), test("loud", true)], 4096);
        assert!(said.contains("printed a secret: crate::binary loud\n") && !kept, "{said}");
        assert!(said.ends_with("secrets: 1 found in 4 KiB that 2 tests printed\n"), "{said}");
    }

    #[test]
    fn the_leak_that_is_there_on_purpose_must_be_found() {
        assert!(report(&[test(LEAKS_ON_PURPOSE, true), test("quiet", false)], 0).1);
        let (said, kept) = report(&[test(LEAKS_ON_PURPOSE, false)], 0);
        assert!(said.contains("was not found") && !kept, "{said}");
    }
}
