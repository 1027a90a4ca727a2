//! How does a command that knows nothing of fences write under one?
//!
//! Its sessions with PostgreSQL start with the fence as a setting, which libpq takes from `PGOPTIONS`, and the triggers of
//! protected tables compare it. Before the command starts, the mark is raised and sessions of older holders are ended, so
//! that it does not wait for one that was stopped in the middle.

use syncguard::Guard;

use super::environment::PG_OPTIONS;
use crate::args::SecretUrl;
use crate::config::Backend;
use crate::exit::Failure;
use crate::output::Output;

/// The database whose sessions are fenced.
pub(crate) struct Fencing {
    #[cfg(feature = "postgres")]
    url: String,
    #[cfg(feature = "postgres")]
    require_tls: bool,
}

#[cfg(not(feature = "postgres"))]
impl Fencing {
    pub(crate) fn new(_: SecretUrl, _: &Backend) -> Result<Self, Failure> {
        Err(crate::commands::fence::without_postgres())
    }

    #[allow(clippy::unused_async, clippy::unused_self, reason = "as with PostgreSQL")]
    pub(crate) async fn take_over(&self, _: &Guard, _: Output) -> Result<(), Failure> {
        Err(crate::commands::fence::without_postgres())
    }

    pub(crate) fn variables(_: &Guard) -> Vec<(String, String)> {
        vec![(PG_OPTIONS.to_owned(), String::new())]
    }
}

#[cfg(feature = "postgres")]
impl Fencing {
    /// Chooses the database, and checks its URL.
    pub(crate) fn new(given: SecretUrl, backend: &Backend) -> Result<Self, Failure> {
        let variable = || std::env::var("DATABASE_URL").ok().filter(|url| !url.is_empty());
        let of_backend = || (backend.scheme == syncguard::Scheme::Postgres).then(|| backend.url.clone());
        let url = Some(given.0).filter(|url| !url.is_empty()).or_else(variable).or_else(of_backend);
        let url = url.ok_or_else(|| {
            Failure::usage("--fence-postgres: which database?")
                .hint("--fence-postgres=postgres://…, or the variable DATABASE_URL, or a backend that is PostgreSQL")
        })?;
        let require_tls = backend.options.requires_tls();
        crate::commands::fence::postgres::builder(&url, require_tls).map(drop)?;
        Ok(Self { url, require_tls })
    }

    /// Refuses older holders from now on, ends their sessions, and makes sure that the settings of a session arrive.
    pub(crate) async fn take_over(&self, lock: &Guard, output: Output) -> Result<(), Failure> {
        use crate::commands::fence::{postgres, refused};

        let builder = postgres::builder(&self.url, self.require_tls)?.session_options(&options(lock).to_string());
        let client = postgres::open(builder).await.map_err(with_way_out)?;
        let setting = client.query_one("SELECT current_setting('syncguard.fence', true)", &[]).await;
        let setting = setting.ok().and_then(|row| row.try_get::<_, Option<String>>(0).ok().flatten());
        if setting != Some(lock.fence().get().to_string()) {
            return Err(with_way_out(Failure::config("the settings of a session do not arrive at PostgreSQL")));
        }
        let ended = syncguard::fenced::postgres::take_over(&client, lock.key(), lock.fence()).await;
        for session in ended.map_err(|error| refused(&error))? {
            let who = format!("{} ({})", session.role.unwrap_or_default(), session.application.unwrap_or_default());
            let who = crate::output::escape(&who);
            output.note(&format!(
                "ended a session of a stale holder: pid {} of {who}, fence {}",
                session.pid, session.fence
            ));
        }
        Ok(())
    }

    /// What the command is told, for libpq and for drivers that read less of its environment.
    pub(crate) fn variables(lock: &Guard) -> Vec<(String, String)> {
        let options = options(lock).to_string();
        let given = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
        let all = given("PGOPTIONS").map_or_else(|| options.clone(), |given| format!("{given} {options}"));
        let name = given("PGAPPNAME").unwrap_or_else(|| format!("syncguard fence {}", lock.fence()));
        let variables = [("PGOPTIONS", all), ("PGAPPNAME", name), (PG_OPTIONS, options)];
        variables.map(|(name, value)| (name.to_owned(), value)).into()
    }
}

#[cfg(feature = "postgres")]
fn options(lock: &Guard) -> syncguard::fenced::postgres::PostgresOptions {
    syncguard::fenced::postgres::PostgresOptions::new(lock.key(), lock.fence())
}

/// A pooler refuses the settings of a session, or drops them, as it was told to.
#[cfg(feature = "postgres")]
fn with_way_out(failure: Failure) -> Failure {
    if failure.hint.is_some() {
        return failure;
    }
    failure.hint("a pooler such as PgBouncer does not pass them on: name PostgreSQL itself, here and to the command")
}
