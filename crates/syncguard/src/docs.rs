//! The pages of the guide, as they are in the repository.
//!
//! Each page is a file of the package (in the repository a link to `docs/`), so that docs.rs shows it and its Rust
//! blocks are doctests. A page names its neighbours by file, for readers of the repository. `docs/links.md` stands
//! before each page and defines the same names as items; the first definition of a name counts.

macro_rules! page {
    ($(#[$attribute:meta])* $name:ident, $path:literal) => {
        $(#[$attribute])*
        #[doc = include_str!("../docs/links.md")]
        #[doc = ""]
        #[doc = include_str!($path)]
        pub mod $name {}
    };
}

page!(guide, "../docs/guide.md");
page!(cli, "../docs/cli.md");
page!(stuck_lock, "../docs/stuck-lock.md");
page!(fencing, "../docs/fencing.md");
page!(moving, "../docs/moving.md");
page!(errors, "../docs/errors.md");
page!(guarantees, "../docs/guarantees.md");
page!(write_a_backend, "../docs/write-a-backend.md");
page!(typescript, "../docs/typescript.md");
page!(compatibility, "../docs/compatibility.md");
page!(architecture, "../docs/architecture.md");
page!(design, "../docs/design.md");

/// One page per storage: options, guarantees, costs, rights and limits.
///
/// Their Rust blocks need servers and are not doctests; the tests of each backend run the same calls.
#[cfg(not(doctest))]
pub mod backends {
    page!(sqlite, "../docs/backends/sqlite.md");
    page!(redis, "../docs/backends/redis.md");
    page!(postgres, "../docs/backends/postgres.md");
    page!(firestore, "../docs/backends/firestore.md");
}

/// Everyday jobs, worked out. The Rust blocks are doctests, the rest is run by the tests of the command.
pub mod recipes {
    page!(axum, "../docs/recipes/axum.md");
    page!(tokio_job, "../docs/recipes/tokio-job.md");
    page!(sqlx, "../docs/recipes/sqlx.md");
    page!(cron, "../docs/recipes/cron.md");
    page!(systemd, "../docs/recipes/systemd.md");
    page!(github_actions, "../docs/recipes/github-actions.md");
    page!(kubernetes, "../docs/recipes/kubernetes.md");
    page!(docker_compose, "../docs/recipes/docker-compose.md");
}

/// The examples of the project's front page and of the package's.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../README.md")]
mod readme {}
