//! Which file does a `sqlite:` URL name, and with which settings?
//!
//! An option that is not known is an error that names the known ones: a misspelt `synchronus` must not silently mean
//! the default.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use syncguard_core::url_options::{UrlOptions, decode_bytes};
use syncguard_core::{LockError, Result};

use crate::builder::{SqliteBuilder, Synchronous};

impl SqliteBuilder {
    /// Reads `sqlite:PATH?synchronous=full|normal&mode=600|660&cleanup_in_is_locked=true|false`. In the path, `%xx`
    /// stands for a byte.
    ///
    /// ```
    /// use syncguard_sqlite::SqliteBuilder;
    ///
    /// assert!(SqliteBuilder::from_url("sqlite:/var/lib/app/locks.db?synchronous=normal").is_ok());
    /// let error = SqliteBuilder::from_url("sqlite:locks.db?sync=off").unwrap_err();
    /// assert_eq!(error.to_string(), "`sync` is not an option of a sqlite URL");
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](syncguard_core::ErrorCode::InvalidArgument) for another scheme, no path, an unknown option
    /// or value.
    pub fn from_url(url: &str) -> Result<Self> {
        let (address, mut options) = UrlOptions::parse("sqlite", url)?;
        let path = address.strip_prefix("sqlite:").ok_or_else(|| LockError::invalid("the url is not a sqlite: url"))?;
        let mut builder = Self::new(&path_of(path)?);
        let words = [("full", Synchronous::Full), ("normal", Synchronous::Normal)];
        if let Some(synchronous) = options.take_word("synchronous", &words)? {
            builder = builder.synchronous(synchronous);
        }
        if let Some(mode) = options.take_word("mode", &[("600", 0o600), ("660", 0o660)])? {
            builder = builder.mode(mode);
        }
        if let Some(cleanup) = options.take_bool("cleanup_in_is_locked")? {
            builder = builder.cleanup_in_is_locked(cleanup);
        }
        options.finish()?;
        Ok(builder)
    }
}

fn path_of(text: &str) -> Result<PathBuf> {
    // `sqlite:///abs` is what habit writes; `sqlite://host/path` would name another machine.
    let text = match text.strip_prefix("//") {
        None => text,
        Some(absolute) if absolute.starts_with('/') => absolute,
        Some(_) => {
            return Err(LockError::invalid("a sqlite: url has no host")
                .with_hint("write sqlite:PATH, or sqlite:///PATH for an absolute path"));
        }
    };
    if text.is_empty() {
        return Err(LockError::invalid("the sqlite: url names no file").with_hint("write sqlite:PATH"));
    }
    let path = decode_bytes(text)?;
    if path.contains(&0) {
        return Err(LockError::invalid("the path of a sqlite: url holds a zero byte"));
    }
    Ok(PathBuf::from(OsString::from_vec(path)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn urls_are_read() {
        for (url, path) in [
            ("sqlite:locks.db", "locks.db"),
            ("sqlite:/var/lib/locks.db", "/var/lib/locks.db"),
            ("sqlite:///var/lib/locks.db", "/var/lib/locks.db"),
            ("sqlite:a%3fb%25.db?cleanup_in_is_locked=true", "a?b%.db"),
        ] {
            assert_eq!(SqliteBuilder::from_url(url).unwrap().path, Path::new(path), "{url}");
        }
        let builder = SqliteBuilder::from_url("sqlite:x?synchronous=normal&cleanup_in_is_locked=true").unwrap();
        assert_eq!(builder.synchronous, Synchronous::Normal);
        assert!(builder.cleanup_in_is_locked);
        assert_eq!(builder.mode, None);
        assert_eq!(SqliteBuilder::from_url("sqlite:x?mode=660").unwrap().mode, Some(0o660));
        assert_eq!(SqliteBuilder::from_url("sqlite:x").unwrap().synchronous, Synchronous::Normal);
        assert_eq!(SqliteBuilder::from_url("sqlite:x?synchronous=full").unwrap().synchronous, Synchronous::Full);
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        for (url, word) in [
            ("redis://x", "sqlite:"),
            ("sqlite:", "no file"),
            ("sqlite:?cleanup_in_is_locked=true", "no file"),
            ("sqlite://host/x", "no host"),
            ("sqlite:x?cleanup=on", "`cleanup`"),
            ("sqlite:x?synchronous=off", "full, normal"),
            ("sqlite:x?cleanup_in_is_locked", "true, false"),
            ("sqlite:x?mode=777", "600, 660"),
            ("sqlite:a%zz", "hexadecimal digits"),
            ("sqlite:a%00", "zero byte"),
        ] {
            let error = SqliteBuilder::from_url(url).unwrap_err();
            assert_eq!(error.code(), syncguard_core::ErrorCode::InvalidArgument);
            assert!(error.to_string().contains(word), "{url}: {error}");
        }
    }
}
