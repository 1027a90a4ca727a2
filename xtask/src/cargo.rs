//! How does a task call cargo from inside cargo?
//!
//! `cargo run` describes the xtask package to it in the environment. Build scripts that watch those variables would be
//! run again by every inner cargo, so the inner ones get a clean environment.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use syncguard_testkit::FirestoreEmulator;
use syncguard_testkit::process::die_with_this_process;

/// `cargo` with these arguments, in the workspace's root.
pub(crate) fn command(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments).current_dir(root());
    // A cancelled run must not leave tests behind whose servers are gone. The main thread spawns, so it is this
    // process's life.
    die_with_this_process(&mut command, Signal::TERM);
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if describes_this_package(&name) {
            command.env_remove(name);
        }
    }
    // A machine that builds once never reads what it would keep for the next time, which is more than half of the target
    // folder. `.ci/run` sets the same for the build of this package.
    if builds_once() && env::var_os("CARGO_INCREMENTAL").is_none() {
        command.env("CARGO_INCREMENTAL", "0");
    }
    command
}

/// Hides from tests what belongs to whoever runs them: settings, credentials, proxies, and the files of their home. A test
/// that needs one of them brings its own. What the build reads stays, or cargo would build again.
pub(crate) fn hide_the_tester(command: &mut Command, home: &Path) {
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_str().is_some_and(belongs_to_the_tester)) {
        command.env_remove(name);
    }
    // Some tests call cargo, which keeps its own things in the real home.
    let real = env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    for (name, folder) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
        command.env(name, env::var_os(name).map_or_else(|| real.join(folder), PathBuf::from));
    }
    if let Ok((_, jar)) = FirestoreEmulator::find() {
        command.env("SYNCGUARD_TEST_FIRESTORE_JAR", jar);
    }
    command.env("HOME", home);
}

/// The command's and the drivers' variables, and not those by which a tester steers the tests.
fn belongs_to_the_tester(variable: &str) -> bool {
    let steers = ["SYNCGUARD_TEST_", "SYNCGUARD_TRIALS", "SYNCGUARD_CAMPAIGN_", "SYNCGUARD_REQUIRE_SERVERS"];
    let theirs =
        ["SYNCGUARD_", "PG", "GOOGLE_", "GCLOUD_", "CLOUDSDK_", "FIRESTORE_", "KUBERNETES_", "XDG_", "SSL_CERT_"];
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| variable.starts_with(prefix));
    (starts(&theirs) && !starts(&steers)) || variable.to_ascii_lowercase().ends_with("_proxy")
}

/// Whether this machine builds once and is thrown away, as those of CI are.
pub(crate) fn builds_once() -> bool {
    says_yes(env::var("CI").ok().as_deref())
}

fn says_yes(ci: Option<&str>) -> bool {
    ci.is_some_and(|ci| !matches!(ci, "" | "0" | "false"))
}

/// The workspace's root: the folder above this package.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace")
}

fn describes_this_package(variable: &str) -> bool {
    let prefixes = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_"];
    prefixes.iter().any(|prefix| variable.starts_with(prefix)) || variable == "RUST_RECURSION_COUNT"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_tester_has_is_hidden_and_what_steers_the_tests_is_not() {
        for theirs in ["SYNCGUARD_URL", "SYNCGUARD_REQUIRE", "PGHOST", "PGPASSFILE", "XDG_STATE_HOME", "https_proxy"] {
            assert!(belongs_to_the_tester(theirs), "{theirs}");
        }
        for kept in ["SYNCGUARD_TEST_REDIS_URL", "SYNCGUARD_REQUIRE_SERVERS", "PATH", "CC", "CARGO_HOME", "CI"] {
            assert!(!belongs_to_the_tester(kept), "{kept}");
        }
    }

    #[test]
    fn a_machine_of_ci_is_known_by_what_it_says() {
        assert!(says_yes(Some("true")) && says_yes(Some("1")));
        for ci in [None, Some(""), Some("0"), Some("false")] {
            assert!(!says_yes(ci), "{ci:?}");
        }
    }
}
