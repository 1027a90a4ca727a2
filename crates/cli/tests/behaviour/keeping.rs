//! What becomes of what the command leaves behind, and of what we may not or cannot stop?

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use crate::support::{Lab, finish, is_alive, own, read_when_there, until};
use rustix::process::{Pid, Signal};
use serde_json::Value;

/// A script that leaves a process behind and ends; the process lives until a file appears.
fn leaving(lab: &Lab, code: u8) -> String {
    let (pid, end) = (lab.path("left"), lab.path("end"));
    let background = format!("while [ ! -e {} ]; do sleep 0.05; done", end.display());
    format!("sh -c '{background}' & echo $! >{0}.tmp; mv {0}.tmp {0}; exit {code}", pid.display())
}

fn left_behind(lab: &Lab) -> Pid {
    Pid::from_raw(read_when_there(&lab.path("left")).trim().parse().unwrap()).unwrap()
}

#[test]
fn the_lock_lasts_as_long_as_what_the_command_left_running() {
    let lab = Lab::new();
    let run = lab.command(["run", "k", "--", "sh", "-c", &leaving(&lab, 3)]).spawn().unwrap();
    let left = left_behind(&lab);

    assert!(is_alive(left) && lab.is_locked("k"));
    std::fs::write(lab.path("end"), "").unwrap();

    assert_eq!(finish(run).code, Some(3), "the code is still the command's own");
    assert!(!lab.is_locked("k"));
}

#[test]
fn what_is_left_running_may_be_killed_or_left() {
    let lab = Lab::new();
    let said = lab.say(["run", "--background", "kill", "k", "--", "sh", "-c", &leaving(&lab, 3)]);
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(!is_alive(left_behind(&lab)));

    let lab = Lab::new();
    let mut run = lab.command(["run", "--background", "leave", "k", "--", "sh", "-c", &leaving(&lab, 4)]);
    let status = run.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    assert_eq!(status.code(), Some(4));
    assert!(is_alive(left_behind(&lab)) && !lab.is_locked("k"));
    std::fs::write(lab.path("end"), "").unwrap();
    until("it ends", || !is_alive(left_behind(&lab)));
}

#[test]
fn a_variable_that_outlived_its_lock_does_not_keep_others_from_it() {
    let lab = Lab::new();
    let held = lab.say(["run", "k", "-c", "printf %s \"$SYNCGUARD_HELD\""]).stdout;
    assert!(!held.is_empty());

    let later = finish(lab.command(["run", "-n", "k", "--", "true"]).env("SYNCGUARD_HELD", &held).spawn().unwrap());
    assert_eq!(later.code, Some(0), "that run is over: {later:?}");

    let inner = format!("{} run k -- true", own());
    let nested = lab.say(["run", "k", "-c", &inner]);
    assert_eq!(nested.code, Some(64), "it would wait for itself: {nested:?}");
}

#[test]
fn a_command_that_runs_too_long_is_stopped_with_all_it_started() {
    let lab = Lab::new();
    let said = lab.say(["run", "--max-runtime", "500ms", "k", "--", "sh", "-c", "setsid sleep 1000 & sleep 1000"]);
    assert_eq!(said.code, Some(124), "{said:?}");
    assert!(said.stderr.contains("ran longer than 500ms (--max-runtime)"), "{said:?}");
    assert!(!lab.is_locked("k"));
}

#[test]
fn several_keys_are_all_taken_or_none() {
    let lab = Lab::new();
    let script = format!(
        "for k in a k z; do {} status -q $k || exit 9; done; echo $SYNCGUARD_FENCE $SYNCGUARD_ALSO_FENCES",
        own()
    );
    let all = lab.say(["run", "--also", "z", "--also", "a", "k", "-c", &script]);
    assert_eq!((all.code, all.stdout.trim()), (Some(0), "000000000000001 000000000000001 000000000000001"), "{all:?}");

    let id = lab.say(["acquire", "z"]).stdout;
    let none = lab.say(["run", "-n", "--also", "z", "--also", "a", "k", "--", "echo", "ran"]);
    assert_eq!((none.code, none.stdout.as_str()), (Some(75), ""), "{none:?}");
    assert!(none.stderr.contains("error: z is locked"), "{none:?}");
    assert!(!lab.is_locked("a") && !lab.is_locked("k"), "nothing of the rest is kept");
    lab.say(["release", id.trim()]);
}

#[test]
fn wait_waits_and_takes_nothing() {
    let lab = Lab::new();
    assert_eq!(lab.say(["wait", "k"]).code, Some(0), "free at once");
    let id = lab.say(["acquire", "k"]).stdout;
    let late = lab.say(["wait", "-w", "100ms", "k"]);
    assert_eq!(late.code, Some(75), "{late:?}");

    let waiter = lab.command(["wait", "k"]).spawn().unwrap();
    lab.say(["release", id.trim()]);

    assert_eq!(finish(waiter).code, Some(0));
    assert_eq!(lab.say(["run", "-n", "k", "--", "true"]).code, Some(0), "it is free to be taken");
}

#[test]
fn a_lease_that_cannot_be_guarded_is_refused() {
    let lab = Lab::new();
    let said = lab.say(["run", "--ttl", "900ms", "k", "--", "echo", "ran"]);
    assert_eq!((said.code, said.stdout.as_str()), (Some(64), ""));
    assert!(said.stderr.contains("give it at least 1s"), "{said:?}");
}

#[test]
fn a_crash_loop_is_told_to_machines_too() {
    let lab = Lab::new();
    let mut run = lab.command(["run", "--json", "--respawn", "k", "--", "sh", "-c", "exit 3"]).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(run.stderr.take().unwrap()), &mut line).unwrap();
    rustix::process::kill_process(Pid::from_raw(i32::try_from(run.id()).unwrap()).unwrap(), Signal::TERM).unwrap();
    run.wait().unwrap();

    let event: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&event["event"], &event["ended"]), (&"respawn".into(), &"code 3".into()), "{event}");
}

#[test]
fn as_process_1_orphans_are_collected() {
    let unshare = ["--pid", "--fork", "--kill-child", "--mount-proc"];
    if !Command::new("unshare").args(unshare).arg("true").status().is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: this user may not make a process namespace (unshare --pid)");
        return;
    }
    let lab = Lab::new();
    // Twenty orphans that end at once; then only we, the watchdog, the shell and what counts are there.
    let script = "i=0; while [ $((i += 1)) -le 20 ]; do (sh -c 'exit 0' & ) ; done; n=1; tries=0; \
                  while [ $n -gt 0 ] && [ $((tries += 1)) -lt 600 ]; do sleep 0.05; \
                  n=$(cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '); done; echo zombies $n";
    let run = [&unshare[..], &[own(), "run", "k", "--", "sh", "-c", script]].concat();

    let said = finish(lab.program("unshare", run).spawn().unwrap());

    assert_eq!((said.code, said.stdout.as_str()), (Some(0), "zombies 0\n"), "{said:?}");
}

#[test]
fn without_proc_the_promise_is_qualified_before_the_start() {
    let lab = Lab::new();
    let hide = |flags: &str| {
        let line = format!("mount -t tmpfs none /proc && exec \"$0\" run {flags} k -- echo ran");
        finish(lab.program("unshare", ["--mount", "sh", "-c", &line, own()]).spawn().unwrap())
    };
    if !Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: this user may not make a mount namespace (unshare --mount)");
        return;
    }

    let warned = hide("");
    assert_eq!((warned.code, warned.stdout.as_str()), (Some(0), "ran\n"), "{warned:?}");
    assert!(warned.stderr.contains("warning: what the command starts may outlive a lost lock: /proc is not there"));

    let refused = hide("--require-watchdog");
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(78), ""), "{refused:?}");
}

#[test]
fn two_users_exclude_each_other_on_a_store_that_their_group_shares() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can be two other users");
        return;
    }
    let lab = Lab::new();
    std::fs::set_permissions(lab.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::copy(own(), lab.path("syncguard")).unwrap();
    std::fs::create_dir(lab.path("shared")).unwrap();
    std::os::unix::fs::chown(lab.path("shared"), Some(0), Some(20_000)).unwrap();
    std::fs::set_permissions(lab.path("shared"), PermissionsExt::from_mode(0o2770)).unwrap();
    let user = |uid: u32, arguments: &[&str]| {
        let rights = [format!("--reuid={uid}"), format!("--regid={uid}"), "--groups=20000".to_owned()];
        let mut command = lab.program("setpriv", rights);
        command.arg(lab.path("syncguard")).args(arguments);
        command.env("SYNCGUARD_URL", format!("sqlite:{}?mode=660", lab.path("shared/locks.db").display()));
        finish(command.spawn().unwrap())
    };

    let first = user(20_001, &["acquire", "k"]);
    let second = user(20_002, &["run", "-n", "k", "--", "echo", "ran"]);
    let released = user(20_001, &["release", first.stdout.trim()]);
    let third = user(20_002, &["run", "-n", "k", "--", "echo", "ran"]);

    assert_eq!(first.code, Some(0), "{first:?}");
    assert_eq!((second.code, second.stdout.as_str()), (Some(75), ""), "{second:?}");
    assert_eq!(released.code, Some(0), "{released:?}");
    assert_eq!((third.code, third.stdout.as_str()), (Some(0), "ran\n"), "{third:?}");
}
