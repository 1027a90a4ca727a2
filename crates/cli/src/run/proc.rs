//! What does `/proc` show, and what does it not?
//!
//! It is opened once, before the work starts: work of root may mount something else over it, and what was opened stays
//! what it was. With `hidepid` it hides processes of other users; our own children the kernel tells us nevertheless.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::fs::{CWD, Dir, Mode, OFlags, openat};

/// `CAP_SYS_PTRACE`: whoever has it sees everybody.
const SEES_ALL: u64 = 1 << 19;

fn root() -> Option<&'static OwnedFd> {
    static ROOT: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    ROOT.get_or_init(|| openat(CWD, "/proc", flags, Mode::empty()).ok()).as_ref()
}

/// Opens it, before there is anybody who could mount something over it.
pub(crate) fn open() {
    let _ = root();
}

/// The contents of a file below `/proc`.
pub(crate) fn text(path: &str) -> Option<String> {
    let file = openat(root()?, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = Vec::new();
    File::from(file).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn numbers(path: &str) -> Vec<i32> {
    let opened = root().and_then(|root| openat(root, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok());
    let Some(Ok(folder)) = opened.map(Dir::new) else { return Vec::new() };
    folder.filter_map(|entry| entry.ok()?.file_name().to_str().ok()?.parse().ok()).collect()
}

/// Everybody who is shown.
pub(crate) fn pids() -> Vec<i32> {
    numbers(".")
}

/// Whether this is `/proc` as our own process namespace sees it: numbers of another one would name strangers.
pub(crate) fn is_ours() -> bool {
    let own = rustix::process::getpid().as_raw_nonzero().to_string();
    let name = root().and_then(|root| rustix::fs::readlinkat(root, "self", Vec::new()).ok());
    name.is_some_and(|name| name.to_bytes() == own.as_bytes())
}

/// Our children, hidden and dead ones too; `None` where the kernel does not tell (`CONFIG_PROC_CHILDREN`).
pub(crate) fn children() -> Option<Vec<i32>> {
    // A child belongs to the thread that made it.
    let lists: Option<Vec<String>> =
        numbers("self/task").into_iter().map(|thread| text(&format!("self/task/{thread}/children"))).collect();
    let lists = lists.filter(|lists| !lists.is_empty())?;
    Some(lists.iter().flat_map(|list| list.split_whitespace()).filter_map(|pid| pid.parse().ok()).collect())
}

/// Whether processes of other users are kept from us.
pub(crate) fn hides() -> bool {
    let (Some(mounts), Some(status)) = (text("self/mountinfo"), text("self/status")) else { return true };
    // The last one that was mounted there is the one that is seen.
    let is_proc = |line: &&str| line.split(' ').nth(4) == Some("/proc");
    let options = mounts.lines().rfind(is_proc).and_then(|line| line.rsplit(' ').next()).unwrap_or_default();
    is_hidden(options, &status)
}

fn is_hidden(options: &str, status: &str) -> bool {
    let option = |name| options.split(',').find_map(|option| option.split_once('=').filter(|(key, _)| *key == name));
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    let is_hiding = option("hidepid").is_some_and(|(_, how)| !matches!(how, "0" | "off"));
    let rights = u64::from_str_radix(field("CapEff:").trim(), 16).unwrap_or(0);
    let groups = [field("Gid:"), field("Groups:")];
    let is_in_group = |gid: &str| groups.iter().any(|some| some.split_whitespace().any(|group| group == gid));
    is_hiding && rights & SEES_ALL == 0 && !option("gid").is_some_and(|(_, gid)| is_in_group(gid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_see_everybody_is_told_from_the_options_and_our_rights() {
        let nobody = "Gid:\t5\t5\t5\t5\nGroups:\t7 8\nCapEff:\t0000000000000000\n";

        for (options, hides) in [
            ("rw", false),
            ("rw,hidepid=0", false),
            ("rw,hidepid=off", false),
            ("rw,hidepid=2", true),
            ("rw,hidepid=invisible", true),
            ("rw,gid=9,hidepid=noaccess", true),
            ("rw,gid=8,hidepid=2", false),
        ] {
            assert_eq!(is_hidden(options, nobody), hides, "{options}");
        }
        assert!(!is_hidden("rw,hidepid=2", "CapEff:\t000001ffffffffff\n"), "root");
    }
}
