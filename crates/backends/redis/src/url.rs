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

use syncguard_core::tls::TlsFiles;
use syncguard_core::url_options::{UrlOptions, decode};
use syncguard_core::{LockError, Result};

use crate::builder::{Address, RedisBuilder, Topology};

pub(crate) fn parse(url: &str) -> Result<RedisBuilder> {
    let (scheme, rest) = url.split_once(':').ok_or_else(unknown_scheme)?;
    let scheme = scheme.to_ascii_lowercase().replace("valkeys", "rediss").replace("valkey", "redis");
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    if rest.contains('#') {
        return Err(LockError::invalid("a redis url takes no fragment")
            .with_hint("certificates are always checked; trust your own authority with ?tls_ca=FILE; write # as %23"));
    }
    let (place, given) = UrlOptions::parse("redis", rest)?;
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
    let mut builder = if kind == "unix" { socket(place)? } else { network(place, kind)? };
    builder.tls = tls.then(TlsFiles::new);
    apply(&mut builder, given)?;
    builder.validate()?;
    builder.names()?;
    Ok(builder)
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

fn apply(builder: &mut RedisBuilder, mut given: UrlOptions) -> Result<()> {
    for (old, new) in [("ca", "tls_ca"), ("cert", "tls_cert"), ("key", "tls_key")] {
        given.refuse_renamed(old, new)?;
    }
    take(&mut builder.prefix, given.take_text("prefix"));
    take(&mut builder.timeout, given.take_duration("timeout")?);
    take(&mut builder.connect_timeout, given.take_duration("connect_timeout")?);
    take(&mut builder.connections, given.take_number("connections")?);
    take(&mut builder.wake, given.take_bool("wake")?);
    take(&mut builder.cleanup_in_is_locked, given.take_bool("cleanup_in_is_locked")?);
    take(&mut builder.fence_floor, given.take_word("fence_floor", &[("clock", true), ("none", false)])?);
    let (wait, within) = (given.take_number("wait_replicas")?, given.take_duration("wait_timeout")?);
    let files = (given.take_path("tls_ca"), given.take_path("tls_cert"), given.take_path("tls_key"));
    let tls_required = given.take_word("tls", &[("required", true), ("optional", false)])?.unwrap_or(false);
    builder.login.user = given.take_text("user").or(builder.login.user.take());
    builder.login.password = given.take_text("password").or(builder.login.password.take());
    if let Some(database) = given.take_text("db") {
        builder.login.database = parse_database(&database)?;
    }
    builder.sentinel_login.user = given.take_text("sentinel_user");
    builder.sentinel_login.password = given.take_text("sentinel_password");
    given.finish()?;
    builder.require_tls = tls_required;
    apply_tls(builder, files)?;
    apply_replicas(builder, wait, within)
}

fn take<T>(setting: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *setting = given;
    }
}

type Files = (Option<PathBuf>, Option<PathBuf>, Option<PathBuf>);

fn apply_tls(builder: &mut RedisBuilder, (ca, cert, key): Files) -> Result<()> {
    let names_files = ca.is_some() || cert.is_some() || key.is_some();
    match &mut builder.tls {
        Some(tls) => {
            tls.roots = ca;
            tls.client = match (cert, key) {
                (None, None) => None,
                (Some(cert), Some(key)) => Some((cert, key)),
                _ => return Err(LockError::invalid("`tls_cert` and `tls_key` go together")),
            };
            Ok(())
        }
        None if names_files => {
            Err(LockError::invalid("certificates are named but the url is not for TLS").with_hint("use rediss://"))
        }
        None => Ok(()),
    }
}

fn apply_replicas(builder: &mut RedisBuilder, count: Option<u32>, within: Option<Duration>) -> Result<()> {
    match (count, within) {
        (Some(count), within) => {
            let timeout = within.unwrap_or(Duration::from_millis(500));
            *builder = builder.clone().wait_replicas(count, timeout);
            Ok(())
        }
        (None, Some(_)) => Err(LockError::invalid("`wait_timeout` needs `wait_replicas`")),
        (None, None) => Ok(()),
    }
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
            parse("redis://me:p%40ss@[::1]:7000/3?prefix=app%3A&timeout=2s&connect_timeout=300ms&wake=off").unwrap();
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
        let cluster = parse("rediss+cluster://a:1,b:2?tls_ca=/x.pem&tls_cert=/c&tls_key=/k").unwrap();
        assert_eq!(cluster.topology, Topology::Cluster(vec![tcp("a", 1), tcp("b", 2)]));
        let tls = cluster.tls.unwrap();
        assert_eq!(tls.roots, Some("/x.pem".into()));
        assert_eq!(tls.client, Some(("/c".into(), "/k".into())));
    }

    #[test]
    fn valkey_stands_for_redis_everywhere() {
        let read = |url: &str| {
            let builder = parse(url).unwrap();
            (format!("{builder:?}"), builder.topology, builder.tls.is_some(), builder.login.password)
        };
        for redis in [
            "redis://:pw@h:1/2?prefix=app",
            "rediss://:pw@h",
            "redis+unix:///run/r.sock?db=2",
            "redis+cluster://:pw@a:1,b:2",
            "rediss+cluster://a:1?tls_ca=/x.pem",
            "redis+sentinel://:pw@a,b:5/main/4",
            "rediss+sentinel://a/main",
        ] {
            assert_eq!(read(&redis.replacen("redis", "valkey", 1)), read(redis), "{redis}");
        }
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
            "redis://:s3cret@h?timeout=0s",
            "redis://:s3cret@h?timeout=5",
            "redis://:s3cret@h?fence_floor=yes",
            "redis://:s3cret@h?wake=maybe",
            "redis://:s3cret@h?connections=0",
            "redis://:s3cret@h?wait_timeout=1s",
            "redis://:s3cret@h?wait_replicas=1&wait_timeout=9s",
            "redis://:s3cret@h?tls_ca=/x",
            "rediss://:s3cret@h?ca=/x",
            "redis://:s3cret@h?tls=required",
            "rediss://:s3cret@h?tls_cert=/x",
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
        assert!(error.hint().unwrap().contains("prefix, timeout"), "{:?}", error.hint());
        let renamed = parse("rediss://h?ca=/x").unwrap_err();
        assert!(format!("{renamed} {:?}", renamed.hint()).contains("tls_ca"), "{renamed:?}");
    }
}
