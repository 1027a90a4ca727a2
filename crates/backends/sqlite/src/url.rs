//! Which file does a `sqlite:` URL name, and with which settings?
//!
//! An option that is not known is an error that names the known ones: a misspelt `synchronus` must not silently mean the
//! default.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use syncguard_core::{LockError, Result};

use crate::builder::{SqliteBuilder, Synchronous};

impl SqliteBuilder {
    /// Reads `sqlite:PATH?synchronous=full|normal&mode=600|660&cleanup_in_is_locked=true|false`. In the path, `%xx` stands for a byte.
    ///
    /// ```
    /// use syncguard_sqlite::SqliteBuilder;
    ///
    /// assert!(SqliteBuilder::from_url("sqlite:/var/lib/app/locks.db?synchronous=normal").is_ok());
    /// let error = SqliteBuilder::from_url("sqlite:locks.db?sync=off").unwrap_err();
    /// assert_eq!(error.to_string(), "`sync` is not an option of sqlite: urls; known are synchronous, mode, cleanup_in_is_locked");
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](syncguard_core::ErrorCode::InvalidArgument) for another scheme, no path, an unknown option or value.
    pub fn from_url(url: &str) -> Result<Self> {
        let rest = url.strip_prefix("sqlite:").ok_or_else(|| LockError::invalid("the url is not a sqlite: url"))?;
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut builder = Self::new(&path_of(path)?);
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            builder = builder.set(name, value)?;
        }
        Ok(builder)
    }

    fn set(self, name: &str, value: &str) -> Result<Self> {
        match (name, value) {
            ("synchronous", "full") => Ok(self.synchronous(Synchronous::Full)),
            ("synchronous", "normal") => Ok(self.synchronous(Synchronous::Normal)),
            ("synchronous", _) => Err(LockError::invalid("`synchronous` is full or normal")),
            ("mode", "600") => Ok(self.mode(0o600)),
            ("mode", "660") => Ok(self.mode(0o660)),
            ("mode", _) => Err(LockError::invalid("`mode` is 600 or 660")),
            ("cleanup_in_is_locked", "true") => Ok(self.cleanup_in_is_locked(true)),
            ("cleanup_in_is_locked", "false") => Ok(self.cleanup_in_is_locked(false)),
            ("cleanup_in_is_locked", _) => Err(LockError::invalid("`cleanup_in_is_locked` is true or false")),
            _ => Err(LockError::invalid(format!(
                "`{}` is not an option of sqlite: urls; known are synchronous, mode, cleanup_in_is_locked",
                name.chars().take(40).collect::<String>().escape_debug()
            ))),
        }
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
    Ok(PathBuf::from(OsString::from_vec(unescape(text)?)))
}

fn unescape(text: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        match (digit(rest.next()), digit(rest.next())) {
            (Some(high), Some(low)) if high + low > 0 => bytes.push(u8::try_from(high * 16 + low).unwrap_or(b'?')),
            _ => {
                return Err(LockError::invalid("`%` in the path of a sqlite: url is not followed by two hex digits")
                    .with_hint("write %25 for a percent sign"));
            }
        }
    }
    Ok(bytes)
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
        assert_eq!(SqliteBuilder::from_url("sqlite:x").unwrap().synchronous, Synchronous::Full);
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        for (url, word) in [
            ("redis://x", "sqlite:"),
            ("sqlite:", "no file"),
            ("sqlite:?cleanup_in_is_locked=true", "no file"),
            ("sqlite://host/x", "no host"),
            ("sqlite:x?cleanup=on", "`cleanup`"),
            ("sqlite:x?synchronous=off", "full or normal"),
            ("sqlite:x?cleanup_in_is_locked", "true or false"),
            ("sqlite:x?mode=777", "600 or 660"),
            ("sqlite:a%zz", "hex digits"),
            ("sqlite:a%00", "hex digits"),
        ] {
            let error = SqliteBuilder::from_url(url).unwrap_err();
            assert_eq!(error.code(), syncguard_core::ErrorCode::InvalidArgument);
            assert!(error.to_string().contains(word), "{url}: {error}");
        }
    }
}
