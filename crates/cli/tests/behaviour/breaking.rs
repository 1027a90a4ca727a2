//! What happens to a holder whose lock an operator takes away, or asks for?

use crate::support::{Lab, finish, pty, until};
use rustix::process::Signal;

#[test]
fn a_broken_lock_stops_its_holder_and_wakes_the_next() {
    for (backend, lab) in Lab::on_each_backend() {
        let holder = lab.hold(&["--ttl", "9s", "--label", "ada@one"], "deploy:prod");
        let show = ["run", "-w", "60s", "deploy:prod", "--", "sh", "-c", "echo $SYNCGUARD_FENCE"];
        let waiter = lab.command(show).spawn().unwrap();
        until(&format!("{backend}: the lock shows"), || lab.is_locked("deploy:prod"));

        let unasked = lab.say(["break", "deploy:prod", "--fence", "1"]);
        let wrong = lab.say(["break", "deploy:prod", "--fence", "7", "--yes"]);
        assert_eq!(unasked.code, Some(64), "{backend}: {unasked:?}");
        assert!(unasked.stderr.contains("add --yes"), "{backend}: {unasked:?}");
        assert_eq!(wrong.code, Some(1), "{backend}: {wrong:?}");
        let refusal = "error: deploy:prod has fence 000000000000001 now, not 000000000000007: nothing was broken\n";
        assert!(wrong.stderr.starts_with(refusal), "{backend}: {wrong:?}");
        assert!(wrong.stderr.contains("held by   ada@one   (lock "), "{backend}: {wrong:?}");
        assert!(lab.is_locked("deploy:prod"), "{backend}");

        let right = lab.say(["break", "deploy:prod", "--fence", "000000000000001", "--yes"]);

        assert_eq!(right.code, Some(0), "{backend}: {right:?}");
        let done = "broke deploy:prod: fence 000000000000001 is stale, and the lock is free\n";
        assert_eq!((right.stdout.as_str(), right.stderr.as_str()), (done, ""), "{backend}");
        let said = holder.finish();
        assert_eq!(said.code, Some(79), "{backend}: {said:?}");
        assert!(said.stderr.contains("LOST the lock deploy:prod"), "{backend}: {said:?}");
        let next = finish(waiter);
        assert_eq!((next.code, next.stdout.as_str()), (Some(0), "000000000000002\n"), "{backend}: {next:?}");
    }
}

#[test]
fn there_is_nothing_to_break_where_nothing_is_held() {
    let lab = Lab::new();
    for arguments in [&["break", "k", "--fence", "1", "--yes"][..], &["break", "k", "--ask"]] {
        let said = lab.say(arguments);
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(said.stderr.starts_with("error: k is free: there is nothing to break\n"), "{said:?}");
    }
    for arguments in [&["break", "k", "--yes"][..], &["break", "k"]] {
        let usage = lab.say(arguments);
        assert_eq!(usage.code, Some(64), "which holder is meant must be said: {usage:?}");
    }
}

#[test]
fn a_holder_that_is_asked_decides_for_itself() {
    for (backend, lab) in Lab::on_each_backend() {
        let ready = lab.path("ready");
        let script = format!("trap 'exit 7' USR1; touch {}; while :; do sleep 0.05; done", ready.display());
        let run = ["run", "--ttl", "6s", "--on-asked", "USR1", "k", "--", "sh", "-c", &script];
        let told = lab.command(run).spawn().unwrap();
        crate::support::read_when_there(&ready);
        let deaf = lab.hold(&["--ttl", "6s"], "other");

        let asked = lab.json(["break", "k", "--ask", "--fence", "1"]);
        let also = lab.say(["break", "other", "--ask"]);

        assert_eq!(asked[0]["action"], "asked", "{backend}: {asked:?}");
        assert!(also.stdout.contains("hears of it with its next renewal"), "{backend}: {also:?}");
        let said = finish(told);
        assert_eq!(said.code, Some(7), "{backend}: {said:?}");
        assert!(
            said.stderr.contains("somebody asks for the lock k: sent SIGUSR1 to the command"),
            "{backend}: {said:?}"
        );
        let status = lab.say(["status", "other"]);
        assert!(status.stdout.contains(", asked to release)"), "{backend}: {status:?}");
        deaf.signal(Signal::TERM);
        let said = deaf.finish();
        assert!(!said.stderr.contains("LOST"), "{backend}: to be asked is no loss: {said:?}");
    }
}

#[test]
fn on_a_terminal_an_operator_is_told_what_happens_and_asked() {
    let lab = Lab::new();
    lab.say(["acquire", "--ttl", "5m", "--label", "ada@one", "k"]);
    for (fence, answer, code, is_locked) in
        [(&["--fence", "1"][..], b"n\n", Some(1), true), (&[][..], b"y\n", Some(0), false)]
    {
        let mut terminal = pty::spawn(&mut lab.command([&["break", "k"], fence].concat()));
        terminal.until_shown("break it? [y/N] ");

        terminal.type_in(answer);

        let said = terminal.finish();
        assert_eq!(said.code, code, "{said:?}");
        assert!(said.stdout.contains("ada@one loses it") && said.stdout.contains("held by   ada@one"), "{said:?}");
        assert_eq!(lab.is_locked("k"), is_locked, "{said:?}");
    }
    let next = lab.json(["acquire", "k"]);
    assert_eq!(next[0]["fence"], "000000000000002", "the counter goes on");
}

#[test]
fn dead_locks_are_removed_and_counted() {
    let backends = Lab::on_each_backend();
    // Redis removes them itself.
    for (backend, lab) in backends.iter().filter(|(name, _)| *name != "redis") {
        for key in ["a", "b"] {
            // On a loaded machine the answer may come when the lease is over: that is no lock.
            until(&format!("{backend}: {key} is taken"), || {
                lab.say(["acquire", "--ttl", "500ms", key]).code == Some(0)
            });
        }
        let mut removed = 0;
        until(&format!("{backend}: both are removed"), || {
            let purged = lab.json(["purge"]);
            removed += purged[0]["removed"].as_u64().unwrap();
            removed >= 2
        });
        let said = lab.say(["purge"]);
        assert_eq!(said.stdout, "removed 0 dead locks; fence counters stay\n", "{backend}");
        let fence = lab.json(["acquire", "a"])[0]["fence"].clone();
        assert!(fence.as_str().unwrap() > "000000000000001", "{backend}: {fence}");
    }
}
