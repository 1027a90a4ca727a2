//! Does every signal reach whom it is meant for, at each phase, and is the lock free afterwards?

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Duration;

use crate::support::{Lab, Running, finish, is_alive, members, own, read_when_there, until};
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal};

/// Starts `run` around a script that says when it is ready.
fn start(lab: &Lab, script: &str) -> Running {
    let ready = lab.path("ready");
    let script = format!("echo $$ >{0}.tmp; {script}", ready.display());
    let process = lab.command(["run", "--ttl", "20s", "k", "--", "sh", "-c", &script]).spawn().unwrap();
    let child = read_when_there(&ready).trim().parse().unwrap();
    Running { process, child: Pid::from_raw(child).unwrap() }
}

fn ready(lab: &Lab) -> String {
    format!("mv {0}.tmp {0}", lab.path("ready").display())
}

#[test]
fn each_signal_is_forwarded_to_the_running_command() {
    for (signal, name) in [
        (Signal::TERM, "TERM"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::INT, "INT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
    ] {
        let lab = Lab::new();
        // A tester started in the background ignores INT and QUIT, and what is ignored stays so; env gives them back.
        let script = format!(
            "trap 'echo got {name}; exit 5' {name}; {}; i=0; while [ $((i += 1)) -lt 1000 ]; do sleep 0.02; done",
            ready(&lab)
        );
        let ready_file = lab.path("ready");
        let mut command = lab.program("env", ["--default-signal=INT,QUIT", own(), "run", "--ttl", "20s", "k"]);
        command.args(["--", "sh", "-c", &format!("echo $$ >{}.tmp; {script}", ready_file.display())]);
        let process = command.spawn().unwrap();
        read_when_there(&ready_file);
        let running = Running { child: Pid::INIT, process };

        running.signal(signal);
        let said = running.finish();

        assert_eq!((said.code, said.stdout.as_str()), (Some(5), format!("got {name}\n").as_str()), "{said:?}");
        assert!(!lab.is_locked("k"), "{name}");
    }
}

#[test]
fn a_command_that_dies_from_term_makes_us_die_from_term_after_releasing() {
    let lab = Lab::new();
    let running = start(&lab, &format!("{}; exec sleep 60", ready(&lab)));

    running.signal(Signal::TERM);
    let said = running.finish();

    assert_eq!((said.code, said.signal), (None, Some(15)), "{said:?}");
    assert!(!lab.is_locked("k"));
}

#[test]
fn a_command_that_dies_from_another_signal_is_128_and_the_number() {
    let lab = Lab::new();
    assert_eq!(lab.say(["run", "k", "--", "sh", "-c", "kill -KILL $$"]).code, Some(137));
    assert_eq!(lab.say(["run", "k", "--", "sh", "-c", "kill -USR1 $$"]).code, Some(138));
    assert!(!lab.is_locked("k"));
}

#[test]
fn the_whole_group_hears_a_signal() {
    let lab = Lab::new();
    let running = start(&lab, &format!("sleep 60 & sleep 60 & {}; wait", ready(&lab)));
    let group = running.child;
    until("two sleepers", || members(group).len() == 3);

    running.signal(Signal::TERM);
    running.finish();

    until("the group is gone", || members(group).is_empty());
}

#[test]
fn a_signal_while_waiting_ends_the_wait_and_leaves_no_lock() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        let lab = Lab::new();
        let holder = lab.hold(&[], "k");
        let mut waiter = lab.command(["run", "-w", "forever", "k", "--", "echo", "ran"]).spawn().unwrap();
        let mut first = [0; 1];
        // The line about waiting: from here on it waits.
        waiter.stderr.as_mut().unwrap().read_exact(&mut first).unwrap();

        rustix::process::kill_process(Pid::from_raw(i32::try_from(waiter.id()).unwrap()).unwrap(), signal).unwrap();
        let said = finish(waiter);

        assert_eq!((said.code, said.stdout.as_str()), (Some(code), ""), "{said:?}");
        holder.signal(Signal::TERM);
        holder.finish();
        assert!(!lab.is_locked("k"), "the waiter took it with it");
    }
}

#[test]
fn a_term_at_any_moment_of_a_short_life_leaves_no_lock_behind() {
    let lab = Lab::new();
    for delay in (0..60).map(|step| Duration::from_micros(step * 500)) {
        let process = lab.command(["run", "--ttl", "60s", "k", "--", "sleep", "0.005"]).spawn().unwrap();
        std::thread::sleep(delay);
        let pid = Pid::from_raw(i32::try_from(process.id()).unwrap()).unwrap();
        let _ = rustix::process::kill_process(pid, Signal::TERM);
        let said = finish(process);
        assert!(matches!((said.code, said.signal), (Some(0 | 143), None) | (None, Some(15))), "{delay:?}: {said:?}");
        assert!(!lab.is_locked("k"), "{delay:?}: {said:?}");
    }
}

#[test]
fn a_stopped_command_ends_in_bounded_time_when_we_are_told_to() {
    for (signal, ending) in [(Signal::TERM, (None, Some(15))), (Signal::HUP, (Some(129), None))] {
        let lab = Lab::new();
        let running = start(&lab, &format!("{}; kill -STOP $$; exec sleep 60", ready(&lab)));
        until("it is stopped", || is_stopped(running.child));

        running.signal(signal);
        let said = running.finish();

        assert_eq!((said.code, said.signal), ending, "{said:?}");
        assert!(!lab.is_locked("k"));
    }
}

#[test]
fn a_command_that_is_deaf_to_term_is_killed() {
    let lab = Lab::new();
    let script =
        format!("trap '' TERM; echo $$ >{0}.tmp; {1}; sleep 60; sleep 60", lab.path("ready").display(), ready(&lab));
    let all = ["run", "--ttl", "20s", "--kill-after", "500ms", "k", "--", "sh", "-c", &script];
    let process = lab.command(all).spawn().unwrap();
    let child = Pid::from_raw(read_when_there(&lab.path("ready")).trim().parse().unwrap()).unwrap();
    let running = Running { process, child };

    running.signal(Signal::TERM);
    let said = running.finish();

    assert_eq!(said.code, Some(137), "{said:?}");
    assert!(!lab.is_locked("k"));
}

#[test]
fn a_signal_that_was_ignored_stays_ignored() {
    let lab = Lab::new();
    let script = format!("{}; sleep 0.5; echo survived", ready(&lab));
    let ready_file = lab.path("ready");
    let mut command = lab.program("env", ["--ignore-signal=HUP", own(), "run", "k", "--", "sh", "-c"]);
    command.arg(format!("echo $$ >{}.tmp; {script}", ready_file.display()));
    let running = Running { process: command.spawn().unwrap(), child: Pid::INIT };
    let child = Pid::from_raw(read_when_there(&ready_file).trim().parse().unwrap()).unwrap();

    running.signal(Signal::HUP);
    rustix::process::kill_process(child, Signal::HUP).unwrap();

    assert_eq!(running.finish().stdout, "survived\n");
}

#[test]
fn the_stop_key_stops_the_command_too() {
    let lab = Lab::new();
    let running = start(&lab, &format!("{}; exec sleep 60", ready(&lab)));

    running.signal(Signal::TSTP);
    until("both are stopped", || is_stopped(running.child) && is_stopped(running.pid()));
    running.signal(Signal::CONT);
    until("both go on", || !is_stopped(running.child) && !is_stopped(running.pid()));

    assert!(is_alive(running.child));
    running.signal(Signal::TERM);
    assert_eq!(running.finish().signal, Some(15));
}

fn is_stopped(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

#[test]
fn the_child_inherits_no_file_of_ours() {
    let lab = Lab::new();
    let mut direct = std::process::Command::new("ls");
    direct.arg("/proc/self/fd").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());

    let without = finish(direct.spawn().unwrap());
    let within = lab.say(["run", "k", "--", "ls", "/proc/self/fd"]);

    assert_eq!(within.stdout, without.stdout, "the files that a process has here anyway, and no others");
}

#[test]
fn the_child_leads_its_own_group_without_a_terminal() {
    let lab = Lab::new();
    let mut command = lab.command(["run", "k", "--", "sh", "-c", "cut -d' ' -f1,5 /proc/$$/stat"]);
    let said = finish(command.process_group(0).spawn().unwrap());
    let (pid, group) = said.stdout.trim().split_once(' ').unwrap();
    assert_eq!(pid, group);
}

/// A pipe that takes no more: whoever writes to it waits until it is read.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'x'; 4096]).is_ok() {}
    while writer.write(b"x").is_ok() {}
    rustix::fs::fcntl_setfl(&writer, OFlags::empty()).unwrap();
    (reader, writer)
}

#[test]
fn a_term_between_the_acquisition_and_the_start_means_no_start() {
    let lab = Lab::new();
    let ran = lab.path("ran");
    let (mut reader, writer) = full_pipe();
    // With -v it tells of the acquisition, and there it waits for its reader: acquired, and nothing started.
    let mut command = lab.command(["run", "-v", "k", "--", "touch", ran.to_str().unwrap()]);
    let mut process = command.stderr(writer).spawn().unwrap();
    drop(command);
    until("it is acquired", || lab.is_locked("k"));

    let pid = Pid::from_raw(i32::try_from(process.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    let mut said = Vec::new();
    reader.read_to_end(&mut said).unwrap();
    let status = process.wait().unwrap();

    assert_eq!(status.code(), Some(143), "{}", String::from_utf8_lossy(&said).trim_start_matches('x'));
    assert!(!ran.exists(), "the command was started");
    assert!(!lab.is_locked("k"));
}
