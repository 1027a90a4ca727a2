//! Tries many small changes of the code with one compilation: `cargo xtask mutants --at-once` calls it.
//!
//! `cargo mutants` lists the changes and would compile each of them. Here all of them are written into one copy of the
//! tree, each behind a question which one counts; those that the compiler refuses are taken out again, and the tests run
//! once for every change that is left. What cannot be written beside the original (constants, `+=`, conditions with
//! `let`) is listed as not tried.
//!
//! Arguments: the root, the file with the list of changes as JSON, the folder of the copy, which tests judge (a filter of
//! nextest, inside of the package that is changed), and then what `cargo nextest run` is to build.

mod weave;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use weave::{Change, Woven};

const ASKS: &str = r#"
pub(crate) fn is_mutant(number: u32) -> bool {
    static CHOSEN: std::sync::LazyLock<u32> = std::sync::LazyLock::new(|| {
        std::env::var("SYNCGUARD_MUTANT").ok().and_then(|number| number.parse().ok()).unwrap_or(0)
    });
    *CHOSEN == number
}
"#;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [root, list, copy, judges, targets @ ..] = arguments.as_slice() else { bail!("see the head of main.rs") };
    let all = read_changes(Path::new(list))?;
    let mut tree = Tree::copy(Path::new(root), Path::new(copy), &all)?;
    let refused = tree.weed(&all)?;
    let woven = tree.woven();
    println!(
        "{} changes, {} do not compile, {} are in",
        all.values().map(Vec::len).sum::<usize>(),
        refused.len(),
        woven.len()
    );
    ensure!(tree.run(0, judges, targets)?.is_none(), "the tests fail without any change");
    let mut counts = BTreeMap::<(String, &str), usize>::new();
    for (file, change) in all.iter().rev().flat_map(|(file, changes)| changes.iter().map(move |change| (file, change))) {
        let (verdict, by) = if refused.contains(&change.number) {
            ("does not compile", None)
        } else if !woven.contains(&change.number) {
            ("not tried", None)
        } else {
            let judges = format!("package({}) & ({judges})", package(file));
            let by = tree.run(change.number, &judges, targets)?;
            (if by.is_some() { "noticed" } else { "NOT NOTICED" }, by)
        };
        println!("{verdict:16} {} {}", change.name, by.map(|test| format!("[{test}]")).unwrap_or_default());
        *counts.entry((file.clone(), verdict)).or_default() += 1;
    }
    for ((file, verdict), count) in counts {
        println!("{count:4} {verdict:16} {file}");
    }
    Ok(())
}

/// The folder of the package that a file is of.
fn folder(file: &str) -> &str {
    file.split("/src/").next().unwrap_or_default()
}

/// Its name: all of ours are called after their folder.
fn package(file: &str) -> String {
    format!("syncguard-{}", folder(file).rsplit('/').next().unwrap_or_default())
}

fn read_changes(list: &Path) -> Result<BTreeMap<String, Vec<Change>>> {
    let list: Value = serde_json::from_str(&fs::read_to_string(list)?)?;
    let mut files = BTreeMap::<String, Vec<Change>>::new();
    for (index, change) in list.as_array().context("no list of changes")?.iter().enumerate() {
        let text = |field: &str| change[field].as_str().map(str::to_owned).with_context(|| format!("no {field}"));
        let place = |field: &str| change["span"]["start"][field].as_u64().and_then(|n| usize::try_from(n).ok());
        let (line, column) = place("line").zip(place("column")).context("no place")?;
        let (name, genre, replacement) = (text("name")?, text("genre")?, text("replacement")?);
        let change = Change { number: index + 1, name, genre, replacement, at: (line, column - 1) };
        files.entry(text("file")?).or_default().push(change);
    }
    Ok(files)
}

/// A copy of the sources.
struct Tree {
    root: PathBuf,
    packages: BTreeSet<String>,
    woven: BTreeMap<String, Woven>,
}

impl Tree {
    fn copy(from: &Path, to: &Path, all: &BTreeMap<String, Vec<Change>>) -> Result<Self> {
        let listed = Command::new("git").args(["ls-files", "-co", "--exclude-standard"]).current_dir(from).output()?;
        ensure!(listed.status.success(), "git cannot list the files");
        for file in String::from_utf8(listed.stdout)?.lines() {
            let (source, target) = (from.join(file), to.join(file));
            let Ok(bytes) = fs::read(&source) else { continue };
            // What is the same keeps its time, so that it is not compiled again.
            if fs::read(&target).ok().as_ref() != Some(&bytes) {
                fs::create_dir_all(target.parent().context("no folder")?)?;
                fs::copy(&source, &target)?;
            }
        }
        Ok(Self {
            root: to.to_owned(),
            packages: all.keys().map(|file| package(file)).collect(),
            woven: BTreeMap::new(),
        })
    }

    fn woven(&self) -> BTreeSet<usize> {
        self.woven.values().flat_map(|woven| woven.pieces.iter().map(|(_, number)| *number)).collect()
    }

    /// Writes all changes into the copy and takes out those that do not compile.
    fn weed(&mut self, all: &BTreeMap<String, Vec<Change>>) -> Result<BTreeSet<usize>> {
        let originals: BTreeMap<&String, String> =
            all.keys().map(|file| Ok((file, fs::read_to_string(self.root.join(file))?))).collect::<Result<_>>()?;
        for folder in all.keys().map(|file| folder(file)).collect::<BTreeSet<_>>() {
            let library = self.root.join(folder).join("src/lib.rs");
            let head = fs::read_to_string(&library)?;
            fs::write(&library, format!("{head}{ASKS}"))?;
        }
        let mut refused = BTreeSet::new();
        loop {
            for (file, original) in &originals {
                let left: Vec<Change> =
                    all[*file].iter().filter(|change| !refused.contains(&change.number)).cloned().collect();
                let woven = weave::weave(original, &left)?;
                fs::write(self.root.join(file), &woven.text)?;
                self.woven.insert((*file).clone(), woven);
            }
            let errors = self.check()?;
            if errors.is_empty() {
                return Ok(refused);
            }
            let before = refused.len();
            for (file, start, end) in &errors {
                refused.extend(self.blame(file, *start, *end));
            }
            ensure!(refused.len() > before, "nothing is to blame for {errors:?}");
        }
    }

    /// The changes whose text an error touches, or the one that is nearest: of two that disagree on a type, the compiler may
    /// point at the other.
    fn blame(&self, file: &str, start: usize, end: usize) -> Vec<usize> {
        let pieces = self.woven.get(file).map(|woven| woven.pieces.as_slice()).unwrap_or_default();
        let far = |piece: &Range<usize>| piece.start.saturating_sub(end).max(start.saturating_sub(piece.end));
        let nearest = pieces.iter().map(|(piece, _)| far(piece)).min();
        pieces.iter().filter(|(piece, _)| Some(far(piece)) == nearest).map(|(_, number)| *number).collect()
    }

    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut cargo = Command::new("cargo");
        cargo.args(arguments).arg("--all-features").current_dir(&self.root);
        cargo.args(self.packages.iter().flat_map(|package| ["--package", package]));
        cargo
    }

    /// The places of the errors.
    fn check(&self) -> Result<Vec<(String, usize, usize)>> {
        let mut check = self.cargo(&["check", "--lib", "--message-format=json"]);
        let output = check.stderr(Stdio::null()).output()?;
        let mut places = Vec::new();
        let mut said = String::new();
        for line in String::from_utf8(output.stdout)?.lines() {
            let message: Value = serde_json::from_str(line)?;
            let message = &message["message"];
            if message["level"] != "error" {
                continue;
            }
            said.push_str(message["rendered"].as_str().unwrap_or_default());
            for span in message["spans"].as_array().into_iter().flatten().filter(|span| span["is_primary"] == true) {
                let byte = |field: &str| span[field].as_u64().and_then(|byte| usize::try_from(byte).ok());
                let (start, end) = byte("byte_start").zip(byte("byte_end")).context("no place")?;
                places.push((span["file_name"].as_str().unwrap_or_default().to_owned(), start, end));
            }
        }
        ensure!(output.status.success() || !places.is_empty(), "cargo check failed: {said}");
        Ok(places)
    }

    /// The test that fails with one change, if any does.
    fn run(&self, number: usize, judges: &str, targets: &[String]) -> Result<Option<String>> {
        let mut run = self.cargo(&["nextest", "run", "-E", judges]);
        run.args(targets).env("SYNCGUARD_MUTANT", number.to_string());
        if number == 0 {
            return Ok((!run.status()?.success()).then(String::new));
        }
        let output = run.stdout(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        let failed = said.lines().rev().find(|line| line.trim_start().starts_with("TRY 2 "));
        let test = failed.and_then(|line| line.split_whitespace().last()).unwrap_or("it did not run").to_owned();
        Ok((!output.status.success()).then_some(test))
    }
}
