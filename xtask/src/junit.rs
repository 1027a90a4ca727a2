//! Which tests ran, and what did they print?
//!
//! Read from the `JUnit` report of nextest. Its writer is one library with one layout (elements in order, attributes in
//! double quotes), so a scan for its elements is enough; the tests below hold a sample of it.

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

pub(crate) fn parse(report: &str) -> Vec<TestCase> {
    report.split("<testcase ").skip(1).filter_map(parse_case).collect()
}

fn parse_case(text: &str) -> Option<TestCase> {
    let (attributes, rest) = text.split_once('>')?;
    // An element without content ends in `/>`; what follows belongs to the next one.
    let content = if attributes.ends_with('/') { "" } else { rest.split("</testcase>").next()? };
    let passed = !content.contains("<failure") && !content.contains("<error");
    let flaky = content.contains("<flakyFailure") || content.contains("<flakyError");
    let skipped = element(content, "system-out")
        .lines()
        .filter_map(|line| line.trim().strip_prefix("SKIPPED "))
        .map(|line| line.split_once(": ").map_or(line, |(_, reason)| reason).to_owned())
        .collect();
    Some(TestCase {
        binary: attribute(attributes, "classname")?,
        name: attribute(attributes, "name")?,
        passed,
        flaky,
        skipped,
        told_a_secret: content.to_lowercase().contains(secrets::WORD),
    })
}

fn attribute(attributes: &str, name: &str) -> Option<String> {
    let marker = format!("{name}=\"");
    // `classname` ends with `name`: the marker must start a word.
    let starts_word = |position: usize| position == 0 || attributes[..position].ends_with(' ');
    let (position, _) = attributes.match_indices(&marker).find(|(position, _)| starts_word(*position))?;
    let value = attributes[position + marker.len()..].split('"').next()?;
    Some(unescape(value))
}

fn element(content: &str, name: &str) -> String {
    let inner = content
        .split_once(&format!("<{name}>"))
        .and_then(|(_, rest)| rest.split_once(&format!("</{name}>")))
        .map_or("", |(inner, _)| inner);
    unescape(inner)
}

fn unescape(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&apos;", "'").replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="3" failures="1" errors="0">
    <testsuite name="syncguard-redis::conformance" tests="2">
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
        let cases = parse(REPORT);

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
