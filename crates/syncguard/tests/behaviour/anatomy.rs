//! Does every backend have the rooms that CONTRIBUTING.md names, and no others?

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const BACKENDS: [&str; 4] = ["sqlite", "redis", "postgres", "firestore"];

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn sources(backend: &str) -> PathBuf {
    root().join("crates/backends").join(backend).join("src")
}

/// The cells of every line of every table under "The anatomy of a backend".
fn tables() -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let (_, rest) = text.split_once("## The anatomy of a backend").unwrap();
    let (section, _) = rest.split_once("\n## ").unwrap();
    let lines = section.lines().filter(|line| line.starts_with('|') && !line.starts_with("|---"));
    lines.map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

/// The files that a cell names.
fn files(cell: &str) -> impl Iterator<Item = String> + '_ {
    cell.split('`')
        .skip(1)
        .step_by(2)
        .filter(|name| Path::new(name).extension().is_some_and(|end| end == "rs"))
        .map(str::to_owned)
}

#[test]
fn every_room_is_where_the_table_says() {
    let mut checked = 0;
    for row in tables().iter().filter(|row| row.len() == 2 + BACKENDS.len()).skip(1) {
        for (backend, cell) in BACKENDS.iter().zip(&row[2..]) {
            let wanted: Vec<String> = match cell.as_str() {
                "" => continue,
                "✓" => files(&row[0]).collect(),
                "in `operations/`" => files(&row[0]).map(|file| format!("operations/{file}")).collect(),
                named => files(named).collect(),
            };
            assert!(!wanted.is_empty(), "{}: the cell of {backend} says nothing: {cell}", row[0]);
            for file in wanted {
                assert!(sources(backend).join(&file).is_file(), "{backend} has no {file}");
                checked += 1;
            }
        }
    }
    assert!(checked > 40, "only {checked} rooms were read from the table");
}

#[test]
fn every_file_of_a_backend_has_its_line_in_the_tables() {
    let tables = tables();
    let common: BTreeSet<String> = tables.iter().filter(|row| row.len() > 2).flat_map(|row| files(&row[0])).collect();
    for backend in BACKENDS {
        let own = tables.iter().find(|row| row.len() == 2 && row[0] == backend).unwrap();
        let own: BTreeSet<String> = files(&own[1]).collect();
        for file in &own {
            assert!(sources(backend).join(file).is_file(), "{backend} has no {file}");
        }
        for entry in std::fs::read_dir(sources(backend)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            // The parts of a room lie in a folder of its name.
            let room = if entry.path().is_dir() { format!("{name}.rs") } else { name };
            assert!(common.contains(&room) || own.contains(&room), "{backend} has a room {room} that no table names");
        }
        for place in ["behaviour/conformance.rs", "behaviour/support"] {
            assert!(sources(backend).join("../tests").join(place).exists(), "{backend} has no tests/{place}");
        }
    }
}
