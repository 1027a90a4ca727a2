//! How does a task call cargo from inside cargo?
//!
//! `cargo run` describes the xtask package to it in the environment. Build scripts that watch those variables would be
//! run again by every inner cargo, so the inner ones get a clean environment.

use std::env;
use std::ffi::OsStr;
use std::process::Command;

use rustix::process::Signal;
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

/// Whether this machine builds once and is thrown away, as those of CI are.
pub(crate) fn builds_once() -> bool {
    says_yes(env::var("CI").ok().as_deref())
}

fn says_yes(ci: Option<&str>) -> bool {
    ci.is_some_and(|ci| !matches!(ci, "" | "0" | "false"))
}

/// The workspace's root: the folder above this package.
pub(crate) fn root() -> &'static std::path::Path {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace")
}

fn describes_this_package(variable: &str) -> bool {
    let prefixes = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_"];
    prefixes.iter().any(|prefix| variable.starts_with(prefix)) || variable == "RUST_RECURSION_COUNT"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_of_ci_is_known_by_what_it_says() {
        assert!(says_yes(Some("true")) && says_yes(Some("1")));
        for ci in [None, Some(""), Some("0"), Some("false")] {
            assert!(!says_yes(ci), "{ci:?}");
        }
    }
}
