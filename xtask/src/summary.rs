//! What does the reader of the last lines need to know?
//!
//! How many tests ran, how many conformance cases each backend passed and which it skipped and why, and what failed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::junit::TestCase;

/// The conformance cases of one target.
#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u32,
    skipped: Vec<(String, String)>,
}

pub(crate) fn render(tests: &[TestCase], doctests: u32, failed: &[&str], elapsed: Duration) -> String {
    let passed = tests.iter().filter(|test| test.passed).count();
    let mut text = format!("\ntests: {passed} passed, {} failed", tests.len() - passed);
    if doctests > 0 {
        write!(text, ", and {doctests} doctests passed").expect("a string accepts text");
    }
    text.push('\n');
    let tallies = tally(tests);
    let targets: Vec<String> = tallies.iter().map(|(target, tally)| render_target(target, tally)).collect();
    let targets = if targets.is_empty() { "no case ran".to_owned() } else { targets.join(" · ") };
    writeln!(text, "conformance: {targets}").expect("a string accepts text");
    for ((case, reason), targets) in skips(&tallies) {
        writeln!(text, "  skipped on {}: {case}: {reason}", targets.join(", ")).expect("a string accepts text");
    }
    for test in tests.iter().filter(|test| test.passed && test.flaky) {
        writeln!(text, "  passed only when tried again, mend it: {} {}", test.binary, test.name)
            .expect("a string accepts text");
    }
    let seconds = elapsed.as_secs();
    let verdict = if failed.is_empty() { "ok".to_owned() } else { format!("FAILED: {}", failed.join(", ")) };
    writeln!(text, "{verdict} ({} min {} s)", seconds / 60, seconds % 60).expect("a string accepts text");
    text
}

fn tally(tests: &[TestCase]) -> BTreeMap<String, Tally> {
    let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
    for test in tests {
        let Some((target, case)) = conformance_case(test) else { continue };
        let tally = tallies.entry(target).or_default();
        match (&*test.skipped, test.passed) {
            (_, false) => tally.failed += 1,
            ([], true) => tally.passed += 1,
            (reasons, true) => tally.skipped.push((case.to_owned(), reasons.join("; "))),
        }
    }
    tallies
}

/// The targets that skipped a case for the same reason, so that each reason is read once.
fn skips(tallies: &BTreeMap<String, Tally>) -> BTreeMap<&(String, String), Vec<&str>> {
    let mut skips: BTreeMap<&(String, String), Vec<&str>> = BTreeMap::new();
    for (target, tally) in tallies {
        for skip in &tally.skipped {
            skips.entry(skip).or_default().push(target);
        }
    }
    skips
}

/// The target and the case, if the test is one: `suite!` in `tests/behaviour/conformance.rs` makes `conformance::target::group::case`.
fn conformance_case(test: &TestCase) -> Option<(String, &str)> {
    let package = test.binary.strip_suffix("::behaviour")?;
    let (target, case) = test.name.strip_prefix("conformance::")?.split_once("::")?;
    let (_, case) = case.split_once("::").filter(|(_, case)| !case.contains("::"))?;
    let backend = package.strip_prefix("syncguard-").unwrap_or(package);
    // The suite's own crate runs it on the reference backend, and a backend with one target names it after itself.
    let label =
        if backend == target || backend == "conformance" { target.to_owned() } else { format!("{backend}/{target}") };
    Some((label, case))
}

fn render_target(target: &str, tally: &Tally) -> String {
    let mut text = format!("{target} {}", tally.passed);
    let mut remarks = Vec::new();
    if tally.failed > 0 {
        remarks.push(format!("{} FAILED", tally.failed));
    }
    if !tally.skipped.is_empty() {
        remarks.push(format!("{} skipped", tally.skipped.len()));
    }
    if !remarks.is_empty() {
        write!(text, " ({})", remarks.join(", ")).expect("a string accepts text");
    }
    text
}

/// The number in `test result: ok. 7 passed; …`, the line that ends the doctests of one crate.
pub(crate) fn doctests_passed(line: &str) -> u32 {
    let number = |rest: &str| rest.split_once(" passed")?.0.rsplit(' ').next()?.parse().ok();
    line.strip_prefix("test result: ").and_then(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(binary: &str, name: &str, passed: bool, skipped: &[&str]) -> TestCase {
        let skipped = skipped.iter().map(|&reason| reason.to_owned()).collect();
        TestCase {
            binary: binary.to_owned(),
            name: name.to_owned(),
            passed,
            flaky: name.ends_with("tls::keys::b"),
            skipped,
            told_a_secret: false,
        }
    }

    #[test]
    fn the_closing_lines_count_cases_per_target_and_explain_skips() {
        let tests = [
            test("syncguard-conformance::behaviour", "conformance::memory::keys::a", true, &[]),
            test("syncguard-conformance::behaviour", "conformance::every_case_has_its_own_name", true, &[]),
            test("syncguard-redis::behaviour", "conformance::single::keys::a", true, &[]),
            test("syncguard-redis::behaviour", "conformance::single::keys::b", true, &["no clock of its own"]),
            test("syncguard-redis::behaviour", "conformance::tls::keys::a", false, &[]),
            test("syncguard-redis::behaviour", "conformance::tls::keys::b", true, &["no clock of its own"]),
            test("syncguard-sqlite::behaviour", "conformance::sqlite::keys::a", true, &[]),
            test("syncguard-core", "fence::tests::conformance::x", true, &[]),
        ];

        let text = render(&tests, 4, &["tests"], Duration::from_secs(75));

        assert_eq!(
            text,
            "\ntests: 7 passed, 1 failed, and 4 doctests passed\n\
             conformance: memory 1 · redis/single 1 (1 skipped) · redis/tls 0 (1 FAILED, 1 skipped) · sqlite 1\n  \
             skipped on redis/single, redis/tls: b: no clock of its own\n  \
             passed only when tried again, mend it: syncguard-redis::behaviour conformance::tls::keys::b\n\
             FAILED: tests (1 min 15 s)\n"
        );
    }

    #[test]
    fn a_run_without_conformance_cases_says_so() {
        assert!(render(&[], 0, &[], Duration::ZERO).contains("conformance: no case ran\nok (0 min 0 s)"));
    }

    #[test]
    fn the_doctests_of_a_crate_are_counted_by_its_last_line() {
        assert_eq!(doctests_passed("test result: ok. 12 passed; 0 failed; 1 ignored"), 12);
        assert_eq!(doctests_passed("test result: FAILED. 3 passed; 1 failed"), 3);
        assert_eq!(doctests_passed("test src/lib.rs - (line 3) ... ok"), 0);
    }
}
