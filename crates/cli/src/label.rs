//! What does a holder call itself, if nobody says?
//!
//! `user@host:pid command`: enough to find the process. Only the name of the program: its arguments may hold passwords, and
//! a label is read by everybody who can see the lock.

use std::ffi::OsStr;
use std::path::Path;

use syncguard::Label;

/// The most that is shown of a program's name.
const PROGRAM: usize = 32;
/// The most that is shown of a user's and of a host's name.
const NAME: usize = 64;

/// This process, and the program that it runs.
pub(crate) fn of_run(program: &OsStr) -> Label {
    label(std::process::id(), &file_name(program))
}

/// The process that called us: we end at once, and it keeps the lock.
pub(crate) fn of_caller() -> Label {
    let caller = std::os::unix::process::parent_id();
    let name = std::fs::read_to_string(format!("/proc/{caller}/comm")).unwrap_or_default();
    label(caller, name.trim_end())
}

fn label(pid: u32, program: &str) -> Label {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let text = compose(&user(), &host, pid, program);
    Label::new(text).unwrap_or_else(|_| Label::new("unknown").expect("a word is a label"))
}

fn compose(user: &str, host: &str, pid: u32, program: &str) -> String {
    let who = format!("{}@{}:{pid}", shortened(user, NAME), shortened(host, NAME));
    let text = format!("{who} {}", shortened(program, PROGRAM));
    // Each part is at most so many bytes, and all of them together less than a label may have.
    text.trim_end().to_owned()
}

fn file_name(program: &OsStr) -> String {
    let name = Path::new(program).file_name().unwrap_or(program);
    name.to_string_lossy().into_owned()
}

/// The beginning of a text, at most so many bytes, without what no label may have.
fn shortened(text: &str, bytes: usize) -> String {
    let text = text.replace('\0', "");
    if text.len() <= bytes {
        return text;
    }
    let end = (0..=bytes - '…'.len_utf8()).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}…", &text[..end])
}

// Under cron and in containers the variables are often missing, and the number alone would tell a waiter little.
fn user() -> String {
    let variable = |name| std::env::var(name).ok().filter(|user| !user.is_empty());
    if let Some(user) = variable("USER").or_else(|| variable("LOGNAME")) {
        return user;
    }
    let uid = rustix::process::getuid().as_raw().to_string();
    let table = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let line = table.lines().find(|line| line.split(':').nth(2) == Some(uid.as_str()));
    line.and_then(|line| line.split(':').next()).map_or_else(|| format!("uid-{uid}"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_names_the_process_and_fits() {
        assert_eq!(compose("ci", "runner-7", 41_877, "deploy.sh"), "ci@runner-7:41877 deploy.sh");
        assert_eq!(compose("ci", "runner-7", 1, ""), "ci@runner-7:1");
        let long = compose(&"ü".repeat(99), &"h".repeat(253), u32::MAX, &"p\0".repeat(200));
        assert!(long.len() <= Label::MAX_BYTES && Label::new(&long).is_ok(), "{} bytes: {long}", long.len());
        assert!(long.contains("…@hhh") && long.ends_with("ppp…"), "{long}");
    }

    #[test]
    fn only_the_name_of_a_program_is_told() {
        assert_eq!(file_name(OsStr::new("/opt/app/bin/migrate")), "migrate");
        assert_eq!(file_name(OsStr::new("..")), "..");
    }
}
