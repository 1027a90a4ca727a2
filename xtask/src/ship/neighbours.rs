//! Does it build beside the drivers that its users have already?
//!
//! A program links one SQLite, so whoever asks for a single version of it decides for everybody. Each neighbour becomes a
//! program of its own with this library beside it, resolved as `cargo add` would today, and takes a lock.

use std::fs;
use std::process::{Command, ExitCode};

use anyhow::Result;

use super::checks::{folder, succeed};
use crate::cargo;

/// Today's drivers of SQLite and what is built on them; of `rusqlite` the ends of the range that our manifest names.
const NEIGHBOURS: [(&str, &str, &str); 7] = [
    ("sqlx", "0.8", r#""runtime-tokio", "sqlite""#),
    ("sqlx", "0.9", r#""runtime-tokio", "sqlite""#),
    ("sea-orm", "2", r#""runtime-tokio", "sqlx-sqlite""#),
    ("diesel", "2", r#""sqlite""#),
    ("rusqlite", "0.32", ""),
    ("rusqlite", "0.37", ""),
    ("rusqlite", "0.41", ""),
];

/// Builds and runs those whose name begins so; all of them without a name.
pub(crate) fn run(only: Option<&str>) -> Result<ExitCode> {
    let target = folder("neighbours")?;
    for (name, version, features) in NEIGHBOURS.iter().filter(|(name, ..)| only.is_none_or(|only| *name == only)) {
        let package = target.join(format!("{name}-{version}"));
        fs::create_dir_all(package.join("src"))?;
        let library = cargo::root().join("crates/syncguard");
        let manifest = format!(
            "[package]\nname = \"neighbour\"\nedition = \"2024\"\n[workspace]\n[dependencies]\n\
             {name} = {{ version = \"{version}\", default-features = false, features = [{features}] }}\n\
             syncguard = {{ path = \"{}\", features = [\"sqlite\", \"blocking\", \"fenced\"] }}\n",
            library.display()
        );
        fs::write(package.join("Cargo.toml"), manifest)?;
        let program = include_str!("neighbour.rs.in").replace("NEIGHBOUR", &name.replace('-', "_"));
        fs::write(package.join("src/main.rs"), program)?;
        // Whatever was resolved the last time is not what is resolved today.
        let _ = fs::remove_file(package.join("Cargo.lock"));
        let cargo = |arguments: &[&str]| -> Command {
            let mut command = cargo::command(arguments);
            command.current_dir(&package).env("CARGO_TARGET_DIR", target.join("target"));
            command
        };
        succeed(&mut cargo(&["run", "--quiet"]), &format!("{name} {version}"))?;
        succeed(&mut cargo(&["tree", "--quiet", "--depth=1", "--invert=libsqlite3-sys"]), "cargo tree")?;
    }
    Ok(ExitCode::SUCCESS)
}
