//! What does a URL say?
//!
//! `postgres://user:password@host:port,host:port/database?option=value`. Options of SyncGuard are taken out here; those of the
//! driver are handed to it. An option that nobody knows is an error that names the known ones, because a misspelt `sslmode`
//! that is silently ignored is a hole.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use syncguard_core::{LockError, Result};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use crate::builder::{PostgresBuilder, Prepared};
use crate::connect::{Attributes, Seen, Target};
use crate::passfile;
use crate::tls::{SslMode, Tls};

const OURS: &[&str] = &[
    "table",
    "fence_table",
    "auto_create_tables",
    "cleanup_in_is_locked",
    "fence_floor",
    "prepared",
    "pool_size",
    "connect_timeout",
    "lock_timeout",
    "operation_timeout",
    "listen",
    "listen_url",
    "require_tls",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "passfile",
    "target_session_attrs",
];

const DRIVERS: &[&str] = &[
    "user",
    "password",
    "dbname",
    "options",
    "application_name",
    "host",
    "hostaddr",
    "port",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "channel_binding",
    "load_balance_hosts",
];

/// Reads a URL on top of the given choices, and what the environment adds.
pub(crate) fn read(mut options: PostgresBuilder, url: &str) -> Result<(PostgresBuilder, Target)> {
    read_environment(&mut options)?;
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    if !base.starts_with("postgres://") && !base.starts_with("postgresql://") {
        return Err(LockError::invalid("the URL does not start with postgres:// or postgresql://"));
    }
    let (mut for_driver, mut hosts, mut ports) = (Vec::new(), None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match name {
            "host" => hosts = Some(decode(value)?),
            "port" => ports = Some(decode(value)?),
            _ if DRIVERS.contains(&name) => for_driver.push(pair),
            _ => apply(&mut options, name, &decode(value)?)?,
        }
    }
    let mut config: Config = format!("{base}?{}", for_driver.join("&")).parse().map_err(|_| {
        LockError::invalid("the URL of postgres cannot be read")
            .with_hint("postgres://user@host:5432/database?option=value")
    })?;
    add_hosts(&mut config, hosts.as_deref(), ports.as_deref())?;
    fill_from_environment(&mut config)?;
    options.validate()?;
    let target = Target {
        passwords: passfile::passwords(&config, options.passfile.as_deref()),
        config,
        attributes: options.attributes,
        tls: Tls::new(&options.tls)?,
        require_tls: options.require_tls,
        connect_timeout: options.connect_timeout,
        seen: Arc::new(Seen::default()),
    };
    check_hosts(&target.config)?;
    Ok((options, target))
}

/// `host=a,b&port=1,2`, as libpq writes several hosts; the driver reads only one of each.
fn add_hosts(config: &mut Config, hosts: Option<&str>, ports: Option<&str>) -> Result<()> {
    if !config.get_hosts().is_empty() && (hosts.is_some() || ports.is_some()) {
        return Err(LockError::invalid("the URL names hosts or ports twice, before and after the question mark"));
    }
    for host in hosts.into_iter().flat_map(|hosts| hosts.split(',')) {
        config.host(host);
    }
    for port in ports.into_iter().flat_map(|ports| ports.split(',')) {
        config.port(port.parse().map_err(|_| LockError::invalid("`port` is not a port"))?);
    }
    Ok(())
}

fn check_hosts(config: &Config) -> Result<()> {
    let (hosts, ports, addresses) = (config.get_hosts().len(), config.get_ports().len(), config.get_hostaddrs().len());
    if hosts == 0 {
        return Err(LockError::invalid("the URL names no host"));
    }
    if (ports > 1 && ports != hosts) || (addresses > 0 && addresses != hosts) {
        return Err(LockError::invalid("the URL names more or fewer ports or addresses than hosts"));
    }
    Ok(())
}

fn apply(options: &mut PostgresBuilder, name: &str, value: &str) -> Result<()> {
    match name {
        "table" => value.clone_into(&mut options.table),
        "fence_table" => value.clone_into(&mut options.fence_table),
        "auto_create_tables" => options.auto_create_tables = yes_or_no(name, value)?,
        "cleanup_in_is_locked" => options.cleanup_in_is_locked = yes_or_no(name, value)?,
        "fence_floor" => options.clock_floored_fences = one_of(name, value, &[("none", false), ("clock", true)])?,
        "prepared" => options.prepared = one_of(name, value, &PREPARED)?,
        "pool_size" => {
            options.pool_size = value.parse().map_err(|_| LockError::invalid("pool_size is not a number"))?;
        }
        "connect_timeout" => options.connect_timeout = seconds_or_duration(name, value)?,
        "lock_timeout" => options.lock_timeout = duration(name, value)?,
        "operation_timeout" => options.operation_timeout = duration(name, value)?,
        "listen" => options.listen = one_of(name, value, &[("auto", true), ("never", false)])?,
        "listen_url" => options.listen_url = Some(value.to_owned()),
        "require_tls" => options.require_tls = yes_or_no(name, value)?,
        "sslmode" => options.tls.mode = SslMode::parse(value)?,
        "sslrootcert" => options.tls.root = Some(PathBuf::from(value)),
        "sslcert" => options.tls.cert = Some(PathBuf::from(value)),
        "sslkey" => options.tls.key = Some(PathBuf::from(value)),
        "passfile" => options.passfile = Some(PathBuf::from(value)),
        "target_session_attrs" => options.attributes = Attributes::parse(value)?,
        _ => return Err(unknown(name)),
    }
    Ok(())
}

const PREPARED: [(&str, Prepared); 3] =
    [("auto", Prepared::Auto), ("always", Prepared::Always), ("never", Prepared::Never)];

fn unknown(name: &str) -> LockError {
    // A name is shown because it is what the reader must correct; one with odd characters may be a piece of a password.
    let named = if name.len() <= 40 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        format!("postgres has no option `{name}`")
    } else {
        "the URL of postgres has an option that cannot be read".to_owned()
    };
    let known: Vec<&str> = OURS.iter().chain(DRIVERS).copied().collect();
    LockError::invalid(named).with_hint(format!("known options: {}", known.join(", ")))
}

fn yes_or_no(name: &str, value: &str) -> Result<bool> {
    one_of(name, value, &[("true", true), ("false", false), ("on", true), ("off", false), ("1", true), ("0", false)])
}

fn one_of<T: Copy>(name: &str, value: &str, words: &[(&str, T)]) -> Result<T> {
    words.iter().find(|(word, _)| *word == value).map(|(_, meaning)| *meaning).ok_or_else(|| {
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        LockError::invalid(format!("`{name}` is not one of {}", known.join(", ")))
    })
}

/// `500ms`, `2s`, `1m`.
fn duration(name: &str, value: &str) -> Result<Duration> {
    let units = [("ms", 1), ("s", 1_000), ("m", 60_000)];
    units
        .iter()
        .find_map(|(unit, millis)| {
            let number: u64 = value.strip_suffix(unit)?.parse().ok()?;
            Some(Duration::from_millis(number.checked_mul(*millis)?))
        })
        .ok_or_else(|| LockError::invalid(format!("`{name}` is not a duration like 500ms, 2s or 1m")))
}

/// libpq counts this one in bare seconds.
fn seconds_or_duration(name: &str, value: &str) -> Result<Duration> {
    match value.parse() {
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
        Err(_) => duration(name, value),
    }
}

fn decode(value: &str) -> Result<String> {
    let broken = || LockError::invalid("the URL has a percent sign that is not followed by two hexadecimal digits");
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (digits, tail) = rest.split_at_checked(2).ok_or_else(broken)?;
        let digits = std::str::from_utf8(digits).map_err(|_| broken())?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| broken())?);
        rest = tail;
    }
    String::from_utf8(bytes).map_err(|_| LockError::invalid("the URL is not UTF-8"))
}

/// What libpq reads where the URL is silent. The URL is read afterwards and wins.
fn read_environment(options: &mut PostgresBuilder) -> Result<()> {
    let tls = &mut options.tls;
    if let Ok(mode) = std::env::var("PGSSLMODE") {
        tls.mode = SslMode::parse(&mode)?;
    }
    let file = |name| std::env::var_os(name).map(PathBuf::from);
    tls.root = file("PGSSLROOTCERT").or(tls.root.take());
    tls.cert = file("PGSSLCERT").or(tls.cert.take());
    tls.key = file("PGSSLKEY").or(tls.key.take());
    if let Ok(attributes) = std::env::var("PGTARGETSESSIONATTRS") {
        options.attributes = Attributes::parse(&attributes)?;
    }
    Ok(())
}

fn fill_from_environment(config: &mut Config) -> Result<()> {
    if config.get_hosts().is_empty() {
        let hosts = std::env::var("PGHOST").unwrap_or_else(|_| "localhost".to_owned());
        for host in hosts.split(',') {
            config.host(host);
        }
    }
    if config.get_ports().is_empty()
        && let Ok(ports) = std::env::var("PGPORT")
    {
        for port in ports.split(',') {
            config.port(port.parse().map_err(|_| LockError::invalid("PGPORT is not a port"))?);
        }
    }
    if config.get_user().is_none()
        && let Ok(user) = std::env::var("PGUSER")
    {
        config.user(user);
    }
    if config.get_dbname().is_none()
        && let Ok(database) = std::env::var("PGDATABASE")
    {
        config.dbname(database);
    }
    if config.get_password().is_none()
        && let Ok(password) = std::env::var("PGPASSWORD")
    {
        config.password(password);
    }
    Ok(())
}

/// How a host is written in a password file.
pub(crate) fn host_name(host: &Host) -> String {
    match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(_) => "localhost".to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<(PostgresBuilder, Target)> {
        read(PostgresBuilder::default(), url)
    }

    #[test]
    fn options_of_both_sides_are_read_and_the_rest_refused() {
        let (options, target) = parse(
            "postgres://me:p%40ss@a:1,b:2/db?table=x.locks&fence_table=f&pool_size=3&sslmode=disable&prepared=never\
             &lock_timeout=250ms&target_session_attrs=read-write&application_name=app&connect_timeout=7",
        )
        .unwrap();
        assert_eq!((options.table.as_str(), options.pool_size), ("x.locks", 3));
        assert_eq!(options.lock_timeout, Duration::from_millis(250));
        assert_eq!(target.connect_timeout, Duration::from_secs(7));
        assert_eq!(target.config.get_hosts().len(), 2);
        assert_eq!(target.config.get_ports(), [1, 2]);
        assert_eq!(target.config.get_password(), Some(&b"p@ss"[..]));
        assert_eq!(target.config.get_application_name(), Some("app"));
        assert_eq!(target.attributes, Attributes::ReadWrite);

        let error = parse("postgres://h/db?sslmod=disable").unwrap_err();
        assert!(error.to_string().contains("sslmod"), "{error}");
        assert!(error.hint().unwrap().contains("sslmode"));
    }

    #[test]
    fn bad_urls_are_refused_without_repeating_a_secret() {
        for url in [
            "http://h/db",
            "postgres://u:canary@h:99999/db",
            "postgres://u:canary@h/db?pool_size=0",
            "postgres://u:canary@h/db?pool_size=x",
            "postgres://u:canary@h/db?sslmode=bogus",
            "postgres://u:canary@h/db?prepared=maybe",
            "postgres://u:canary@h/db?lock_timeout=1",
            "postgres://u:canary@h/db?fence_floor=moon",
            "postgres://u:canary@h/db?table=%zz",
            "postgres://u:canary@/db?host=h1,h2,h3&port=1,2",
            "postgres://u:canary@h/db?host=other",
            "postgres://u:canary@/db?host=h&port=99999",
            "postgres://u:can?ary=canary@h/db",
        ] {
            let error = parse(url).unwrap_err();
            assert_eq!(error.code(), syncguard_core::ErrorCode::InvalidArgument, "{url}");
            assert!(!format!("{error} {error:?}").contains("canary"), "{error:?}");
        }
    }

    #[test]
    fn sockets_and_hosts_may_stand_in_the_options() {
        let (_, target) = parse("postgres:///db?host=/tmp&port=5433&sslmode=disable").unwrap();
        assert!(matches!(target.config.get_hosts(), [Host::Unix(_)]));
        let (_, target) = parse("postgres:///db?host=a,b&port=1,2&user=u&sslmode=disable").unwrap();
        assert_eq!(target.config.get_hosts().len(), 2);
    }

    #[test]
    fn nothing_about_a_target_shows_its_password() {
        let (options, target) = parse("postgres://u:canary@h/db?listen_url=postgres://u:canary@h/db").unwrap();
        assert!(!format!("{options:?} {target:?}").contains("canary"));
    }
}
