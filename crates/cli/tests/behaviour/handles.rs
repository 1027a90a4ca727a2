//! Can a script hold, look at, keep and give back a lock by hand?

use std::io::Write;
use std::process::Stdio;

use crate::support::{Lab, Said, finish, own};
use serde_json::Value;

fn json(said: &Said) -> Value {
    assert_eq!(said.stdout.lines().count(), 1, "one object: {said:?}");
    serde_json::from_str(&said.stdout).unwrap()
}

#[test]
fn acquire_prints_a_handle_that_extend_and_release_take() {
    let lab = Lab::new();

    let acquired = lab.say(["acquire", "deploy:prod", "--ttl", "2m", "--json"]);
    let handle = json(&acquired);
    let id = handle["lockId"].as_str().unwrap();
    assert!(acquired.stdout.starts_with(r#"{"schema":1,"ok":true,"lockId":""#), "{acquired:?}");
    assert_eq!(handle["fence"], "000000000000001");

    let extended = lab.say(["extend", id, "--ttl", "10m", "--json"]);
    assert!(json(&extended)["expiresAtMs"].as_i64() > handle["expiresAtMs"].as_i64());

    let released = lab.say(["release", id, "--json"]);
    assert_eq!((released.code, released.stdout.as_str()), (Some(0), "{\"schema\":1,\"ok\":true}\n"));
    for command in ["release", "extend"] {
        let absent = lab.say([command, id, "--json"]);
        assert_eq!(
            (absent.code, absent.stdout.as_str()),
            (Some(1), "{\"schema\":1,\"ok\":false,\"reason\":\"absent\"}\n")
        );
    }
}

#[test]
fn an_id_that_begins_like_a_flag_is_an_id() {
    let lab = Lab::new();
    for id in ["-vqhVnwEuAAAAAAAAAAAAA", "--AAAAAAAAAAAAAAAAAAAA", "-AAAAAAAAAAAAAAAAAAAAA"] {
        for arguments in [&["release", id, "--json"][..], &["--json", "extend", "--ttl", "5s", id]] {
            let said = lab.say(arguments);
            assert_eq!(said.code, Some(1), "{arguments:?}: {said:?}");
            assert_eq!(said.stdout, "{\"schema\":1,\"ok\":false,\"reason\":\"absent\"}\n", "{arguments:?}");
        }
        assert_eq!(lab.say(["status", "--id", id, "--json"]).stdout, "{\"schema\":1,\"locked\":false}\n");
    }
}

#[test]
fn a_held_lock_answers_acquire_with_who_holds_it() {
    let lab = Lab::new();
    assert_eq!(lab.say(["acquire", "k"]).code, Some(0));

    let said = lab.say(["acquire", "-n", "k", "--json"]);

    assert_eq!(said.code, Some(75));
    let object: serde_json::Value = serde_json::from_str(&said.stdout).expect("one object");
    assert_eq!((&object["ok"], &object["reason"], &object["exitCode"]), (&false.into(), &"locked".into(), &75.into()));
    assert_eq!(object["holder"]["fence"], "000000000000001");
}

#[test]
fn status_shows_hashes_in_json_and_the_label_to_people() {
    let lab = Lab::new();
    let free = lab.say(["status", "k", "--json"]);
    assert_eq!(free.code, Some(1));
    let hash = syncguard::HashId::of("k");
    assert_eq!(free.stdout, format!("{{\"schema\":1,\"locked\":false,\"keyHash\":\"{hash}\"}}\n"));
    let id = lab.say(["acquire", "--label", "run \x1b[31m42", "k"]).stdout.trim().to_owned();

    let status = lab.say(["status", "k", "--json"]);
    let by_id = lab.say(["status", "--id", &id, "--json"]);
    let people = lab.say(["status", "k"]);

    assert_eq!(status.code, Some(0));
    for field in ["keyHash", "lockIdHash", "fence", "acquiredAtMs", "expiresAtMs", "label"] {
        assert_eq!(json(&status)[field], json(&by_id)[field], "{field}");
    }
    assert_eq!(lab.say(["status", "-q", "k"]).stdout, "");
    assert_eq!(json(&status)["label"], "run \u{1b}[31m42");
    assert!(people.stdout.contains("\n  backend   sqlite:"), "{people:?}");
    let value = json(&status);
    assert_eq!((&value["locked"], &value["fence"]), (&Value::Bool(true), &Value::from("000000000000001")));
    assert_eq!(value["keyHash"], "8254c329a92850f6d539dd37");
    assert!(!status.stdout.contains(&id));
    assert!(people.stdout.starts_with("k is locked\n  held by   run \\u{1b}[31m42   (lock "), "{people:?}");
    assert!(!people.stdout.contains('\x1b'));
}

#[test]
fn an_empty_label_is_the_default_one() {
    let lab = Lab::new();
    lab.say(["acquire", "--label", "", "k"]);

    let people = lab.say(["status", "k"]);

    assert!(people.stdout.starts_with("k is locked\n  held by   ") && people.stdout.contains('@'), "{people:?}");
}

#[test]
fn a_handle_can_come_from_stdin_or_from_the_environment() {
    let lab = Lab::new();
    for command in ["extend", "release"] {
        let id = lab.say(["acquire", command]).stdout;
        let mut process = lab.command([command, "-"]).stdin(Stdio::piped()).spawn().unwrap();
        process.stdin.take().unwrap().write_all(id.as_bytes()).unwrap();
        assert_eq!(finish(process).code, Some(0));
        let code = finish(lab.command([command]).env("SYNCGUARD_LOCK_ID", id.trim()).spawn().unwrap()).code;
        assert_eq!(code, Some(i32::from(command == "release")));
    }
    assert_eq!(lab.say(["release"]).code, Some(64));
}

#[test]
fn a_shell_can_eval_the_handle_and_notices_a_failure() {
    let lab = Lab::new();
    let own = own();
    let script = format!(
        "set -e; eval \"$({own} acquire --format env \"it's mine\")\"; trap '{own} release' EXIT
         echo \"$SYNCGUARD_KEY $SYNCGUARD_FENCE\"; {own} status \"it's mine\" >/dev/null && echo held"
    );

    let said = finish(lab.program("sh", ["-c", &script]).spawn().unwrap());

    assert_eq!((said.code, said.stdout.as_str()), (Some(0), "it's mine 000000000000001\nheld\n"), "{said:?}");
    assert!(!lab.is_locked("it's mine"));

    lab.say(["acquire", "k"]);
    let script = format!("eval \"$({own} acquire -n --format env k)\"; echo code=$? id=$SYNCGUARD_LOCK_ID");
    assert_eq!(in_a_shell(&lab, &script).stdout, "code=75 id=\n", "the lock around us is not ours to release");
    for (arguments, code) in [
        ("-n --format env k", 75),
        ("--format env --bogus k", 64),
        ("--format=env ''", 64),
        ("-u http://x --format env k", 78),
    ] {
        for (first, then) in [("", "|| exit"), ("set -e;", "")] {
            let script = format!("{first} eval \"$({own} acquire {arguments})\" {then}; echo ran");
            let said = in_a_shell(&lab, &script);
            assert_eq!((said.code, said.stdout.as_str()), (Some(code), ""), "{script}: {said:?}");
        }
    }
}

/// A shell inside of somebody else's lock.
fn in_a_shell(lab: &Lab, script: &str) -> Said {
    let mut shell = lab.program("sh", ["-c", script]);
    finish(shell.env("SYNCGUARD_LOCK_ID", "AAAAAAAAAAAAAAAAAAAAAA").spawn().unwrap())
}

#[test]
fn a_handle_that_nobody_gets_is_no_lock() {
    let lab = Lab::new();
    let own = own();
    for form in ["", "--json", "--format env"] {
        for target in [">/dev/full", ">&-"] {
            let said = in_a_shell(&lab, &format!("{own} acquire {form} k {target}"));
            assert_eq!(said.code, Some(70), "{form} {target}: {said:?}");
            assert!(!lab.is_locked("k"), "{form} {target}: nobody could release it");
        }
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = lab.command(["acquire", "k"]).stdout(writer).status().unwrap();
    assert_eq!(status.code(), Some(70));
    assert!(!lab.is_locked("k"));
}

#[test]
fn memory_is_refused_by_commands() {
    let lab = Lab::new();
    for command in [&["run", "k", "--", "echo", "ran"][..], &["acquire", "k"], &["doctor"]] {
        let said = finish(lab.command(command).env("SYNCGUARD_URL", "memory:").spawn().unwrap());
        assert_eq!((said.code, said.stdout.as_str()), (Some(78), ""), "{command:?}: {said:?}");
        assert!(said.stderr.contains("excludes nobody"), "{said:?}");
    }
}

#[test]
fn errors_are_objects_too_when_asked() {
    let lab = Lab::new();
    let usage = lab.say(["acquire", "--json", "--bogus", "k"]);
    assert_eq!((usage.code, usage.stderr.as_str()), (Some(64), ""));
    assert_eq!(json(&usage)["reason"], "usage");

    let config = finish(lab.bare(["status", "--json", "k"]).env("SYNCGUARD_URL", "http://x").spawn().unwrap());
    let value = json(&config);
    assert_eq!((&value["schema"], &value["ok"], &value["reason"]), (&1.into(), &false.into(), &"config".into()));
    assert_eq!(value["exitCode"], 78);

    let run = finish(lab.bare(["run", "--json", "k", "--", "true"]).env("SYNCGUARD_URL", "http://x").spawn().unwrap());
    assert_eq!(run.stdout, "", "stdout is the child's");
    assert_eq!(serde_json::from_str::<Value>(&run.stderr).unwrap()["reason"], "config");
}

#[test]
fn doctor_prints_a_line_per_check_and_fails_on_a_bad_store() {
    let lab = Lab::new();
    let unused = lab.say(["doctor"]);
    assert_eq!(unused.code, Some(0), "{unused:?}");
    assert!(unused.stdout.contains("does not exist yet") && !lab.store().exists(), "a look makes nothing: {unused:?}");
    lab.say(["run", "k", "--", "true"]);
    let good = lab.say(["doctor"]);
    assert_eq!((good.code, good.stderr.as_str()), (Some(0), ""), "{good:?}");
    assert!(
        good.stdout.lines().skip(1).all(|line| ["PASS", "INFO"].iter().any(|word| line.starts_with(word))),
        "{good:?}"
    );
    assert!(good.stdout.contains("probe"), "{good:?}");

    let value = json(&lab.say(["doctor", "--json"]));
    assert_eq!((&value["ok"], &value["checks"][0]["status"]), (&true.into(), &"PASS".into()));

    let bad = finish(lab.bare(["doctor"]).env("SYNCGUARD_URL", "sqlite:/no/such/place/x.db").spawn().unwrap());
    assert_eq!(bad.code, Some(1));
    assert!(bad.stdout.contains("FAIL  connect"), "{bad:?}");
}
