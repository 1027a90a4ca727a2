//! Does anything of the work outlive its lock, whatever the work does to get away?
//!
//! One script starts a process of every kind at once: in other groups and sessions, deaf to TERM, orphaned, under an
//! inner run. Each test is one way of losing the lock, in one surrounding; an outsider then counts who is left, and a
//! second holder counts at the very moment when it has the lock.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::sudo::Sudo;
use crate::support::tree::{Cause, KINDS, Outer, Surrounding, Tree};
use crate::support::witness::exists;
use crate::support::{Said, finish, until};
use rustix::process::Signal;

/// One cell for every kind: nobody is left, nobody was alive when the next holder had the lock, nothing was left as a
/// zombie.
fn nobody_outlives(surrounding: Surrounding, cause: Cause) {
    if !surrounding.is_possible() {
        return;
    }
    let tree = Tree::start(surrounding);
    let before: Vec<i32> = tree.alive().iter().map(|one| one.pid).collect();
    assert!(before.len() >= KINDS.len(), "{before:?}");

    let next = tree.lose(cause);

    until("nobody of the tree is alive", || tree.alive().is_empty());
    let next = next.map(finish);
    if let Some(next) = &next {
        assert_eq!(
            (next.code, next.stdout.as_str()),
            (Some(0), "0\n"),
            "{cause:?}: alive beside the next holder: {next:?}"
        );
    }
    if cause == Cause::Stop {
        tree.signal(Signal::CONT);
    }
    until("no zombie is left", || before.iter().all(|pid| !exists(*pid)));
    check_ending(surrounding, cause, &tree.outer.finish());
}

fn check_ending(surrounding: Surrounding, cause: Cause, said: &Said) {
    let text = format!("{}{}", said.stdout, said.stderr);
    match cause {
        Cause::Loss | Cause::Theft | Cause::Stop => {
            assert_eq!(said.code, Some(79), "{surrounding:?} {cause:?}: {said:?}");
            assert!(text.contains("LOST the lock k after "), "{said:?}");
        }
        // The shell itself dies from TERM. Where it cannot be seen as a signal it is the code that shells make of it.
        Cause::Term => assert!(said.signal == Some(15) || said.code == Some(143), "{said:?}"),
        Cause::Kill => {}
    }
}

macro_rules! cells {
    ($(fn $name:ident() $surrounding:ident $cause:ident;)*) => {
        $(#[test]
        fn $name() {
            nobody_outlives(Surrounding::$surrounding, Cause::$cause);
        })*
    };
}

cells! {
    fn in_a_pipe_nobody_outlives_an_unreachable_store() Pipe Loss;
    fn in_a_pipe_nobody_outlives_a_lock_that_was_taken_away() Pipe Theft;
    fn in_a_pipe_nobody_outlives_a_killed_run() Pipe Kill;
    fn in_a_pipe_nobody_outlives_a_stopped_run() Pipe Stop;
    fn in_a_pipe_nobody_outlives_a_term() Pipe Term;
    fn on_a_terminal_nobody_outlives_an_unreachable_store() Terminal Loss;
    fn on_a_terminal_nobody_outlives_a_lock_that_was_taken_away() Terminal Theft;
    fn on_a_terminal_nobody_outlives_a_killed_run() Terminal Kill;
    fn on_a_terminal_nobody_outlives_a_stopped_run() Terminal Stop;
    fn on_a_terminal_nobody_outlives_a_term() Terminal Term;
    fn as_process_1_nobody_outlives_an_unreachable_store() Process1 Loss;
    fn as_process_1_nobody_outlives_a_lock_that_was_taken_away() Process1 Theft;
    fn as_process_1_nobody_outlives_a_killed_run() Process1 Kill;
    fn as_process_1_nobody_outlives_a_stopped_run() Process1 Stop;
    fn as_process_1_nobody_outlives_a_term() Process1 Term;
    fn under_an_over_mounted_proc_nobody_outlives_an_unreachable_store() OverMounted Loss;
    fn under_an_over_mounted_proc_nobody_outlives_a_killed_run() OverMounted Kill;
    fn under_an_over_mounted_proc_nobody_outlives_a_term() OverMounted Term;
}

/// One cell for what we may not kill: it is named, or gone, and never called stopped while it runs.
fn roots_process_is_named(surrounding: Surrounding, cause: Cause) {
    let Some(sudo) = Sudo::new() else { return };
    if !surrounding.is_possible() {
        return;
    }
    let mut outer = sudo.start(surrounding, &["--give-up-after", "1s"]);
    match cause {
        Cause::Loss | Cause::Theft => sudo.lose(),
        Cause::Kill => sudo.signal(Signal::KILL),
        Cause::Term => sudo.signal(Signal::TERM),
        Cause::Stop => {
            sudo.signal(Signal::STOP);
            // Longer than the lease: the watchdog acts, and tells the command when it goes on.
            std::thread::sleep(Duration::from_secs(10));
            sudo.signal(Signal::CONT);
        }
    }
    until("the command and its watchdog have ended", || sudo.is_over());
    let named = if surrounding == Surrounding::Process1 {
        // The kernel ends everything below a process 1 together with it.
        until("nobody is left", || sudo.survivor().is_none());
        "(sleep) could not be stopped by this user and is still running".to_owned()
    } else {
        let pid = sudo.survivor().expect("nobody could stop it");
        // It has our stderr, so it ends before that is read.
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
        let pid = pid.as_raw_nonzero();
        let name = if surrounding == Surrounding::Hidden { "hidden" } else { "sleep" };
        format!("process {pid} ({name}) could not be stopped by this user and is still running")
    };
    if let Outer::OnTerminal(terminal) = &mut outer {
        terminal.type_in(b"\n");
    }
    let said = outer.finish();
    let text = format!("{}{}", said.stdout, said.stderr);
    // Process 1 that was killed says nothing: its watchdog was killed with it.
    let can_speak = (surrounding, cause) != (Surrounding::Process1, Cause::Kill);
    assert_eq!(text.contains(&named), can_speak, "{surrounding:?} {cause:?}: {said:?}");
    assert!(!text.contains("were stopped before that"), "{said:?}");
    if cause == Cause::Term {
        assert!(sudo.is_locked(), "it was not given back: {said:?}");
    }
    let warning = "warning: what the command starts may outlive a lost lock: /proc hides processes";
    assert_eq!(text.contains(warning), surrounding == Surrounding::Hidden, "{said:?}");
}

macro_rules! sudo_cells {
    ($(fn $name:ident() $surrounding:ident $cause:ident;)*) => {
        $(#[test]
        fn $name() {
            roots_process_is_named(Surrounding::$surrounding, Cause::$cause);
        })*
    };
}

sudo_cells! {
    fn in_a_pipe_what_root_owns_is_named_after_a_loss() Pipe Loss;
    fn in_a_pipe_what_root_owns_is_named_after_a_kill() Pipe Kill;
    fn in_a_pipe_what_root_owns_is_named_after_a_stop() Pipe Stop;
    fn in_a_pipe_what_root_owns_is_named_after_a_term() Pipe Term;
    fn on_a_terminal_what_root_owns_is_named_after_a_loss() Terminal Loss;
    fn on_a_terminal_what_root_owns_is_named_after_a_kill() Terminal Kill;
    fn on_a_terminal_what_root_owns_is_named_after_a_stop() Terminal Stop;
    fn on_a_terminal_what_root_owns_is_named_after_a_term() Terminal Term;
    fn as_process_1_what_root_owns_is_named_and_ends_after_a_loss() Process1 Loss;
    fn as_process_1_what_root_owns_ends_after_a_kill() Process1 Kill;
    fn as_process_1_what_root_owns_is_named_and_ends_after_a_stop() Process1 Stop;
    fn as_process_1_what_root_owns_is_named_and_ends_after_a_term() Process1 Term;
    fn where_proc_hides_what_root_owns_is_named_after_a_loss() Hidden Loss;
    fn where_proc_hides_what_root_owns_is_named_after_a_kill() Hidden Kill;
    fn where_proc_hides_what_root_owns_is_named_after_a_term() Hidden Term;
}

/// As long as it lives, longer than a lease; then it is given back.
#[test]
fn what_cannot_be_stopped_keeps_the_lock_until_it_ends() {
    let Some(sudo) = Sudo::new() else { return };
    let outer = sudo.start(Surrounding::Pipe, &[]);

    sudo.signal(Signal::TERM);
    until("the watchdog has gone", || sudo.watchdog().is_none());
    std::thread::sleep(Duration::from_secs(12));
    assert!(sudo.is_locked() && !sudo.is_over(), "the lease of 9 s was renewed");
    rustix::process::kill_process(sudo.survivor().unwrap(), Signal::KILL).unwrap();
    let said = outer.finish();

    assert!(
        said.stderr.contains("error: not everything could be stopped; the lock is kept until it ends\n"),
        "{said:?}"
    );
    assert!(said.stderr.contains("everything has ended now; the lock is given back"), "{said:?}");
    assert!(!sudo.is_locked(), "{said:?}");
}

#[test]
fn nobody_outlives_a_killed_watchdog_and_that_is_said() {
    let tree = Tree::start(Surrounding::Pipe);

    rustix::process::kill_process(tree.watchdog().unwrap(), Signal::KILL).unwrap();
    until("nobody of the tree is alive", || tree.alive().is_empty());
    let said = tree.outer.finish();

    assert_eq!(said.code, Some(70), "{said:?}");
    assert!(said.stderr.contains("error: the watchdog was killed: the command was stopped"), "{said:?}");
    assert!(!tree.lab.is_locked("k"), "nothing is left, so it was given back");
}

#[test]
fn nobody_outlives_a_kill_by_the_words_of_the_command_line() {
    let tree = Tree::start(Surrounding::Pipe);

    // As `pkill -9 -f` does it: all at once. It must not be both, or nobody would be left to end the work.
    let found = tree.found_by_their_words();
    for pid in &found {
        rustix::process::kill_process(*pid, Signal::KILL).unwrap();
    }
    until("nobody of the tree is alive", || tree.alive().is_empty());

    assert_eq!(found, [tree.command], "the watchdog goes by another name");
    assert_eq!(finish(tree.next_holder(&tree.lab.url())).stdout, "0\n");
    tree.outer.finish();
}

#[test]
fn a_watchdog_that_was_stopped_does_not_keep_the_work_alive() {
    let tree = Tree::start(Surrounding::Pipe);

    rustix::process::kill_process(tree.watchdog().unwrap(), Signal::STOP).unwrap();
    let next = tree.lose(Cause::Loss).unwrap();
    until("nobody of the tree is alive", || tree.alive().is_empty());

    assert_eq!(finish(next).stdout, "0\n");
    assert_eq!(tree.outer.finish().code, Some(79));
}

/// Rounds at random: where, who of {the lock, the command, the watchdog} goes, how, and when. A long one:
/// `SYNCGUARD_CAMPAIGN_ROUNDS=1000`; several beside each other: `SYNCGUARD_CAMPAIGN_FIRST=1000` is where it begins.
fn campaign(server: impl Fn(usize) -> Option<(u16, String)> + Sync) {
    const AT_ONCE: usize = 3;
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<usize>().ok());
    let first = number("SYNCGUARD_CAMPAIGN_FIRST").unwrap_or(0);
    let rounds = number("SYNCGUARD_CAMPAIGN_ROUNDS").unwrap_or(6);
    let next = AtomicUsize::new(first);
    let (kinds, failed) = (Mutex::new(BTreeMap::<String, u32>::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let round = next.fetch_add(1, Ordering::Relaxed);
                    if round >= first + rounds {
                        return;
                    }
                    let (surrounding, blow, pause) = draw(round);
                    *kinds.lock().unwrap().entry(format!("{surrounding:?} {blow:?}")).or_default() += 1;
                    // One that fails must not keep the others from being tried.
                    let ended = catch_unwind(AssertUnwindSafe(|| one_round(surrounding, blow, pause, server(round))));
                    let ended = ended.unwrap_or_else(|_| Err("it did not end; see above".to_owned()));
                    println!("round {round}, {surrounding:?} {blow:?}: {ended:?}");
                    failed.lock().unwrap().extend(ended.err().map(|what| (round, what)));
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    println!("{rounds} rounds from {first} on, {} failed: {:?}", failed.len(), kinds.into_inner().unwrap());
    assert!(failed.is_empty(), "{} of {rounds} rounds: {failed:#?}", failed.len());
}

/// Who is hit, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blow {
    To(Cause),
    /// The watchdog, and then the command is told to end.
    ToWatchdog(Signal),
}

/// What a round is, by its number: a failed one can be repeated.
fn draw(round: usize) -> (Surrounding, Blow, Duration) {
    let mut random = u64::try_from(round + 1).unwrap().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut any = |limit: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % limit
    };
    let pause = Duration::from_millis(any(1_500));
    let surrounding = match any(4) {
        0 => Surrounding::Terminal,
        1 if Surrounding::Process1.is_possible() => Surrounding::Process1,
        _ => Surrounding::Pipe,
    };
    let blow = match any(7) {
        0 => Blow::To(Cause::Loss),
        1 => Blow::To(Cause::Theft),
        2 => Blow::To(Cause::Kill),
        3 => Blow::To(Cause::Stop),
        4 => Blow::To(Cause::Term),
        5 => Blow::ToWatchdog(Signal::KILL),
        _ => Blow::ToWatchdog(Signal::STOP),
    };
    (surrounding, blow, pause)
}

fn one_round(
    surrounding: Surrounding,
    blow: Blow,
    pause: Duration,
    server: Option<(u16, String)>,
) -> Result<(), String> {
    let tree = Tree::start_on(surrounding, server);
    let mut pids: Vec<i32> = tree.alive().iter().map(|one| one.pid).collect();
    pids.extend(tree.watchdog().map(|pid| pid.as_raw_nonzero().get()));
    std::thread::sleep(pause);
    let next = match blow {
        Blow::To(cause) => tree.lose(cause),
        Blow::ToWatchdog(signal) => {
            // On a starved machine the run may have given up by itself: that is a round too.
            tree.watchdog().map(|pid| rustix::process::kill_process(pid, signal));
            tree.lose(Cause::Term)
        }
    };
    let counted = next.map(finish).map(|said| said.stdout);
    if blow == Blow::To(Cause::Stop) {
        tree.signal(Signal::CONT);
    }
    until("nobody of the tree is alive", || tree.alive().is_empty());
    tree.outer.finish();
    until("no zombie is left", || pids.iter().all(|pid| !exists(*pid)));
    match counted.as_deref() {
        None | Some("0\n") => Ok(()),
        other => Err(format!("alive beside the next holder: {other:?}")),
    }
}

#[test]
fn random_rounds_leave_nobody_on_sqlite() {
    campaign(|_| None);
}

#[test]
fn random_rounds_leave_nobody_on_redis() {
    let server = syncguard_testkit::RedisServer::start(syncguard_testkit::RedisOptions::new());
    campaign(|round| Some((server.port(), format!("{}?prefix=round{round}", server.url()))));
}
