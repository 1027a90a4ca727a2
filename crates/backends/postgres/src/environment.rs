//! What does libpq's environment add where nobody said anything?

use std::env::{VarError, var, var_os};
use std::path::PathBuf;

use syncguard_core::{LockError, Result};
use tokio_postgres::config::ChannelBinding;

use crate::builder::PostgresBuilder;
use crate::connect::TargetSessionAttrs;
use crate::logins::Logins;
use crate::tls::SslMode;
use crate::url::CHANNEL_BINDING;

/// Fills in what is not set. What is set wins.
pub(crate) fn fill(settings: &mut PostgresBuilder) -> Result<()> {
    let tls = &mut settings.tls;
    let file = |name| var_os(name).map(PathBuf::from);
    tls.mode = tls.mode.or(word("PGSSLMODE", &SslMode::WORDS)?);
    tls.root = tls.root.take().or_else(|| file("PGSSLROOTCERT"));
    tls.cert = tls.cert.take().or_else(|| file("PGSSLCERT"));
    tls.key = tls.key.take().or_else(|| file("PGSSLKEY"));
    let attributes = word("PGTARGETSESSIONATTRS", &TargetSessionAttrs::WORDS)?;
    settings.target_session_attrs = settings.target_session_attrs.or(attributes);
    if let (None, Ok(list)) = (settings.require_auth, var("PGREQUIREAUTH")) {
        settings.require_auth = Some(Logins::parse(&list)?);
    }
    fill_address(settings)?;
    let config = &mut settings.config;
    // The driver does not tell its default from what was said; this way the stricter of both counts.
    if let (ChannelBinding::Prefer, Some(binding)) =
        (config.get_channel_binding(), word("PGCHANNELBINDING", &CHANNEL_BINDING)?)
    {
        config.channel_binding(binding);
    }
    if config.get_user().is_none()
        && let Ok(user) = var("PGUSER")
    {
        config.user(user);
    }
    if config.get_dbname().is_none()
        && let Ok(database) = var("PGDATABASE")
    {
        config.dbname(database);
    }
    if config.get_password().is_none()
        && let Ok(password) = var("PGPASSWORD")
    {
        config.password(password);
    }
    Ok(())
}

fn fill_address(settings: &mut PostgresBuilder) -> Result<()> {
    if settings.address.is_some() {
        return Ok(());
    }
    let config = &mut settings.config;
    if config.get_hosts().is_empty() {
        let hosts = var("PGHOST").unwrap_or_else(|_| "localhost".to_owned());
        for host in hosts.split(',') {
            config.host(host);
        }
    }
    if config.get_ports().is_empty()
        && let Ok(ports) = var("PGPORT")
    {
        for port in ports.split(',') {
            config.port(port.parse().map_err(|_| LockError::invalid("PGPORT is not a port"))?);
        }
    }
    Ok(())
}

fn word<T: Copy>(name: &str, words: &[(&str, T)]) -> Result<Option<T>> {
    let text = match var(name) {
        Ok(text) => text,
        Err(VarError::NotPresent) => return Ok(None),
        Err(VarError::NotUnicode(_)) => String::new(),
    };
    let known = words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning);
    known.map(Some).ok_or_else(|| {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        LockError::invalid(format!("{name} is not one of {}", words.join(", ")))
    })
}
