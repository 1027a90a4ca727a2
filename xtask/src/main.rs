//! The project's own commands: what a contributor types instead of remembering ten.
//!
//! [`mod@test`] is the one that must be green before a change lands; `.ci/run` calls exactly that. [`setup`] brings the
//! programs the tests need. The servers themselves come from `syncguard-testkit`. [`ship`] makes what people install.

mod bench;
mod cargo;
mod fresh;
mod instructions;
mod junit;
mod matrix;
mod mistakes;
mod mutants;
mod prove;
mod scope;
mod secrets;
mod seeded;
mod setup;
mod ship;
mod soak;
mod summary;
mod test;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use syncguard_testkit::shared::Servers;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The commands of a SyncGuard contributor")]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install what the tests need: redis-server, postgresql, pgbouncer, cargo-nextest
    Setup,
    /// Format check, clippy, all tests against real servers, doctests and documentation
    Test {
        /// Only the tests: no format check, clippy, doctests or documentation
        #[arg(long)]
        quick: bool,
        /// Only this package; may be given several times
        #[arg(short, long = "package", value_name = "PACKAGE")]
        packages: Vec<String>,
        /// Arguments for `cargo nextest run`, for example -E 'test(fence)'
        #[arg(last = true)]
        nextest: Vec<String>,
    },
    /// Type the README's two commands as root and as an ordinary user who have nothing but Rust; takes as long as that does
    Fresh,
    /// Measure one backend, the guards, the recovery after a silence, ten thousand waiters, the start of the command, or
    /// everything beside its peers
    #[command(after_help = bench::COMMON)]
    Bench {
        /// What to measure
        subject: bench::Subject,
        /// Arguments for the benchmark, as below
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Build the comparison with peers and run its tests, without measuring
    BenchCheck,
    /// Count the instructions of the client, and compare them with the known figures
    Instructions {
        /// Make what is counted now the known figures
        #[arg(long)]
        accept: bool,
    },
    /// Contend from many processes while faults are injected, and check what they saw
    Soak {
        /// --backend sqlite|redis|cluster|sentinel|postgres|firestore, --minutes N, --seed S, --keep FOLDER; or
        /// `contend` (a million calls without faults), `power` (power cuts), `check FOLDER`; see --help
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run the whole conformance suite in every arrangement, also on other versions of PostgreSQL, Redis and Valkey
    Matrix {
        /// Only this version, for example "PostgreSQL 18"; may be given several times
        #[arg(long = "only", value_name = "NAME")]
        only: Vec<String>,
    },
    /// Search the model of the protocol for a way to two holders, as far as the time reaches
    Model {
        /// How long the larger world is searched
        #[arg(long, default_value_t = 5)]
        minutes: u64,
    },
    /// Plant mistakes and see the tests fail, run the tasks of the core in ten thousand orders, count its instructions
    Prove,
    /// Run the tasks of the core in a hundred thousand orders
    Schedules {
        /// How many orders per test and scheduler: there are five tests and two schedulers
        #[arg(long, default_value_t = 10_000)]
        count: u32,
    },
    /// Change the code in small ways, one at a time, and list the changes that no test noticed
    Mutants(mutants::Choice),
    #[command(flatten)]
    Ship(ship::Ship),
    /// Start the shared servers, print their addresses for `export`, stop them at Enter or Ctrl-C
    Servers,
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<ExitCode> {
    match task {
        Task::Setup => setup::run().map(|()| ExitCode::SUCCESS),
        Task::Test { quick, packages, nextest } => test::run(quick, &packages, &nextest),
        Task::Fresh => fresh::run(),
        Task::Bench { subject, arguments } => bench::run(subject, &arguments),
        Task::BenchCheck => bench::check(),
        Task::Instructions { accept } => instructions::run(accept),
        Task::Soak { arguments } => soak::run(&arguments),
        Task::Matrix { only } => matrix::run(&only),
        Task::Model { minutes } => model(minutes),
        Task::Prove => prove::run(),
        Task::Schedules { count } => prove::schedules(count),
        Task::Mutants(choice) => mutants::run(&choice),
        Task::Ship(task) => ship::run(task),
        Task::Servers => servers(),
    }
}

/// Optimised: the search visits millions of states.
fn model(minutes: u64) -> Result<ExitCode> {
    let mut command = cargo::command(["test", "--release", "--locked", "-p", "syncguard-soak", "--test", "behaviour"]);
    command.args(["--", "--nocapture", "keep_every_promise"]).env("SYNCGUARD_MODEL_MINUTES", minutes.to_string());
    let status = command.status().context("cannot run cargo test")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn servers() -> Result<ExitCode> {
    setup::run()?;
    let servers = Servers::start()?;
    for (variable, value) in servers.environment() {
        println!("export {variable}='{value}'");
    }
    eprintln!("running until Enter or Ctrl-C");
    std::io::stdin().read_line(&mut String::new())?;
    Ok(ExitCode::SUCCESS)
}
