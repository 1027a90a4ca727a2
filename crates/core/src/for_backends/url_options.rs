//! What do the options of a backend's URL say?
//!
//! One kit for all backends, so that a percent sign, a yes, a duration and a spelling mistake mean the same everywhere.
//! A backend takes out what it knows and then calls [`finish`](UrlOptions::finish), which refuses what is left: a
//! misspelt `sslmode` that is silently ignored is a hole. No value is ever repeated in an error, because any of them
//! may be a secret.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::{LockError, Result};

/// The options of one URL, taken out one by one.
///
/// ```
/// use std::time::Duration;
/// use syncguard_core::url_options::UrlOptions;
///
/// let (address, mut options) = UrlOptions::parse("redis", "redis://h/0?timeout=500ms&wake=off")?;
/// assert_eq!(address, "redis://h/0");
/// assert_eq!(options.take_duration("timeout")?, Some(Duration::from_millis(500)));
/// assert_eq!(options.take_bool("wake")?, Some(false));
/// assert_eq!(options.take_text("prefix"), None);
/// options.finish()?;
///
/// let (_, mut options) = UrlOptions::parse("redis", "redis://h?prefx=a")?;
/// options.take_text("prefix");
/// let error = options.finish().unwrap_err();
/// assert_eq!(error.to_string(), "`prefx` is not an option of a redis URL");
/// assert_eq!(error.hint(), Some("did you mean `prefix`? known options: prefix"));
/// # Ok::<(), syncguard_core::LockError>(())
/// ```
#[must_use = "options that nobody takes are not checked: call `finish`"]
pub struct UrlOptions {
    backend: &'static str,
    /// Decoded, in the order of the URL; each name once. What was taken is gone.
    given: Vec<(String, String)>,
    /// Every name that was asked for: what an error calls known.
    known: Vec<&'static str>,
}

// Values may be secrets, and names may be the rest of a password with a question mark in it.
impl std::fmt::Debug for UrlOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UrlOptions({}, {} left)", self.backend, self.given.len())
    }
}

impl UrlOptions {
    /// Splits a URL at its question mark, and returns what is before it and the options after it.
    ///
    /// # Errors
    /// `InvalidArgument` for an option that is given twice or has a broken `%xx`.
    pub fn parse<'a>(backend: &'static str, url: &'a str) -> Result<(&'a str, Self)> {
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        let mut given: Vec<(String, String)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if given.iter().any(|(known, _)| known == name) {
                let name = shown(name).unwrap_or("an option");
                return Err(LockError::invalid(format!("{name} is given twice in the {backend} URL")));
            }
            given.push((name.to_owned(), decode(value)?));
        }
        Ok((address, Self { backend, given, known: Vec::new() }))
    }

    /// Takes the text of an option.
    pub fn take_text(&mut self, name: &'static str) -> Option<String> {
        self.known.push(name);
        let index = self.given.iter().position(|(given, _)| given == name)?;
        Some(self.given.remove(index).1)
    }

    /// Takes an option that names a file or a folder.
    pub fn take_path(&mut self, name: &'static str) -> Option<PathBuf> {
        self.take_text(name).map(PathBuf::from)
    }

    /// Takes a yes or no: `true`, `on`, `1` or `false`, `off`, `0`.
    ///
    /// # Errors
    /// `InvalidArgument` for another word.
    pub fn take_bool(&mut self, name: &'static str) -> Result<Option<bool>> {
        const WORDS: [(&str, bool); 6] =
            [("true", true), ("false", false), ("on", true), ("off", false), ("1", true), ("0", false)];
        self.take_word(name, &WORDS)
    }

    /// Takes one of the words, and returns what it stands for.
    ///
    /// # Errors
    /// `InvalidArgument` that lists the words.
    pub fn take_word<T: Copy>(&mut self, name: &'static str, words: &[(&str, T)]) -> Result<Option<T>> {
        let Some(text) = self.take_text(name) else { return Ok(None) };
        let meant = words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning);
        meant.map(Some).ok_or_else(|| {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            LockError::invalid(format!("`{name}` is not one of {}", words.join(", ")))
        })
    }

    /// Takes a duration with its unit; see [`duration`].
    ///
    /// # Errors
    /// `InvalidArgument` for anything else.
    pub fn take_duration(&mut self, name: &'static str) -> Result<Option<Duration>> {
        self.take_text(name).map(|text| duration(name, &text)).transpose()
    }

    /// Takes a whole number.
    ///
    /// # Errors
    /// `InvalidArgument` for anything else.
    pub fn take_number<T: FromStr>(&mut self, name: &'static str) -> Result<Option<T>> {
        let number = self.take_text(name).map(|text| text.parse());
        number.transpose().map_err(|_| LockError::invalid(format!("`{name}` is not a number in its range")))
    }

    /// Refuses an option that has another name now, and says which.
    ///
    /// # Errors
    /// `InvalidArgument` if the old name is given.
    pub fn refuse_renamed(&mut self, old: &'static str, new: &'static str) -> Result<()> {
        if self.given.iter().any(|(given, _)| given == old) {
            return Err(LockError::invalid(format!("the option `{old}` of a {} URL is called `{new}`", self.backend)));
        }
        Ok(())
    }

    /// Refuses the options that nobody took.
    ///
    /// # Errors
    /// `InvalidArgument` that names an option nobody asked for, the nearest known one, and all known ones.
    pub fn finish(self) -> Result<()> {
        let Some((name, _)) = self.given.first() else { return Ok(()) };
        let known = self.known.join(", ");
        let Some(name) = shown(name) else {
            return Err(LockError::invalid(format!("the {} URL has an option that cannot be read", self.backend))
                .with_hint(format!("write %3F and %26 for ? and & in a password; known options: {known}")));
        };
        let nearest = self.known.iter().map(|known| (distance(name, known), known)).min();
        let hint = match nearest {
            Some((far, nearest)) if far <= 3 && far < name.len() => {
                format!("did you mean `{nearest}`? known options: {known}")
            }
            _ => format!("known options: {known}"),
        };
        Err(LockError::invalid(format!("`{name}` is not an option of a {} URL", self.backend)).with_hint(hint))
    }
}

/// Reads a duration with its unit: `500ms`, `2s`, `1m`, `1h`.
///
/// # Errors
/// `InvalidArgument` for a bare number, because libraries disagree on its unit, and for anything else.
pub fn duration(name: &str, text: &str) -> Result<Duration> {
    let split = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => 0,
    };
    match digits.parse::<u64>().ok().and_then(|number| number.checked_mul(millis)) {
        Some(total) if millis > 0 => Ok(Duration::from_millis(total)),
        _ => Err(LockError::invalid(format!("`{name}` is not a duration with its unit"))
            .with_hint("write it as 500ms, 2s, 1m or 1h")),
    }
}

/// Replaces every `%xx` by the byte it stands for.
///
/// # Errors
/// `InvalidArgument` for a percent sign without two hexadecimal digits, and for what is not UTF-8.
pub fn decode(text: &str) -> Result<String> {
    String::from_utf8(decode_bytes(text)?).map_err(|_| LockError::invalid("the URL is not UTF-8"))
}

/// Does what [`decode`] does, for what need not be UTF-8, such as the path of a file.
///
/// # Errors
/// `InvalidArgument` for a percent sign without two hexadecimal digits.
pub fn decode_bytes(text: &str) -> Result<Vec<u8>> {
    let broken = || {
        LockError::invalid("the URL has a percent sign that is not followed by two hexadecimal digits")
            .with_hint("write % itself as %25")
    };
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, tail @ ..] = rest else { return Err(broken()) };
        let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        bytes.push(digit(high).ok_or_else(broken)? * 16 + digit(low).ok_or_else(broken)?);
        rest = tail;
    }
    Ok(bytes)
}

/// A name is shown because it is what the reader must correct; one with odd characters may be a piece of a password.
fn shown(name: &str) -> Option<&str> {
    let readable = name.len() <= 40 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    (readable && !name.is_empty()).then_some(name)
}

/// How many letters must be added, removed or replaced to get from one word to the other.
fn distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (line, have) in from.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, want) in to.bytes().enumerate() {
            let replaced = diagonal + usize::from(have != want);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn options(query: &str) -> UrlOptions {
        UrlOptions::parse("test", &format!("test://h?{query}")).unwrap().1
    }

    #[test]
    fn durations_have_a_unit() {
        for (text, millis) in [("500ms", 500), ("0ms", 0), ("2s", 2_000), ("1m", 60_000), ("1h", 3_600_000)] {
            assert_eq!(duration("x", text).unwrap(), Duration::from_millis(millis), "{text}");
        }
        for text in ["", "5", "ms", "1.5s", "-1s", "1 s", "1d", "99999999999999999999s", "18446744073709551615h"] {
            let error = duration("x", text).unwrap_err();
            assert!(error.to_string().starts_with("`x` "), "{text}: {error}");
        }
    }

    #[test]
    fn values_are_decoded_and_each_name_counts_once() {
        let mut given = options("a=p%40ss&b=%e2%82%ac&c&");
        assert_eq!(given.take_text("a").unwrap(), "p@ss");
        assert_eq!(given.take_text("b").unwrap(), "€");
        assert_eq!(given.take_text("c").unwrap(), "");
        given.finish().unwrap();
        for query in ["a=%", "a=%4", "a=%zz", "a=%ff", "a=1&a=2"] {
            assert!(UrlOptions::parse("test", &format!("test://h?{query}")).is_err(), "{query}");
        }
        assert_eq!(decode_bytes("%ff%00").unwrap(), [255, 0]);
    }

    #[test]
    fn words_numbers_and_switches_are_read_or_refused_by_name() {
        let mut given = options("a=on&b=0&c=clock&d=42&e=maybe&f=x&g=-1");
        assert_eq!((given.take_bool("a").unwrap(), given.take_bool("b").unwrap()), (Some(true), Some(false)));
        assert_eq!(given.take_word("c", &[("none", 1), ("clock", 2)]).unwrap(), Some(2));
        assert_eq!(given.take_number::<u16>("d").unwrap(), Some(42));
        assert_eq!(given.take_number::<u16>("absent").unwrap(), None);
        for error in [
            given.take_bool("e").unwrap_err(),
            given.take_word("f", &[("none", 1), ("clock", 2)]).unwrap_err(),
            given.take_number::<u16>("g").map(drop).unwrap_err(),
        ] {
            assert!(error.to_string().starts_with('`'), "{error}");
        }
    }

    #[test]
    fn what_nobody_asked_for_is_refused_with_the_nearest_name() {
        for (query, hint) in [
            ("sslmod=x", "did you mean `sslmode`? known options: sslmode, timeout"),
            ("timeuot=x", "did you mean `timeout`? known options: sslmode, timeout"),
            ("zebra=x", "known options: sslmode, timeout"),
            ("x=1", "known options: sslmode, timeout"),
        ] {
            let mut given = options(query);
            drop((given.take_text("sslmode"), given.take_text("timeout")));
            assert_eq!(given.finish().unwrap_err().hint(), Some(hint), "{query}");
        }
    }

    #[test]
    fn an_old_name_is_refused_with_the_new_one() {
        let error = options("operation_timeout=1s").refuse_renamed("operation_timeout", "timeout").unwrap_err();
        assert_eq!(error.to_string(), "the option `operation_timeout` of a test URL is called `timeout`");
        assert!(options("timeout=1s").refuse_renamed("operation_timeout", "timeout").is_ok());
    }

    #[test]
    fn neither_an_error_nor_the_debug_form_repeats_a_value_or_an_odd_name() {
        for query in ["a=canary", "canary@host=1", "a=canary&a=canary", "a=%zcanary", "=canary"] {
            let error = match UrlOptions::parse("test", &format!("test://h?{query}")) {
                Ok((_, given)) => {
                    assert!(!format!("{given:?}").contains("canary"));
                    given.finish().unwrap_err()
                }
                Err(error) => error,
            };
            assert!(!format!("{error:?}").contains("canary"), "{error:?}");
        }
        assert!(duration("x", "canary").is_err_and(|error| !format!("{error:?}").contains("canary")));
    }
}
