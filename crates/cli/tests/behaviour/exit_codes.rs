//! Does each ending have its code, and is the lock free afterwards?

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use crate::support::{Lab, finish, own};
use rustix::process::Signal;
use syncguard::{Clock, SystemClock};

#[test]
fn the_commands_own_code_comes_through_and_nothing_is_printed() {
    let lab = Lab::new();
    for code in [0, 1, 3, 64, 75, 79, 255] {
        let said = lab.say(["run", "k", "--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!((said.code, said.stdout.as_str(), said.stderr.as_str()), (Some(code), "", ""));
    }
    assert!(!lab.is_locked("k"));
}

#[test]
fn the_child_sees_its_lock_and_the_fence_grows() {
    let lab = Lab::new();
    let script = "echo $SYNCGUARD_KEY $SYNCGUARD_KEY_HASH $SYNCGUARD_FENCE $SYNCGUARD_TTL_MS $SYNCGUARD_BACKEND \
                  ${#SYNCGUARD_LOCK_ID_HASH} ${SYNCGUARD_LOCK_ID-none}";

    let first = lab.say(["run", "--ttl", "7s", "k", "--", "sh", "-c", script]);
    let second = lab.say(["run", "--ttl", "7s", "k", "sh", "-c", script]);

    assert_eq!(first.stdout, "k 8254c329a92850f6d539dd37 000000000000001 7000 sqlite 24 none\n");
    assert_eq!(second.stdout, "k 8254c329a92850f6d539dd37 000000000000002 7000 sqlite 24 none\n");
}

#[test]
fn the_lock_id_is_passed_only_when_asked_and_never_inherited() {
    let lab = Lab::new();
    let inner = format!("{} run b -- sh -c 'echo inner=$SYNCGUARD_LOCK_ID'", own());
    let script = format!("echo ${{#SYNCGUARD_LOCK_ID}}; {inner}");

    let said = lab.say(["run", "--pass-lock-id", "a", "--", "sh", "-c", &script]);

    assert_eq!(said.stdout, "22\ninner=\n", "{said:?}");
}

#[test]
fn a_command_that_cannot_start_is_126_or_127_and_frees_the_lock() {
    let lab = Lab::new();
    let plain = lab.path("plain");
    std::fs::write(&plain, "no program").unwrap();
    std::fs::set_permissions(&plain, PermissionsExt::from_mode(0o644)).unwrap();
    for (program, code) in [
        ("no-such-command-anywhere", 127),
        ("/no/such/file", 127),
        (plain.to_str().unwrap(), 126),
        (lab.dir.path().to_str().unwrap(), 126),
    ] {
        let said = lab.say(["run", "k", "--", program]);
        assert_eq!(said.code, Some(code), "{program}: {said:?}");
        assert!(said.stderr.starts_with("error: "), "{said:?}");
        assert!(!lab.is_locked("k"), "{program}");
    }
}

#[test]
fn a_held_lock_is_75_and_the_code_can_be_chosen() {
    let lab = Lab::new();
    let holder = lab.hold(&[], "k");

    assert_eq!(lab.say(["run", "-n", "k", "--", "true"]).code, Some(75));
    assert_eq!(lab.say(["run", "-n", "-E", "3", "k", "--", "true"]).code, Some(3));
    assert_eq!(lab.say(["acquire", "-n", "k"]).code, Some(75));
    let skipped = lab.say(["run", "--skip-if-locked", "k", "--", "echo", "ran"]);
    assert_eq!((skipped.code, skipped.stdout.as_str(), skipped.stderr.as_str()), (Some(0), "", ""));

    holder.signal(Signal::TERM);
    holder.finish();
}

#[test]
fn bad_usage_is_64_and_names_what_is_wrong() {
    let lab = Lab::new();
    let long = "x".repeat(513);
    let cases: [(&[&str], &str); 17] = [
        (&["run", "--bogus", "k", "--", "true"], "--bogus"),
        (&["run", "k"], "COMMAND is missing"),
        (&["run", "k", "--"], "COMMAND is missing"),
        (&["run"], "KEY"),
        (&["run", "", "--", "true"], "the key is empty"),
        (&["run", &long, "--", "true"], "512 bytes"),
        (&["run", "--ttl", "0s", "k", "--", "true"], "--ttl"),
        (&["run", "--ttl", "30", "k", "--", "true"], "needs a unit"),
        (&["run", "--ttl", "-5s", "k", "--", "true"], "--ttl"),
        (&["run", "--ttl", "400d", "k", "--", "true"], "--ttl"),
        (&["run", "--wait", "soon", "k", "--", "true"], "--wait"),
        (&["run", "-n", "-w", "5s", "k", "--", "true"], "cannot be used with"),
        (&["run", "--kill-after", "20s", "k", "--", "true"], "--kill-after"),
        (&["run", "k", "--ttl", "5s", "--", "true"], "put flags before KEY"),
        (&["acquire"], "KEY"),
        (&["release", "too-short-CANARY"], "22 base64url"),
        (&["bogus"], "bogus"),
    ];
    for (arguments, expected) in cases {
        let said = lab.say(arguments);
        assert_eq!(said.code, Some(64), "{arguments:?}: {said:?}");
        assert!(said.stderr.contains(expected), "{arguments:?}: {said:?}");
        assert!(!said.stderr.contains("CANARY") && said.stderr.len() < 2_000, "{said:?}");
        assert_eq!(said.stdout, "");
    }
    assert!(!lab.store().exists(), "bad usage touched the store");
}

#[test]
fn a_key_that_is_not_utf_8_is_64() {
    let lab = Lab::new();
    for command in ["run", "acquire", "status"] {
        let mut process = lab.command([command]);
        process.arg(OsStr::from_bytes(b"\xff\xfe"));
        if command == "run" {
            process.args(["--", "true"]);
        }
        let said = finish(process.spawn().unwrap());
        assert_eq!(said.code, Some(64), "{said:?}");
        assert!(said.stderr.contains("UTF-8"), "{said:?}");
    }
}

#[test]
fn a_store_that_cannot_be_used_is_78_and_left_alone() {
    let lab = Lab::new();
    let text = lab.path("notes.txt");
    std::fs::write(&text, "not a database, but somebody's notes ".repeat(50)).unwrap();
    let directory = lab.dir.path().display().to_string();
    for url in [
        format!("sqlite:{directory}"),
        format!("sqlite:{}", text.display()),
        "sqlite:/no/such/directory/locks.db".to_owned(),
        "http://127.0.0.1/".to_owned(),
        format!("{}?synchronus=full", lab.url()),
        "locks.db".to_owned(),
        String::new(),
    ] {
        let said = finish(lab.bare(["run", "k", "--", "true"]).env("SYNCGUARD_URL", &url).spawn().unwrap());
        assert_eq!(said.code, Some(78), "{url}: {said:?}");
        assert!(said.stderr.starts_with("error: "), "{said:?}");
    }
    assert!(std::fs::read_to_string(&text).unwrap().starts_with("not a database"));
}

#[test]
fn a_scheme_whose_feature_is_off_names_the_feature() {
    let lab = Lab::new();
    for (url, feature) in
        [("redis://127.0.0.1:1/", "redis"), ("postgres://127.0.0.1:1/x", "postgres"), ("firestore://p", "firestore")]
    {
        let compiled_in = match feature {
            "redis" => cfg!(feature = "redis"),
            "postgres" => cfg!(feature = "postgres"),
            _ => cfg!(feature = "firestore"),
        };
        if compiled_in {
            continue;
        }
        let said = finish(lab.bare(["status", "k"]).env("SYNCGUARD_URL", url).spawn().unwrap());
        assert_eq!(said.code, Some(78), "{said:?}");
        assert!(said.stderr.contains(&format!("feature `{feature}`")), "{said:?}");
    }
}

#[test]
fn a_nested_run_of_the_same_key_is_refused_at_once() {
    let lab = Lab::new();
    let own = own();
    let script = format!("{own} run b -- {own} run -w forever a -- echo ran; echo code=$?");
    let start = SystemClock.boot();

    let said = lab.say(["run", "a", "--", "sh", "-c", &script]);

    assert_eq!(said.stdout, "code=64\n", "{said:?}");
    assert!(said.stderr.contains("not re-entrant"), "{said:?}");
    assert!(SystemClock.boot().since(start) < Duration::from_secs(20));
}

#[test]
fn a_closed_reader_is_no_reason_to_panic_or_to_keep_the_lock() {
    let lab = Lab::new();
    let own = own();
    let script = format!(
        "{own} status free-key | true; {own} doctor | true; {own} --help | true; {own} run -v k -- true 2>&1 | true"
    );

    let said = finish(lab.program("sh", ["-c", &script]).spawn().unwrap());

    assert!(!said.stderr.contains("panicked"), "{said:?}");
    assert!(!lab.is_locked("k"));
}

#[test]
fn the_help_fits_and_goes_to_stdout() {
    let lab = Lab::new();
    for arguments in [&["-h"][..], &["--help"], &["run", "-h"], &["run", "--help"], &["--version"]] {
        let said = lab.say(arguments);
        assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{arguments:?}");
        assert!(said.stdout.contains("syncguard"));
    }
    let short = lab.say(["run", "-h"]).stdout;
    assert!(short.lines().count() <= 40, "{} lines", short.lines().count());
    assert!(short.contains("[env: SYNCGUARD_URL]"), "{short}");
}

#[test]
fn completions_and_the_manual_know_the_commands() {
    let lab = Lab::new();
    for shell in ["bash", "zsh", "fish"] {
        let said = lab.say(["completions", shell]);
        assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
        assert!(said.stdout.contains("hold-at-least") && !said.stdout.contains("__watchdog"), "{shell}");
    }
    assert_eq!(lab.say(["completions", "tcsh"]).code, Some(64));
    let manual = lab.say(["man"]);
    assert_eq!((manual.code, manual.stderr.as_str()), (Some(0), ""));
    assert!(manual.stdout.starts_with(".ie") && manual.stdout.contains("syncguard\\-run"), "{}", manual.stdout);
    let page = lab.say(["man", "run"]).stdout;
    assert!(page.contains("syncguard-run") && page.contains("kill\\-after") && page.contains("\\-\\-url"), "{page}");
    assert!(page.contains("Refuse to run where processes"), "what -h leaves out has a text: {page}");
    assert!(lab.say(["man", "fence", "check"]).stdout.contains("highest"), "also a command of a command");
    assert_eq!(lab.say(["man", "bogus"]).code, Some(64));
    let missing = lab.say(["run", "--json"]).stderr;
    assert!(missing.contains("were not provided: <KEY>"), "{missing}");
    assert!(lab.say(["completions", "bash"]).stdout.contains("\"auto always never\""), "and no file names");
    assert!(lab.say(["--version"]).stdout.contains("sqlite, redis, postgres, firestore)"));
    assert!(!lab.store().exists(), "neither needs a backend");
}
