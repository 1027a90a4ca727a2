//! How does a lock get around a command?
//!
//! `syncguard run KEY -- COMMAND` takes a lock, runs the command while it is held and renewed, stops the command if the
//! lock is lost, and gives the lock back. [`run`] is that story; the other commands are in [`commands`]. Codes are in
//! [`exit`], words in [`messages`], the choice of a backend in [`config`].

#[cfg(not(target_os = "linux"))]
compile_error!(
    "the command keeps its promise with Linux's child subreapers, pidfds and signalfds; use the library elsewhere"
);

mod args;
mod commands;
mod config;
mod exit;
mod holder;
mod label;
mod logging;
mod messages;
mod output;
mod run;
mod signals;
mod sys;
mod table;
mod taking;
mod values;

use std::process::ExitCode;

use anstream::ColorChoice;
use clap::Parser;
use clap::error::ErrorKind;
use clap::parser::ValueSource;

use crate::args::{Cli, Color, Command, Format, RunCli};
use crate::exit::Failure;
use crate::output::Output;

fn main() -> ExitCode {
    let (cli, url_on_command_line) = match parse() {
        Ok(parsed) => parsed,
        Err(error) => return ExitCode::from(usage_error(&error)),
    };
    let output = Output {
        json: cli.global.json,
        quiet: cli.global.quiet,
        verbose: cli.global.verbose,
        color: match cli.global.color {
            Color::Auto => ColorChoice::Auto,
            Color::Always => ColorChoice::Always,
            Color::Never => ColorChoice::Never,
        },
        stdout_is_the_childs: matches!(cli.command, Command::Run(_)),
    };
    let is_evaluated = matches!(&cli.command, Command::Acquire(args) if args.format == Format::Env);
    let ending = logging::start(&cli.global, output).and_then(|()| carry_out(cli, url_on_command_line, output));
    match ending {
        Ok(Ending::Code(code)) => ExitCode::from(code),
        Ok(Ending::Signal(signal)) => signals::die_from(signal),
        Err(failure) => {
            output.failure(&failure);
            if is_evaluated {
                // `eval "$(…)"` forgets our exit code; this hands it on.
                output.data(&commands::acquire::failing_text(failure.code));
            }
            match failure.signal {
                Some(signal) => signals::die_from(signal),
                None => ExitCode::from(failure.code),
            }
        }
    }
}

/// How the command ends when nothing needs to be said.
pub(crate) enum Ending {
    Code(u8),
    /// The child died from it, and our parent should see the same.
    Signal(rustix::process::Signal),
}

/// What is done inside the runtime.
enum Task {
    Run(Box<run::Prepared>),
    Other(Command),
}

fn carry_out(cli: Cli, url_on_command_line: bool, output: Output) -> Result<Ending, Failure> {
    let global = &cli.global;
    let resolve = || config::resolve(global, url_on_command_line, output);
    let task = match cli.command {
        // Before the runtime: the watchdog is a fork, and must be one while there is a single thread.
        Command::Run(args) => Task::Run(Box::new(run::prepare(*args, resolve, output)?)),
        command => Task::Other(command),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(exit::INTERNAL, "internal", format!("cannot start the runtime: {error}")))?;
    let ending = runtime.block_on(async {
        let command = match task {
            Task::Run(prepared) => return Box::pin(run::run(*prepared, output)).await,
            Task::Other(command) => command,
        };
        match command {
            Command::Run(_) => Err(Failure::new(exit::INTERNAL, "internal", "run was not prepared")),
            Command::Acquire(args) => commands::acquire::acquire(args, &resolve()?, output).await.map(Ending::Code),
            Command::Extend(args) => commands::extend::extend(args, resolve, output).await.map(Ending::Code),
            Command::Release(args) => commands::release::release(args, resolve, output).await.map(Ending::Code),
            Command::Status(args) => commands::status::status(args, resolve, output).await.map(Ending::Code),
            Command::Doctor(args) => {
                let backend = config::resolve_untouched(global, url_on_command_line, output)?;
                commands::doctor::doctor(&args, &backend, output).await.map(Ending::Code)
            }
            Command::List(args) => commands::list::list(&args, &resolve()?, output).await.map(Ending::Code),
            Command::Watch(args) => {
                Box::pin(commands::watch::watch(&args, &resolve()?, output)).await.map(Ending::Code)
            }
            Command::Break(args) => {
                commands::break_lock::break_lock(&args, &resolve()?, output).await.map(Ending::Code)
            }
            Command::Purge => commands::purge::purge(&resolve()?, output).await.map(Ending::Code),
            Command::Bench(args) => {
                Box::pin(commands::bench::bench(&args, &resolve()?, output)).await.map(Ending::Code)
            }
            Command::Fence(command) => commands::fence::fence(command, global, output).await.map(Ending::Code),
            Command::Completions(args) => Ok(Ending::Code(commands::documents::completions(&args, output))),
            Command::Schema(args) => commands::schema::schema(&args, output).map(Ending::Code),
            Command::Man(args) => commands::documents::man(&args, output).map(Ending::Code),
            Command::Wait(args) => commands::wait::wait(args, &resolve()?, output).await.map(Ending::Code),
        }
    });
    // A driver's thread that hangs in a system call must not keep us from exiting.
    runtime.shutdown_background();
    ending
}

fn parse() -> Result<(Cli, bool), clap::Error> {
    if std::env::args_os().any(|word| word == "run")
        && let Ok((cli, url_on_command_line)) = parse_as::<RunCli>()
    {
        return Ok((cli.into(), url_on_command_line));
    }
    parse_as::<Cli>()
}

fn parse_as<P: Parser>() -> Result<(P, bool), clap::Error> {
    let matches = P::command().try_get_matches()?;
    let in_subcommand = matches.subcommand().and_then(|(_, matches)| matches.value_source("url"));
    let url_on_command_line = [matches.value_source("url"), in_subcommand].contains(&Some(ValueSource::CommandLine));
    Ok((P::from_arg_matches(&matches)?, url_on_command_line))
}

/// clap's own message on the right stream, with our exit code, and with nothing in it that a terminal would obey.
fn usage_error(error: &clap::Error) -> u8 {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let _ = error.print();
        return exit::OK;
    }
    let text = error.render().to_string();
    let shown: Vec<String> = text.trim_end().lines().map(output::escape).collect();
    let json = std::env::args_os().skip(1).take_while(|word| word != "--").any(|word| word == "--json");
    let output = Output {
        json,
        quiet: false,
        verbose: 0,
        color: ColorChoice::Auto,
        stdout_is_the_childs: std::env::args_os().nth(1).is_some_and(|word| word == "run"),
    };
    let words = || std::env::args_os().skip(1).take_while(|word| word != "--");
    if words().any(|word| word == "acquire") && words().any(|word| word == "env" || word == "--format=env") {
        output.data(&commands::acquire::failing_text(exit::USAGE));
    }
    if json {
        // Up to the usage: what is missing stands on lines of its own.
        let lines: Vec<&str> = shown.iter().map(|line| line.trim()).take_while(|line| !line.is_empty()).collect();
        let first = lines.join(" ");
        let first = first.strip_prefix("error: ").unwrap_or(&first);
        output.failure(&Failure::usage(first).hint("see syncguard --help"));
    } else {
        output.stderr(&shown.join("\n"));
    }
    exit::USAGE
}
