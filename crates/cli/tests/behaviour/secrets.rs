//! Does any secret appear where others read?
//!
//! A password, a lock id, and (in logs and JSON) a key, each with a name that occurs nowhere else, through every
//! command at the highest log level.

use std::process::Command;

use crate::support::{Lab, finish, read_when_there};
use rustix::process::Signal;

const PASSWORD: &str = "CANARYpassword";
const KEY: &str = "CANARYkey:42";

fn everything(mut command: Command) -> String {
    let said = finish(
        command.env("SYNCGUARD_LOG", "trace").env("RUST_LOG", "trace").env("RUST_BACKTRACE", "1").spawn().unwrap(),
    );
    format!("{}\n{}", said.stdout, said.stderr)
}

#[test]
fn a_password_is_in_no_output() {
    let lab = Lab::new();
    let urls = [
        format!("redis://user:{PASSWORD}@127.0.0.1:1/0"),
        format!("rediss://:{PASSWORD}@127.0.0.1:1"),
        format!("postgres://user:{PASSWORD}@127.0.0.1:1/db?bogus=1"),
        format!("postgres://127.0.0.1:1/db?password={PASSWORD}"),
        format!("firestore://user:{PASSWORD}@x"),
        format!("http://user:{PASSWORD}@127.0.0.1:1/"),
        format!("{PASSWORD}:nonsense"),
        PASSWORD.to_owned(),
    ];
    for url in urls {
        for arguments in [
            &["status", "k"][..],
            &["status", "k", "--json"],
            &["doctor"],
            &["doctor", "--json"],
            &["run", "-v", "-n", "k", "--", "true"],
            &["run", "--require-tls", "-n", "k", "--", "true"],
            &["run", "--json", "--require-remote", "-n", "k", "--", "true"],
        ] {
            let mut command = lab.bare(arguments);
            command.env("SYNCGUARD_URL", &url);
            let text = everything(command);
            assert!(!text.contains(PASSWORD), "{arguments:?}: {text}");
        }
    }
}

#[test]
fn a_lock_id_is_printed_by_acquire_alone() {
    let lab = Lab::new();
    let id = lab.say(["acquire", "k"]).stdout.trim().to_owned();
    for arguments in [
        &["status", "k"][..],
        &["status", "k", "--json"],
        &["status", "--id", &id],
        &["-v", "extend", &id],
        &["run", "-n", "k", "--", "true"],
        &["doctor"],
        &["-v", "release", &id],
        &["release", &id],
    ] {
        let text = everything(lab.command(arguments));
        assert!(!text.contains(&id), "{arguments:?}: {text}");
    }
}

#[test]
fn a_key_is_in_no_log_and_in_no_json() {
    let lab = Lab::new();
    for arguments in
        [&["run", KEY, "--", "true"][..], &["run", "--json", KEY, "--", "true"], &["status", KEY, "--json"]]
    {
        let text = everything(lab.command(arguments));
        assert!(!text.contains("CANARY"), "{arguments:?}: {text}");
    }
    lab.say(["acquire", KEY]);
    for arguments in
        [&["status", KEY, "--json"][..], &["acquire", "-n", KEY, "--json"], &["run", "-n", "--json", KEY, "--", "true"]]
    {
        let text = everything(lab.command(arguments));
        assert!(!text.contains("CANARY"), "{arguments:?}: {text}");
    }
}

#[test]
fn no_argument_of_any_process_of_ours_holds_the_lock_id() {
    let lab = Lab::new();
    let file = lab.path("id");
    let script = format!("printf %s \"$SYNCGUARD_LOCK_ID\" >{0}.tmp; mv {0}.tmp {0}; exec sleep 60", file.display());
    let mut command = lab.command(["run", "--pass-lock-id", "k", "--", "sh", "-c", &script]);
    let mut process = command.spawn().unwrap();
    let id = read_when_there(&file);

    let lines: Vec<String> = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| std::fs::read(entry.ok()?.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).into_owned())
        .collect();

    let ours = lines.iter().filter(|line| line.contains("--pass-lock-id") && line.contains(file.to_str().unwrap()));
    assert_eq!(ours.count(), 1, "the watchdog shows no arguments at all");
    assert!(lines.iter().any(|line| line.starts_with("lock-watchdog\0")), "it is there to be looked at");
    assert!(lines.iter().all(|line| !line.contains(&id)));
    let pid = rustix::process::Pid::from_raw(i32::try_from(process.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    process.wait().unwrap();
}

#[test]
fn a_command_does_not_get_what_leads_to_the_backend() {
    let lab = Lab::new();
    let file = lab.path("url");
    std::fs::write(&file, lab.url()).unwrap();
    let postgres = include_str!("../../../backends/postgres/src/environment.rs").split('"');
    let names: Vec<&str> = postgres
        .filter(|word| word.starts_with("PG"))
        .filter(|word| word.bytes().all(|byte| byte.is_ascii_uppercase()))
        .chain(["PGPASSFILE", "REDISCLI_AUTH", "FIRESTORE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"])
        .collect();
    assert!(names.contains(&"PGPASSWORD") && names.len() > 12, "{names:?}");
    let run = |flags: &[&str], (name, value): (&str, &str)| {
        let mut command = lab.bare([&["run"], flags, &["k", "--", "env"]].concat());
        command.envs(names.iter().map(|name| (name, "CANARY"))).env("DATABASE_URL", "its own").env(name, value);
        finish(command.spawn().unwrap()).stdout
    };
    let url = lab.url();
    for source in [("SYNCGUARD_URL", url.as_str()), ("SYNCGUARD_URL_FILE", file.to_str().unwrap())] {
        let all = run(&[], source);
        assert!(names.iter().chain([&source.0]).all(|name| all.contains(&format!("{name}="))), "{all}");
        let kept = run(&["--clear-backend-env"], source);
        assert!(!kept.contains("CANARY") && !kept.contains(&format!("{}=", source.0)), "{kept}");
        assert!(kept.contains("DATABASE_URL=its own") && kept.contains("SYNCGUARD_FENCE="), "{kept}");
    }
}
