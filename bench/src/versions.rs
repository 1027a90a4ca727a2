//! Which versions were measured?

use crate::servers::Servers;

/// The crates that stand beside the servers in the list of versions.
const CRATES: [&str; 9] = [
    "rslock",
    "distributed-lock-redis",
    "distributed-lock-postgres",
    "tokio-postgres",
    "sqlx",
    "etcd-client",
    "fd-lock",
    "hidane",
    "rusqlite",
];

pub(crate) fn versions() -> Vec<String> {
    let lock = include_str!("../Cargo.lock");
    let of_crate = |name: &str| {
        let (_, rest) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
        // Of two versions the newer comes last; ours is that one.
        let rest = rest.split_once(&format!("name = \"{name}\"\nversion = \"")).map_or(rest, |(_, newer)| newer);
        Some(format!("{name} {}", rest.split('"').next()?))
    };
    Servers::versions().into_iter().chain(CRATES.iter().filter_map(|name| of_crate(name))).collect()
}
