//! Which backend does a URL mean, and how may it be shown?
//!
//! Only the scheme is read here: each backend parses its own options, so that an unknown option is refused by the one
//! that knows the others. [`RedactedUrl`] is the only form of a URL that may be printed.

use std::fmt;

use syncguard_core::{LockError, Result};

/// The storages that a URL can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scheme {
    /// `memory:`, this process alone.
    Memory,
    /// `sqlite:PATH`, all processes of this machine.
    Sqlite,
    /// `redis://`, `rediss://`, `redis+unix://`, `redis+cluster://`, `redis+sentinel://`.
    Redis,
    /// `postgres://`, `postgresql://`.
    Postgres,
    /// `firestore://PROJECT`.
    Firestore,
}

/// Every scheme that [`open`](crate::open) knows, for messages.
pub const KNOWN_SCHEMES: &str = "memory:, sqlite:PATH, redis://, rediss://, redis+unix://, redis+cluster://, \
                                 rediss+cluster://, redis+sentinel://, rediss+sentinel://, postgres://, firestore://";

impl Scheme {
    /// Reads the scheme of a URL.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) for a text without a scheme or with an unknown one; the
    /// message lists the known ones and repeats nothing of the rest of the URL.
    ///
    /// ```
    /// use syncguard::Scheme;
    ///
    /// assert_eq!(Scheme::of("sqlite:/tmp/locks.db")?, Scheme::Sqlite);
    /// assert!(Scheme::of("http://127.0.0.1").is_err());
    /// # Ok::<(), syncguard::LockError>(())
    /// ```
    pub fn of(url: &str) -> Result<Self> {
        let Some((scheme, _)) = url.split_once(':') else {
            return Err(LockError::invalid("the backend URL has no scheme")
                .with_hint(format!("write one of {KNOWN_SCHEMES}; a file is sqlite:PATH")));
        };
        match scheme.to_ascii_lowercase().as_str() {
            "memory" => Ok(Self::Memory),
            "sqlite" => Ok(Self::Sqlite),
            "redis" | "rediss" | "unix" | "redis+unix" | "redis+cluster" | "rediss+cluster" | "redis+sentinel"
            | "rediss+sentinel" | "valkey" | "valkeys" | "valkey+unix" | "valkey+cluster" | "valkeys+cluster"
            | "valkey+sentinel" | "valkeys+sentinel" => Ok(Self::Redis),
            "postgres" | "postgresql" => Ok(Self::Postgres),
            "firestore" => Ok(Self::Firestore),
            _ => Err(LockError::invalid("the backend URL has an unknown scheme")
                .with_hint(format!("the known ones are {KNOWN_SCHEMES}"))),
        }
    }

    /// Returns whether only processes of this machine can see the locks.
    pub const fn is_local(self) -> bool {
        matches!(self, Self::Memory | Self::Sqlite)
    }

    /// Returns the cargo feature that compiles this backend in; none for the one that is always there.
    pub const fn feature(self) -> Option<&'static str> {
        match self {
            Self::Memory => None,
            Self::Sqlite => Some("sqlite"),
            Self::Redis => Some("redis"),
            Self::Postgres => Some("postgres"),
            Self::Firestore => Some("firestore"),
        }
    }
}

/// A backend URL as it may be printed: the password and every option that could hold a secret are `***`.
///
/// ```
/// use syncguard::RedactedUrl;
///
/// let shown = RedactedUrl::new("redis://app:hunter2@cache:6379/0?prefix=jobs").to_string();
/// assert_eq!(shown, "redis://app:***@cache:6379/0?prefix=jobs");
/// ```
#[derive(Clone, Copy)]
pub struct RedactedUrl<'a>(&'a str);

// What is listed here is shown; a name that somebody adds later is hidden until somebody decides otherwise.
const OPEN_OPTIONS: [&str; 16] = [
    "prefix",
    "table",
    "fence_table",
    "collection",
    "fence_collection",
    "sslmode",
    "synchronous",
    "cleanup",
    "fence_floor",
    "host",
    "port",
    "application_name",
    "cleanup_in_is_locked",
    "auto_create_tables",
    "tls",
    "require_tls",
];

impl<'a> RedactedUrl<'a> {
    /// Wraps a URL for printing.
    pub const fn new(url: &'a str) -> Self {
        Self(url)
    }

    /// Returns whether the URL carries a password, in front of its host or among its options.
    pub fn has_password(self) -> bool {
        let (before_query, query) = self.0.split_once('?').unwrap_or((self.0, ""));
        let in_front = userinfo_and_rest(before_query)
            .is_some_and(|(_, user, _)| user.split_once(':').is_some_and(|(_, password)| !password.is_empty()));
        let as_option = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            // An option may be a whole URL with a password of its own.
            (name.ends_with("password") && !value.is_empty()) || value.contains('@')
        };
        in_front || query.split('&').any(as_option)
    }
}

/// Splits `scheme://USER@REST`. The *last* `@` counts: a password with an unescaped `@` or `/` must not slip into the
/// rest.
fn userinfo_and_rest(url: &str) -> Option<(&str, &str, &str)> {
    let (scheme, after) = url.split_once("://")?;
    let (user, rest) = after.rsplit_once('@')?;
    Some((scheme, user, rest))
}

impl fmt::Display for RedactedUrl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A password with an unescaped `?` or `#` moves the rest of itself behind it; then nothing after the scheme is
        // safe.
        if self.0.rfind('@') > self.0.find(['?', '#']) && self.0.contains(['?', '#']) {
            let scheme = self.0.split(':').next().unwrap_or_default();
            return write!(f, "{scheme}:***");
        }
        let (url, query) = match self.0.split_once('?') {
            Some((url, query)) => (url, Some(query)),
            None => (self.0, None),
        };
        match userinfo_and_rest(url) {
            Some((scheme, user, rest)) => {
                let name = user.split_once(':').map_or(user, |(name, _)| name);
                write!(f, "{scheme}://{name}")?;
                if user.contains(':') {
                    f.write_str(":***")?;
                }
                write!(f, "@{rest}")?;
            }
            None => f.write_str(url)?,
        }
        let Some(query) = query else { return Ok(()) };
        for (index, pair) in query.split('&').enumerate() {
            f.write_str(if index == 0 { "?" } else { "&" })?;
            match pair.split_once('=') {
                Some((name, value)) if OPEN_OPTIONS.contains(&name) => write!(f, "{name}={value}")?,
                Some((name, _)) => write!(f, "{name}=***")?,
                None => f.write_str("***")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for RedactedUrl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_form_of_a_password_is_shown() {
        for url in [
            "redis://:CANARY@h/0",
            "redis://u:CANARY@h:1",
            "redis://u:p@CANARY@h",
            "redis://u:p/CANARY@h/0",
            "redis://u:p?CANARY@h/0",
            "redis://u:p#CANARY@h/0",
            "postgres://u:p%40CANARY@h/db?sslmode=require",
            "postgres://h/db?password=CANARY",
            "postgres://h/db?sslmode=require&sslpassword=CANARY",
            "postgres://h/db?CANARY",
            "postgres://h/db?wake_url=postgres://u:CANARY@h/db",
            "rediss+sentinel://:CANARY@a:1,b:2/main?sentinel_password=CANARY",
        ] {
            let shown = format!("{} {:?}", RedactedUrl::new(url), RedactedUrl::new(url));
            assert!(!shown.contains("CANARY"), "{url} was shown as {shown}");
        }
    }

    #[test]
    fn what_is_no_secret_stays_readable() {
        for url in ["memory:", "sqlite:/var/lib/x/locks.db", "redis://h:6379/2?prefix=a", "postgres://u@h/db?table=t"] {
            assert_eq!(RedactedUrl::new(url).to_string(), url);
        }
        assert!(RedactedUrl::new("redis://:x@h").has_password());
        assert!(RedactedUrl::new("postgres://h/d?password=x").has_password());
        assert!(RedactedUrl::new("redis+sentinel://h/m?sentinel_password=x").has_password());
        assert!(RedactedUrl::new("postgres://h/d?wake_url=postgres://u:x@h/d").has_password());
        assert!(!RedactedUrl::new("redis://u@h").has_password());
        assert!(!RedactedUrl::new("sqlite:a@b:c").has_password());
    }

    #[test]
    fn a_wrong_scheme_lists_the_known_ones_and_repeats_nothing() {
        for url in ["", "locks.db", "CANARY", "http://u:CANARY@h", "CANARY:x"] {
            let error = Scheme::of(url).expect_err("refused");
            let text = format!("{error} {error:?}");
            assert!(!text.contains("CANARY"), "{text}");
            assert!(error.hint().is_some_and(|hint| hint.contains("sqlite:PATH")), "{text}");
        }
    }
}
