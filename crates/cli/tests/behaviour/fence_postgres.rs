//! Does a program that knows nothing of fences write under one, and can a stale one not?

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use syncguard::{Clock, SystemClock};
use syncguard_testkit::{PgBouncer, PgBouncerOptions, PostgresOptions, PostgresServer, fresh_postgres_database};

use crate::support::{Lab, Said, finish, read_when_there, until};

const WRITE: &str = "UPDATE ledger SET balance = balance + 1";

/// A protected table, and what to do with it.
struct Books {
    lab: Lab,
    url: String,
}

impl Books {
    fn new(url: String) -> Self {
        let books = Self { lab: Lab::new(), url };
        assert_eq!(books.psql("CREATE TABLE ledger (balance int); INSERT INTO ledger VALUES (0)").code, Some(0));
        let protected = books.lab.say(["fence", "protect", "--postgres", &books.url, "ledger", "led ger"]);
        assert_eq!(protected.code, Some(0), "{protected:?}");
        books
    }

    /// psql as everybody has it, without a lock.
    fn psql(&self, sql: &str) -> Said {
        finish(bare_psql(&self.url, sql).spawn().unwrap())
    }

    fn run(&self, options: &[&str], command: &[&str]) -> Command {
        let fenced = format!("--fence-postgres={}", self.url);
        let words = [&["run", &fenced][..], options, &["led ger", "--"], command].concat();
        self.lab.command(words)
    }

    fn balance(&self) -> String {
        self.psql("SELECT balance FROM ledger").stdout.trim().to_owned()
    }
}

/// psql as everybody has it.
fn bare_psql(url: &str, sql: &str) -> Command {
    let mut psql = Command::new("psql");
    psql.args(["-qAtX", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose", url, "-c", sql]);
    psql.env_remove("PGOPTIONS").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    psql
}

#[test]
fn psql_writes_under_the_fence_of_its_lock_and_in_no_other_way() {
    let books = Books::new(fresh_postgres_database());
    let write = ["psql", "-qX", "-v", "ON_ERROR_STOP=1", &books.url, "-c", WRITE];

    let unfenced = books.psql(WRITE);
    let mut fenced = books.run(&[], &write);
    let fenced = finish(fenced.env("PGOPTIONS", "-c statement_timeout=7s").spawn().unwrap());
    // A program of the first holder that was left behind: its session names the fence of then.
    let mut late = bare_psql(&books.url, WRITE);
    let told = books.run(&[], &["sh", "-c", "echo \"$PGOPTIONS|$PGAPPNAME|$SYNCGUARD_PG_OPTIONS\""]);
    let told = finish({ told }.env("PGOPTIONS", "-c statement_timeout=7s").spawn().unwrap());
    let late = finish(late.env("PGOPTIONS", r"-c syncguard.fence=1 -c syncguard.key=led\ ger").spawn().unwrap());

    assert!(unfenced.stderr.contains("SG002"), "{unfenced:?}");
    assert_eq!(fenced.code, Some(0), "{fenced:?}");
    assert!(late.stderr.contains("SG001"), "{late:?}");
    assert_eq!(books.balance(), "1");
    let options = r"-c syncguard.fence=2 -c syncguard.key=led\ ger";
    let all = format!("-c statement_timeout=7s {options}|syncguard fence 000000000000002|{options}");
    assert_eq!(told.stdout.trim(), all);
}

#[test]
fn a_successor_does_not_wait_for_a_psql_that_was_stopped_in_the_middle_of_its_write() {
    let books = Books::new(fresh_postgres_database());
    let (started, lease) = (books.lab.path("started"), Duration::from_secs(2));
    // The whole holder is stopped, watchdog and all, as a machine that sleeps: nothing ends the session but its successor.
    let script = format!("BEGIN; {WRITE}; \\! echo $PPID > {0}.tmp && mv {0}.tmp {0}; sleep 600\n", started.display());
    std::fs::write(books.lab.path("close.sql"), script).unwrap();
    let file = books.lab.path("close.sql");
    let command = ["psql", "-qX", &books.url, "-f", file.to_str().unwrap()];
    let mut holder = books.run(&["--ttl", "2s"], &command).spawn().unwrap();
    let psql: i32 = read_when_there(&started).trim().parse().unwrap();
    let mut stopped = tree_of(holder.id());
    stopped.push(Pid::from_raw(psql).unwrap());
    for pid in &stopped {
        rustix::process::kill_process(*pid, Signal::STOP).unwrap();
    }
    let begun = SystemClock.boot();

    let write = ["psql", "-qX", "-v", "ON_ERROR_STOP=1", &books.url, "-c", WRITE];
    let successor = finish(books.run(&["-w", "60s"], &write).spawn().unwrap());

    let took = SystemClock.boot().since(begun);
    for pid in stopped.iter().rev() {
        let _ = rustix::process::kill_process(*pid, Signal::CONT);
    }
    assert_eq!(successor.code, Some(0), "{successor:?}");
    assert!(successor.stderr.contains("ended a session of a stale holder"), "{successor:?}");
    println!("the successor has written {took:?} after its predecessor was stopped, with a lease of {lease:?}");
    assert!(took < lease + Duration::from_secs(2) + Duration::from_secs(1), "{took:?} after the holder was stopped");
    until("the stopped holder ends", || holder.try_wait().unwrap().is_some());
    assert_eq!(books.balance(), "1", "a stale write, or none of the successor");
}

/// A process and all below it, the top first.
fn tree_of(top: u32) -> Vec<Pid> {
    let mut tree = vec![top.to_string()];
    let mut next = 0;
    while next < tree.len() {
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", tree[next])).unwrap_or_default();
        tree.extend(children.split_whitespace().map(str::to_owned));
        next += 1;
    }
    tree.iter().map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap()).collect()
}

#[test]
fn a_pooler_that_keeps_the_fence_to_itself_is_noticed_before_the_command_starts() {
    let server = PostgresServer::start(PostgresOptions::new());
    let direct = server.fresh_database();
    let database = direct.rsplit('/').next().unwrap().to_owned();
    let books = Books::new(direct.clone());
    let dropping = PgBouncerOptions::new().config("ignore_startup_parameters = extra_float_digits, options");
    for options in [dropping, PgBouncerOptions::new()] {
        let pooler = PgBouncer::try_start(&server, &options).unwrap();
        let url = pooler.url_of(&database);

        let fenced = format!("--fence-postgres={url}");
        let refused =
            books.lab.say(["run", &fenced, "led ger", "--", "touch", books.lab.path("ran").to_str().unwrap()]);
        // Who goes there nevertheless is refused by the table, or by the pooler.
        let mut write = bare_psql(&url, WRITE);
        let write =
            finish(write.env("PGOPTIONS", r"-c syncguard.fence=900 -c syncguard.key=led\ ger").spawn().unwrap());

        assert!(refused.code != Some(0) && refused.stderr.contains("name PostgreSQL itself"), "{refused:?}");
        assert!(!books.lab.path("ran").exists() && !books.lab.is_locked("led ger"));
        assert!(write.stderr.contains("SG002") || write.stderr.contains("startup parameter"), "{write:?}");
    }
    assert_eq!(books.balance(), "0");
}

#[test]
fn the_database_of_a_fence_may_be_a_variable_or_the_backend() {
    let books = Books::new(fresh_postgres_database());
    let run = ["run", "--fence-postgres", "led ger", "--", "sh", "-c", "psql -qX \"$BOOKS\" -c \"$WRITE\""];
    let with = |lab: &Lab, variable: &str| {
        let mut command = lab.command(run);
        finish(command.env(variable, &books.url).env("BOOKS", &books.url).env("WRITE", WRITE).spawn().unwrap())
    };

    let by_variable = with(&books.lab, "DATABASE_URL");
    let by_backend = with(&Lab::on(&books.url), "UNUSED");
    let neither = with(&books.lab, "UNUSED");

    assert_eq!((by_variable.code, by_backend.code), (Some(0), Some(0)), "{by_variable:?} {by_backend:?}");
    assert_eq!(books.balance(), "2");
    assert_eq!(neither.code, Some(64), "{neither:?}");
    assert!(neither.stderr.contains("DATABASE_URL"));
}

#[test]
fn status_shows_tables_marks_and_who_is_in_the_way() {
    let books = Books::new(fresh_postgres_database());
    let say = |words: &[&str]| books.lab.say([&["fence"], words, &["--postgres", &books.url]].concat());
    let fenced = |number: u32| format!("BEGIN; SELECT syncguard_begin('led ger', {number}); SELECT pg_sleep(60)");
    let mut older = bare_psql(&books.url, &fenced(41)).spawn().unwrap();
    until("the older one is inside", || say(&["status"]).stdout.contains("fence 000000000000041"));
    let mut newer = bare_psql(&books.url, &fenced(42)).spawn().unwrap();
    until("the newer one waits", || say(&["status"]).stdout.contains("in the way of pid"));

    let shown = say(&["status"]).stdout;

    for child in [&mut older, &mut newer] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(shown.contains("table     ledger   needs a fence of led ger"), "{shown}");
    assert!(shown.contains("fence 000000000000041, active, in the way of pid"), "{shown}");
}

#[test]
fn a_dry_run_prints_what_protect_would_do() {
    let lab = Lab::new();
    let url = fresh_postgres_database();
    let psql = |sql: &str| {
        let command = Command::new("psql").args(["-qAtX", "-v", "ON_ERROR_STOP=1", &url, "-c", sql]).output().unwrap();
        (command.status.success(), String::from_utf8(command.stderr).unwrap())
    };
    assert!(psql("CREATE SCHEMA \"my books\"; CREATE TABLE \"my books\".ledger (n int)").0);

    let printed = lab.say(["fence", "protect", "--dry-run", "my books.ledger", "it's"]);

    assert_eq!((printed.code, printed.stderr.as_str()), (Some(0), ""));
    let (done, error) = psql(&printed.stdout);
    assert!(done, "{error}");
    assert!(psql("INSERT INTO \"my books\".ledger VALUES (1)").1.contains("no fence is declared"));
    let unknown = lab.say(["fence", "protect", "--postgres", &url, "absent", "k"]);
    assert_eq!(unknown.code, Some(64), "{unknown:?}");
}

/// Where the drivers of other languages are: `venv` with psycopg, and `node_modules` with pg.
fn programs() -> Option<PathBuf> {
    let folder = std::env::var_os("SYNCGUARD_TEST_PROGRAMS").map(PathBuf::from);
    if folder.is_none() {
        println!("SKIPPED drivers of other languages: SYNCGUARD_TEST_PROGRAMS names no folder");
    }
    folder
}

#[test]
fn programs_in_other_languages_write_under_the_fence_of_their_lock() {
    let Some(folder) = programs() else { return };
    let books = Books::new(fresh_postgres_database());
    let python = folder.join("venv/bin/python").display().to_string();
    let psycopg = "import psycopg, sys\nwith psycopg.connect(sys.argv[1]) as db: db.execute(sys.argv[2])";
    let node = "const {Client} = require('pg'); const c = new Client({connectionString: process.argv[1]}); \
                c.connect().then(() => c.query(process.argv[2])).then(() => c.end(), e => { console.error(e.code); process.exit(1) })";
    let programs = [vec![python.as_str(), "-c", psycopg], vec!["node", "-e", node]];
    let modules = folder.join("node_modules");
    assert_eq!(finish(books.run(&[], &["true"]).spawn().unwrap()).code, Some(0));
    for program in programs {
        let command = [&program[..], &[&books.url, WRITE]].concat();
        let alone = |options: &str| {
            let mut alone = Command::new(command[0]);
            alone.args(&command[1..]).env("NODE_PATH", &modules).env("PGOPTIONS", options);
            finish(alone.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        };
        let before: u32 = books.balance().parse().unwrap();

        let fenced = finish(books.run(&[], &command).env("NODE_PATH", &modules).spawn().unwrap());
        let (unfenced, late) = (alone(""), alone(r"-c syncguard.fence=1 -c syncguard.key=led\ ger"));

        assert_eq!(fenced.code, Some(0), "{fenced:?}");
        assert!(unfenced.stderr.contains("SG002") || unfenced.stderr.contains("no fence is declared"), "{unfenced:?}");
        assert!(late.stderr.contains("SG001") || late.stderr.contains("the fence is stale"), "{late:?}");
        assert_eq!(books.balance(), (before + 1).to_string());
    }
}
