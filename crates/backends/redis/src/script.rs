//! Which programs run inside the server?
//!
//! One per operation, in `scripts/*.lua`. They are called by their SHA; when the server has forgotten one (restart,
//! `SCRIPT FLUSH`, failover) it is sent in full, which also makes the server remember it.

use std::sync::LazyLock;

use syncguard_core::time::TOLERANCE_MS;

/// One script with its SHA.
pub(crate) struct Script {
    pub(crate) source: String,
    pub(crate) sha: String,
}

impl Script {
    fn new(text: &str) -> Self {
        // Comments explain the scripts to people; the server would parse and keep them for nothing.
        let text = text.replace("--#include own", include_str!("../scripts/own.lua"));
        let text = text.replace("--#include read", include_str!("../scripts/read.lua"));
        let text = text.replace("--#include line", include_str!("../scripts/line.lua"));
        // One number for all backends; the scripts say its name.
        let text = text.replace("TOLERANCE_MS", &TOLERANCE_MS.to_string());
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("--"));
        let source = lines.collect::<Vec<_>>().join("\n");
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Self { source, sha }
    }
}

macro_rules! scripts {
    ($($name:ident = $file:literal;)+) => {
        $(pub(crate) static $name: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!(concat!("../scripts/", $file))));)+
    };
}

scripts! {
    ACQUIRE = "acquire.lua";
    RELEASE = "release.lua";
    EXTEND = "extend.lua";
    LOOKUP = "lookup.lua";
    PURGE = "purge.lua";
    ASK = "ask.lua";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_script_deletes_or_expires_a_counter() {
        // The counter is KEYS[3] of acquire; the third of release is a line, and the others have two.
        for line in ACQUIRE.source.lines().filter(|line| line.contains("KEYS[3]")) {
            assert!(["'GET'", "'INCR'", "'INCRBY'", "'DECR'"].iter().any(|allowed| line.contains(allowed)), "{line}");
        }
        for script in [&*EXTEND, &*LOOKUP, &*PURGE, &*ASK] {
            assert!(!script.source.contains("KEYS[3]"), "{}", script.source);
        }
        assert!(ACQUIRE.source.contains("'INCR', KEYS[3]"));
    }

    #[test]
    fn the_tolerance_is_that_of_the_core() {
        for script in [&*ACQUIRE, &*RELEASE, &*EXTEND, &*ASK] {
            assert!(script.source.contains(&format!("now - {TOLERANCE_MS} then")), "{}", script.source);
            assert!(!script.source.contains("TOLERANCE"), "{}", script.source);
        }
    }

    #[test]
    fn a_script_is_named_by_the_sha_of_what_is_sent() {
        assert_eq!(ACQUIRE.sha.len(), 40);
        assert_ne!(ACQUIRE.sha, RELEASE.sha);
        assert!(!ACQUIRE.source.contains("--"));
    }
}
