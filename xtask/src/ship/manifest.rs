//! Which crates are published, and in which order?
//!
//! A crate can be published once everything it depends on is. Read from `cargo metadata`, so that a new crate is in the
//! list by existing.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::cargo;

/// One published package, as `cargo metadata` describes it.
pub(crate) struct Published {
    pub(crate) name: String,
    pub(crate) metadata: Value,
}

impl Published {
    pub(crate) fn is_library(&self) -> bool {
        let targets = self.metadata["targets"].as_array();
        targets.is_some_and(|targets| targets.iter().any(|target| target["kind"][0] == "lib"))
    }
}

/// All packages of the workspace that may be published, each after what it depends on.
pub(crate) fn published() -> Result<Vec<Published>> {
    let output = cargo::command(["metadata", "--no-deps", "--format-version", "1"]).output()?;
    ensure!(output.status.success(), "cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    // `publish = false` is an empty list of registries; no list means every registry.
    let is_published = |package: &&Value| package["publish"].as_array().is_none_or(|registries| !registries.is_empty());
    in_order(packages.iter().filter(is_published).cloned().collect())
}

fn in_order(mut waiting: Vec<Value>) -> Result<Vec<Published>> {
    let ours: BTreeSet<String> = waiting.iter().map(name).collect();
    let mut ordered: Vec<Published> = Vec::new();
    while !waiting.is_empty() {
        let is_ready = |package: &Value| {
            let mut ours = dependencies(package).filter(|name| ours.contains(name));
            ours.all(|name| ordered.iter().any(|before| before.name == name))
        };
        let ready =
            waiting.iter().position(is_ready).context("the published crates depend on each other in a circle")?;
        let metadata = waiting.remove(ready);
        ordered.push(Published { name: name(&metadata), metadata });
    }
    Ok(ordered)
}

fn name(package: &Value) -> String {
    package["name"].as_str().unwrap_or_default().to_owned()
}

/// What it needs when it is published: also what its tests need, unless that is used by path alone.
fn dependencies(package: &Value) -> impl Iterator<Item = String> {
    let all = package["dependencies"].as_array().into_iter().flatten();
    all.filter(|dependency| dependency["req"] != "*").map(name)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    fn folder(package: &Published) -> PathBuf {
        Path::new(package.metadata["manifest_path"].as_str().unwrap()).parent().unwrap().to_owned()
    }

    #[test]
    fn a_crate_comes_after_what_it_depends_on() {
        let package = |name: &str, needs: &[&str]| {
            let needs: Vec<Value> =
                needs.iter().map(|name| serde_json::json!({ "name": name, "req": "^0.2.0" })).collect();
            serde_json::json!({ "name": name, "dependencies": needs })
        };
        let ordered =
            in_order(vec![package("top", &["middle", "tokio"]), package("middle", &["base"]), package("base", &[])]);
        let names: Vec<String> = ordered.unwrap().into_iter().map(|package| package.name).collect();
        assert_eq!(names, ["base", "middle", "top"]);
        assert!(in_order(vec![package("a", &["b"]), package("b", &["a"])]).is_err());
    }

    #[test]
    fn every_published_crate_says_what_crates_io_and_docs_rs_show() {
        let published = published().unwrap();
        assert!(published.len() >= 9, "only {} crates are published", published.len());
        for package in &published {
            let (name, metadata) = (&package.name, &package.metadata);
            for field in ["description", "license", "repository", "readme", "rust_version"] {
                assert!(metadata[field].as_str().is_some_and(|text| !text.is_empty()), "{name} has no {field}");
            }
            for (field, most) in [("keywords", 5), ("categories", 5)] {
                let count = metadata[field].as_array().map_or(0, Vec::len);
                assert!((1..=most).contains(&count), "{name} has {count} {field}");
            }
            let shown = &metadata["metadata"]["docs"]["rs"];
            assert!(
                !package.is_library() || shown["all-features"] == true,
                "docs.rs would show {name} without its features"
            );
        }
    }

    #[test]
    fn every_published_crate_carries_its_front_page_and_both_licences() {
        let root = cargo::root();
        for package in published().unwrap() {
            for file in ["LICENSE-MIT", "LICENSE-APACHE"] {
                let carried = fs::read_to_string(folder(&package).join(file)).unwrap_or_default();
                assert_eq!(carried, fs::read_to_string(root.join(file)).unwrap(), "{} of {}", file, package.name);
            }
            let readme = fs::read_to_string(folder(&package).join("README.md")).unwrap();
            // A relative link leads nowhere on crates.io.
            assert!(!readme.contains("](docs") && !readme.contains("](.."), "README.md of {}", package.name);
        }
    }

    /// All tests run with all features, so none of them would see that warnings are compiled out for users.
    #[test]
    fn who_takes_the_facade_or_the_command_as_it_comes_is_warned() {
        let published = published().unwrap();
        let metadata = |name: &str| &published.iter().find(|package| package.name == name).unwrap().metadata;
        let defaults = metadata("syncguard")["features"]["default"].as_array().unwrap();
        assert!(defaults.iter().any(|feature| feature == "tracing"), "{defaults:?}");
        let needed = metadata("syncguard-cli")["dependencies"].as_array().unwrap();
        let facade = needed.iter().find(|needed| needed["name"] == "syncguard").unwrap();
        assert!(facade["features"].as_array().unwrap().iter().any(|feature| feature == "tracing"), "{facade}");
    }

    /// What only the repository needs is not packaged by accident: each manifest lists what is.
    #[test]
    fn no_package_contains_tests_or_benchmarks() {
        for package in published().unwrap() {
            let manifest = fs::read_to_string(folder(&package).join("Cargo.toml")).unwrap();
            let included = manifest.lines().find(|line| line.starts_with("include = ")).unwrap_or_default();
            for part in ["/src/**", "/README.md", "/LICENSE-*"] {
                assert!(included.contains(part), "{}: {part} is not in the package", package.name);
            }
            for part in ["tests", "benches", "examples"] {
                assert!(!included.contains(part), "{}: {part} is in the package", package.name);
            }
        }
    }

    #[test]
    fn all_crates_have_one_version_and_the_changelog_knows_it() {
        let published = published().unwrap();
        let version = published[0].metadata["version"].as_str().unwrap().to_owned();
        assert!(published.iter().all(|package| package.metadata["version"] == *version));
        let changelog = fs::read_to_string(cargo::root().join("CHANGELOG.md")).unwrap();
        let headings: Vec<&str> = changelog.lines().filter(|line| line.starts_with("## ")).collect();
        assert_eq!(headings[0], "## [Unreleased]");
        assert!(headings[1].starts_with(&format!("## [{version}] - ")), "{}", headings[1]);
        for heading in headings {
            let label = heading.trim_start_matches("## ").split_inclusive(']').next().unwrap();
            assert!(changelog.contains(&format!("\n{label}: https://")), "{label} has no link at the end");
        }
        let known = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"];
        for group in changelog.lines().filter_map(|line| line.strip_prefix("### ")) {
            assert!(known.contains(&group), "Keep a Changelog has no group `{group}`");
        }
    }

    /// On docs.rs a page cannot name its neighbour by file: `links.md` must define every name that a page uses so.
    #[test]
    fn every_link_between_pages_is_also_a_link_between_modules() {
        let root = cargo::root();
        let links = fs::read_to_string(root.join("crates/syncguard/docs/links.md")).unwrap();
        let defines = |page: &str, label: &str| page.lines().any(|line| line.starts_with(&format!("[{label}]: ")));
        let modules = fs::read_to_string(root.join("crates/syncguard/src/docs.rs")).unwrap();
        let pages: Vec<&str> = modules.split("\"../docs/").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(pages.len() >= 11, "{pages:?}");
        for page in pages.into_iter().filter(|page| *page != "links.md") {
            let text = fs::read_to_string(root.join("crates/syncguard/docs").join(page)).unwrap();
            let prose = text.split("\n```").step_by(2).collect::<Vec<_>>().join("\n");
            let inline = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
            for target in inline {
                assert!(
                    target.starts_with('#') || target.starts_with("http"),
                    "{page}: write `][{target}]` for docs.rs"
                );
            }
            let labels = prose.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: "));
            for (label, target) in labels.filter(|(_, target)| !target.starts_with("http")) {
                assert!(defines(&links, label), "{page}: links.md does not define {label} ({target})");
            }
        }
    }
}
