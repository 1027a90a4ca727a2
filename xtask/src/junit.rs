//! Which tests ran, and what did they print?
//!
//! Read from the `JUnit` report of nextest, by the library that writes it.

use anyhow::{Context, Result};
use quick_junit::{Report, TestCaseStatus};

use crate::secrets;

/// One test of the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TestCase {
    /// The crate and test binary, for example `syncguard-redis::conformance`.
    pub(crate) binary: String,
    /// The test's path inside the binary, for example `single::the_first_fence_is_one`.
    pub(crate) name: String,
    pub(crate) passed: bool,
    /// Whether it failed first and passed when it was tried again.
    pub(crate) flaky: bool,
    /// The reasons of the `SKIPPED case: reason` lines it printed.
    pub(crate) skipped: Vec<String>,
    /// Whether anything that it printed, in whichever try, shows a secret of the tests: see `secrets`.
    pub(crate) told_a_secret: bool,
}

pub(crate) fn parse(report: &str) -> Result<Vec<TestCase>> {
    let report = Report::deserialize_from_str(report).context("the report of nextest cannot be read")?;
    Ok(report.test_suites.iter().flat_map(|suite| &suite.test_cases).map(test_case).collect())
}

fn test_case(case: &quick_junit::TestCase) -> TestCase {
    let printed = case.system_out.as_ref().map_or("", |text| text.as_str());
    let skips = printed.lines().filter_map(|line| line.trim().strip_prefix("SKIPPED "));
    TestCase {
        binary: case.classname.as_ref().map_or("", |name| name.as_str()).to_owned(),
        name: case.name.as_str().to_owned(),
        passed: matches!(case.status, TestCaseStatus::Success { .. }),
        flaky: matches!(&case.status, TestCaseStatus::Success { flaky_runs } if !flaky_runs.is_empty()),
        skipped: skips.map(|line| line.split_once(": ").map_or(line, |(_, reason)| reason).to_owned()).collect(),
        // All that was kept of the case and of its other tries, in whatever field.
        told_a_secret: format!("{case:?}").to_lowercase().contains(secrets::WORD),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="3" failures="1" errors="0">
    <testsuite name="syncguard-redis::conformance" tests="4" disabled="0" errors="0" failures="1">
        <testcase name="single::a_case" classname="syncguard-redis::conformance" timestamp="2026-01-01T00:00:00Z" time="0.1">
            <system-out>running 1 test
SKIPPED a_case: a &lt;reason&gt;: with a colon
test single::a_case ... ok
</system-out>
        </testcase>
        <testcase name="single::b_case" classname="syncguard-redis::conformance" time="0.1">
            <failure type="test failure">boom</failure>
            <system-out>panicked</system-out>
        </testcase>
        <testcase name="plain" classname="syncguard-core" time="0.1"/>
        <testcase name="starved" classname="syncguard-core" time="0.1">
            <flakyFailure type="test failure">late<system-out>panicked: Canary-1</system-out></flakyFailure>
        </testcase>
    </testsuite>
</testsuites>"#;

    #[test]
    fn a_report_is_read_with_its_failures_and_visible_skips() {
        let cases = parse(REPORT).unwrap();

        assert_eq!(cases.len(), 4);
        assert_eq!(cases[0].binary, "syncguard-redis::conformance");
        assert_eq!(cases[0].name, "single::a_case");
        assert_eq!(cases[0].skipped, ["a <reason>: with a colon"]);
        assert!(cases[0].passed && !cases[1].passed && cases[2].passed);
        assert_eq!(cases[2].name, "plain");
        assert!(cases[2].skipped.is_empty());
        assert!(cases[3].passed && cases[3].flaky && !cases[2].flaky);
        let told: Vec<bool> = cases.iter().map(|case| case.told_a_secret).collect();
        assert_eq!(told, [false, false, false, true], "also in a try that failed, in whatever case");
    }
}
