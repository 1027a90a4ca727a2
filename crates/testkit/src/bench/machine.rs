//! On what was it measured, and when?

use std::fs;
use std::process::Command;
use std::thread;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// The machine, as far as it explains figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// How many processors this process may use.
    pub cores: usize,
    /// What the processor calls itself.
    pub processor: String,
    /// All of it, in GiB.
    pub memory: String,
    /// The kernel and its version.
    pub kernel: String,
}

impl Machine {
    /// Asks /proc. What it does not tell stays empty.
    pub fn this() -> Self {
        let line = |file: &str, start: &str| {
            let text = fs::read_to_string(file).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with(start)).unwrap_or_default();
            line.split_once(':').map_or("", |(_, value)| value).trim().to_owned()
        };
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let kilobytes: f64 =
            line("/proc/meminfo", "MemTotal").split(' ').next().unwrap_or_default().parse().unwrap_or(0.0);
        Self {
            cores: thread::available_parallelism().map_or(1, usize::from),
            processor: line("/proc/cpuinfo", "model name"),
            memory: format!("{:.0} GiB", kilobytes / 1024.0 / 1024.0),
            kernel: format!("Linux {}", kernel.trim()),
        }
    }
}

/// The time of day in UTC, to the second.
pub fn date() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

/// The commit that is checked out, with `-dirty` if something differs from it. Empty where there is no git.
pub fn commit() -> String {
    // Of this tree, wherever the benchmark was called.
    let mut git = Command::new("git");
    git.args(["describe", "--always", "--dirty", "--exclude=*"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = git.output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}
