//! A run of an unprivileged user around a process that becomes root's, as `sudo` makes one.

use std::os::unix::fs::PermissionsExt;

use rustix::process::{Pid, Signal};

use super::tree::{Outer, Surrounding, surround};
use super::witness::marked;
use super::{Lab, finish, own, until};

/// A place that another user can use, with the command and a program in it that changes to root.
pub(crate) struct Sudo {
    lab: Lab,
    mark: String,
}

impl Sudo {
    pub(crate) fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root can make a program that changes to root");
            return None;
        }
        let lab = Lab::new();
        std::fs::set_permissions(lab.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::create_dir(lab.path("store")).unwrap();
        std::os::unix::fs::chown(lab.path("store"), Some(65534), Some(65534)).unwrap();
        // A link where that is possible: many copies at once keep a disk busy for longer than a lease lasts.
        let (own, reachable) = (own(), lab.path("syncguard"));
        std::fs::hard_link(own, &reachable).or_else(|_| std::fs::copy(own, &reachable).map(drop)).unwrap();
        let program = lab.path("become-root");
        std::fs::copy(find("setpriv"), &program).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)).unwrap();
        let mark = lab.dir.path().file_name().unwrap().to_str().unwrap().to_owned();
        Some(Self { lab, mark })
    }

    /// Runs the command as nobody, and waits until the process below it is root's.
    pub(crate) fn start(&self, surrounding: Surrounding, flags: &[&str]) -> Outer {
        let path = |name| self.lab.path(name).to_str().unwrap().to_owned();
        let (command, become_root, mark) = (path("syncguard"), path("become-root"), format!("TREE={}", self.mark));
        let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        let run = [&[&command, "run", "--ttl", "9s"], flags, &["k", "--", "env", &mark]].concat();
        let root = [&become_root, "--reuid=0", "--regid=0", "--clear-groups", "sleep", "1000"];
        // On a terminal a shell leads the session, as it does for people: with its leader the terminal would go too.
        let shell: &[&str] =
            if surrounding == Surrounding::Terminal { &["sh", "-c", "\"$@\"; read line", "sh"] } else { &[] };
        let words: Vec<String> = [shell, &nobody, &run, &root].concat().into_iter().map(str::to_owned).collect();
        let url = format!("sqlite:{}", path("store/locks.db"));
        let outer = surround(&self.lab, &url, surrounding, &words, &self.mark);
        until("root's process is there", || self.survivor().is_some());
        outer
    }

    /// Takes the store away: no renewal gets through.
    pub(crate) fn lose(&self) {
        std::fs::rename(self.lab.path("store/locks.db"), self.lab.path("away.db")).unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let ours = marked("OUTER", &self.mark).into_iter().filter(|one| one.name == "syncguard");
        let command = ours.map(|one| one.pid).min().unwrap();
        rustix::process::kill_process(Pid::from_raw(command).unwrap(), signal).unwrap();
    }

    pub(crate) fn watchdog(&self) -> Option<i32> {
        marked("OUTER", &self.mark).into_iter().find(|one| one.name == "lock-watchdog").map(|one| one.pid)
    }

    /// Whether the command and its watchdog have ended.
    pub(crate) fn is_over(&self) -> bool {
        marked("OUTER", &self.mark).iter().all(|one| one.name != "syncguard" && one.name != "lock-watchdog")
    }

    pub(crate) fn is_locked(&self) -> bool {
        let url = format!("sqlite:{}", self.lab.path("store/locks.db").display());
        finish(self.lab.command(["status", "k"]).env("SYNCGUARD_URL", url).spawn().unwrap()).code == Some(0)
    }

    pub(crate) fn survivor(&self) -> Option<Pid> {
        let ours = marked("TREE", &self.mark).into_iter().find(|one| one.name == "sleep");
        ours.and_then(|one| Pid::from_raw(one.pid))
    }
}

fn find(program: &str) -> std::path::PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.exists()).unwrap()
}
