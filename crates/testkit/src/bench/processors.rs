//! What do the processors do beside the benchmark?
//!
//! A processor with nothing to do sleeps, and waking it takes time that belongs to no contender. In a virtual machine
//! that depends on what the host does at that moment, and was most of a round trip to Redis on the same machine: a pair
//! took 350 to 870 µs asleep and 90 to 140 µs awake, and figures of the same program differed by a factor of three. So
//! they are kept awake while a benchmark runs, unless somebody wants to see what sleep costs.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::thread;
use std::time::Duration;

/// As long as a process holds this file open, no processor sleeps so deeply that waking takes more than what was
/// written, in microseconds.
const LATENCY: &str = "/dev/cpu_dma_latency";

/// The processors from the start of a run to its end.
pub struct Processors {
    idle: f64,
    /// Held, or why it cannot be.
    awake: Result<File, String>,
    at_start: Option<Times>,
}

impl Processors {
    /// Looks at them for half a second, and keeps them awake from then on, unless they may sleep.
    pub fn watch(may_sleep: bool) -> Self {
        let idle = idle_share();
        let awake = if may_sleep { Err("as asked".to_owned()) } else { keep_awake() };
        Self { idle, awake, at_start: Times::now() }
    }

    /// The share of them that nobody used before, 0 to 1; no number where /proc does not tell.
    pub fn idle(&self) -> f64 {
        self.idle
    }

    /// Whether they are kept awake.
    pub fn awake(&self) -> bool {
        self.awake.is_ok()
    }

    /// The share of their time that the host of a virtual machine gave to somebody else since then, 0 to 1.
    pub fn stolen(&self) -> f64 {
        share(self.at_start, Times::now(), |times| times.stolen)
    }

    /// What a reader should know before the first figure.
    pub fn at_start(&self) -> String {
        let awake =
            self.awake.as_ref().map_or_else(|why| format!("they may sleep: {why}"), |_| "kept awake".to_owned());
        format!("processors: {:.0} % idle at the start; {awake}", self.idle * 100.0)
    }

    /// And what after the last.
    pub fn at_end(&self) -> String {
        format!("processors: {:.1} % of their time went to other machines of the host", self.stolen() * 100.0)
    }
}

fn keep_awake() -> Result<File, String> {
    let driver = fs::read_to_string("/sys/devices/system/cpu/cpuidle/current_driver").unwrap_or_default();
    if matches!(driver.trim(), "" | "none") {
        return Err("the kernel has no driver that could keep them awake".to_owned());
    }
    let hold = || -> io::Result<File> {
        let mut file = File::options().write(true).open(LATENCY)?;
        file.write_all(&0_i32.to_ne_bytes())?;
        Ok(file)
    };
    hold().map_err(|error| format!("{LATENCY}: {error} (root may hold it)"))
}

fn idle_share() -> f64 {
    let before = Times::now();
    thread::sleep(Duration::from_millis(500));
    share(before, Times::now(), |times| times.idle)
}

fn share(before: Option<Times>, after: Option<Times>, of: fn(Times) -> f64) -> f64 {
    match (before, after) {
        (Some(before), Some(after)) if after.all > before.all => (of(after) - of(before)) / (after.all - before.all),
        _ => f64::NAN,
    }
}

/// What the processors did since the machine started, in ticks of the kernel.
#[derive(Clone, Copy)]
struct Times {
    idle: f64,
    stolen: f64,
    all: f64,
}

impl Times {
    fn now() -> Option<Self> {
        Self::read(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// Reads the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal, and guests, which are
    /// counted under user as well.
    fn read(stat: &str) -> Option<Self> {
        let words = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let ticks: Vec<f64> = words.take(8).filter_map(|word| word.parse().ok()).collect();
        Some(Self { idle: *ticks.get(3)?, stolen: *ticks.get(7)?, all: ticks.iter().sum() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_time_between_two_looks() {
        let before = Times::read("cpu  100 0 100 700 0 0 0 100 50 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n");
        let after = Times::read("cpu  130 0 110 730 10 5 5 110 70 0\n");
        assert!((share(before, after, |times| times.idle) - 0.3).abs() < 1e-9);
        assert!((share(before, after, |times| times.stolen) - 0.1).abs() < 1e-9);
    }

    #[test]
    fn there_is_no_share_of_what_nobody_tells() {
        assert!(Times::read("").is_none() && Times::read("cpu  1 2 3\n").is_none());
        let same = Times::read("cpu  1 1 1 1 1 1 1 1\n");
        assert!(share(same, same, |times| times.idle).is_nan() && share(None, same, |times| times.idle).is_nan());
    }

    #[test]
    fn who_is_kept_awake_is_kept_so_by_the_kernel() {
        let processors = Processors::watch(false);
        // Root on a kernel with a driver; elsewhere the reader is told why not.
        let Ok(bytes) = fs::read(LATENCY) else { return assert!(processors.at_start().contains("may sleep: ")) };
        let microseconds = bytes.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes));
        assert_eq!(processors.awake(), microseconds == Some(0), "{}", processors.at_start());
    }

    #[test]
    fn who_asks_for_sleep_gets_it() {
        let processors = Processors::watch(true);
        assert!(!processors.awake());
        assert!(processors.at_start().ends_with("; they may sleep: as asked"), "{}", processors.at_start());
    }
}
