//! How does a checkout become what people install?
//!
//! Every step of the workflows under `.github/workflows` is one of these commands, so that each can be run at home.

mod checks;
mod compat;
mod deb;
pub(crate) mod dist;
mod fresh;
mod image;
mod manifest;
mod neighbours;
mod package;
mod portable;
mod release;
mod sbom;
#[cfg(test)]
mod workflows;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

#[derive(Subcommand)]
pub(crate) enum Ship {
    /// Package every published crate and build each from its own tarball
    Package {
        /// Also with changes that are not committed
        #[arg(long)]
        allow_dirty: bool,
    },
    /// Build every crate with the oldest Rust that it names
    Msrv {
        /// Only these versions, for example 1.88
        versions: Vec<String>,
    },
    /// Compare the public API with the newest release
    Semver,
    /// Run clippy with no feature, every feature alone and every pair of features
    Features,
    /// Check licences, sources, banned crates and advisories of the dependencies
    Deny {
        /// Leave out the advisories, whose database is on the network
        #[arg(long)]
        offline: bool,
    },
    /// Build the documentation as docs.rs does
    Docs,
    /// Build and run beside today's sqlx, sea-orm, diesel and rusqlite
    Neighbours {
        /// Only this one
        name: Option<String>,
    },
    /// Build the libraries for macOS and Windows, from Linux
    Portable,
    /// Let an old command and this one share locks on every backend
    Compat {
        /// The commit of the old one; without it the first release
        #[arg(long)]
        old: Option<String>,
        /// How often the lock is taken on each backend
        #[arg(long, default_value_t = 2000)]
        cycles: usize,
    },
    /// Make the archive, the Debian package, checksums and the list of what is inside
    Dist {
        /// For another processor: x86_64-unknown-linux-musl or aarch64-unknown-linux-musl
        #[arg(long)]
        target: Option<String>,
        /// Install both as a new user, use them and remove them; as root
        #[arg(long)]
        check: bool,
    },
    /// Build the container image of what `dist` made, and try it
    Image,
    /// Publish what `dist` made as a release of GitHub, with the notes of the changelog
    Release {
        /// The tag; it must be the version of the crates
        tag: String,
        /// Only show the notes and the files
        #[arg(long)]
        rehearse: bool,
    },
}

pub(crate) fn run(task: Ship) -> Result<ExitCode> {
    match task {
        Ship::Package { allow_dirty } => package::run(allow_dirty),
        Ship::Msrv { versions } => checks::msrv(&versions),
        Ship::Semver => checks::semver(),
        Ship::Features => checks::features(),
        Ship::Deny { offline } => checks::deny(offline),
        Ship::Docs => checks::docs(),
        Ship::Neighbours { name } => neighbours::run(name.as_deref()),
        Ship::Portable => portable::run(),
        Ship::Compat { old, cycles } => compat::run(old, cycles),
        Ship::Dist { target, check } => dist::run(target.as_deref(), check),
        Ship::Image => image::run(),
        Ship::Release { tag, rehearse } => release::run(&tag, rehearse),
    }
}
