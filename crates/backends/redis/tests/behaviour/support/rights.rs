//! Which rights does the documentation name?
//!
//! Read from its page, so that the page cannot say something else than what was tested.

use super::raw;

/// A password that no output may show: `cargo xtask test` looks for it in everything that was printed.
pub(crate) const CANARY: &str = "sgcanary-redis-password";

/// The rules of a user in `docs/backends/redis.md`, for the default prefix.
pub(crate) fn documented(user: &str) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/backends/redis.md");
    let page = std::fs::read_to_string(path).unwrap();
    let start = format!("ACL SETUSER {user} on >PASSWORD ");
    let rules = page.lines().find_map(|line| line.strip_prefix(&start));
    rules.unwrap_or_else(|| panic!("docs/backends/redis.md shows no line `{start}`")).to_owned()
}

/// Makes a user with such rules for a prefix of its own, and returns its URL.
pub(crate) fn user(port: u16, rules: &str, prefix: &str) -> String {
    let (password, rules) = (format!(">{CANARY}"), rules.replace("syncguard:", &format!("{prefix}:")));
    let mut words = vec!["ACL", "SETUSER", prefix, "reset", "on", password.as_str()];
    words.extend(rules.split_whitespace());
    raw(port, &words);
    format!("redis://{prefix}:{CANARY}@127.0.0.1:{port}/")
}
