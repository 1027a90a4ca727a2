//! Who of a tree is alive, as an outsider sees it?
//!
//! Every process of a tree carries a mark in its environment, which it hands down whatever group, session or parent it
//! chooses.

use std::path::Path;

/// A process that carries a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Marked {
    pub(crate) pid: i32,
    pub(crate) name: String,
    pub(crate) kind: String,
}

/// All processes alive whose environment has `variable=value`.
pub(crate) fn marked(variable: &str, value: &str) -> Vec<Marked> {
    pids().filter_map(|pid| look(pid, variable, value)).collect()
}

fn look(pid: i32, variable: &str, value: &str) -> Option<Marked> {
    // The dead have no environment left, so only the living are seen.
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let get = |name: &str| {
        let entries = environment.split(|byte| *byte == 0).filter_map(|entry| std::str::from_utf8(entry).ok());
        entries
            .filter_map(|entry| entry.split_once('='))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.to_owned())
    };
    if get(variable)? != value {
        return None;
    }
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim().to_owned();
    Some(Marked { pid, name, kind: get("KIND").unwrap_or_default() })
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Whether a process exists, if only as an entry that nobody has collected.
pub(crate) fn exists(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}
