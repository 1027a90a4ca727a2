//! What does a URL say?
//!
//! `postgres://user:password@host:port,host:port/database?option=value`. The driver reads what is before the question
//! mark; every option is read here, in libpq's spelling where libpq has it.

use std::net::IpAddr;
use std::time::Duration;

use syncguard_core::url_options::{UrlOptions, duration};
use syncguard_core::{LockError, Result};
use tokio_postgres::Config;
use tokio_postgres::config::{ChannelBinding, Host, LoadBalanceHosts};

use crate::builder::{PostgresBuilder, Prepared};
use crate::connect::TargetSessionAttrs;
use crate::logins::Logins;
use crate::tls::SslMode;

/// Reads the settings that a URL makes, on top of the defaults.
pub(crate) fn parse(url: &str) -> Result<PostgresBuilder> {
    let (address, mut given) = UrlOptions::parse("postgres", url)?;
    if !address.starts_with("postgres://") && !address.starts_with("postgresql://") {
        return Err(LockError::invalid("the URL does not start with postgres:// or postgresql://"));
    }
    for (old, new) in [("operation_timeout", "timeout"), ("listen", "wake"), ("listen_url", "wake_url")] {
        given.refuse_renamed(old, new)?;
    }
    let mut builder = PostgresBuilder::default();
    read_address(&mut builder.config, address)?;
    read_ours(&mut builder, &mut given)?;
    read_tls(&mut builder, &mut given)?;
    read_login(&mut builder.config, &mut given)?;
    read_sockets(&mut builder.config, &mut given)?;
    let (hosts, ports) = (given.take_text("host"), given.take_text("port"));
    given.finish()?;
    add_hosts(&mut builder.config, hosts.as_deref(), ports.as_deref())?;
    builder.validate()?;
    Ok(builder)
}

pub(crate) const CHANNEL_BINDING: [(&str, ChannelBinding); 3] =
    [("disable", ChannelBinding::Disable), ("prefer", ChannelBinding::Prefer), ("require", ChannelBinding::Require)];

fn read_ours(builder: &mut PostgresBuilder, given: &mut UrlOptions) -> Result<()> {
    set(&mut builder.table, given.take_text("table"));
    set(&mut builder.fence_table, given.take_text("fence_table"));
    set(&mut builder.auto_create_tables, given.take_bool("auto_create_tables")?);
    set(&mut builder.cleanup_in_is_locked, given.take_bool("cleanup_in_is_locked")?);
    set(&mut builder.fence_floor, given.take_word("fence_floor", &[("none", false), ("clock", true)])?);
    let prepared = [("auto", Prepared::Auto), ("always", Prepared::Always), ("never", Prepared::Never)];
    set(&mut builder.prepared, given.take_word("prepared", &prepared)?);
    set(&mut builder.pool_size, given.take_number("pool_size")?);
    set(&mut builder.connect_timeout, libpq_duration(given, "connect_timeout", Duration::from_secs)?);
    set(&mut builder.lock_timeout, given.take_duration("lock_timeout")?);
    set(&mut builder.timeout, given.take_duration("timeout")?);
    set(&mut builder.wake, given.take_bool("wake")?);
    builder.wake_url = given.take_text("wake_url");
    builder.passfile = given.take_path("passfile");
    builder.target_session_attrs = given.take_word("target_session_attrs", &TargetSessionAttrs::WORDS)?;
    Ok(())
}

fn read_tls(builder: &mut PostgresBuilder, given: &mut UrlOptions) -> Result<()> {
    set(&mut builder.require_tls, given.take_bool("require_tls")?);
    builder.require_auth = given.take_text("require_auth").map(|list| Logins::parse(&list)).transpose()?;
    builder.tls.mode = given.take_word("sslmode", &SslMode::WORDS)?;
    builder.tls.root = given.take_path("sslrootcert");
    builder.tls.cert = given.take_path("sslcert");
    builder.tls.key = given.take_path("sslkey");
    Ok(())
}

fn read_login(config: &mut Config, given: &mut UrlOptions) -> Result<()> {
    if let Some(user) = given.take_text("user") {
        config.user(user);
    }
    if let Some(database) = given.take_text("dbname") {
        config.dbname(database);
    }
    if let Some(options) = given.take_text("options") {
        config.options(options);
    }
    if let Some(name) = given.take_text("application_name") {
        config.application_name(name);
    }
    if let Some(password) = given.take_text("password") {
        config.password(password);
    }
    if let Some(binding) = given.take_word("channel_binding", &CHANNEL_BINDING)? {
        config.channel_binding(binding);
    }
    Ok(())
}

fn read_sockets(config: &mut Config, given: &mut UrlOptions) -> Result<()> {
    if let Some(limit) = libpq_duration(given, "tcp_user_timeout", Duration::from_millis)? {
        config.tcp_user_timeout(limit);
    }
    if let Some(yes) = given.take_bool("keepalives")? {
        config.keepalives(yes);
    }
    if let Some(idle) = libpq_duration(given, "keepalives_idle", Duration::from_secs)? {
        config.keepalives_idle(idle);
    }
    if let Some(interval) = libpq_duration(given, "keepalives_interval", Duration::from_secs)? {
        config.keepalives_interval(interval);
    }
    if let Some(retries) = given.take_number("keepalives_retries")? {
        config.keepalives_retries(retries);
    }
    let balance = [("disable", LoadBalanceHosts::Disable), ("random", LoadBalanceHosts::Random)];
    if let Some(balance) = given.take_word("load_balance_hosts", &balance)? {
        config.load_balance_hosts(balance);
    }
    for address in given.take_text("hostaddr").iter().flat_map(|list| list.split(',')) {
        let address: IpAddr = address.parse().map_err(|_| LockError::invalid("`hostaddr` is not an IP address"))?;
        config.hostaddr(address);
    }
    Ok(())
}

/// What stands before the question mark: login, hosts and database.
fn read_address(config: &mut Config, address: &str) -> Result<()> {
    let read: Config = address.parse().map_err(|_| {
        LockError::invalid("the URL of postgres cannot be read").with_hint(
            "postgres://user@host:5432/database?option=value; write @ : / ? in a password as %40 %3A %2F %3F",
        )
    })?;
    for host in read.get_hosts() {
        match host {
            Host::Tcp(name) => config.host(name),
            #[cfg(unix)]
            Host::Unix(folder) => config.host_path(folder),
        };
    }
    for port in read.get_ports() {
        config.port(*port);
    }
    if let Some(user) = read.get_user() {
        config.user(user);
    }
    if let Some(password) = read.get_password() {
        config.password(password);
    }
    if let Some(database) = read.get_dbname() {
        config.dbname(database);
    }
    Ok(())
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
    let (hosts, ports, addresses) = (config.get_hosts().len(), config.get_ports().len(), config.get_hostaddrs().len());
    if (ports > 1 && ports != hosts) || (addresses > 0 && addresses != hosts) {
        return Err(LockError::invalid("the URL names more or fewer ports or addresses than hosts"));
    }
    Ok(())
}

/// A duration with its unit, or libpq's bare number.
fn libpq_duration(given: &mut UrlOptions, name: &'static str, bare: fn(u64) -> Duration) -> Result<Option<Duration>> {
    let Some(text) = given.take_text(name) else { return Ok(None) };
    match text.parse() {
        Ok(number) => Ok(Some(bare(number))),
        Err(_) => duration(name, &text).map(Some),
    }
}

fn set<T>(setting: &mut T, given: Option<T>) {
    if let Some(value) = given {
        *setting = value;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_read() {
        let read = parse(
            "postgres://me:p%40ss@a:1,b:2/db?table=x.locks&fence_table=f&pool_size=3&sslmode=disable&prepared=never\
             &lock_timeout=250ms&timeout=3s&target_session_attrs=read-write&application_name=app&connect_timeout=7\
             &fence_floor=clock&wake=off&cleanup_in_is_locked=true&auto_create_tables=off&require_tls=on",
        )
        .unwrap();
        assert_eq!((read.table.as_str(), read.fence_table.as_str(), read.pool_size), ("x.locks", "f", 3));
        assert_eq!((read.lock_timeout, read.timeout), (Duration::from_millis(250), Duration::from_secs(3)));
        // The one bare number: libpq counts it in seconds.
        assert_eq!(read.connect_timeout, Duration::from_secs(7));
        assert_eq!((read.config.get_hosts().len(), read.config.get_ports()), (2, &[1, 2][..]));
        assert_eq!((read.config.get_user(), read.config.get_dbname()), (Some("me"), Some("db")));
        assert_eq!(read.config.get_password(), Some(&b"p@ss"[..]));
        assert_eq!(read.config.get_application_name(), Some("app"));
        assert_eq!(read.target_session_attrs, Some(TargetSessionAttrs::ReadWrite));
        assert!(read.fence_floor && !read.wake && read.cleanup_in_is_locked && !read.auto_create_tables);
        assert!(read.require_tls && read.tls.mode == Some(SslMode::Disable) && read.prepared == Prepared::Never);
    }

    #[test]
    fn unknown_and_old_options_name_the_right_one() {
        let error = parse("postgres://h/db?sslmod=disable").unwrap_err();
        assert!(error.to_string().contains("sslmod"), "{error}");
        assert!(error.hint().unwrap().starts_with("did you mean `sslmode`?"), "{error:?}");
        for (old, new) in
            [("operation_timeout=1s", "`timeout`"), ("listen=never", "`wake`"), ("listen_url=x", "`wake_url`")]
        {
            let error = parse(&format!("postgres://h/db?{old}")).unwrap_err();
            assert!(error.to_string().contains(new), "{error}");
        }
    }

    #[test]
    fn silence_on_a_socket_has_a_bound_unless_the_url_says_otherwise() {
        let read = parse("postgres://h/db").unwrap().config;
        let (idle, interval) = (read.get_keepalives_idle(), read.get_keepalives_interval().unwrap());
        assert!(idle + interval * read.get_keepalives_retries().unwrap() <= Duration::from_secs(15));
        assert!(read.get_keepalives() && *read.get_tcp_user_timeout().unwrap() <= Duration::from_secs(15));
        let read = parse("postgres://h/db?keepalives=0&keepalives_idle=60&tcp_user_timeout=90000").unwrap().config;
        assert!(!read.get_keepalives());
        assert_eq!(read.get_keepalives_idle(), Duration::from_secs(60));
        // libpq counts this one in milliseconds.
        assert_eq!(read.get_tcp_user_timeout(), Some(&Duration::from_secs(90)));
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
            "postgres://u:canary@h/db?timeout=0ms",
            "postgres://u:canary@h/db?fence_floor=moon",
            "postgres://u:canary@h/db?target_session_attrs=moon",
            "postgres://u:canary@h/db?table=%zz",
            "postgres://u:canary@/db?host=h1,h2,h3&port=1,2",
            "postgres://u:canary@h/db?host=other",
            "postgres://u:canary@/db?host=h&port=99999",
            "postgres://u:canary@h/db?hostaddr=moon",
            "postgres://u:canary@h/db?require_auth=moon",
            "postgres://u:can?ary=canary@h/db",
        ] {
            let error = parse(url).unwrap_err();
            assert_eq!(error.code(), syncguard_core::ErrorCode::InvalidArgument, "{url}");
            assert!(!format!("{error} {error:?}").contains("canary"), "{error:?}");
        }
    }
}
