//! Which servers does an address mean?

use syncguard_core::{LockError, Result};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

const DEFAULT_PORT: u16 = 5432;

/// `host`, `host:port`, `[::1]:port`, the folder of a Unix socket, or several of them with commas between.
pub(crate) fn parse(address: &str) -> Result<Vec<(Host, u16)>> {
    address.split(',').map(parse_one).collect()
}

fn parse_one(text: &str) -> Result<(Host, u16)> {
    let bad = || {
        LockError::invalid("the address of postgres is malformed")
            .with_hint("write host, host:port, [::1]:port, or the folder of a Unix socket")
    };
    // Elsewhere the slash makes it malformed, as the hint says.
    #[cfg(unix)]
    if text.starts_with('/') {
        return Ok((Host::Unix(text.into()), DEFAULT_PORT));
    }
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(bad)?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':').ok_or_else(bad)?) })
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = port.map_or(Ok(DEFAULT_PORT), str::parse).map_err(|_| bad())?;
    // What a URL would have: nobody may take `user@host` for a host, and a password is not repeated.
    if host.is_empty() || port == 0 || host.contains(|c: char| c.is_whitespace() || "@/?".contains(c)) {
        return Err(bad());
    }
    Ok((Host::Tcp(host.to_owned()), port))
}

/// The hosts of a URL or of the environment, each with its port.
pub(crate) fn of(config: &Config) -> Result<Vec<(Host, u16)>> {
    let ports = config.get_ports();
    if ports.len() > 1 && ports.len() != config.get_hosts().len() {
        return Err(LockError::invalid("there are more or fewer ports than hosts"));
    }
    let port_of = |index: usize| ports.get(index).or_else(|| ports.first()).copied().unwrap_or(DEFAULT_PORT);
    Ok(config.get_hosts().iter().enumerate().map(|(index, host)| (host.clone(), port_of(index))).collect())
}

/// How a host is written in a password file.
pub(crate) fn name(host: &Host) -> &str {
    match host {
        Host::Tcp(name) => name,
        #[cfg(unix)]
        Host::Unix(_) => "localhost",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn hosts_ports_and_sockets_are_read() {
        let tcp = |name: &str| Host::Tcp(name.to_owned());
        assert_eq!(parse("h").unwrap(), [(tcp("h"), 5432)]);
        assert_eq!(parse("h:1,[::1]:2,[::1]").unwrap(), [(tcp("h"), 1), (tcp("::1"), 2), (tcp("::1"), 5432)]);
        assert_eq!(parse("/run/postgresql").unwrap(), [(Host::Unix("/run/postgresql".into()), 5432)]);
        for bad in ["", "h,", "h:", "h:0", "h:x", "h:99999", "[::1", "[::1]x", "u:canary@h", "u@h", "h/db", "a b"] {
            let error = parse(bad).unwrap_err();
            assert!(!format!("{error:?}").contains("canary"), "{error:?}");
        }
    }
}
