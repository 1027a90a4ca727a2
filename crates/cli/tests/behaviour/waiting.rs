//! Two shells: what does the second one see, and when does it run?

use std::time::Duration;

use crate::support::{Lab, finish, own, read_when_there, until};
use rustix::process::Signal;
use syncguard::{Clock, SystemClock};

#[test]
fn what_was_done_is_not_done_again_in_its_period_and_a_failure_is() {
    let lab = Lab::new();
    let run = |line| lab.say(["run", "--skip-if-locked", "--once-per", "20h", "--label", "ada", "k", "-c", line]);
    assert_eq!(run("exit 3").code, Some(3));
    assert!(!lab.is_locked("k"), "what failed is to be done again");

    assert_eq!(run("echo ran").stdout, "ran\n");
    let again = run("echo ran");
    let seen = lab.say(["status", "k"]).stdout;

    assert_eq!((again.code, again.stdout.as_str(), again.stderr.as_str()), (Some(0), "", ""));
    assert!(seen.contains("held by   ada, once per 20h") && seen.contains("lease ends in 19h"), "{seen}");
}

#[test]
fn a_holder_that_is_too_old_is_not_skipped_in_silence() {
    let lab = Lab::new();
    lab.say(["acquire", "--ttl", "1m", "k"]);
    let skip = |age| lab.say(["run", "--skip-if-locked", "--skip-max-age", age, "k", "--", "echo", "ran"]);

    assert_eq!((skip("1h").code, skip("1h").stderr.as_str()), (Some(0), ""));
    let old = skip("1ms");
    assert_eq!((old.code, old.stdout.as_str()), (Some(75), ""));
    assert!(old.stderr.starts_with("error: k is locked for longer than 0s (--skip-max-age)\n  held by"), "{old:?}");

    let both = ["run", "--skip-if-locked", "--skip-max-age", "1h", "--once-per", "2h", "k", "--", "true"];
    assert_eq!(lab.say(both).code, Some(64), "each lock of done work would be too old");
}

#[test]
fn the_second_shell_is_told_who_since_until_and_what_to_do() {
    let lab = Lab::new();
    let holder = lab.hold(&["--label", "ci@runner-7"], "deploy:prod");

    let said = lab.say(["run", "-n", "deploy:prod", "--", "true"]);

    assert_eq!((said.code, said.stdout.as_str()), (Some(75), ""));
    let lines: Vec<&str> = said.stderr.lines().collect();
    assert_eq!(lines[0], "error: deploy:prod is locked");
    assert!(lines[1].starts_with("  held by   ci@runner-7   (lock "), "{said:?}");
    assert!(lines[1].ends_with(", fence 000000000000001)"), "{said:?}");
    assert!(lines[2].starts_with("  since     ") && lines[2].contains("Z: held for "), "{said:?}");
    assert_eq!(lines[3], format!("  backend   {}", lab.url()));
    assert_eq!(lines[4], "hint: wait longer:  syncguard run --wait 10m deploy:prod -- …");
    assert_eq!(lines[5], "      look at it:   syncguard status deploy:prod");
    holder.signal(Signal::TERM);
    holder.finish();
}

#[test]
fn a_wait_that_ends_says_how_long_it_was_and_that_the_lease_moves() {
    let lab = Lab::new();
    let holder = lab.hold(&["--ttl", "1500ms"], "k");

    let said = lab.say(["run", "-w", "1s", "k", "--", "true"]);

    assert_eq!(said.code, Some(75));
    let lines: Vec<&str> = said.stderr.lines().collect();
    assert!(lines[0].starts_with("waiting for k: held by ci@"), "one line at once: {said:?}");
    assert!(lines[1].starts_with("error: k is locked (waited 1."), "{said:?}");
    assert!(said.stderr.contains(", renewed "), "{said:?}");
    holder.signal(Signal::TERM);
    holder.finish();
}

#[test]
fn a_waiter_runs_within_milliseconds_of_the_release() {
    let lab = Lab::new();
    let mut waits = Vec::new();
    for _ in 0..10 {
        let (end, begin) = (lab.path("end"), lab.path("begin"));
        let holder = lab.hold(&[], "k");
        let script = format!("date +%s%N >{0}.tmp; mv {0}.tmp {0}", begin.display());
        let mut waiter = lab.command(["run", "-w", "20s", "k", "--", "sh", "-c", &script]).spawn().unwrap();
        let mut first = [0; 1];
        std::io::Read::read_exact(waiter.stderr.as_mut().unwrap(), &mut first).unwrap();
        std::thread::sleep(Duration::from_millis(150));

        let now = SystemClock.wall().as_millis();
        rustix::process::kill_process(holder.child, Signal::TERM).unwrap();
        holder.finish();
        assert_eq!(finish(waiter).code, Some(0));

        let started: i64 = read_when_there(&begin).trim().parse().unwrap();
        waits.push(started / 1_000_000 - now);
        for path in [end, begin, lab.path("started-k")] {
            let _ = std::fs::remove_file(path);
        }
    }
    waits.sort_unstable();
    println!("from the end of the holder's command to the start of the waiter's, ms: {waits:?}");
    // Polling alone would take half a second on average; the bound is generous for a loaded machine.
    assert!(waits[5] < 250, "{waits:?}");
}

#[test]
fn a_killed_holder_is_followed_within_its_lease_and_the_tolerance() {
    let lab = Lab::new();
    let holder = lab.hold(&["--ttl", "2s"], "k");
    let waiter = lab.command(["run", "-w", "20s", "k", "--", "sh", "-c", "echo $SYNCGUARD_FENCE"]).spawn().unwrap();
    until("the waiter waits", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/wchan", waiter.id())).unwrap_or_default();
        stat.contains("poll")
    });

    let killed = SystemClock.boot();
    holder.signal(Signal::KILL);
    let said = finish(waiter);
    let took = SystemClock.boot().since(killed);

    assert_eq!((said.code, said.stdout.as_str()), (Some(0), "000000000000002\n"), "{said:?}");
    assert!(took < Duration::from_millis(2_000 + 1_000 + 500), "{took:?}");
    holder.finish();
}

#[test]
fn a_command_that_ends_early_keeps_its_lock_for_the_time_it_was_to_hold() {
    let lab = Lab::new();

    let first = lab.say(["run", "--hold-at-least", "2s", "--ttl", "30s", "cron", "--", "echo", "ran"]);
    let second = lab.say(["run", "--skip-if-locked", "--hold-at-least", "2s", "cron", "--", "echo", "ran"]);

    assert_eq!((first.code, first.stdout.as_str(), first.stderr.as_str()), (Some(0), "ran\n", ""));
    assert_eq!((second.code, second.stdout.as_str(), second.stderr.as_str()), (Some(0), "", ""));
    let start = SystemClock.boot();
    until("the rest is over", || !lab.is_locked("cron"));
    let rest = SystemClock.boot().since(start);
    assert!(rest < Duration::from_secs(5), "2 s and the tolerance, not the lease of 30 s: {rest:?}");
}

#[test]
fn a_command_that_took_long_enough_frees_its_lock_at_once() {
    let lab = Lab::new();
    assert_eq!(lab.say(["run", "--hold-at-least", "100ms", "cron", "--", "sleep", "0.3"]).code, Some(0));
    assert!(!lab.is_locked("cron"));
}

#[test]
fn eight_shells_never_overlap_and_their_fences_are_dense() {
    let lab = Lab::new();
    let (witness, log) = (lab.path("witness"), lab.path("log"));
    // mkdir is the outside witness: it fails if somebody else is inside.
    let script = format!(
        "mkdir {0} || echo OVERLAP >>{1}; echo $SYNCGUARD_FENCE >>{1}; rmdir {0}",
        witness.display(),
        log.display()
    );
    let shells: Vec<_> = (0..8)
        .map(|_| {
            let own = own();
            let cycles = format!(
                "for i in 1 2 3 4 5; do {own} run -q -w 60s k -- sh -c '{script}' || echo FAILED >>{}; done",
                log.display()
            );
            lab.program("sh", ["-c", &cycles]).spawn().unwrap()
        })
        .collect();
    for shell in shells {
        finish(shell);
    }

    let lines = std::fs::read_to_string(&log).unwrap();

    let expected: Vec<String> = (1..=40).map(|fence| format!("{fence:015}")).collect();
    assert_eq!(lines.lines().collect::<Vec<_>>(), expected);
}
