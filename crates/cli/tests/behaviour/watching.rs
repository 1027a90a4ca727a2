//! What does somebody see who keeps looking?

#![cfg(feature = "redis")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use crate::support::{Lab, finish, own, pty, until};
use rustix::process::{Pid, Signal};
use serde_json::Value;
use syncguard_testkit::{RedisOptions, RedisServer};

/// A watch whose events are collected.
struct Watching {
    process: Child,
    events: Arc<Mutex<Vec<Value>>>,
}

impl Watching {
    fn start(mut command: Command) -> Self {
        let mut process = command.spawn().unwrap();
        let events = Arc::new(Mutex::new(Vec::new()));
        let (lines, heard) = (BufReader::new(process.stdout.take().unwrap()).lines(), Arc::clone(&events));
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                heard.lock().unwrap().push(serde_json::from_str(&line).unwrap());
            }
        });
        Self { process, events }
    }

    fn saw(&self, event: &str, key: &str) -> Option<Value> {
        let events = self.events.lock().unwrap();
        events.iter().find(|seen| seen["event"] == event && seen["key"] == key).cloned()
    }

    fn until(&self, event: &str, key: &str) -> Value {
        until(&format!("{event} of {key}"), || self.saw(event, key).is_some());
        self.saw(event, key).unwrap()
    }

    fn stop(self) -> crate::support::Said {
        signal(&self.process, Signal::TERM);
        finish(self.process)
    }
}

fn signal(process: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(process.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Takes a lock that nobody renews, and makes sure that the watch saw it: on a loaded machine looks are far apart.
fn leave_one_to_expire(lab: &Lab, watching: &Watching) -> String {
    for seconds in [1, 4, 16, 64] {
        let (key, ttl) = (format!("app:short:{seconds}"), format!("{seconds}s"));
        lab.say(["acquire", "--ttl", &ttl, &key]);
        until("it is seen, or over", || watching.saw("acquired", &key).is_some() || !lab.is_locked(&key));
        if watching.saw("acquired", &key).is_some() {
            return key;
        }
    }
    panic!("a lock of a minute was not seen");
}

#[test]
fn every_kind_of_change_is_an_event() {
    for (backend, lab) in Lab::on_each_backend() {
        lab.say(["acquire", "--ttl", "5m", "--label", "ada@one", "app:before"]);
        let watching = Watching::start(lab.command(["watch", "--json", "--raw", "app:"]));
        let present = watching.until("present", "app:before");
        assert_eq!((&present["label"], &present["schema"]), (&"ada@one".into(), &1.into()), "{backend}");

        let id = lab.say(["acquire", "--ttl", "5m", "--label", "bob@two", "app:k"]).stdout;
        lab.say(["acquire", "--ttl", "5m", "other:k"]);
        let acquired = watching.until("acquired", "app:k");
        assert_eq!(acquired["fence"], "000000000000001", "{backend}");
        lab.say(["extend", "--ttl", "10m", id.trim()]);
        watching.until("renewed", "app:k");
        lab.say(["release", id.trim()]);
        watching.until("released", "app:k");
        let short = leave_one_to_expire(&lab, &watching);
        watching.until("expired", &short);

        let seen = watching.events.lock().unwrap().clone();
        assert!(seen.iter().all(|event| event["key"].as_str().unwrap().starts_with("app:")), "{backend}: {seen:?}");
        assert_eq!(watching.stop().code, Some(143), "{backend}");
    }
}

#[test]
fn a_watch_survives_a_restart_of_the_server() {
    let mut server = RedisServer::start(RedisOptions::new());
    let lab = Lab::on(server.url());
    lab.say(["acquire", "--ttl", "5m", "before"]);
    let watching = Watching::start(lab.command(["watch", "--json", "--raw"]));
    watching.until("present", "before");

    server.kill_hard();
    server.restart();
    until("a lock can be taken again", || lab.say(["acquire", "-n", "--ttl", "5m", "after"]).code == Some(0));

    watching.until("acquired", "after");
    let said = watching.stop();
    assert_eq!(said.code, Some(143), "{said:?}");
}

#[test]
fn a_reader_that_does_not_read_holds_up_nothing() {
    let lab = Lab::on_redis();
    // More than a pipe takes.
    lab.hold_many(400);
    let mut process = lab.command(["watch", "--json"]).spawn().unwrap();
    let stdout = process.stdout.take().unwrap();
    let is_full = || {
        let ready = &mut [rustix::event::PollFd::new(&stdout, rustix::event::PollFlags::IN)];
        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(ready, Some(&none)).unwrap() > 0
    };
    until("the first events", is_full);

    signal(&process, Signal::TERM);

    let status = process.wait().unwrap();
    assert_eq!(status.code(), Some(143));
}

#[test]
fn a_terminal_shows_a_table_that_obeys_keys_and_leaves_nothing_behind() {
    let lab = Lab::on_redis();
    lab.say(["acquire", "--ttl", "10m", "--label", "ada@one:1 deploy.sh", "deploy:prod"]);
    let mut terminal = pty::spawn(lab.command(["watch"]).env("TERM", "xterm"));
    terminal.resize(100, 24);
    terminal.until_shown("r show keys");
    terminal.until_shown("ada@one:1 deploy.sh");
    terminal.until_shown(&syncguard::Key::new("deploy:prod").unwrap().hash().to_string());

    terminal.type_in(b"r");
    terminal.until_shown("deploy:prod");
    terminal.type_in(b"s");
    terminal.until_shown("s sort (by lease)");
    terminal.clear();
    terminal.resize(60, 20);
    terminal.until_shown("\x1b[20;1H");
    let id = lab.say(["acquire", "--ttl", "10m", "--label", "bob@two", "migrate:app"]).stdout;
    terminal.until_shown("migrate:app");
    lab.say(["release", id.trim()]);
    terminal.until_shown("released     migrate:app");
    terminal.type_in(b"q");

    let said = terminal.finish();
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.stdout.ends_with("\x1b[?7h\x1b[?25h\x1b[?1049l"), "the terminal is as it was: {said:?}");
}

#[test]
fn a_terminal_that_takes_nothing_does_not_keep_a_watch_from_ending() {
    let lab = Lab::on_redis();
    lab.say(["acquire", "--ttl", "10m", "deploy:prod"]);
    let mut terminal = pty::spawn(lab.command(["watch"]).env("TERM", "xterm"));
    terminal.resize(160, 50);
    terminal.until_shown("q quit");
    let mut away = terminal.look_away();
    // Each key draws the picture again, until the terminal is full.
    for _ in 0..40 {
        away.type_in(b"s");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }

    signal(away.process(), Signal::TERM);

    until("the watch ends", || away.has_ended());
    drop(away);
    assert_eq!(terminal.finish().code, Some(143));
}

#[test]
fn a_signal_ends_a_watch_and_the_terminal_is_as_it_was() {
    let lab = Lab::on_redis();
    let own = own();
    let modes = "stty -a | grep -o -E -- '-?(icanon|echo) ' | tr -d '\\n'";
    let script = format!("timeout --foreground -s TERM 2 {own} watch; {modes}; echo .");

    let said = pty::spawn(&mut lab.program("sh", ["-c", &script])).finish();

    assert!(said.stdout.contains("q quit") && said.stdout.contains("icanon echo ."), "{said:?}");
}
