//! What is inside the binary?
//!
//! A `CycloneDX` list of every crate that is compiled into the command, with version, licence and checksum, read from
//! `cargo metadata` and the lock file. Without a date or a random number: the same commit gives the same list.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::cargo;

pub(crate) fn render(triple: &str) -> Result<String> {
    let manifest = cargo::root().join("crates/cli/Cargo.toml").display().to_string();
    let arguments =
        ["metadata", "--locked", "--format-version", "1", "--features", "full", "--filter-platform", triple];
    let output = cargo::command(arguments).args(["--manifest-path", &manifest]).output()?;
    ensure!(output.status.success(), "cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let sums = checksums(&fs::read_to_string(cargo::root().join("Cargo.lock"))?);
    let list = list(&metadata, &sums)?;
    Ok(serde_json::to_string_pretty(&list)? + "\n")
}

fn list(metadata: &Value, sums: &BTreeMap<(String, String), String>) -> Result<Value> {
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let command =
        packages.iter().find(|package| package["name"] == "syncguard-cli").context("the command is a package")?;
    let inside = reachable(&metadata["resolve"]["nodes"], &text(&command["id"]));
    let mut components: Vec<Value> = packages
        .iter()
        .filter(|package| package["id"] != command["id"] && inside.contains(&text(&package["id"])))
        .map(|package| component(package, sums))
        .collect();
    components.sort_by_key(|component| text(&component["purl"]));
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": component(command, sums) },
        "components": components,
    }))
}

/// What is linked in: normal dependencies, not those of tests and build scripts.
fn reachable(nodes: &Value, from: &str) -> BTreeSet<String> {
    let mut inside = BTreeSet::new();
    let mut waiting = vec![from.to_owned()];
    while let Some(id) = waiting.pop() {
        if !inside.insert(id.clone()) {
            continue;
        }
        let node = nodes.as_array().into_iter().flatten().find(|node| node["id"] == *id);
        let dependencies = node.and_then(|node| node["deps"].as_array()).into_iter().flatten();
        let is_linked =
            |kinds: &Value| kinds.as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()));
        waiting
            .extend(dependencies.filter(|needed| is_linked(&needed["dep_kinds"])).map(|needed| text(&needed["pkg"])));
    }
    inside
}

fn component(package: &Value, sums: &BTreeMap<(String, String), String>) -> Value {
    let (name, version) = (text(&package["name"]), text(&package["version"]));
    let purl = format!("pkg:cargo/{name}@{version}");
    let mut component = json!({ "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl });
    if let Some(licence) = package["license"].as_str() {
        component["licenses"] = json!([{ "expression": licence.replace('/', " OR ") }]);
    }
    if let Some(sum) = sums.get(&(name, version)) {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
    }
    component
}

/// The checksums of the lock file, whose layout is cargo's own: one line for each field, the name first.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let field = |package: &str, name: &str| {
        let value = package.lines().find_map(|line| line.strip_prefix(&format!("{name} = \"")))?;
        Some(value.trim_end_matches('"').to_owned())
    };
    let entry =
        |package: &str| Some(((field(package, "name")?, field(package, "version")?), field(package, "checksum")?));
    lock.split("[[package]]").filter_map(entry).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_what_is_linked_and_not_what_tests_need() {
        let linked = json!([{ "kind": null }]);
        let metadata = json!({
            "packages": [
                { "id": "cli", "name": "syncguard-cli", "version": "0.2.0", "license": "MIT OR Apache-2.0" },
                { "id": "t", "name": "tokio", "version": "1.0.0", "license": "MIT/Apache-2.0" },
                { "id": "s", "name": "snapbox", "version": "1.0.0", "license": "MIT" },
            ],
            "resolve": { "nodes": [
                { "id": "cli", "deps": [
                    { "pkg": "t", "dep_kinds": linked },
                    { "pkg": "s", "dep_kinds": [{ "kind": "dev" }] },
                ] },
                { "id": "t", "deps": [] }, { "id": "s", "deps": [] },
            ] },
        });
        let lock = "[[package]]\nname = \"tokio\"\nversion = \"1.0.0\"\nsource = \"x\"\nchecksum = \"abc\"\n";

        let list = list(&metadata, &checksums(lock)).unwrap();

        assert_eq!(list["components"].as_array().unwrap().len(), 1);
        assert_eq!(list["components"][0]["purl"], "pkg:cargo/tokio@1.0.0");
        assert_eq!(list["components"][0]["hashes"][0]["content"], "abc");
        assert_eq!(list["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(list["metadata"]["component"]["name"], "syncguard-cli");
    }
}
