//! Is the backend that is used always the one that was meant?

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Lab, Said, finish, own, pty};

fn say(command: &mut Command) -> Said {
    finish(command.spawn().unwrap())
}

fn config(lab: &Lab, text: &str) {
    let path = lab.path("config/syncguard/config.toml");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn url(lab: &Lab, name: &str) -> String {
    format!("sqlite:{}", lab.path(name).display())
}

#[test]
fn the_flag_beats_the_variable_which_beats_the_file_which_beats_the_default() {
    let lab = Lab::new();
    let made = |name: &str| lab.path(name).exists();

    assert_eq!(say(&mut lab.bare(["status", "k"])).code, Some(1));
    assert!(made("state/syncguard/locks.db"), "the store of this user");
    config(&lab, &format!("url = \"{}\"\n", url(&lab, "file.db")));
    assert_eq!(say(&mut lab.bare(["status", "k"])).code, Some(1));
    assert!(made("file.db"));
    let variable = url(&lab, "variable.db");
    assert_eq!(say(lab.bare(["status", "k"]).env("SYNCGUARD_URL", &variable)).code, Some(1));
    assert!(made("variable.db"));
    let flag = url(&lab, "flag.db");
    assert_eq!(say(lab.bare(["status", "k", "-u", &flag]).env("SYNCGUARD_URL", &variable)).code, Some(1));
    assert!(made("flag.db"));
}

#[test]
fn the_default_store_is_the_owners_alone() {
    let lab = Lab::new();
    say(&mut lab.bare(["run", "k", "--", "true"]));
    let mode = |path: &str| std::fs::metadata(lab.path(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("state/syncguard"), mode("state/syncguard/locks.db")), (0o700, 0o600));
}

/// The command as a user who is not root, or as whoever tests, on a machine where root has a store or not.
fn beside_root(lab: &Lab, roots_store: bool, as_root: bool, arguments: &[&str]) -> Command {
    let open = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    let theirs = lab.path("machine/var/lib/syncguard");
    if roots_store {
        std::fs::create_dir_all(&theirs).unwrap();
        std::fs::write(theirs.join("locks.db"), "").unwrap();
    }
    let mut command = lab.program("env", [own()]);
    if is_root && !as_root {
        // As root makes it: the folder is closed to others.
        open(lab.dir.path(), 0o755);
        if roots_store {
            open(&theirs, 0o700);
        }
        std::fs::create_dir_all(lab.path("state")).unwrap();
        std::os::unix::fs::chown(lab.path("state"), Some(65534), Some(65534)).unwrap();
        std::fs::copy(own(), lab.path("syncguard")).unwrap();
        command = lab.program("setpriv", ["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg(lab.path("syncguard"));
    }
    command.args(arguments).env_remove("SYNCGUARD_URL");
    command
}

const RUN: [&str; 5] = ["run", "k", "--", "echo", "ran"];
const TWO_STORES: &str = "the locks of this user are in ";

#[test]
fn a_user_beside_roots_store_is_told_once_on_a_terminal_and_when_asking() {
    let lab = Lab::new();
    let run = |arguments: &[&str]| beside_root(&lab, true, false, arguments);
    let on_a_terminal = || pty::spawn(&mut run(&RUN)).finish().stdout;

    // cron mails everything that is said.
    assert_eq!(say(&mut run(&RUN)).stderr, "");
    let first = on_a_terminal();
    assert!(first.contains(TWO_STORES) && first.contains("/var/lib/syncguard/locks.db"), "{first}");
    assert!(first.contains("SYNCGUARD_URL=sqlite:PATH?mode=660"), "{first}");
    assert_eq!(on_a_terminal(), "ran\r\n");
    assert!(say(&mut run(&["run", "-v", "k", "--", "true"])).stderr.contains(TWO_STORES));
    assert!(say(&mut run(&["doctor"])).stdout.contains(TWO_STORES));
    assert!(!say(run(&["doctor"]).env("SYNCGUARD_REQUIRE", "local")).stdout.contains(TWO_STORES), "it is meant");
}

#[test]
fn where_root_has_no_store_and_to_root_nothing_is_told() {
    let lab = Lab::new();
    let shown = pty::spawn(&mut beside_root(&lab, false, false, &RUN)).finish().stdout;
    assert_eq!(shown, "ran\r\n");
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let lab = Lab::new();
    let root = |command: &mut Command| pty::spawn(command).finish().stdout;
    assert_eq!(root(&mut beside_root(&lab, true, true, &RUN)), "ran\r\n", "with XDG_STATE_HOME");
    std::fs::remove_file(lab.path("machine/var/lib/syncguard/locks.db")).unwrap();
    assert_eq!(root(beside_root(&lab, false, true, &RUN).env_remove("XDG_STATE_HOME")), "ran\r\n");
    assert!(lab.path("machine/var/lib/syncguard/locks.db").exists(), "root's own");
}

#[test]
fn the_sql_that_errors_ask_for_is_what_schema_prints() {
    let lab = Lab::new();
    let url = syncguard_testkit::fresh_postgres_database();
    let separator = if url.contains('?') { '&' } else { '?' };
    let strict = format!("{url}{separator}auto_create_tables=false&table=jobs_locks&fence_table=jobs_counters");
    let run = || say(lab.bare(["run", "k", "--", "echo", "ran"]).env("SYNCGUARD_URL", &strict));

    let psql = |arguments: &[&str]| {
        let mut psql = Command::new("psql");
        psql.args(["-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", &url]).args(arguments);
        psql.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };

    let missing = run();
    let doctor = |url: &str| say(lab.bare(["doctor"]).env("SYNCGUARD_URL", url));
    let (looked_at, looked_for) = (doctor(&strict), doctor(&url));
    let tables = finish(psql(&["-c", "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"]));
    let schema = ["schema", "--table", "jobs_locks", "--fence-table", "jobs_counters"];
    let printed = say(&mut lab.bare(schema)).stdout;
    let protected = say(&mut lab.bare([&schema[..], &["--protect"]].concat())).stdout;

    assert_eq!(missing.code, Some(78), "{missing:?}");
    assert!(printed.contains("CREATE TABLE") && protected.starts_with(&printed) && protected.contains("TRIGGER"));
    for line in printed.lines().filter_map(|line| line.split("--").next()) {
        assert!(missing.stderr.contains(line.trim()), "{line}: {missing:?}");
    }
    assert_eq!(looked_at.code, Some(1), "{looked_at:?}");
    assert!(looked_at.stdout.contains("\nCREATE TABLE IF NOT EXISTS"), "to be copied: {looked_at:?}");
    assert_eq!(looked_for.code, Some(0), "{looked_for:?}");
    assert!(looked_for.stdout.contains("do not exist yet; the first lock makes them"), "{looked_for:?}");
    assert_eq!(tables.stdout, "0\n", "a look creates nothing: {tables:?}");

    let mut migration = psql(&[]);
    migration.stdin.take().unwrap().write_all(protected.as_bytes()).unwrap();
    let migrated = finish(migration);
    assert_eq!(migrated.code, Some(0), "{migrated:?}");

    assert_eq!(run().stdout, "ran\n");
    assert!(doctor(&strict).stdout.contains("PASS  tables "), "what was printed is all that is needed");
    let refused = say(&mut lab.bare(["schema", "--table", "a.b.c"]));
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(64), ""), "{refused:?}");
}

#[test]
fn a_file_of_the_current_directory_decides_nothing() {
    let lab = Lab::new();
    for name in ["config.toml", "syncguard.toml", ".syncguard.toml", "syncguard/config.toml"] {
        let path = lab.path("checkout").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("url = \"{}\"\n", url(&lab, "trap.db"))).unwrap();
    }
    assert_eq!(say(lab.bare(["status", "k"]).current_dir(lab.path("checkout"))).code, Some(1));
    assert!(!lab.path("trap.db").exists());
}

#[test]
fn a_url_can_come_from_a_file() {
    let lab = Lab::new();
    let file = lab.path("url");
    std::fs::write(&file, format!("{}\n", url(&lab, "x.db"))).unwrap();
    let path = file.to_str().unwrap();
    assert_eq!(say(&mut lab.bare(["status", "k", "--url-file", path])).code, Some(1));
    assert!(lab.path("x.db").exists());
    assert_eq!(say(&mut lab.bare(["status", "k", "--url-file", "/no/such/file"])).code, Some(78));
    std::fs::write(&file, "").unwrap();
    assert_eq!(say(&mut lab.bare(["status", "k", "--url-file", path])).code, Some(78));
}

#[test]
fn whatever_could_mean_two_backends_is_refused() {
    let lab = Lab::new();
    let both = say(&mut lab.bare(["status", "k", "-u", "memory:", "--url-file", "/x"]));
    assert_eq!(both.code, Some(78));
    assert!(both.stderr.contains("two backends"), "{both:?}");
    for (name, value, expected) in [
        ("SYNCGUARD_URL", "", "SYNCGUARD_URL is empty"),
        ("SYNCGUARD_URI", "memory:", "did you mean SYNCGUARD_URL"),
        ("SYNCGUARD_REQUIRE", "remotely", "neither `remote` nor `local`"),
        ("SYNCGUARD_LOG", "loud", "SYNCGUARD_LOG"),
        ("SYNCGUARD_URL", "memory:?x=1", "takes no path and no options"),
    ] {
        let said = say(lab.bare(["status", "k"]).env(name, value));
        assert_eq!(said.code, Some(78), "{said:?}");
        assert!(said.stderr.contains(expected), "{expected}: {said:?}");
    }
}

#[test]
fn a_config_file_that_is_not_understood_is_refused_without_being_quoted() {
    let lab = Lab::new();
    for text in [
        "urll = \"redis://:CANARY@h\"\n",
        "url = \"redis://:CANARY@h\n",
        "url = 5 # CANARY\n",
        "require = \"redis://:CANARY@h\"\n",
        "\"redis://:CANARY@h\" = true\n",
    ] {
        config(&lab, text);
        let said = say(&mut lab.bare(["status", "k"]));
        assert_eq!(said.code, Some(78), "{said:?}");
        assert!(said.stderr.contains("config.toml is not understood") && !said.stderr.contains("CANARY"), "{said:?}");
    }
}

#[test]
fn a_local_store_among_many_machines_is_warned_of_or_refused() {
    let lab = Lab::new();
    for name in ["CI", "KUBERNETES_SERVICE_HOST"] {
        let said = say(lab.command(["run", "k", "--", "true"]).env(name, "true"));
        assert_eq!(said.code, Some(0));
        assert_eq!(said.stderr.matches("warning: ").count(), 1, "{said:?}");
        assert!(said.stderr.contains("is seen by this machine only"), "{said:?}");
        let silenced = say(lab.command(["run", "k", "--", "true"]).env(name, "true").env("SYNCGUARD_REQUIRE", "local"));
        assert_eq!((silenced.code, silenced.stderr.as_str()), (Some(0), ""));
    }
    let flag = lab.say(["run", "--require-remote", "k", "--", "echo", "ran"]);
    let variable = say(lab.command(["run", "k", "--", "echo", "ran"]).env("SYNCGUARD_REQUIRE", "remote"));
    for said in [flag, variable] {
        assert_eq!((said.code, said.stdout.as_str()), (Some(78), ""), "{said:?}");
    }
}

#[test]
fn a_backend_without_a_home_says_so() {
    let lab = Lab::new();
    // Root has the machine's own place.
    if rustix::process::geteuid().is_root() {
        let said = say(lab.bare(["status", "k"]).env("XDG_STATE_HOME", "/dev/null/x"));
        assert_eq!(said.code, Some(78), "{said:?}");
        assert!(said.stderr.contains("cannot make the directory /dev/null/x"), "{said:?}");
        return;
    }
    let said = say(lab.bare(["status", "k"]).env_remove("HOME").env_remove("XDG_STATE_HOME"));
    assert_eq!(said.code, Some(78), "{said:?}");
    assert!(said.stderr.contains("without HOME"), "{said:?}");
}

#[test]
fn plaintext_to_another_host_is_refused_when_tls_is_required() {
    let lab = Lab::new();
    let said = say(lab.bare(["status", "k", "--require-tls"]).env("SYNCGUARD_URL", "redis://:CANARY@cache.invalid/0"));
    assert_eq!(said.code, Some(78), "{said:?}");
    assert!(said.stderr.contains("not encrypted") && !said.stderr.contains("CANARY"), "{said:?}");
}

#[test]
fn a_password_where_others_can_read_it_is_warned_of() {
    let lab = Lab::new();
    let said = say(&mut lab.bare(["status", "k", "-u", "redis://:CANARY@127.0.0.1:1/"]));
    assert!(said.stderr.contains("can be read by every user of this machine (ps)"), "{said:?}");
    assert!(!said.stderr.contains("CANARY"), "{said:?}");

    let file = lab.path("url");
    std::fs::write(&file, "redis://:CANARY@127.0.0.1:1/").unwrap();
    let open_to = |mode: u32| {
        std::fs::set_permissions(Path::new(&file), PermissionsExt::from_mode(mode)).unwrap();
        say(&mut lab.bare(["status", "k", "--url-file", file.to_str().unwrap()])).stderr
    };
    assert!(open_to(0o644).contains("chmod 600"));
    assert!(!open_to(0o600).contains("warning"));
    assert!(open_to(0o602).contains("every user of this machine may change it"));
}

#[test]
fn a_folder_of_the_default_store_where_its_group_may_write_is_warned_of() {
    let lab = Lab::new();
    let run = || say(&mut lab.bare(RUN));
    assert_eq!(run().stderr, "");
    for (mode, code, hint) in [(0o755, 0, ""), (0o775, 0, "chmod g-w"), (0o777, 78, "chmod o-w"), (0o700, 0, "")] {
        std::fs::set_permissions(lab.path("state/syncguard"), PermissionsExt::from_mode(mode)).unwrap();
        let said = run();
        assert_eq!(said.code, Some(code), "{mode:o}: {said:?}");
        assert!(said.stderr.contains(hint) && said.stderr.is_empty() == hint.is_empty(), "{mode:o}: {said:?}");
    }
}

#[test]
fn who_asks_is_told_that_a_key_was_never_locked_there() {
    let lab = Lab::new();
    let run = || say(lab.bare(["run", "-v", "k", "--", "true"]).env("SYNCGUARD_URL", url(&lab, "misspelt.db"))).stderr;

    let (first, second) = (run(), run());

    assert!(first.contains("misspelt.db, the first lock of this key there"), "{first}");
    assert!(second.contains("misspelt.db") && !second.contains("the first lock"), "{second}");
}
