//! Is everything in the tree of dependencies allowed?
//!
//! `cargo deny` is the judge of releases, but it is a large program that not every machine has. These three questions need
//! only what cargo itself tells, so every run of the tests asks them.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::cargo;

/// What `deny.toml` says, as far as it is asked here.
struct Rules {
    licences: BTreeSet<String>,
    banned: BTreeSet<String>,
    registry: String,
}

impl Rules {
    fn read(text: &str) -> Self {
        let quoted = |line: &str| line.split('"').nth(1).map(str::to_owned);
        let list = text.split("\nallow = [").nth(1).and_then(|rest| rest.split(']').next()).unwrap_or_default();
        let registry = text.lines().find(|line| line.starts_with("allow-registry")).and_then(quoted);
        Self {
            licences: list.lines().filter_map(quoted).collect(),
            banned: text.lines().filter(|line| line.trim().starts_with("{ crate = ")).filter_map(quoted).collect(),
            registry: registry.unwrap_or_default(),
        }
    }

    /// Whether a licence in the language of SPDX is fulfilled by what is allowed: alternatives of conjunctions, and
    /// parentheses around alternatives. What is not understood is not allowed.
    fn allow(&self, licence: &str) -> bool {
        let licence = licence.replace('/', " OR ");
        split(&licence, " AND ").iter().all(|part| {
            let part = part.trim().trim_start_matches('(').trim_end_matches(')');
            part.split(" OR ").any(|one| self.licences.contains(one.trim()))
        })
    }

    /// What is wrong with a package.
    fn objection(&self, package: &Value) -> Option<String> {
        let text = |field: &str| package[field].as_str().unwrap_or_default();
        let (name, source) = (text("name"), text("source"));
        if source.is_empty() {
            return None;
        }
        if source != format!("registry+{}", self.registry) {
            return Some(format!("{name} comes from {source}"));
        }
        if self.banned.contains(name) {
            return Some(format!("{name} is banned"));
        }
        (!self.allow(text("license"))).then(|| format!("{name} has the licence `{}`", text("license")))
    }
}

/// Splits at a word outside of parentheses.
fn split<'a>(text: &'a str, word: &str) -> Vec<&'a str> {
    let mut parts = Vec::new();
    let mut start = 0;
    for (at, _) in text.match_indices(word) {
        let depth = text[..at].matches('(').count() - text[..at].matches(')').count();
        if depth == 0 {
            parts.push(&text[start..at]);
            start = at + word.len();
        }
    }
    parts.push(&text[start..]);
    parts
}

fn rules() -> Rules {
    Rules::read(&std::fs::read_to_string(cargo::root().join("deny.toml")).unwrap_or_default())
}

#[test]
fn only_what_deny_toml_allows_is_in_the_tree() {
    let metadata = cargo::command(["metadata", "--format-version", "1", "--all-features", "--locked"]).output();
    let metadata = metadata.expect("cargo runs").stdout;
    let metadata: Value = serde_json::from_slice(&metadata).expect("cargo describes the tree");
    let packages = metadata["packages"].as_array().expect("it has packages");
    let rules = rules();
    let objections: Vec<String> = packages.iter().filter_map(|package| rules.objection(package)).collect();
    println!("{} packages looked at", packages.len());
    assert!(packages.len() > 300 && objections.is_empty(), "{objections:#?}");
}

#[test]
fn what_is_not_allowed_is_objected_to() {
    let rules = rules();
    let package = |name: &str, source: &str, licence: &str| serde_json::json!({ "name": name, "source": source, "license": licence });
    let here = "registry+https://github.com/rust-lang/crates.io-index";
    for (name, source, licence) in [
        ("x", here, "GPL-3.0"),
        ("x", here, "MIT AND GPL-3.0"),
        ("x", here, "Apache-2.0 WITH Anything"),
        ("x", here, ""),
        ("x", "git+https://example.org/x", "MIT"),
        ("openssl", here, "MIT"),
    ] {
        assert!(rules.objection(&package(name, source, licence)).is_some(), "{name} {source} {licence}");
    }
    for licence in
        ["MIT", "GPL-3.0 OR MIT", "MIT/Apache-2.0", "(GPL-3.0 OR MIT) AND Unicode-3.0", "MIT AND BSD-3-Clause"]
    {
        assert_eq!(rules.objection(&package("x", here, licence)), None, "{licence}");
    }
    assert_eq!(rules.objection(&serde_json::json!({ "name": "ours" })), None);
}
