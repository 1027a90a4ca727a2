//! How fast is SyncGuard beside its peers?
//!
//! Everything runs against fresh servers of this machine in one run; contenders take turns round after round, and what
//! counts are the ratios inside a round. One thread runs all clients, which leaves the other processor to the servers.
//! `cargo xtask bench compare` builds and calls this program; docs/benchmarks.md holds what it found.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the monotonic clock")]
#![allow(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures for people"
)]

mod charts;
mod contender;
mod contenders;
mod measures;
mod page;
mod report;
mod servers;
mod versions;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};

use contenders::Group;
use measures::{Effort, counters, hand_off, memory, pairs};
use report::Document;
use servers::Servers;
use syncguard_testkit::bench::{self, Machine, Processors};

#[derive(Parser)]
#[command(name = "cargo xtask bench compare", about = "Measure SyncGuard and its peers in one run")]
struct Arguments {
    /// How often everybody takes a turn
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only these measures
    #[arg(value_enum)]
    measures: Vec<Wanted>,
    /// Only these contenders
    #[arg(long, value_enum)]
    only: Vec<Only>,
    /// Two short rounds, at most a hundred thousand counters and ten thousand locks
    #[arg(long)]
    quick: bool,
    /// Write the figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Rewrite docs/benchmarks.md, its charts and its figures
    #[arg(long)]
    publish: bool,
    /// Let idle processors sleep, as they do otherwise
    #[arg(long)]
    let_sleep: bool,
    /// Measure nothing: draw and write what docs/benchmarks/benchmarks.json holds
    #[arg(long, conflicts_with_all = ["json", "publish"])]
    redraw: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Wanted {
    /// Throughput by tasks, and latency
    Pairs,
    /// From a release to the next holder, by waiters
    HandOff,
    /// Latency by the number of counters
    Counters,
    /// Bytes of a held lock
    Memory,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Only {
    Redis,
    Databases,
    OneMachine,
    Client,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let figures = docs.join("benchmarks/benchmarks.json");
    if arguments.redraw {
        let text = fs::read_to_string(&figures).context("cannot read docs/benchmarks/benchmarks.json")?;
        return publish(&serde_json::from_str(&text)?, &docs);
    }
    let document = measure(&arguments)?;
    page::print(&document);
    if let Some(file) = &arguments.json {
        write(&document, file)?;
    }
    if arguments.publish {
        write(&document, &figures)?;
        publish(&document, &docs)?;
    }
    Ok(())
}

fn measure(arguments: &Arguments) -> Result<Document> {
    let wants = |measure| arguments.measures.is_empty() || arguments.measures.contains(&measure);
    let effort = if arguments.quick {
        Effort { rounds: arguments.rounds.min(2), slice: Duration::from_millis(100), counters: 100_000, locks: 10_000 }
    } else {
        let slice = Duration::from_millis(250);
        Effort { rounds: arguments.rounds.max(1), slice, counters: 10_000_000, locks: 100_000 }
    };
    let processors = Processors::watch(arguments.let_sleep);
    println!("{}", processors.at_start());
    let mut document = Document {
        date: bench::date(),
        commit: bench::commit(),
        command: bench::command("compare", std::env::args().skip(1)),
        rounds: effort.rounds,
        idle: processors.idle(),
        awake: processors.awake(),
        stolen: 0.0,
        machine: Machine::this(),
        versions: versions::versions(),
        measures: Vec::new(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let servers = Servers::start()?;
    let entries = runtime.block_on(contenders::all(&servers, |group| chosen(&arguments.only, group)))?;
    if wants(Wanted::Pairs) {
        document.measures.extend(runtime.block_on(pairs::measure(&entries, effort)));
    }
    if wants(Wanted::HandOff) {
        document.measures.extend(runtime.block_on(hand_off::measure(&entries, effort)));
    }
    if wants(Wanted::Memory) {
        document.measures.extend(memory::measure(&runtime, &entries, &servers, effort));
    }
    if wants(Wanted::Counters) && arguments.only.is_empty() {
        document.measures.push(runtime.block_on(counters::measure(&servers, effort))?);
    }
    // Connections close on their runtime.
    runtime.block_on(async { drop(entries) });
    document.stolen = processors.stolen();
    Ok(document)
}

fn chosen(only: &[Only], group: Group) -> bool {
    let this = match group {
        Group::Redis => Only::Redis,
        Group::Databases => Only::Databases,
        Group::OneMachine => Only::OneMachine,
        Group::Client => Only::Client,
    };
    only.is_empty() || only.contains(&this)
}

fn write(document: &Document, file: &Path) -> Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(file, serde_json::to_string_pretty(document)? + "\n")
        .with_context(|| format!("cannot write {}", file.display()))
}

fn publish(document: &Document, docs: &Path) -> Result<()> {
    charts::draw(document, &docs.join("benchmarks"))?;
    page::rewrite(document, &docs.join("benchmarks.md"))
}
