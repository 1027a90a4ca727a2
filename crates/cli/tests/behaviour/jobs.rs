//! Do the five jobs work between two hosts, on servers that both see?
//!
//! Two "hosts" are two processes with labels of their own; what they did is in files that both write.

#![cfg(all(feature = "redis", feature = "postgres"))]

use std::process::Child;

use crate::support::{Lab, finish, is_alive, own, read_when_there, until};
use rustix::process::Signal;

const HOSTS: [&str; 2] = ["cron@host-1", "cron@host-2"];

fn labs() -> Vec<(&'static str, Lab)> {
    Lab::on_each_backend().into_iter().filter(|(name, _)| *name != "sqlite").collect()
}

fn on_both(lab: &Lab, arguments: &[&str]) -> Vec<Child> {
    let start = |host: &&str| lab.command([&["run", "--label", *host], arguments].concat()).spawn().unwrap();
    HOSTS.iter().map(start).collect()
}

fn lines(lab: &Lab, name: &str) -> Vec<String> {
    std::fs::read_to_string(lab.path(name)).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn cron_on_two_hosts_runs_once() {
    for (backend, lab) in labs() {
        let report = format!("echo ran >>{}", lab.path("log").display());
        let job = [
            "--skip-if-locked",
            "--hold-at-least",
            "50s",
            "--require-remote",
            "cron:report",
            "--",
            "sh",
            "-c",
            &report,
        ];

        for host in on_both(&lab, &job) {
            let said = finish(host);
            assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{backend}: {said:?}");
        }

        assert_eq!(lines(&lab, "log"), ["ran"], "{backend}");
        assert!(lab.is_locked("cron:report"), "{backend}: a host whose clock is late must not run it again");
    }
}

#[test]
fn deployments_take_turns_and_show_whose_turn_it_is() {
    for (backend, lab) in labs() {
        let (log, end) = (lab.path("log"), lab.path("end"));
        let deploy = format!(
            "echo begin $SYNCGUARD_FENCE >>{0}; while [ ! -e {1} ]; do sleep 0.02; done; echo end $SYNCGUARD_FENCE >>{0}",
            log.display(),
            end.display()
        );
        let hosts = on_both(&lab, &["-w", "30m", "--ttl", "60s", "deploy:prod", "--", "sh", "-c", &deploy]);
        until("the first has begun", || lines(&lab, "log").len() == 1);

        let status = lab.say(["status", "deploy:prod"]);

        assert!(
            HOSTS.iter().any(|host| status.stdout.contains(&format!("held by   {host}   ("))),
            "{backend}: {status:?}"
        );
        std::fs::write(&end, "").unwrap();
        for host in hosts {
            assert_eq!(finish(host).code, Some(0), "{backend}");
        }
        let (first, second) = ("000000000000001", "000000000000002");
        let turns =
            [format!("begin {first}"), format!("end {first}"), format!("begin {second}"), format!("end {second}")];
        assert_eq!(lines(&lab, "log"), turns, "{backend}");
    }
}

#[test]
fn migrations_of_two_pods_run_one_after_the_other() {
    for (backend, lab) in labs() {
        // As migrations do: the second finds that nothing is left to be done.
        let folder = lab.path("schema");
        let migrate = format!(
            "[ -e {0} ] && echo done >>{1} && exit 0; sleep 0.1; mkdir {0} && echo made >>{1}",
            folder.display(),
            lab.path("log").display()
        );

        for pod in on_both(&lab, &["-w", "10m", "migrate:app", "--", "sh", "-c", &migrate]) {
            assert_eq!(finish(pod).code, Some(0), "{backend}");
        }

        assert_eq!(lines(&lab, "log"), ["made", "done"], "{backend}");
    }
}

#[test]
fn the_other_host_leads_when_the_leader_dies() {
    for (backend, lab) in labs() {
        let mailer = format!("echo $SYNCGUARD_FENCE $PPID $$ >>{}; exec sleep 60", lab.path("log").display());
        let job = ["-w", "forever", "--ttl", "4s", "--respawn", "leader:mailer", "--", "sh", "-c", &mailer];
        let mut hosts = on_both(&lab, &job);
        until("somebody leads", || lines(&lab, "log").len() == 1);
        let listed = lab.json(["list", "--raw", "leader:"]);
        let leader = HOSTS.iter().position(|host| listed[0]["label"] == **host).unwrap();
        let work: i32 = lines(&lab, "log")[0].split(' ').nth(2).unwrap().parse().unwrap();

        hosts[leader].kill().unwrap();
        hosts[leader].wait().unwrap();
        until("the other one leads", || lines(&lab, "log").len() == 2);

        assert!(!is_alive(rustix::process::Pid::from_raw(work).unwrap()), "{backend}: the old leader's work goes on");
        let terms: Vec<String> =
            lines(&lab, "log").iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
        assert_eq!(terms, ["000000000000001", "000000000000002"], "{backend}");
        let other = hosts.remove(1 - leader);
        let pid = rustix::process::Pid::from_raw(i32::try_from(other.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::TERM).unwrap();
        finish(other);
    }
}

#[test]
fn a_late_holder_cannot_write_over_its_successor() {
    for (backend, lab) in labs() {
        let own = own();
        let marks = lab.path("marks");
        // The first sleeps past the loss of its lock (here: an operator breaks it) and then tries to write.
        let go = lab.path("go");
        let close = |wait: &str| {
            format!(
                "{wait}; {own} fence check {0} --resource ledger:close && echo $SYNCGUARD_FENCE >>{1}",
                marks.display(),
                lab.path("ledger").display()
            )
        };
        let wait = format!("touch {0}.ready; while [ ! -e {0} ]; do sleep 0.02; done", go.display());
        let late = close(&wait);
        let late = lab.command([
            "run",
            "--label",
            HOSTS[0],
            "--on-lost",
            "warn",
            "--ttl",
            "2s",
            "ledger:close",
            "--",
            "sh",
            "-c",
            &late,
        ]);
        let late = { late }.spawn().unwrap();
        read_when_there(&lab.path("go.ready"));
        assert_eq!(lab.say(["break", "ledger:close", "--fence", "1", "--yes"]).code, Some(0), "{backend}");

        let next = close(":");
        let next = lab.say(["run", "--label", HOSTS[1], "ledger:close", "--", "sh", "-c", &next]);
        std::fs::write(&go, "").unwrap();
        let late = finish(late);

        assert_eq!(next.code, Some(0), "{backend}: {next:?}");
        assert_eq!(late.code, Some(79), "{backend}: {late:?}");
        assert_eq!(lines(&lab, "ledger"), ["000000000000002"], "{backend}: {late:?}");
    }
}
