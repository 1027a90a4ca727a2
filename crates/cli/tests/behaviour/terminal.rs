//! What is different on a terminal?
//!
//! The child then shares our process group, because the terminal's keys go to the foreground group, and
//! a wait is shown by a spinner.

use crate::support::pty::{self, OnTerminal};
use crate::support::{Lab, is_alive, own, read_when_there, until};
use rustix::process::{Pid, Signal};

/// Runs a shell line on a terminal of its own.
fn on_a_terminal(lab: &Lab, line: &str) -> OnTerminal {
    pty::spawn(&mut lab.program("sh", ["-c", line]))
}

/// A command that says which group it is in, counts INT, and ends when a file appears. It ignores HUP, which the kernel
/// sends when the leader of a session dies.
fn counting(lab: &Lab) -> String {
    let ready = lab.path("ready");
    let script = format!(
        "trap '' HUP; trap 'echo INT >>{1}' INT; cut -d' ' -f1,5 /proc/$$/stat >{0}.tmp; mv {0}.tmp {0}; \
         i=0; while [ $((i += 1)) -lt 1000 ]; do [ -e {2} ] && exit 6; sleep 0.02; done",
        ready.display(),
        lab.path("ints").display(),
        lab.path("end").display()
    );
    let file = lab.path("script.sh");
    std::fs::write(&file, script).unwrap();
    format!("exec {} run --ttl 20s k -- sh {}", own(), file.display())
}

#[test]
fn the_child_shares_the_terminals_group_and_hears_its_key_once() {
    let lab = Lab::new();
    let mut terminal = on_a_terminal(&lab, &counting(&lab));
    let ready = read_when_there(&lab.path("ready"));
    let (pid, group) = ready.trim().split_once(' ').unwrap();
    assert_ne!(pid, group, "it does not lead a group of its own");

    terminal.type_in(b"\x03");
    let ints = lab.path("ints");
    read_when_there(&ints);
    // Were it forwarded too, the second one would arrive within this time.
    std::thread::sleep(std::time::Duration::from_millis(300));
    std::fs::write(lab.path("end"), "").unwrap();
    let said = terminal.finish();

    assert_eq!(std::fs::read_to_string(&ints).unwrap(), "INT\n");
    assert_eq!(said.code, Some(6), "{said:?}");
    assert!(!lab.is_locked("k"));
}

#[test]
fn an_int_from_elsewhere_reaches_the_child_on_a_terminal() {
    let lab = Lab::new();
    let terminal = on_a_terminal(&lab, &counting(&lab));
    let ready = read_when_there(&lab.path("ready"));
    let (_, group) = ready.trim().split_once(' ').unwrap();

    rustix::process::kill_process(parse(group), Signal::INT).unwrap();
    read_when_there(&lab.path("ints"));

    std::fs::write(lab.path("end"), "").unwrap();
    assert_eq!(terminal.finish().code, Some(6));
}

#[test]
fn a_term_to_us_reaches_the_child_on_a_terminal_too() {
    let lab = Lab::new();
    let terminal = on_a_terminal(&lab, &counting(&lab));
    let ready = read_when_there(&lab.path("ready"));
    let (pid, group) = ready.trim().split_once(' ').unwrap();
    let (child, run) = (parse(pid), parse(group));

    rustix::process::kill_process(run, Signal::TERM).unwrap();
    until("the child is gone", || !is_alive(child));

    terminal.finish();
    assert!(!lab.is_locked("k"));
}

#[test]
fn the_child_of_a_killed_run_ends_on_a_terminal_too() {
    let lab = Lab::new();
    let terminal = on_a_terminal(&lab, &counting(&lab));
    let ready = read_when_there(&lab.path("ready"));
    let (pid, group) = ready.trim().split_once(' ').unwrap();
    let (child, run) = (parse(pid), parse(group));

    rustix::process::kill_process(run, Signal::KILL).unwrap();
    until("the child is gone", || !is_alive(child));

    terminal.finish();
}

#[test]
fn the_interrupt_key_ends_a_wait_and_the_loop_around_it() {
    let lab = Lab::new();
    let holder = lab.hold(&[], "k");
    let log = lab.path("log");
    let line = format!("for i in 1 2 3; do echo $i >>{}; {} run -w 60s k -- true; done", log.display(), own());
    let mut terminal = pty::spawn(&mut lab.program("bash", ["-c", &line]));
    terminal.until_shown("held by");

    terminal.type_in(b"\x03");
    terminal.finish();

    assert_eq!(std::fs::read_to_string(log).unwrap(), "1\n", "the loop went on");
    holder.signal(Signal::TERM);
    holder.finish();
}

#[test]
fn a_wait_is_shown_by_a_spinner_that_leaves_nothing_behind() {
    let lab = Lab::new();
    let holder = lab.hold(&["--label", "ci@runner-7"], "deploy:prod");
    let terminal = on_a_terminal(&lab, &format!("exec {} run -w 2s deploy:prod -- true", own()));

    let said = terminal.finish();

    assert_eq!(said.code, Some(75), "{said:?}");
    assert!(said.stdout.contains("deploy:prod: held by ci@runner-7"), "{said:?}");
    assert!(said.stdout.contains("\x1b[2K"), "the spinner's line is taken away: {said:?}");
    assert!(said.stdout.contains("\x1b[1m\x1b[31merror:\x1b[0m deploy:prod is locked"), "colour: {said:?}");
    holder.signal(Signal::TERM);
    holder.finish();
}

#[test]
fn no_color_and_the_flag_are_obeyed() {
    let lab = Lab::new();
    lab.say(["acquire", "k"]);
    for line in [format!("NO_COLOR=1 {} run -n k -- true", own()), format!("{} run --color never -n k -- true", own())]
    {
        let said = on_a_terminal(&lab, &line).finish();
        assert!(said.stdout.contains("error: k is locked"), "{said:?}");
        assert!(!said.stdout.contains('\x1b'), "{said:?}");
    }
    let piped = lab.say(["run", "--color", "always", "-n", "k", "--", "true"]);
    assert!(piped.stderr.contains("\x1b["), "{piped:?}");
}

fn parse(pid: &str) -> Pid {
    Pid::from_raw(pid.parse().unwrap()).unwrap()
}
