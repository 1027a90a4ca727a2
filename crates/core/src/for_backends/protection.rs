//! Who could read along on the way to a server, or take its place?

use std::fmt;
use std::net::IpAddr;

/// How the way to a server is protected, from the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Way {
    /// Nothing leaves this machine: a file, a Unix socket, or the loopback.
    Local,
    /// TLS, and the certificate proves who the server is.
    Verified,
    /// Whoever answers is believed, with TLS or without.
    Unverified,
    /// Plaintext.
    Plain,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "on this machine",
            Self::Verified => "TLS, certificate verified",
            Self::Unverified => "certificate not verified",
            Self::Plain => "plaintext",
        })
    }
}

/// What the settings of a backend tell before anything is dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Protection {
    /// The worst of the ways that the settings allow.
    pub way: Way,
    /// Whether a password would be sent on it, wherever it comes from.
    pub password: bool,
}

impl Protection {
    /// What a way and a password make.
    pub const fn new(way: Way, password: bool) -> Self {
        Self { way, password }
    }
}

/// Returns whether a host is this machine without anybody being asked: `localhost`, or a loopback address. Any other name
/// may lead anywhere.
pub fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cannot_lead_elsewhere_is_this_machine() {
        for host in ["localhost", "LocalHost", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["", "0.0.0.0", "::", "127.1", "10.0.0.1", "localhost.example", "127.0.0.1.example", "[::1]"] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
