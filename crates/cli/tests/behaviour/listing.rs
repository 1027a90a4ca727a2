//! What does somebody see who asks which locks there are?

use crate::support::{Lab, until};
use syncguard::Key;

fn hash(key: &str) -> String {
    Key::new(key).unwrap().hash().to_string()
}

/// Takes locks one after the other, with a pause that a clock of milliseconds can see.
fn hold_three(lab: &Lab) {
    for (key, label) in [("deploy:web", "ada@one"), ("migrate:app", "bob@two"), ("deploy:api", "eve@three")] {
        assert_eq!(lab.say(["acquire", "--ttl", "10m", "--label", label, key]).code, Some(0));
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn the_live_locks_are_listed_the_oldest_first_and_by_hash() {
    for (backend, lab) in Lab::on_each_backend() {
        hold_three(&lab);

        let said = lab.say(["list"]);

        assert_eq!(said.code, Some(0), "{backend}: {said:?}");
        let lines: Vec<&str> = said.stdout.lines().collect();
        assert_eq!(lines.len(), 4, "{backend}: {said:?}");
        assert!(lines[0].starts_with("KEY   ") && lines[0].ends_with("HELD BY"), "{backend}: {said:?}");
        for (line, (key, label)) in
            lines[1..].iter().zip([("deploy:web", "ada@one"), ("migrate:app", "bob@two"), ("deploy:api", "eve@three")])
        {
            assert!(line.starts_with(&hash(key)) && line.ends_with(label), "{backend}: {line}");
            assert!(line.contains("  not yet  ") && line.contains("  000000000000001  "), "{backend}: {line}");
        }
        assert!(!said.stdout.contains("deploy:web"), "{backend}");
        assert_eq!(said.stderr, "keys are shown as hashes; --raw shows the keys\n", "{backend}");
        let raw = lab.say(["ls", "--raw", "deploy:"]);
        assert!(raw.stdout.contains("\ndeploy:web ") && !raw.stdout.contains("migrate"), "{backend}: {raw:?}");
        assert_eq!(raw.stderr, "", "{backend}");
    }
}

#[test]
fn what_is_listed_can_be_chosen() {
    for (backend, lab) in Lab::on_each_backend() {
        hold_three(&lab);
        let keys = |arguments: &[&str]| -> Vec<String> {
            let all = [&["list", "--raw"], arguments].concat();
            lab.json(all).iter().map(|lock| lock["key"].as_str().unwrap().to_owned()).collect()
        };

        assert_eq!(keys(&["--sort", "key"]), ["deploy:api", "deploy:web", "migrate:app"], "{backend}");
        assert_eq!(keys(&["--limit", "1"]), ["deploy:web"], "{backend}");
        assert_eq!(keys(&["--sort", "holder", "--limit", "2"]), ["deploy:web", "migrate:app"], "{backend}");
        assert_eq!(keys(&["deploy:", "--sort", "none"]).len(), 2, "{backend}");
        assert_eq!(keys(&["--older-than", "1h"]).len(), 0, "{backend}");
        assert_eq!(keys(&["--older-than", "1ms"]).len(), 3, "{backend}");
        let quiet = |prefix| lab.say(["list", "-q", prefix]);
        assert_eq!((quiet("deploy:").code, quiet("nothing:").code), (Some(0), Some(1)), "{backend}");
        assert_eq!(quiet("deploy:").stdout, "", "{backend}");
        let none = lab.say(["list", "nothing:"]);
        assert_eq!((none.code, none.stderr.as_str()), (Some(0), "no live lock matches\n"), "{backend}");
    }
}

#[test]
fn a_renewed_lease_is_told_from_one_that_nobody_renews() {
    for (backend, lab) in Lab::on_each_backend() {
        lab.say(["acquire", "--ttl", "6s", "abandoned"]);
        let holder = lab.hold(&["--ttl", "6s"], "kept");
        let find = |renewal: &str, key: &str| {
            lab.json(["list", "--raw"]).iter().any(|lock| lock["key"] == key && lock["renewal"] == renewal)
        };

        until(&format!("{backend}: the renewal shows"), || find("renewed", "kept"));
        let people = lab.say(["status", "kept"]);
        assert!(people.stdout.contains("held for ") && people.stdout.contains(", renewed "), "{backend}: {people:?}");
        let id = lab.say(["acquire", "--ttl", "6s", "doubtful"]).stdout;
        until(&format!("{backend}: the doubt shows"), || find("notRenewed", "doubtful"));
        let people = lab.say(["run", "-n", "doubtful", "--", "true"]);
        let is_said = people.stderr.contains(", not renewed; free in ") && people.stderr.contains("s at the latest");
        // On a loaded machine the lease may be over by now.
        assert!(is_said || people.code == Some(0) || people.stderr.contains("lease is over"), "{backend}: {people:?}");
        drop(id);
        holder.signal(rustix::process::Signal::TERM);
        holder.finish();
    }
}

#[cfg(feature = "redis")]
#[test]
fn many_locks_are_printed_as_they_are_found() {
    let lab = Lab::on_redis();
    lab.hold_many(300);

    let said = lab.say(["list", "--raw"]);
    let limited = lab.say(["list", "--limit", "5"]);
    let mut reader = lab.command(["list", "--raw"]).spawn().unwrap();
    drop(reader.stdout.take());

    let mut keys: Vec<&str> = said.stdout.lines().skip(1).map(|line| line.split_whitespace().next().unwrap()).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 300, "{:?}", said.stderr);
    assert!(said.stderr.starts_with("more than 200 locks: shown as they are found"), "{:?}", said.stderr);
    assert_eq!(limited.stdout.lines().count(), 6);
    assert!(limited.stderr.starts_with("295 more are not shown; --limit shows more\n"), "{:?}", limited.stderr);
    assert_eq!(crate::support::finish(reader).code, Some(0), "a reader that went away is no error");
}
