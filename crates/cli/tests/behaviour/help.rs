//! What does each command say of itself?
//!
//! The whole text, for each command: whoever changes a flag sees what people will read. `SNAPSHOTS=overwrite` writes them
//! anew.

#![cfg(all(feature = "sqlite", feature = "redis", feature = "postgres", feature = "firestore"))]

use std::path::Path;

use crate::support::{Lab, finish};
use snapbox::IntoData;

const COMMANDS: [&str; 17] = [
    "run",
    "acquire",
    "extend",
    "release",
    "status",
    "list",
    "watch",
    "break",
    "purge",
    "doctor",
    "bench",
    "fence",
    "wait",
    "schema",
    "completions",
    "man",
    "",
];

fn help(lab: &Lab, command: &str, flag: &str) -> String {
    let words = [command, flag].into_iter().filter(|word| !word.is_empty());
    let said = finish(lab.bare(words).env("COLUMNS", "100").spawn().unwrap());
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{command} {flag}");
    said.stdout.lines().flat_map(|line| [line.trim_end(), "\n"]).collect()
}

#[test]
fn the_help_of_every_command_is_as_committed() {
    let lab = Lab::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots");
    let assert = snapbox::Assert::new().action_env("SNAPSHOTS");
    for command in COMMANDS {
        let name = if command.is_empty() { "syncguard" } else { command };
        let committed = snapbox::Data::read_from(&folder.join(format!("help-{name}.txt")), None);
        assert.eq(help(&lab, command, "--help").into_data(), committed);
    }
}

#[test]
fn every_command_is_in_the_snapshots_and_its_short_help_fits_a_screen() {
    let lab = Lab::new();
    let listed = help(&lab, "", "-h");
    let commands = listed.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // What does not fit into a line goes on far to the right.
    let commands = commands.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let commands: Vec<&str> = commands.map(|line| line.split_whitespace().next().unwrap()).collect();
    for command in &commands {
        assert!(COMMANDS.contains(command), "{command}");
        let lines = help(&lab, command, "-h").lines().count();
        assert!(lines <= 42, "{command} -h has {lines} lines");
    }
    assert_eq!(commands.len(), COMMANDS.len() - 1, "{commands:?}");
}
