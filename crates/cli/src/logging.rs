//! What does the library itself say?
//!
//! Nothing, unless asked by `SYNCGUARD_LOG`, `--log` or `-vv`. Only our own targets: drivers log requests, and
//! requests hold keys and passwords.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::args::Global;
use crate::exit::Failure;
use crate::output::Output;

/// Starts the log if somebody asked for it.
pub(crate) fn start(global: &Global, output: Output) -> Result<(), Failure> {
    let level = match global.log.as_deref() {
        Some(text) => parse(text)?,
        None if global.verbose >= 2 => LevelFilter::DEBUG,
        None => return Ok(()),
    };
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(output.color == anstream::ColorChoice::Always || output.is_watched())
        .with_filter(Targets::new().with_target("syncguard", level));
    // Fails only if a subscriber is there already, and this is the only place that makes one.
    let _ = tracing_subscriber::registry().with(layer).try_init();
    Ok(())
}

fn parse(text: &str) -> Result<LevelFilter, Failure> {
    text.parse().map_err(|_| {
        Failure::config("SYNCGUARD_LOG (or --log) is none of off, error, warn, info, debug, trace")
            .hint("for example SYNCGUARD_LOG=debug")
    })
}
