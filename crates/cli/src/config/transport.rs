//! Is the way to the backend encrypted where others could listen?

use syncguard::{RedactedUrl, Scheme};

use super::Backend;
use crate::exit::Failure;
use crate::output::Output;

/// Plaintext beyond this machine is common on private networks, so it is a warning; with `--require-tls` it is refused.
pub(super) fn check(backend: &Backend, require_tls: bool, output: Output) -> Result<(), Failure> {
    if !is_plaintext_to_another_host(&backend.url) {
        return Ok(());
    }
    let what = format!("the connection to {} is not encrypted", RedactedUrl::new(&backend.url));
    let hint = match backend.scheme {
        Scheme::Postgres => "add ?sslmode=verify-full to the URL",
        _ => "use rediss:// (or rediss+cluster://, rediss+sentinel://)",
    };
    if require_tls {
        return Err(Failure::config(format!("{what}, and --require-tls is given")).hint(hint));
    }
    if RedactedUrl::new(&backend.url).has_password() {
        output.warn(&format!("{what}: its password travels in the clear"), Some(hint));
    }
    Ok(())
}

fn is_plaintext_to_another_host(url: &str) -> bool {
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let encrypted = match scheme.to_ascii_lowercase().as_str() {
        "redis" | "redis+cluster" | "redis+sentinel" => query.split('&').any(|pair| pair == "tls=required"),
        "postgres" | "postgresql" => {
            query.split('&').any(|pair| matches!(pair, "sslmode=require" | "sslmode=verify-ca" | "sslmode=verify-full"))
        }
        _ => true,
    };
    let authority = rest.trim_start_matches('/').rsplit('@').next().unwrap_or("");
    let hosts = authority.split('/').next().unwrap_or("");
    let socket = query.split('&').any(|pair| pair.starts_with("host=/") || pair.starts_with("host=%2F"));
    !encrypted && !socket && hosts.split(',').any(|host| !is_loopback(host))
}

fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or(""),
        None => host.split(':').next().unwrap_or(""),
    };
    // An empty host is the driver's default: this machine.
    name.is_empty()
        || name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
        || name.starts_with("%2F")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plaintext_counts_only_beyond_this_machine() {
        for url in [
            "redis://127.0.0.1:6379",
            "redis://localhost/0",
            "redis://[::1]:6379",
            "redis://",
            "rediss://cache.example",
            "redis+unix:///run/redis.sock",
            "postgres:///db?host=/run/postgresql",
            "postgres://db.example/x?sslmode=verify-full",
            "firestore://project",
            "sqlite:/x",
            "memory:",
        ] {
            assert!(!is_plaintext_to_another_host(url), "{url}");
        }
        for url in [
            "redis://cache.example",
            "redis://:pw@10.0.0.1:6379/0",
            "redis+cluster://127.0.0.1:1,10.0.0.1:2",
            "postgres://db/x",
        ] {
            assert!(is_plaintext_to_another_host(url), "{url}");
        }
    }
}
