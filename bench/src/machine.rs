//! On what was it measured?

use std::fs;
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::report::Machine;
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

impl Machine {
    pub(crate) fn this() -> Self {
        let line = |file: &str, start: &str| {
            let text = fs::read_to_string(file).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with(start)).unwrap_or_default();
            line.split_once(':').map_or("", |(_, value)| value).trim().to_owned()
        };
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let kilobytes: f64 =
            line("/proc/meminfo", "MemTotal").split(' ').next().unwrap_or_default().parse().unwrap_or(0.0);
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: line("/proc/cpuinfo", "model name"),
            memory: format!("{:.0} GiB", kilobytes / 1024.0 / 1024.0),
            kernel: format!("Linux {}", kernel.trim()),
        }
    }
}

pub(crate) fn date() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

pub(crate) fn commit() -> String {
    let output = Command::new("git").args(["describe", "--always", "--dirty", "--exclude=*"]).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

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

/// The share of the processors that nobody used for half a second.
pub(crate) fn idle_share() -> f64 {
    let read = || -> Option<(f64, f64)> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let numbers: Vec<f64> =
            stat.lines().next()?.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
        Some((*numbers.get(3)?, numbers.iter().sum()))
    };
    let before = read();
    std::thread::sleep(Duration::from_millis(500));
    match (before, read()) {
        (Some((idle, all)), Some((idle_now, all_now))) if all_now > all => (idle_now - idle) / (all_now - all),
        _ => f64::NAN,
    }
}
