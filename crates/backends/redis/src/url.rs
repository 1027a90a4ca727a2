//! What does a Redis URL say?
//!
//! ```text
//! redis://[user[:password]@]host[:port][/database][?options]        rediss:// for TLS
//! redis+unix:///path/to/socket[?options]
//! redis+sentinel://[user[:password]@]host[:port],host…/master[/database][?options]      rediss+sentinel://
//! redis+cluster://[user[:password]@]host[:port],host…[?options]                         rediss+cluster://
//! ```
//!
//! Parsed here and not by a URL library, because none accepts several hosts. `valkey` may stand for `redis` everywhere.

use std::path::PathBuf;
use std::time::Duration;

use syncguard_core::{LockError, Result};

use crate::builder::{Address, RedisBuilder, TlsOptions, Topology};

const OPTIONS: &str = "prefix, timeout, connect_timeout, connections, wake, cleanup_in_is_locked, fence_floor, wait_replicas, \
                       wait_timeout, ca, cert, key, tls, user, password, db, sentinel_user, sentinel_password";

pub(crate) fn parse(url: &str) -> Result<RedisBuilder> {
    let (scheme, rest) = url.split_once(':').ok_or_else(unknown_scheme)?;
    let scheme = scheme.to_ascii_lowercase().replace("valkeys", "rediss").replace("valkey", "redis");
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    if rest.contains('#') {
        return Err(LockError::invalid("a redis url takes no fragment")
            .with_hint("certificates are always checked; trust your own authority with ?ca=FILE; write # as %23"));
    }
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (kind, tls) = match scheme.as_str() {
        "redis" => ("", false),
        "rediss" => ("", true),
        "unix" | "redis+unix" => ("unix", false),
        "redis+sentinel" => ("sentinel", false),
        "rediss+sentinel" => ("sentinel", true),
        "redis+cluster" => ("cluster", false),
        "rediss+cluster" => ("cluster", true),
        _ => return Err(unknown_scheme()),
    };
    let mut options = if kind == "unix" { socket(place)? } else { network(place, kind)? };
    options.tls = tls.then(TlsOptions::default);
    apply(&mut options, query)?;
    options.validate()?;
    options.names()?;
    Ok(options)
}

fn unknown_scheme() -> LockError {
    LockError::invalid("this is not a redis url").with_hint(
        "known are redis:// rediss:// redis+unix:// redis+sentinel:// rediss+sentinel:// redis+cluster:// rediss+cluster://",
    )
}

fn socket(place: &str) -> Result<RedisBuilder> {
    let path = decode(place)?;
    if !path.starts_with('/') {
        return Err(LockError::invalid("the path of the socket is not absolute")
            .with_hint("write redis+unix:///run/redis.sock"));
    }
    Ok(RedisBuilder::of(Topology::Single(Address::Unix(PathBuf::from(path)))))
}

fn network(place: &str, kind: &str) -> Result<RedisBuilder> {
    let (authority, path) = place.split_once('/').unwrap_or((place, ""));
    // A password may hold an unescaped @; a host cannot.
    let (login, hosts) = authority.rsplit_once('@').map_or((None, authority), |(login, hosts)| (Some(login), hosts));
    let port = if kind == "sentinel" { 26_379 } else { 6379 };
    let hosts = hosts.split(',').map(|host| address(host, port)).collect::<Result<Vec<_>>>()?;
    let path = path.trim_end_matches('/');
    let (topology, database) = match kind {
        "sentinel" => {
            let (master, database) = path.split_once('/').unwrap_or((path, ""));
            let master = decode(master)?;
            if master.is_empty() {
                return Err(LockError::invalid("the url names no master")
                    .with_hint("write redis+sentinel://host1,host2/master"));
            }
            (Topology::Sentinel { sentinels: hosts, master }, database)
        }
        "cluster" => (Topology::Cluster(hosts), path),
        _ => {
            let [host] = <[Address; 1]>::try_from(hosts).map_err(|_| {
                LockError::invalid("a single server has one host")
                    .with_hint("use redis+cluster:// or redis+sentinel:// for several")
            })?;
            (Topology::Single(host), path)
        }
    };
    let mut options = RedisBuilder::of(topology);
    options.login.database = parse_database(database)?;
    if kind == "cluster" && options.login.database != 0 {
        return Err(LockError::invalid("a cluster has database 0 only").with_hint("leave the number out"));
    }
    if let Some(login) = login {
        let (user, password) = login.split_once(':').map_or((login, None), |(user, password)| (user, Some(password)));
        options.login.user = (!user.is_empty()).then(|| decode(user)).transpose()?;
        options.login.password = password.map(decode).transpose()?;
    }
    Ok(options)
}

fn address(text: &str, default_port: u16) -> Result<Address> {
    let bad =
        || LockError::invalid("a host in the url is malformed").with_hint("write host:port, and IPv6 as [::1]:6379");
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(bad)?;
            (host, rest.strip_prefix(':').or(rest.is_empty().then_some("")).ok_or_else(bad)?)
        }
        None => text.split_once(':').unwrap_or((text, "")),
    };
    let port = if port.is_empty() { default_port } else { port.parse().map_err(|_| bad())? };
    let host = decode(host)?;
    if host.is_empty() || port == 0 || host.contains(char::is_whitespace) {
        return Err(bad());
    }
    Ok(Address::Tcp { host, port })
}

fn parse_database(text: &str) -> Result<i64> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse::<u16>().map(i64::from).map_err(|_| LockError::invalid("the database in the url is not a number"))
}

fn apply(options: &mut RedisBuilder, query: &str) -> Result<()> {
    let mut given = Given::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decode(value)?;
        set(options, &mut given, name, value)?;
    }
    given.finish(options)
}

/// Options that only make sense together.
#[derive(Default)]
struct Given {
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    tls_required: bool,
    wait_count: Option<u32>,
    wait_timeout: Option<Duration>,
}

fn set(options: &mut RedisBuilder, given: &mut Given, name: &str, value: String) -> Result<()> {
    match name {
        "prefix" => options.prefix = value,
        "timeout" => options.timeout = duration(name, &value)?,
        "connect_timeout" => options.connect_timeout = duration(name, &value)?,
        "connections" => options.connections = number(name, &value)?,
        "wake" => options.wake = switch(name, &value)?,
        "cleanup_in_is_locked" => options.cleanup_in_is_locked = switch(name, &value)?,
        "fence_floor" => options.fence_floor = word(name, &value, &[("clock", true), ("none", false)])?,
        "wait_replicas" => given.wait_count = Some(number(name, &value)?),
        "wait_timeout" => given.wait_timeout = Some(duration(name, &value)?),
        "ca" => given.ca = Some(value.into()),
        "cert" => given.cert = Some(value.into()),
        "key" => given.key = Some(value.into()),
        "tls" => given.tls_required = word(name, &value, &[("required", true), ("optional", false)])?,
        "user" => options.login.user = Some(value),
        "password" => options.login.password = Some(value),
        "db" => options.login.database = parse_database(&value)?,
        "sentinel_user" => options.sentinel_login.user = Some(value),
        "sentinel_password" => options.sentinel_login.password = Some(value),
        _ => {
            return Err(LockError::invalid(format!("unknown option `{}` in the redis url", shown(name)))
                .with_hint(format!("known are {OPTIONS}")));
        }
    }
    Ok(())
}

impl Given {
    fn finish(self, options: &mut RedisBuilder) -> Result<()> {
        let names_files = self.ca.is_some() || self.cert.is_some() || self.key.is_some();
        match &mut options.tls {
            Some(tls) => {
                tls.ca = self.ca;
                tls.client = match (self.cert, self.key) {
                    (None, None) => None,
                    (Some(cert), Some(key)) => Some((cert, key)),
                    _ => return Err(LockError::invalid("`cert` and `key` go together")),
                };
            }
            None if names_files => {
                return Err(
                    LockError::invalid("certificates are named but the url is not for TLS").with_hint("use rediss://")
                );
            }
            None if self.tls_required && !options.topology.is_local() => {
                return Err(LockError::invalid("tls is required, but the url is for plaintext to another host")
                    .with_hint("use rediss://"));
            }
            None => {}
        }
        if let Some(count) = self.wait_count {
            let timeout = self.wait_timeout.unwrap_or(Duration::from_millis(500));
            *options = options.clone().wait_replicas(count, timeout);
        } else if self.wait_timeout.is_some() {
            return Err(LockError::invalid("`wait_timeout` needs `wait_replicas`"));
        }
        Ok(())
    }
}

/// `500ms`, `2s`, `1m`; a bare number is milliseconds.
fn duration(name: &str, text: &str) -> Result<Duration> {
    let split = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let factor = match unit {
        "" | "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        _ => 0,
    };
    match digits.parse::<u64>() {
        Ok(count) if factor > 0 && count <= 86_400_000 => Ok(Duration::from_millis(count * factor)),
        _ => Err(malformed(name, "a duration such as 500ms or 2s")),
    }
}

fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T> {
    text.parse().map_err(|_| malformed(name, "a number"))
}

fn switch(name: &str, text: &str) -> Result<bool> {
    let words = [("true", true), ("on", true), ("1", true), ("false", false), ("off", false), ("0", false)];
    word(name, text, &words)
}

fn word(name: &str, text: &str, words: &[(&str, bool)]) -> Result<bool> {
    let known = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
    words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value).ok_or_else(|| malformed(name, &known()))
}

fn malformed(name: &str, expected: &str) -> LockError {
    LockError::invalid(format!("the option `{name}` of the redis url is malformed"))
        .with_hint(format!("expected: {expected}"))
}

/// A name that may be a mistyped secret is not repeated at length.
fn shown(name: &str) -> String {
    name.chars().filter(|character| character.is_ascii_alphanumeric() || "_-".contains(*character)).take(32).collect()
}

fn decode(text: &str) -> Result<String> {
    let bad = || LockError::invalid("a %-escape in the redis url is malformed").with_hint("write % itself as %25");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, tail @ ..] = rest else { return Err(bad()) };
        let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        bytes.push(digit(high).ok_or_else(bad)? * 16 + digit(low).ok_or_else(bad)?);
        rest = tail;
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.to_owned(), port }
    }

    #[test]
    fn a_single_server_with_everything() {
        let options =
            parse("redis://me:p%40ss@[::1]:7000/3?prefix=app%3A&timeout=2s&connect_timeout=300&wake=off").unwrap();
        assert_eq!(options.topology, Topology::Single(tcp("::1", 7000)));
        assert_eq!(options.login.user.as_deref(), Some("me"));
        assert_eq!(options.login.password.as_deref(), Some("p@ss"));
        assert_eq!(options.login.database, 3);
        assert_eq!(options.prefix, "app:");
        assert_eq!((options.timeout, options.connect_timeout), (Duration::from_secs(2), Duration::from_millis(300)));
        assert!(!options.wake && options.tls.is_none());
        assert!(!format!("{options:?}").contains("p@ss"));
    }

    #[test]
    fn the_four_arrangements() {
        assert_eq!(parse("redis://h").unwrap().topology, Topology::Single(tcp("h", 6379)));
        assert!(parse("rediss://h/").unwrap().tls.is_some());
        assert_eq!(parse("valkey://h:1").unwrap().topology, Topology::Single(tcp("h", 1)));
        let unix = parse("redis+unix:///run/r.sock?db=2&password=x").unwrap();
        assert_eq!(unix.topology, Topology::Single(Address::Unix("/run/r.sock".into())));
        assert_eq!((unix.login.database, unix.login.password.as_deref()), (2, Some("x")));
        let sentinel = parse("redis+sentinel://:pw@a,b:5/mymaster/4").unwrap();
        let sentinels = vec![tcp("a", 26_379), tcp("b", 5)];
        assert_eq!(sentinel.topology, Topology::Sentinel { sentinels, master: "mymaster".to_owned() });
        assert_eq!((sentinel.login.database, sentinel.login.password.as_deref()), (4, Some("pw")));
        let cluster = parse("rediss+cluster://a:1,b:2?ca=/x.pem&cert=/c&key=/k").unwrap();
        assert_eq!(cluster.topology, Topology::Cluster(vec![tcp("a", 1), tcp("b", 2)]));
        let tls = cluster.tls.unwrap();
        assert_eq!(tls.ca, Some("/x.pem".into()));
        assert_eq!(tls.client, Some(("/c".into(), "/k".into())));
    }

    #[test]
    fn replicas_and_fence_floor() {
        let options =
            parse("redis://h?wait_replicas=2&wait_timeout=250ms&fence_floor=clock&cleanup_in_is_locked=true").unwrap();
        let wait = options.wait_replicas.unwrap();
        assert_eq!((wait.count, wait.timeout), (2, Duration::from_millis(250)));
        assert!(options.fence_floor && options.cleanup_in_is_locked);
    }

    #[test]
    fn what_cannot_be_right_is_refused_without_repeating_the_password() {
        for bad in [
            "http://h",
            "redis:",
            "redis://",
            "redis://h:99999",
            "redis://h:0",
            "redis://h/x",
            "redis://h/99999",
            "redis://a,b",
            "redis://[::1",
            "redis://s3cret%zz@h",
            "redis://:s3cret@h?prefx=a",
            "redis://:s3cret@h?timeout=soon",
            "redis://:s3cret@h?timeout=0",
            "redis://:s3cret@h?fence_floor=yes",
            "redis://:s3cret@h?wake=maybe",
            "redis://:s3cret@h?connections=0",
            "redis://:s3cret@h?wait_timeout=1s",
            "redis://:s3cret@h?wait_replicas=1&wait_timeout=9s",
            "redis://:s3cret@h?ca=/x",
            "redis://:s3cret@h?tls=required",
            "rediss://:s3cret@h?cert=/x",
            "rediss://:s3cret@h#insecure",
            "redis://:s3cret@h?prefix=a:fence:a",
            "redis+unix://relative",
            "redis+sentinel://h",
            "redis+cluster://h/1",
        ] {
            let error = parse(bad).expect_err(bad);
            let text = format!("{error} {error:?} {:?}", error.hint());
            assert!(!text.contains("s3cret"), "{text}");
            assert_eq!(error.code(), syncguard_core::ErrorCode::InvalidArgument, "{bad}");
        }
        assert!(parse("redis://127.0.0.1?tls=required").is_ok());
    }

    #[test]
    fn an_unknown_option_is_named_and_so_are_the_known_ones() {
        let error = parse("redis://h?prefx=a").unwrap_err();
        assert!(error.to_string().contains("prefx"), "{error}");
        assert!(error.hint().unwrap().contains("prefix, timeout"));
    }
}
