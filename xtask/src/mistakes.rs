//! Where are the classic mistakes planted?
//!
//! Not in the code that people use: in a copy of the tree, by the replacements below, each behind a switch that exists only there.
//! All of them are compiled at once. A replacement whose place has changed is an error, so that none can rot; a test looks
//! at the places in every run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo;

/// Files of the core, what stands there exactly once, and what takes its place; `HAS(X)` asks whether the mistake is switched on.
const PATCHES: [(&str, &str, &str); 16] = [
    ("lib.rs", "\nmod memory;\n", "\nmod memory;\n#[doc(hidden)]\npub mod seeded;\n"),
    (
        "client/holding/belief.rs",
        "match self.left {\n            Some(left) => by_request",
        "match self.left.filter(|_| !HAS(IgnoresTheAge)) {\n            Some(left) => by_request",
    ),
    (
        "client/holding/handle.rs",
        "self.loss_at(self.shared.clock.boot())",
        "self.loss_at(if HAS(LossOnlyByTheTask) { self.acquired } else { self.shared.clock.boot() })",
    ),
    (
        "client/holding/handle.rs",
        "let held = &self.0;\n        if self.loss().is_some() {",
        "let held = &self.0;\n        if self.loss().is_some_and(|reason| !crate::seeded::is_renewed_after(reason)) {",
    ),
    (
        "client/holding/heartbeat.rs",
        "_ = lock.lost() => return,",
        "_ = lock.lost(), if !crate::seeded::goes_on_when_it_is_over() => return,",
    ),
    (
        "client/holding/heartbeat.rs",
        "trace::renewal_failed(&error, lock.key());\n                failed =",
        "trace::renewal_failed(&error, lock.key());\n                if HAS(OneFailureEndsRenewal) { return; }\n                failed =",
    ),
    (
        "client/release/background.rs",
        "let Some(runtime) = runtime else { return };",
        "let Some(runtime) = runtime else { return };
        if HAS(DropSpawnsWithoutAHandle) { crate::sync::spawn(task); return; }",
    ),
    (
        "client/request.rs",
        "let strict = self.heeds() == OnLost::Stop;\n        let (guard, report) = self.work_under_the_lock(work).await?;",
        "let (strict, tokens) = (self.heeds() == OnLost::Stop, self.options.cancel.clone());
        let (guard, report) = self.work_under_the_lock(work).await?;
        if HAS(ReleaseUnderTheCallersToken) && tokens.iter().any(crate::CancellationToken::is_cancelled) {
            guard.leak();
            return Ok(report.value);
        }",
    ),
    (
        "client/shared.rs",
        "let (rooms, background) = (Rooms::default(), Background::default());",
        "let (rooms, background) = (Rooms::default(), Background::default());
        let clock = crate::seeded::clock(clock);",
    ),
    (
        "client/waiting/acquisition.rs",
        "if error.is_ambiguous() {\n                    self.unknown_since = Some(sent);",
        "if HAS(NewIdOnRetry) {
                    self.lock_id = self.shared.backend.new_lock_id(&self.plan.key);
                } else if error.is_ambiguous() {\n                    self.unknown_since = Some(sent);",
    ),
    (
        "client/waiting/acquisition.rs",
        "if received >= granted.deadline() {",
        "let granted = crate::seeded::granted(granted, received, &*self.shared.clock);\n        if received >= granted.deadline() {",
    ),
    (
        "client/waiting/retry.rs",
        "let delay = match self.jitter {",
        "let random = if HAS(NoJitter) { 1.0 } else { random };\n        let delay = match self.jitter {",
    ),
    (
        "words/error.rs",
        "        f.write_str(&self.0.message)?;\n",
        "        if let Some(key) = self.0.key.as_ref().filter(|_| HAS(RawKeyInErrors)) {
            write!(f, \"{}: \", key.as_str())?;
        }
        f.write_str(&self.0.message)?;\n",
    ),
    (
        "words/fence.rs",
        "value > Self::MAX.0 {",
        "(value > Self::MAX.0 && !HAS(LimitComparedAsText))
            || (HAS(LimitComparedAsText) && value.to_string() > Self::MAX.0.to_string()) {",
    ),
    (
        "words/fence.rs",
        "        write!(f, \"{:015}\", self.0)\n",
        "        if HAS(UnpaddedFence) { return write!(f, \"{}\", self.0); }\n        write!(f, \"{:015}\", self.0)\n",
    ),
    ("words/key.rs", "if name.is_ascii() || ", "if name.is_ascii() || HAS(NoNormalisation) || "),
];

/// The module that the replacements ask.
const SWITCHES: &str = include_str!("../mistakes/seeded.rs");

/// Copies the tree into a folder, with the mistakes in it. A file that is the same as last time is not touched, so that cargo
/// builds it once.
pub(crate) fn plant(into: &Path) -> Result<()> {
    let mut git = Command::new("git");
    let listed = git.args(["ls-files", "-co", "--exclude-standard"]).current_dir(cargo::root()).output()?;
    ensure!(listed.status.success(), "git cannot list the files");
    let core = Path::new("crates/core/src");
    let mut files: BTreeMap<PathBuf, Vec<u8>> = planted()?
        .into_iter()
        .map(|(file, text)| (core.join(file), text.into_bytes()))
        .chain([(core.join("seeded.rs"), SWITCHES.as_bytes().to_vec())])
        .collect();
    for file in String::from_utf8(listed.stdout)?.lines().map(PathBuf::from) {
        // What is listed and cannot be read was deleted a moment ago.
        if !files.contains_key(&file)
            && let Ok(bytes) = fs::read(cargo::root().join(&file))
        {
            files.insert(file, bytes);
        }
    }
    for (file, bytes) in files {
        let target = into.join(file);
        if fs::read(&target).ok().as_ref() != Some(&bytes) {
            fs::create_dir_all(target.parent().context("a file lies in a folder")?)?;
            fs::write(&target, bytes)?;
        }
    }
    Ok(())
}

/// The files of the core that are another in the copy.
fn planted() -> Result<BTreeMap<&'static str, String>> {
    let mut files = BTreeMap::new();
    for (file, place, mistaken) in PATCHES {
        let text = match files.remove(file) {
            Some(text) => text,
            None => fs::read_to_string(cargo::root().join("crates/core/src").join(file))?,
        };
        let found = text.matches(place).count();
        ensure!(found == 1, "{file} has {found} places for a mistake, and must have one: {place}");
        files.insert(file, text.replacen(place, &switched(mistaken), 1));
    }
    Ok(files)
}

/// `HAS(X)` written out.
fn switched(mistaken: &str) -> String {
    mistaken.replace("HAS(", "crate::seeded::has(crate::seeded::SeededBug::")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_has_its_place() {
        let planted = planted().unwrap();
        let texts: String = planted.into_values().chain([SWITCHES.to_owned()]).collect();
        let named = SWITCHES.split("pub enum SeededBug {").nth(1).unwrap().split('}').next().unwrap();
        let bugs = named.lines().filter_map(|line| line.trim().strip_suffix(','));
        let unused: Vec<_> = bugs.filter(|bug| !texts.contains(&format!("SeededBug::{bug})"))).collect();
        assert!(unused.is_empty() && named.matches(',').count() >= 16, "{unused:?}");
    }
}
