//! Can every step of the workflows be run at home?
//!
//! They cannot be run as a whole on a contributor's machine. So each step that is not somebody else's action is one
//! command of this program, and it must be one that exists, with flags that exist.

use std::fs;
use std::path::PathBuf;

use clap::Parser;
use serde_json::Value;

use crate::{Arguments, cargo};

fn workflows() -> Vec<(PathBuf, Value)> {
    let folder = cargo::root().join(".github/workflows");
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let parsed = serde_norway::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path, parsed)
    };
    fs::read_dir(folder).unwrap().map(|entry| read(entry.unwrap().path())).collect()
}

/// The steps of all jobs, with what a matrix puts into them.
fn steps(workflow: &Value) -> Vec<Value> {
    let mut steps = Vec::new();
    for job in workflow["jobs"].as_object().unwrap().values() {
        assert!(job["timeout-minutes"].is_u64(), "a job without an end");
        let matrix = job["strategy"]["matrix"].as_object().cloned().unwrap_or_default();
        for step in job["steps"].as_array().unwrap() {
            let mut texts = vec![step.to_string()];
            for (name, values) in &matrix {
                let place = format!("${{{{ matrix.{name} }}}}");
                let filled = |text: &String| -> Vec<String> {
                    values
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(|value| text.replace(&place, value.as_str().unwrap()))
                        .collect()
                };
                texts = texts.iter().flat_map(filled).collect();
                texts.dedup();
            }
            steps.extend(texts.iter().map(|text| serde_json::from_str::<Value>(text).unwrap()));
        }
    }
    steps
}

/// Whether this program understands a line, in which GitHub will have put values for its expressions.
fn is_a_task(line: &str) -> bool {
    let line = line.replace("${{ github.ref_name }}", "v0.2.0");
    let Some(words) = line.strip_prefix("cargo xtask ") else { return false };
    Arguments::try_parse_from(["cargo xtask"].into_iter().chain(words.split_whitespace())).is_ok()
}

/// Whether an action is named by its commit.
fn is_pinned(action: &str) -> bool {
    let commit = action.split_once('@').map_or("", |(_, commit)| commit);
    commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[test]
fn every_step_of_the_workflows_is_a_command_of_this_program() {
    let workflows = workflows();
    assert_eq!(workflows.len(), 3);
    let mut commands = 0;
    for (path, workflow) in &workflows {
        for step in steps(workflow) {
            if let Some(line) = step["run"].as_str() {
                commands += 1;
                assert!(is_a_task(line), "{}: `{line}` is no command of xtask", path.display());
            } else {
                let action = step["uses"].as_str().unwrap();
                assert!(is_pinned(action), "{action}: a tag may be moved by whoever takes the action over");
                let keeps_token =
                    action.starts_with("actions/checkout@") && step["with"]["persist-credentials"] != false;
                assert!(!keeps_token, "{}: a checkout that leaves its token behind", path.display());
            }
        }
    }
    assert!(commands >= 10, "only {commands} commands were found");
}

#[test]
fn a_line_that_is_no_command_is_seen() {
    assert!(is_a_task("cargo xtask dist --check") && is_a_task("cargo xtask release ${{ github.ref_name }}"));
    for line in ["cargo xtask dits", "cargo xtask dist --chekc", "cargo test", "cargo xtask test && true", "sudo make"]
    {
        assert!(!is_a_task(line), "{line}");
    }
}

/// The first workflow runs what must hold, the second makes what the README tells to download.
#[test]
fn a_tag_makes_everything_that_the_readme_offers() {
    let readme = fs::read_to_string(cargo::root().join("README.md")).unwrap();
    let version = super::dist::version().unwrap();
    let release = workflows().into_iter().find(|(path, _)| path.ends_with("release.yml")).unwrap().1;
    let targets = release["jobs"]["dist"]["strategy"]["matrix"]["target"].as_array().unwrap().clone();
    for target in super::dist::TARGETS {
        assert!(targets.iter().any(|made| made == target.triple), "{} is not made", target.triple);
    }
    let offered = [
        format!("/v{version}/syncguard_{version}_amd64.deb"),
        format!("/v{version}/syncguard-{version}-{}.tar.gz", super::dist::TARGETS[0].triple),
    ];
    for file in offered {
        assert!(readme.contains(&file), "the README offers another file than {file}");
    }
}

#[test]
fn the_forms_for_issues_can_be_read() {
    for name in ["bug.yml", "wish.yml"] {
        let text = fs::read_to_string(cargo::root().join(".github/ISSUE_TEMPLATE").join(name)).unwrap();
        let form: Value = serde_norway::from_str(&text).unwrap();
        for field in ["name", "description", "body"] {
            assert!(!form[field].is_null(), "{name} has no {field}");
        }
    }
}

/// The blocks of a language on all pages of the recipes, with the page's name.
fn blocks(language: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    for entry in fs::read_dir(cargo::root().join("docs/recipes")).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let opening = format!("\n```{language}\n");
        let found = text.split(&*opening).skip(1).map(|rest| rest.split("\n```").next().unwrap().to_owned());
        blocks.extend(found.map(|block| (path.display().to_string(), block)));
    }
    blocks
}

#[test]
fn every_manifest_of_the_recipes_is_one_of_its_kind() {
    let blocks = blocks("yaml");
    assert!(blocks.len() >= 6, "only {} blocks were found", blocks.len());
    for (page, block) in blocks {
        let parsed: Value = serde_norway::from_str(&block).unwrap_or_else(|error| panic!("{page}: {error}"));
        if parsed["services"].is_object() {
            let has_image = |service: &Value| service["image"].is_string();
            assert!(parsed["services"].as_object().unwrap().values().all(has_image), "{page}");
        } else if parsed["jobs"].is_object() {
            assert!(!steps(&parsed).is_empty(), "{page}");
        } else {
            let kind = (parsed["apiVersion"].as_str().unwrap(), parsed["kind"].as_str().unwrap());
            let known = [("v1", "Secret"), ("batch/v1", "CronJob"), ("apps/v1", "Deployment")];
            assert!(known.contains(&kind) && parsed["metadata"]["name"].is_string(), "{page}: {kind:?}");
            assert!(kind.1 == "Secret" || !pods(&parsed).is_empty(), "{page}: {kind:?} has no containers");
            for container in pods(&parsed) {
                assert!(container["name"].is_string() && container["image"].is_string(), "{page}: {container}");
            }
        }
    }
}

/// The containers of a manifest, those of the start included.
fn pods(manifest: &Value) -> Vec<Value> {
    let template = [&manifest["spec"]["template"], &manifest["spec"]["jobTemplate"]["spec"]["template"]];
    let lists = template.iter().flat_map(|pod| [&pod["spec"]["initContainers"], &pod["spec"]["containers"]]);
    lists.filter_map(Value::as_array).flatten().cloned().collect()
}

/// Sections and `Name=value` lines, and nothing that systemd would skip in silence.
#[test]
fn every_unit_of_the_recipes_has_sections_and_settings() {
    let units = blocks("ini");
    assert!(units.len() >= 3);
    for (page, unit) in units {
        let lines = unit.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        for line in lines {
            let is_section = ["[Unit]", "[Service]", "[Timer]", "[Install]"].contains(&line);
            let is_setting = line.split_once('=').is_some_and(|(name, _)| name.chars().all(char::is_alphanumeric));
            assert!(is_section || is_setting, "{page}: `{line}`");
        }
        assert!(unit.contains("[Unit]\nDescription="), "{page}: a unit without a description");
    }
}
