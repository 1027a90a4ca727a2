//! Does the command stop before its lock can belong to somebody else?

#![allow(clippy::unwrap_used)]

mod support;

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use serde_json::Value;
use support::{Lab, Running, Said, is_alive, members, read_when_there, until};
use syncguard::{BootTime, Clock, SystemClock};

/// A run around `script`, started and ready.
fn start(lab: &Lab, flags: &[&str], script: &str) -> Running {
    let ready = lab.path("ready");
    let script = format!("echo $$ >{0}.tmp; mv {0}.tmp {0}; {script}", ready.display());
    let all = [&["run"], flags, &["k", "--", "sh", "-c", &script]].concat();
    let process = lab.command(all).spawn().unwrap();
    let child = read_when_there(&ready).trim().parse().unwrap();
    Running { process, child: Pid::from_raw(child).unwrap() }
}

/// Takes the store away: renewals fail from now on. Returns when.
fn break_store(lab: &Lab) -> (BootTime, PathBuf) {
    let away = lab.path("away.db");
    std::fs::rename(lab.store(), &away).unwrap();
    (SystemClock.boot(), away)
}

/// Waits until the group is gone and says how long after `start`.
fn gone_after(group: Pid, start: BootTime) -> Duration {
    until("the group is gone", || members(group).is_empty());
    SystemClock.boot().since(start)
}

fn assert_lost(said: &Said) {
    assert_eq!(said.code, Some(79), "{said:?}");
    assert!(said.stderr.contains("error: LOST the lock k after "), "{said:?}");
    assert!(said.stderr.contains("fence 000000000000001 is now stale; writes that check it are safe"), "{said:?}");
}

#[test]
fn an_unreachable_store_stops_the_whole_group_before_the_lease_ends() {
    let lab = Lab::new();
    let running = start(&lab, &["--ttl", "2s"], "sleep 60 & sleep 60");
    let group = running.child;
    // Seen at least one renewal: longer than one lease has passed.
    std::thread::sleep(Duration::from_millis(2_500));
    assert_eq!(members(group).len(), 3, "renewal keeps it alive");

    let (broken, _) = break_store(&lab);
    let gone = gone_after(group, broken);
    let said = running.finish();

    assert!(gone < Duration::from_secs(2), "gone {gone:?} after the store, a lease is 2 s");
    assert_lost(&said);
    assert!(said.stderr.contains("backend unreachable, lease ends in 0."), "{said:?}");
    let sent = format!("sent SIGTERM to process group {}; SIGKILL in 0.", group.as_raw_nonzero());
    assert!(said.stderr.contains(&sent), "{said:?}");
}

#[test]
fn a_group_that_ignores_term_is_killed_before_the_lease_ends() {
    let lab = Lab::new();
    let running = start(&lab, &["--ttl", "2s"], "trap '' TERM; sleep 60 & sleep 60; sleep 60");
    let group = running.child;

    let (broken, _) = break_store(&lab);
    let gone = gone_after(group, broken);

    assert!(gone < Duration::from_secs(2), "{gone:?}");
    assert_lost(&running.finish());
}

#[test]
fn a_grandchild_that_ignores_term_is_killed_although_its_parent_obeyed() {
    let lab = Lab::new();
    let running = start(&lab, &["--ttl", "2s"], "(trap '' TERM; sleep 60; sleep 60) & sleep 60");
    let group = running.child;

    let (broken, _) = break_store(&lab);
    let gone = gone_after(group, broken);

    assert!(gone < Duration::from_secs(2), "{gone:?}");
    assert_lost(&running.finish());
}

#[test]
fn a_stopped_run_cannot_keep_its_command_alive_past_the_lease() {
    let lab = Lab::new();
    let running = start(&lab, &["--ttl", "1s"], "sleep 60 & sleep 60");
    let group = running.child;
    let start = SystemClock.boot();

    running.signal(Signal::STOP);
    let gone = gone_after(group, start);

    // What the lease had left when we were stopped is at most the whole of it.
    assert!(gone <= Duration::from_millis(1_100), "{gone:?}");
    running.signal(Signal::CONT);
    let said = running.finish();
    assert!(said.code == Some(79) || said.code == Some(137), "{said:?}");
}

#[test]
fn a_lock_that_was_taken_away_stops_the_command_at_once() {
    let lab = Lab::new();
    let id = lab.path("id");
    let script = format!("printf %s \"$SYNCGUARD_LOCK_ID\" >{0}.tmp; mv {0}.tmp {0}; exec sleep 60", id.display());
    let running = start(&lab, &["--ttl", "6s", "--pass-lock-id"], &script);

    assert_eq!(lab.say(["release", &read_when_there(&id)]).code, Some(0));
    let taken = SystemClock.boot();
    let gone = gone_after(running.child, taken);

    assert!(gone < Duration::from_secs(4), "the next renewal is a third of the lease away: {gone:?}");
    let said = running.finish();
    assert_lost(&said);
    assert!(said.stderr.contains("the backend no longer has it"), "{said:?}");
}

#[test]
fn without_renewal_the_command_ends_with_its_lease() {
    let lab = Lab::new();
    let begun = SystemClock.boot();
    let running = start(&lab, &["--ttl", "1500ms", "--no-renew"], "sleep 60");

    let gone = gone_after(running.child, begun);

    assert!(gone < Duration::from_secs(3), "{gone:?}");
    let said = running.finish();
    assert_lost(&said);
    assert!(said.stderr.contains("--no-renew"), "{said:?}");
}

#[test]
fn a_store_that_comes_back_in_time_costs_nothing() {
    let lab = Lab::new();
    let running = start(&lab, &["--ttl", "3s"], "sleep 4; echo done");
    std::thread::sleep(Duration::from_millis(500));

    let (_, away) = break_store(&lab);
    std::thread::sleep(Duration::from_millis(900));
    std::fs::rename(away, lab.store()).unwrap();
    let said = running.finish();

    assert_eq!((said.code, said.stdout.as_str()), (Some(0), "done\n"), "{said:?}");
}

#[test]
fn a_loss_may_be_a_warning_or_a_signal_instead() {
    let lab = Lab::new();
    let running = start(&lab, &["--ttl", "1500ms", "--on-lost", "warn"], "sleep 2.5; exit 7");
    break_store(&lab);
    let said = running.finish();
    assert_eq!(said.code, Some(7), "the command was not stopped: {said:?}");
    assert!(said.stderr.contains("goes on (--on-lost warn)"), "{said:?}");

    let lab = Lab::new();
    let script = "trap 'echo told; exit 0' USR1; i=0; while [ $((i += 1)) -lt 1000 ]; do sleep 0.02; done";
    let running = start(&lab, &["--ttl", "1500ms", "--on-lost", "signal:USR1"], script);
    break_store(&lab);
    let said = running.finish();
    assert_eq!((said.code, said.stdout.as_str()), (Some(79), "told\n"), "{said:?}");
}

#[test]
fn after_a_loss_respawn_waits_for_the_lock_and_starts_again() {
    let lab = Lab::new();
    let log = lab.path("log");
    let script = format!("echo $SYNCGUARD_FENCE >>{}; exec sleep 60", log.display());
    let running = start(&lab, &["--ttl", "1500ms", "-w", "forever", "--respawn"], &script);
    let first = running.child;

    let (_, away) = break_store(&lab);
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

    let running = start(&lab, &["--ttl", "1500ms", flags[0], flags[1]], "sleep 60");
    break_store(&lab);
    running.finish();
    assert_eq!((&read()["outcome"], &read()["exitCode"]), (&"lost".into(), &79.into()));

    let unwritable = lab.say(["run", "--report", "/no/such/dir/report", "k", "--", "echo", "ran"]);
    assert_eq!((unwritable.code, unwritable.stdout.as_str()), (Some(64), ""));
}
