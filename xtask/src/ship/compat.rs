//! Do an old binary and the new one share a lock?
//!
//! A fleet is never upgraded in one moment. Two workers run the old command and two the new one, all on one key; each
//! holder looks whether it is alone and writes down its fence. Afterwards every fence from one to the number of cycles
//! must be there once, in order. Then handles travel: what one binary acquires, the other extends and releases.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::thread;

use anyhow::{Context, Result, ensure};
use syncguard_testkit::{PostgresOptions, PostgresServer, RedisOptions, RedisServer};

use crate::scope::Scope;
use crate::{cargo, setup};

/// The first commit whose layout in storage is promised, for as long as there is no tag.
const FIRST: &str = "0965bd2";
const KEY: &str = "fleet";
const HANDLES: usize = 20;

/// Run by each holder: alone or not, and with which fence.
const HOLD: &str = r#"mkdir inside || echo "$1 $SYNCGUARD_FENCE" >>overlaps
echo "$1 $SYNCGUARD_FENCE" >>holders
rmdir inside"#;

/// Builds the old command, then lets old and new share locks on every backend that keeps them on disk or on a server.
pub(crate) fn run(old: Option<String>, cycles: usize) -> Result<ExitCode> {
    setup::run()?;
    let target = Scope::new(&[])?.target_folder()?;
    let revision = old.map_or_else(first_release, Ok)?;
    let programs = Programs { old: build_old(&revision, &target.join("compat"))?, new: build_new(&target)? };
    let folder = target.join("compat/run");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let redis = RedisServer::try_start(RedisOptions::new())?;
    let postgres = PostgresServer::start(PostgresOptions::new());
    let sqlite = format!("sqlite:{}", folder.join("locks.db").display());
    for (backend, url) in [("sqlite", sqlite), ("redis", redis.url()), ("postgres", postgres.url())] {
        let place = folder.join(backend);
        fs::create_dir_all(&place)?;
        let fences = if backend == "sqlite" { Fences::Rising } else { Fences::Dense };
        let counts =
            programs.share(&url, &place, cycles, fences).with_context(|| format!("{backend}, {revision} and this"))?;
        println!("{backend}: {counts}");
    }
    Ok(ExitCode::SUCCESS)
}

/// The oldest tag of a release.
fn first_release() -> Result<String> {
    let mut command = Command::new("git");
    command.args(["tag", "--list", "v*", "--sort=creatordate"]).current_dir(cargo::root());
    let tags = String::from_utf8(finished(&mut command)?.stdout)?;
    Ok(tags.lines().next().unwrap_or(FIRST).to_owned())
}

fn build_old(revision: &str, folder: &Path) -> Result<PathBuf> {
    let (source, archive) = (folder.join("source"), folder.join("source.tar"));
    if source.exists() {
        fs::remove_dir_all(&source)?;
    }
    fs::create_dir_all(&source)?;
    // Files alone, and no worktree that git would remember; dated as the commit, so that nothing is built twice.
    let mut git = Command::new("git");
    git.args(["archive", "--output"]).arg(&archive).arg(revision);
    finished(git.current_dir(cargo::root())).with_context(|| format!("{revision} is not in this clone"))?;
    finished(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&source))?;
    let mut command = cargo::command(["build", "--locked", "--package", "syncguard-cli", "--features", "full"]);
    command.current_dir(&source).env("CARGO_TARGET_DIR", folder.join("build"));
    ensure!(command.status()?.success(), "{revision} does not build");
    Ok(folder.join("build/debug/syncguard"))
}

fn build_new(target: &Path) -> Result<PathBuf> {
    // With the features of the tests, so that what they have built is used.
    let mut command = cargo::command(["build", "--locked", "--workspace", "--all-features", "--bin", "syncguard"]);
    ensure!(command.status()?.success(), "the command does not build");
    Ok(target.join("debug/syncguard"))
}

/// How the fences of both versions together go on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fences {
    Dense,
    /// What one version promises to the disk ahead, the other skips.
    Rising,
}

struct Programs {
    old: PathBuf,
    new: PathBuf,
}

impl Programs {
    fn share(&self, url: &str, place: &Path, cycles: usize, fences: Fences) -> Result<String> {
        let workers = [("old", &self.old), ("new", &self.new), ("old", &self.old), ("new", &self.new)];
        let share = cycles / workers.len();
        thread::scope(|scope| {
            let running: Vec<_> = workers
                .into_iter()
                .map(|(name, program)| {
                    scope.spawn(move || (0..share).try_for_each(|_| hold(program, name, url, place)))
                })
                .collect();
            running.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
        })?;
        let overlaps = fs::read_to_string(place.join("overlaps")).unwrap_or_default();
        ensure!(overlaps.is_empty(), "two holders at once: {overlaps}");
        let counts = check(&fs::read_to_string(place.join("holders"))?, share * workers.len(), fences)?;
        for number in 0..HANDLES {
            let (takes, gives) = if number % 2 == 0 { (&self.old, &self.new) } else { (&self.new, &self.old) };
            hand_over(takes, gives, url)?;
        }
        Ok(format!("{counts}, {HANDLES} handles handed over"))
    }
}

/// One cycle: waits for the lock, holds it around [`HOLD`], gives it back.
fn hold(program: &Path, name: &str, url: &str, place: &Path) -> Result<()> {
    let mut command = Command::new(program);
    command.args(["run", "--wait", "5m", "--ttl", "60s", KEY, "--", "sh", "-c", HOLD, "sh", name]);
    finished(quiet(&mut command, url).current_dir(place)).map(drop)
}

/// What one binary acquires, the other extends and releases.
fn hand_over(takes: &Path, gives: &Path, url: &str) -> Result<()> {
    let call = |program: &Path, arguments: &[&str]| {
        let mut command = Command::new(program);
        finished(quiet(&mut command, url).args(arguments))
    };
    let answer = call(takes, &["acquire", KEY, "--ttl", "60s", "--json"])?;
    let acquired: serde_json::Value = serde_json::from_slice(&answer.stdout)?;
    let lock_id = acquired["lockId"].as_str().context("acquire prints the lock id")?;
    let seen = call(gives, &["status", KEY, "--json"])?;
    let seen: serde_json::Value = serde_json::from_slice(&seen.stdout)?;
    ensure!(seen["fence"] == acquired["fence"], "the other binary reads another fence");
    call(gives, &["extend", lock_id, "--ttl", "60s"])?;
    call(gives, &["release", lock_id])?;
    Ok(())
}

fn quiet<'c>(command: &'c mut Command, url: &str) -> &'c mut Command {
    command.env("SYNCGUARD_URL", url).env("SYNCGUARD_REQUIRE", "local").env_remove("SYNCGUARD_KEY")
}

fn finished(command: &mut Command) -> Result<Output> {
    let output = command.output().with_context(|| format!("cannot run {}", command.get_program().display()))?;
    ensure!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    Ok(output)
}

/// No fence twice and all in order, and both binaries among the holders.
fn check(holders: &str, cycles: usize, fences: Fences) -> Result<String> {
    let count = holders.lines().count();
    ensure!(count == cycles, "{count} holders in {cycles} cycles");
    let (mut old, mut changes, mut last, mut highest) = (0, 0, "", 0);
    for line in holders.lines() {
        let (name, fence) = line.split_once(' ').context("a holder writes its name and its fence")?;
        let fence: u64 = fence.parse()?;
        ensure!(fence > highest, "fence {fence} came after {highest}");
        ensure!(fences == Fences::Rising || fence == highest + 1, "fence {fence} came after {highest}: one is missing");
        highest = fence;
        old += usize::from(name == "old");
        changes += usize::from(name != last);
        last = name;
    }
    ensure!(changes > cycles / 20, "the two took turns only {changes} times");
    Ok(format!(
        "{cycles} cycles, {old} old and {} new holders in {changes} turns, {} fences, no overlap",
        cycles - old,
        if fences == Fences::Dense { "dense" } else { "rising" }
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_a_repeat_and_a_missing_holder_are_seen() {
        let right = check("old 1\nnew 2\nold 3\nnew 4\n", 4, Fences::Dense).unwrap();
        assert!(right.contains("2 old and 2 new holders in 4 turns"));
        let (missing, gap, twice) = ("old 1\nnew 2\n", "old 1\nnew 2\nold 4\nnew 5\n", "old 1\nnew 2\nold 2\nnew 3\n");
        for wrong in [missing, gap, twice] {
            assert!(check(wrong, 4, Fences::Dense).is_err(), "{wrong}");
        }
        for (holders, is_right) in [(missing, false), (gap, true), (twice, false)] {
            assert_eq!(check(holders, 4, Fences::Rising).is_ok(), is_right, "{holders}");
        }
    }

    /// A run in which the two never meet would prove nothing.
    #[test]
    fn holders_that_never_take_turns_are_seen() {
        let lines: Vec<String> = (1..=40).map(|n| format!("{} {n}", if n <= 20 { "old" } else { "new" })).collect();
        assert!(check(&lines.join("\n"), 40, Fences::Dense).is_err());
    }
}
