//! Does the command stop before its lock can belong to somebody else?

use std::io::BufRead;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::support::{Lab, Running, Said, is_alive, members, read_when_there, until};
use rustix::process::{Pid, Signal};
use serde_json::Value;

/// A run around `script`, started and ready.
fn start(lab: &Lab, flags: &[&str], script: &str) -> Running {
    let ready = lab.path("ready");
    let script = format!("echo $$ >{0}.tmp; mv {0}.tmp {0}; {script}", ready.display());
    let all = [&["run"], flags, &["k", "--", "sh", "-c", &script]].concat();
    let process = lab.command(all).spawn().unwrap();
    let child = read_when_there(&ready).trim().parse().unwrap();
    Running { process, child: Pid::from_raw(child).unwrap() }
}

/// Takes the store away: renewals fail from now on.
fn break_store(lab: &Lab) -> PathBuf {
    let away = lab.path("away.db");
    std::fs::rename(lab.store(), &away).unwrap();
    away
}

/// Waits until the group is gone. That it happens before somebody else can have the lock is shown beside trees of all
/// kinds.
fn wait_until_gone(group: Pid) {
    until("the group is gone", || members(group).is_empty());
}

fn assert_lost(said: &Said) {
    assert_eq!(said.code, Some(79), "{said:?}");
    assert!(said.stderr.contains("error: LOST the lock k after "), "{said:?}");
    assert!(said.stderr.contains("fence 000000000000001 is now stale; writes that check it are safe"), "{said:?}");
}

#[test]
fn an_unreachable_store_stops_the_whole_group_before_the_lease_ends() {
    let lab = Lab::new();
    let running = start(&lab, &["--ttl", "3s"], "sleep 60 & sleep 60");
    let group = running.child;
    // Seen at least one renewal: longer than one lease has passed.
    std::thread::sleep(Duration::from_millis(3_500));
    assert_eq!(members(group).len(), 3, "renewal keeps it alive");

    break_store(&lab);
    wait_until_gone(group);
    let said = running.finish();

    assert_lost(&said);
    assert!(said.stderr.contains("warning: the lock k cannot be renewed at present: its lease ends in 1."), "{said:?}");
    assert!(said.stderr.contains("backend unreachable, lease ends in "), "{said:?}");
    let sent = format!("sent SIGTERM to process {} and all it started; SIGKILL in ", group.as_raw_nonzero());
    assert!(said.stderr.contains(&sent), "{said:?}");
}

#[test]
fn a_group_that_ignores_term_is_killed_before_the_lease_ends() {
    let lab = Lab::new();
    let running = start(&lab, &["--ttl", "3s"], "trap '' TERM; sleep 60 & sleep 60; sleep 60");
    let group = running.child;

    break_store(&lab);
    wait_until_gone(group);

    assert_lost(&running.finish());
}

#[test]
fn a_grandchild_that_ignores_term_is_killed_although_its_parent_obeyed() {
    let lab = Lab::new();
    let running = start(&lab, &["--ttl", "3s"], "(trap '' TERM; sleep 60; sleep 60) & sleep 60");
    let group = running.child;

    break_store(&lab);
    wait_until_gone(group);

    assert_lost(&running.finish());
}

#[test]
fn a_stopped_run_cannot_keep_its_command_alive_past_the_lease() {
    let lab = Lab::new();
    let running = start(&lab, &["--ttl", "3s"], "sleep 60 & sleep 60");
    let group = running.child;

    running.signal(Signal::STOP);
    wait_until_gone(group);

    running.signal(Signal::CONT);
    assert_lost(&running.finish());
}

#[test]
fn a_lock_that_was_taken_away_stops_the_command_at_once() {
    let lab = Lab::new();
    let id = lab.path("id");
    let script = format!("printf %s \"$SYNCGUARD_LOCK_ID\" >{0}.tmp; mv {0}.tmp {0}; exec sleep 60", id.display());
    let running = start(&lab, &["--ttl", "6s", "--pass-lock-id"], &script);

    assert_eq!(lab.say(["release", &read_when_there(&id)]).code, Some(0));
    wait_until_gone(running.child);

    let said = running.finish();
    assert_lost(&said);
    assert!(said.stderr.contains("the backend no longer has it"), "{said:?}");
}

#[test]
fn without_renewal_the_command_ends_with_its_lease() {
    let lab = Lab::new();
    let running = start(&lab, &["--ttl", "2s", "--no-renew"], "sleep 60");

    wait_until_gone(running.child);

    let said = running.finish();
    assert_lost(&said);
    assert!(said.stderr.contains("--no-renew"), "{said:?}");
}

#[test]
fn failing_renewals_are_warned_about_and_a_store_that_comes_back_costs_nothing() {
    let lab = Lab::new();
    let end = lab.path("end");
    let script = format!("while [ ! -e {} ]; do sleep 0.05; done; echo done", end.display());
    let mut running = start(&lab, &["--ttl", "12s"], &script);

    let away = break_store(&lab);
    let mut warning = String::new();
    let mut stderr = std::io::BufReader::new(running.process.stderr.take().unwrap());
    stderr.read_line(&mut warning).unwrap();
    std::fs::rename(away, lab.store()).unwrap();
    let mut recovery = String::new();
    stderr.read_line(&mut recovery).unwrap();
    std::fs::write(end, "").unwrap();
    let said = running.finish();

    assert!(warning.starts_with("warning: the lock k cannot be renewed at present"), "{warning}");
    assert_eq!(recovery, "the lease is renewed again\n");
    assert_eq!((said.code, said.stdout.as_str()), (Some(0), "done\n"), "{said:?}");
}

#[test]
fn a_loss_may_be_a_warning_or_a_signal_instead() {
    let lab = Lab::new();
    let (end, report) = (lab.path("end"), lab.path("report.json"));
    let script = format!("while [ ! -e {} ]; do sleep 0.05; done; exit 7", end.display());
    let flags = ["--ttl", "2s", "--on-lost", "warn", "--report", report.to_str().unwrap()];
    let mut running = start(&lab, &flags, &script);
    break_store(&lab);
    let mut lines = std::io::BufReader::new(running.process.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("go on (--on-lost warn)")), "the loss is said");
    std::fs::write(end, "").unwrap();
    let said = running.finish();
    assert_eq!(said.code, Some(79), "a loss is a loss, also if the command went on: {said:?}");
    let told: Value = serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap();
    assert_eq!((&told["outcome"], &told["childExitCode"]), (&"lost".into(), &7.into()), "{told}");

    let lab = Lab::new();
    let running = start(&lab, &["--ttl", "2s", "--lost-exit-code", "3"], "sleep 60");
    break_store(&lab);
    assert_eq!(running.finish().code, Some(3), "the user chose otherwise");

    let lab = Lab::new();
    let script = "trap 'echo told; exit 0' USR1; i=0; while [ $((i += 1)) -lt 1000 ]; do sleep 0.02; done";
    let running = start(&lab, &["--ttl", "2s", "--on-lost", "signal:USR1"], script);
    break_store(&lab);
    let said = running.finish();
    assert_eq!((said.code, said.stdout.as_str()), (Some(79), "told\n"), "{said:?}");
}

/// What a run that stops nobody looks like to the next holder: the check of the trees can fail.
#[test]
fn work_that_is_not_stopped_is_seen_by_the_next_holder() {
    let lab = Lab::new();
    let end = lab.path("end");
    let script = format!("while [ ! -e {} ]; do sleep 0.05; done", end.display());
    let running = start(&lab, &["--ttl", "2s", "--on-lost", "warn"], &script);
    // All of it: what was written last stands in a file beside the store.
    for part in ["", "-wal", "-shm", "-queue"] {
        let (from, to) = (lab.path(&format!("locks.db{part}")), lab.path(&format!("away.db{part}")));
        assert!(std::fs::rename(from, to).is_ok() || !part.is_empty());
    }
    let away = lab.path("away.db");

    let look = format!("kill -0 {} && echo alive", running.child.as_raw_nonzero());
    let mut next = lab.command(["run", "-q", "-w", "120s", "k", "--", "sh", "-c", &look]);
    next.env("SYNCGUARD_URL", format!("sqlite:{}", away.display()));
    let seen = crate::support::finish(next.spawn().unwrap());

    assert_eq!((seen.code, seen.stdout.as_str()), (Some(0), "alive\n"), "{seen:?}");
    std::fs::write(end, "").unwrap();
    assert_eq!(running.finish().code, Some(79));
}

#[test]
fn after_a_loss_respawn_waits_for_the_lock_and_starts_again() {
    let lab = Lab::new();
    let log = lab.path("log");
    let script = format!("echo $SYNCGUARD_FENCE >>{}; exec sleep 60", log.display());
    let running = start(&lab, &["--ttl", "3s", "-w", "forever", "--respawn"], &script);
    let first = running.child;

    let away = break_store(&lab);
    until("the first child is stopped", || !is_alive(first));
    std::fs::rename(away, lab.store()).unwrap();
    until("a second child", || std::fs::read_to_string(&log).unwrap().lines().count() == 2);

    running.signal(Signal::TERM);
    assert_eq!(running.finish().signal, Some(15), "told to stop, it does not start again");
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "000000000000001\n000000000000002\n");
}

#[test]
fn the_report_says_what_happened() {
    let lab = Lab::new();
    let report = lab.path("report.json");
    let flags = ["--report", report.to_str().unwrap()];
    let read = || serde_json::from_str::<Value>(&std::fs::read_to_string(&report).unwrap()).unwrap();

    lab.say([&["run"], &flags[..], &["k", "--", "sh", "-c", "exit 4"]].concat());
    let done = read();
    assert_eq!((&done["schema"], &done["outcome"], &done["exitCode"]), (&1.into(), &"completed".into(), &4.into()));
    assert_eq!(done["fence"], "000000000000001");
    assert!(done["heldMs"].is_u64() && done["waitedMs"].is_u64());

    let id = lab.say(["acquire", "k"]).stdout;
    lab.say([&["run", "-n"], &flags[..], &["k", "--", "true"]].concat());
    assert_eq!((&read()["outcome"], &read()["exitCode"]), (&"locked".into(), &75.into()));
    lab.say(["release", id.trim()]);

    let running = start(&lab, &["--ttl", "2s", flags[0], flags[1]], "sleep 60");
    break_store(&lab);
    running.finish();
    assert_eq!((&read()["outcome"], &read()["exitCode"]), (&"lost".into(), &79.into()));

    let unwritable = lab.say(["run", "--report", "/no/such/dir/report", "k", "--", "echo", "ran"]);
    assert_eq!((unwritable.code, unwritable.stdout.as_str()), (Some(64), ""));
}

#[test]
fn a_report_is_not_written_through_a_strangers_link() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can give a link to a stranger");
        return;
    }
    let lab = Lab::new();
    let (open, target) = (lab.path("open"), lab.path("target"));
    let link = open.join("report");
    std::fs::create_dir(&open).unwrap();
    std::fs::write(&target, "precious").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    std::os::unix::fs::lchown(&link, Some(65534), Some(65534)).unwrap();
    let run = |mode| {
        std::fs::set_permissions(&open, PermissionsExt::from_mode(mode)).unwrap();
        lab.say(["run", "--report", link.to_str().unwrap(), "k", "--", "echo", "ran"])
    };
    for mode in [0o777, 0o1777, 0o775] {
        let said = run(mode);
        assert_eq!((said.code, said.stdout.as_str()), (Some(64), ""), "{said:?}");
        assert!(said.stderr.contains("somebody else made it a link, where others may put files"), "{said:?}");
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
    }
    assert_eq!(run(0o755).stdout, "ran\n", "nobody else may put a link there: it is meant");
}
