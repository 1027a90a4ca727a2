//! `syncguard-soak run` for people, `syncguard-soak worker` for the processes that it starts.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use syncguard_soak::contention::{Place, Plan, contend_at};
use syncguard_soak::power::{Powered, cut_power};
use syncguard_soak::worker::Orders;
use syncguard_soak::{Options, Storage, check_folder, run, worker};

#[derive(Parser)]
#[command(about = "Contends for locks while faults are injected, and checks what was seen")]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run workers against faults and print the scoreboard
    Run {
        /// The storage; all of them, one after the other, if absent
        #[arg(long)]
        backend: Option<Storage>,
        /// How long the workers contend on each storage
        #[arg(long, default_value_t = 5)]
        minutes: u64,
        /// The same in seconds
        #[arg(long, conflicts_with = "minutes")]
        seconds: Option<u64>,
        /// What chance begins with; the time if absent
        #[arg(long)]
        seed: Option<u64>,
        /// How many processes contend
        #[arg(long, default_value_t = 4)]
        workers: u64,
        /// Keep the histories here, also if nothing is wrong
        #[arg(long)]
        keep: Option<PathBuf>,
    },
    /// Make contended calls as fast as the storage answers, without faults, and search an order of them
    Contend {
        /// Where; everywhere with a share each, if absent
        #[arg(long)]
        backend: Option<Place>,
        /// How many calls; a million in all if absent
        #[arg(long)]
        operations: Option<u64>,
        /// What chance begins with; the time if absent
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Cut the power of the durable storages and see whether a fence is lost
    Power {
        /// How often each
        #[arg(long, default_value_t = 3)]
        cuts: u64,
        /// What chance begins with; the time if absent
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Check the histories of a folder again
    Check {
        /// The storage that they are of
        #[arg(long)]
        backend: Storage,
        /// The folder that a run has kept
        folder: PathBuf,
    },
    /// Contend; started by `run`
    #[command(hide = true)]
    Worker(Orders),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Task::Run { backend, minutes, seconds, seed, workers, keep } => {
            let length = Duration::from_secs(seconds.unwrap_or(minutes * 60));
            run_all(backend, length, seed, workers, keep.as_deref())
        }
        Task::Check { backend, folder } => check_folder(backend, &folder).map(|scoreboard| {
            print!("{scoreboard}");
            scoreboard.is_clean()
        }),
        Task::Contend { backend, operations, seed } => contend(backend, operations, seed),
        Task::Power { cuts, seed } => cut_all(cuts, seed),
        Task::Worker(orders) => work(orders).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn work(orders: Orders) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(worker::work(orders))
}

fn contend(backend: Option<Place>, operations: Option<u64>, seed: Option<u64>) -> Result<bool> {
    let seed = seed.unwrap_or_else(of_the_clock);
    let shares = Place::SHARES.into_iter().filter(|(place, _)| backend.is_none_or(|wanted| wanted == *place));
    let (mut total, mut clean) = (0, true);
    for (place, share) in shares {
        let share = operations.unwrap_or(share);
        let folder = tempfile::tempdir()?;
        let found = contend_at(place, &Plan { seed, operations: share, tasks: 16, keys: 16 }, folder.path())?;
        print!("{place:?} · seed {seed}: {found}");
        total += found.linearizable;
        clean &= found.violations.is_empty() && found.linearizable >= share;
    }
    println!("linearizable in all: {total}");
    Ok(clean)
}

fn cut_all(cuts: u64, seed: Option<u64>) -> Result<bool> {
    let seed = seed.unwrap_or_else(of_the_clock);
    let program = std::env::current_exe().context("this program has a path")?;
    let mut clean = true;
    let one = |powered, number| {
        let folder = tempfile::tempdir()?;
        cut_power(powered, program.clone(), folder.path(), seed + number)?.context("mounting a disk takes root")
    };
    for powered in Powered::DURABLE {
        for number in 0..cuts {
            let cut = one(powered, number)?;
            println!(
                "{powered:?} · seed {}: {} fences given, {} keys, {} lost",
                seed + number,
                cut.given,
                cut.keys,
                cut.lost
            );
            clean &= cut.lost == 0;
        }
    }
    for powered in Powered::CONTROLS {
        let control = one(powered, 0)?;
        println!("control, {powered:?}: {} of {} keys lost fences", control.lost, control.keys);
        clean &= control.lost > 0;
    }
    Ok(clean)
}

fn run_all(
    backend: Option<Storage>,
    length: Duration,
    seed: Option<u64>,
    workers: u64,
    keep: Option<&Path>,
) -> Result<bool> {
    let seed = seed.unwrap_or_else(of_the_clock);
    let mut clean = true;
    for storage in backend.map_or_else(|| Storage::ALL.to_vec(), |storage| vec![storage]) {
        let folder = tempfile::Builder::new().prefix(&format!("syncguard-soak-{}-", storage.as_str())).tempdir()?;
        let options = Options {
            storage,
            length,
            seed,
            program: std::env::current_exe().context("this program has a path")?,
            folder: folder.path().to_owned(),
            workers,
        };
        let scoreboard = run(&options)?;
        print!("{scoreboard}");
        clean &= scoreboard.is_clean();
        if !scoreboard.is_clean() || keep.is_some() {
            let kept = folder.keep();
            let place = match keep {
                Some(place) => place.join(storage.as_str()),
                None => kept.clone(),
            };
            if place != kept {
                std::fs::create_dir_all(place.parent().unwrap_or(&place))?;
                std::fs::rename(&kept, &place).context("the histories cannot be moved there")?;
            }
            println!("  histories              {}", place.display());
        }
    }
    Ok(clean)
}

#[allow(clippy::disallowed_methods, reason = "any number will do")]
fn of_the_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
