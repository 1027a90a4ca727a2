//! Is `--json` of every command what the committed schema says?
//!
//! `docs/schema/cli.schema.json` has a definition for each kind of object, and refuses fields that it does not know: whoever
//! adds one adds it there.

use std::collections::HashMap;
use std::path::Path;

use crate::support::{Lab, finish, until};
use boon::{Compiler, SchemaIndex, Schemas};
use rustix::process::Signal;
use serde_json::Value;

struct Judge {
    schemas: Schemas,
    kinds: HashMap<String, SchemaIndex>,
    /// The document as a whole: one of all kinds.
    any: SchemaIndex,
    judged: HashMap<String, usize>,
}

impl Judge {
    fn new() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema/cli.schema.json");
        let text = std::fs::read_to_string(path).unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        let names: Vec<String> = document["$defs"].as_object().unwrap().keys().cloned().collect();
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler.add_resource("file:///cli.schema.json", document).unwrap();
        let mut compile = |place: &str| compiler.compile(place, &mut schemas).unwrap();
        let any = compile("file:///cli.schema.json");
        let kinds = names
            .into_iter()
            .map(|name| {
                let index = compile(&format!("file:///cli.schema.json#/$defs/{name}"));
                (name, index)
            })
            .collect();
        Self { schemas, kinds, any, judged: HashMap::new() }
    }

    fn check(&self, kind: &str, value: &Value) -> Result<(), String> {
        for index in [self.kinds[kind], self.any] {
            self.schemas.validate(value, index).map_err(|error| format!("{kind}: {value}\n{error:#}"))?;
        }
        Ok(())
    }

    /// Every line of an output is of this kind.
    fn accept(&mut self, kind: &str, text: &str) {
        assert!(!text.is_empty(), "{kind}: nothing was printed");
        for line in text.lines() {
            self.check(kind, &serde_json::from_str(line).unwrap()).unwrap();
            *self.judged.entry(kind.to_owned()).or_default() += 1;
        }
    }
}

#[test]
fn the_json_of_every_command_is_what_the_schema_says() {
    for (backend, lab) in Lab::on_each_backend() {
        let mut judge = Judge::new();
        let holder = lab.hold(&["--ttl", "9s", "--label", "ada@one"], "held");
        handles(&lab, &mut judge);
        looks(&lab, &mut judge);
        failures(&lab, &mut judge);
        runs(&lab, &mut judge);
        judge.accept("break", &lab.say(["break", "held", "--ask", "--json"]).stdout);
        judge.accept("break", &lab.say(["break", "held", "--fence", "1", "--yes", "--json"]).stdout);
        holder.signal(Signal::TERM);
        holder.finish();
        judge.accept("purge", &lab.say(["purge", "--json"]).stdout);
        judge.accept("doctor", &lab.say(["doctor", "--json"]).stdout);
        judge.accept("bench", &lab.say(["bench", "--duration", "300ms", "--json"]).stdout);

        let parts = ["version", "hash", "fenceNumber", "time", "span", "lock", "percentiles"];
        // What only a reader that does not read gets, and what only a crash loop brings: not provoked here.
        let rare = ["leftOut", "respawn"];
        for kind in judge.kinds.keys().filter(|kind| ![&parts[..], &rare].concat().contains(&kind.as_str())) {
            assert!(judge.judged.contains_key(kind), "{backend}: no output of the kind {kind} was judged");
        }
    }
}

fn handles(lab: &Lab, judge: &mut Judge) {
    let acquired = lab.say(["acquire", "--ttl", "5m", "k", "--json"]).stdout;
    judge.accept("acquire", &acquired);
    let acquired: Value = serde_json::from_str(&acquired).unwrap();
    let id = acquired["lockId"].as_str().unwrap();
    judge.accept("status", &lab.say(["status", "k", "--json"]).stdout);
    judge.accept("extend", &lab.say(["extend", "--json", id]).stdout);
    judge.accept("done", &lab.say(["release", "--json", id]).stdout);
    judge.accept("status", &lab.say(["status", "k", "--json"]).stdout);
    judge.accept("done", &lab.say(["wait", "k", "--json"]).stdout);
    let marks = lab.path("marks");
    let check = ["fence", "check", marks.to_str().unwrap(), "--resource", "k", "--fence", "000000000000002", "--json"];
    judge.accept("fence", &lab.say(check).stdout);
    let database = syncguard_testkit::fresh_postgres_database();
    let psql = std::process::Command::new("psql").args(["-qX", &database, "-c", "CREATE TABLE t (n int)"]).status();
    assert!(psql.unwrap().success());
    judge.accept("fenceProtect", &lab.say(["fence", "protect", "--postgres", &database, "t", "k", "--json"]).stdout);
    judge.accept("fenceStatus", &lab.say(["fence", "status", "--postgres", &database, "--json"]).stdout);
}

fn looks(lab: &Lab, judge: &mut Judge) {
    until("the renewal shows", || lab.json(["list"]).iter().any(|lock| lock["renewal"] == "renewed"));
    judge.accept("list", &lab.say(["list", "--json"]).stdout);
    judge.accept("list", &lab.say(["list", "--raw", "--json"]).stdout);
    let mut watch = lab.command(["watch", "--json"]).spawn().unwrap();
    let mut first = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(watch.stdout.as_mut().unwrap()), &mut first).unwrap();
    watch.kill().unwrap();
    watch.wait().unwrap();
    judge.accept("watch", &first);
}

fn failures(lab: &Lab, judge: &mut Judge) {
    for arguments in [
        &["acquire", "-n", "held", "--json"][..],
        &["release", "AAAAAAAAAAAAAAAAAAAAAA", "--json"],
        &["break", "nothing", "--fence", "1", "--yes", "--json"],
        &["break", "held", "--fence", "9", "--yes", "--json"],
        &["break", "held", "--fence", "1", "--json"],
        &["list", "--sort", "nonsense", "--json"],
    ] {
        judge.accept("failure", &lab.say(arguments).stdout);
    }
    let mut refused = lab.bare(["list", "--json"]);
    let refused = finish(refused.env("SYNCGUARD_URL", "http://x").spawn().unwrap());
    judge.accept("failure", &refused.stdout);
    let mut warned = lab.bare(["status", "k", "--json"]);
    let warned = finish(
        warned.env("SYNCGUARD_URL", format!("sqlite:{}", lab.path("x.db").display())).env("CI", "1").spawn().unwrap(),
    );
    judge.accept("warning", &warned.stderr);
}

fn runs(lab: &Lab, judge: &mut Judge) {
    let report = lab.path("report.json");
    let path = report.to_str().unwrap();
    let said = lab.say(["run", "--report", path, "--json", "done", "--", "true"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    judge.accept("report", &std::fs::read_to_string(&report).unwrap());
    let waited = lab.say(["run", "-w", "300ms", "--report", path, "--json", "held", "--", "true"]);
    let (first, rest) = waited.stderr.split_once('\n').unwrap();
    judge.accept("waiting", first);
    judge.accept("failure", rest.lines().last().unwrap());
    judge.accept("report", &std::fs::read_to_string(&report).unwrap());
}

#[test]
fn a_conflict_says_who_holds_which_key_and_a_free_key_which_it_is() {
    let lab = Lab::new();
    let free = lab.json(["status", "k"]).remove(0);
    lab.say(["acquire", "--ttl", "1m", "--label", "ada", "k"]);

    let said = lab.say(["run", "-n", "-E", "9", "--json", "k", "--", "true"]);

    let told: serde_json::Value = serde_json::from_str(&said.stderr).unwrap();
    assert_eq!((&told["exitCode"], &told["holder"]["label"]), (&9.into(), &"ada".into()), "{told}");
    assert!(told["keyHash"].is_string() && told["keyHash"] == free["keyHash"], "{told} {free}");
}

#[test]
fn the_schema_refuses_what_it_does_not_know() {
    let judge = Judge::new();
    let good = serde_json::json!({"schema": 1, "ok": true, "removed": 3});
    judge.check("purge", &good).unwrap();
    for bad in [
        serde_json::json!({"schema": 2, "ok": true, "removed": 3}),
        serde_json::json!({"schema": 1, "ok": true, "removed": "3"}),
        serde_json::json!({"schema": 1, "ok": true}),
        serde_json::json!({"schema": 1, "ok": true, "removed": 3, "key": "secret"}),
    ] {
        assert!(judge.check("purge", &bad).is_err(), "{bad}");
    }
    let lock = |fence: &str| {
        serde_json::json!({
            "schema": 1, "keyHash": "8254c329a92850f6d539dd37", "lockIdHash": "8254c329a92850f6d539dd37", "fence": fence,
            "acquiredAtMs": 1, "expiresAtMs": 2, "observedAtMs": 1, "freeInMs": 1001, "renewal": "notYet", "askedFor": false
        })
    };
    judge.check("list", &lock("000000000000042")).unwrap();
    assert!(judge.check("list", &lock("42")).is_err());
    let mut more = lock("000000000000042");
    more["lockId"] = "AAAAAAAAAAAAAAAAAAAAAA".into();
    assert!(judge.check("list", &more).is_err(), "a field that the schema does not know");
}
