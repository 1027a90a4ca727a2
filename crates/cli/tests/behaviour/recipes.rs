//! Does the command understand what the recipes and the packaged units tell it?
//!
//! Every command line of `syncguard run` in a crontab, a unit, a workflow or a manifest is run as it stands, on a Redis and
//! with a program that does nothing in place of the one that the reader has. That the YAML around them can be read is
//! tested by xtask; Rust blocks are doctests of the facade.

#![cfg(feature = "redis")]

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Lab, finish};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn texts() -> Vec<(String, String)> {
    let mut texts = Vec::new();
    for folder in ["docs/recipes", "packaging/systemd"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            texts.push((path.file_name().unwrap().to_string_lossy().into_owned(), fs::read_to_string(path).unwrap()));
        }
    }
    texts.sort();
    texts
}

/// The arguments of all uses of `run` in a text, up to the program that it starts.
fn uses(text: &str) -> Vec<Vec<String>> {
    text.lines().filter_map(arguments).collect()
}

fn arguments(line: &str) -> Option<Vec<String>> {
    let words = if let Some((_, list)) = line.split_once(": [syncguard, ") {
        // A list of YAML on one line, as manifests write a command.
        let items = list.trim_end().strip_suffix(']')?.split(", ");
        items.map(|item| item.trim_matches('"').to_owned()).collect()
    } else {
        let (_, rest) = line.split_once("syncguard run ").filter(|(before, _)| !before.contains('`'))?;
        shell_words(&format!("run {rest}"))
    };
    let end = words.iter().position(|word| word == "--")?;
    Some(words[..end].to_vec())
}

/// Enough of a shell for the recipes: double quotes keep words together, and variables have a value.
fn shell_words(line: &str) -> Vec<String> {
    let parts = line.split('"').enumerate();
    let words = parts.flat_map(|(number, part)| match number % 2 {
        0 => part.split_whitespace().map(str::to_owned).collect(),
        _ => vec![part.replace("$GITHUB_RUN_ID", "7")],
    });
    words.collect()
}

#[test]
fn every_command_line_of_the_recipes_runs() {
    let lab = Lab::new();
    let mut count = 0;
    for (name, text) in texts() {
        for words in uses(&text) {
            count += 1;
            // Each on a prefix of its own: the same job appears on several pages.
            let url = format!("{}?prefix=recipes-{}-{count}", syncguard_testkit::redis_url(), std::process::id());
            let words = words.iter().map(String::as_str).chain(["--", "true"]);
            let mut command = lab.bare(words.clone());
            let said = finish(command.env("SYNCGUARD_URL", url).spawn().unwrap());
            let line = words.collect::<Vec<_>>().join(" ");
            assert_eq!(said.code, Some(0), "{name}: syncguard {line}: {}", said.stderr);
        }
    }
    assert!(count >= 9, "only {count} command lines were found");
}

#[test]
fn the_three_ways_to_write_a_command_line_are_read() {
    let read = |line: &str| arguments(line).unwrap().join(" ");
    assert_eq!(read("0 2 * * *  root  syncguard run -n cron:report -- /bin/report"), "run -n cron:report");
    assert_eq!(
        read("  command: [syncguard, run, -w, 10m, \"migrate:app\", --, /app/migrate]"),
        "run -w 10m migrate:app"
    );
    assert_eq!(shell_words("run --label \"run $GITHUB_RUN_ID\" k"), ["run", "--label", "run 7", "k"]);
    assert_eq!(arguments("as `syncguard run KEY -- COMMAND` says"), None);
}

/// The page shows the units that the package brings.
#[test]
fn the_recipe_for_systemd_shows_the_packaged_units() {
    let page = fs::read_to_string(root().join("docs/recipes/systemd.md")).unwrap();
    for unit in ["report.service", "report.timer"] {
        let packaged = fs::read_to_string(root().join("packaging/systemd").join(unit)).unwrap();
        for line in packaged.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            assert!(page.lines().any(|shown| shown == line), "{unit}: the page does not show `{line}`");
        }
    }
}
