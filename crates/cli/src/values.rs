//! Is this value one we can act on?
//!
//! Parsers of single arguments. Each refusal says what was expected; clap adds the flag's name, and the exit code is
//! 64.

use std::ffi::{OsStr, OsString};
use std::num::NonZeroUsize;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use rustix::process::Signal;
use syncguard::{BootTime, Clock, Fence, Key, Label, LockError, SystemClock, Ttl};

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Until then.
    AtMost(Duration),
    /// Without limit.
    Forever,
}

impl Wait {
    /// What is left of it.
    pub(crate) fn less(self, since: BootTime) -> Self {
        match self {
            Self::AtMost(limit) => Self::AtMost(limit.saturating_sub(SystemClock.boot().since(since))),
            Self::Forever => Self::Forever,
        }
    }
}

/// What becomes of processes that the command leaves running when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Background {
    /// The lock lasts until they have ended.
    Wait,
    /// They are stopped as after a loss.
    Kill,
    /// They go on without the lock.
    Leave,
}

/// What becomes of the command when its lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnLost {
    /// TERM, then KILL before the lease ends.
    Kill,
    /// A message; the command goes on.
    Warn,
    /// This signal instead of TERM, and no KILL.
    Signal(Signal),
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() && text.bytes().any(|byte| byte != b'0') {
        return Err(format!("a duration needs a unit: {text}s, {text}ms or {text}m"));
    }
    humantime::parse_duration(text).map_err(|_| "expected a duration such as 500ms, 30s, 10m or 1h30m".to_owned())
}

pub(crate) fn wait(text: &str) -> Result<Wait, String> {
    match text {
        "forever" => Ok(Wait::Forever),
        _ => duration(text).map(Wait::AtMost).map_err(|reason| format!("{reason}, or `forever`")),
    }
}

pub(crate) fn ttl(text: &str) -> Result<Ttl, String> {
    Ttl::new(duration(text)?).map_err(|error| with_hint(&error))
}

/// A duration that will become a lease, so it has a lease's bounds.
pub(crate) fn lease_like(text: &str) -> Result<Duration, String> {
    ttl(text).map(Ttl::duration)
}

pub(crate) fn at_least_one(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| "expected a number from 1 on".to_owned())
}

/// A label as it was given. `--label "$RUN_ID"` outside of CI is an empty text: the default says more than an error does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GivenLabel(pub(crate) Option<Label>);

pub(crate) fn label(text: &str) -> Result<GivenLabel, String> {
    if text.is_empty() {
        return Ok(GivenLabel(None));
    }
    Label::new(text).map(|label| GivenLabel(Some(label))).map_err(|error| with_hint(&error))
}

/// A fence as people copy it: with its leading zeros or without.
pub(crate) fn fence(text: &str) -> Result<Fence, String> {
    let is_number = !text.is_empty() && text.len() <= Fence::DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| is_number).ok_or("expected a fence, such as 42 or 000000000000042")?;
    Fence::new(number).map_err(|error| with_hint(&error))
}

pub(crate) fn on_lost(text: &str) -> Result<OnLost, String> {
    match text.split_once(':') {
        None if text == "kill" => Ok(OnLost::Kill),
        None if text == "warn" => Ok(OnLost::Warn),
        Some(("signal", name)) => signal(name).map(OnLost::Signal),
        _ => Err("expected kill, warn or signal:SIG, for example signal:USR1".to_owned()),
    }
}

pub(crate) fn signal(name: &str) -> Result<Signal, String> {
    let upper = name.to_ascii_uppercase();
    let signal = match upper.strip_prefix("SIG").unwrap_or(&upper) {
        "TERM" | "15" => Signal::TERM,
        "INT" | "2" => Signal::INT,
        "HUP" | "1" => Signal::HUP,
        "QUIT" | "3" => Signal::QUIT,
        "KILL" | "9" => Signal::KILL,
        "USR1" => Signal::USR1,
        "USR2" => Signal::USR2,
        "ALRM" | "14" => Signal::ALARM,
        "ABRT" | "6" => Signal::ABORT,
        "STOP" => Signal::STOP,
        _ => return Err("expected one of TERM INT HUP QUIT KILL USR1 USR2 ALRM ABRT STOP".to_owned()),
    };
    Ok(signal)
}

fn with_hint(error: &LockError) -> String {
    match error.hint() {
        Some(hint) => format!("{error}; {hint}"),
        None => error.to_string(),
    }
}

/// A key from the command line.
pub(crate) fn key(raw: &OsStr) -> Result<Key, String> {
    let text = raw.to_str().ok_or("the key is not valid UTF-8; use a name of 1 to 512 bytes of UTF-8")?;
    Key::new(text).map_err(|error| with_hint(&error))
}

/// Parses a key without repeating it: clap's own message would print a megabyte or an escape sequence back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyParser;

impl TypedValueParser for KeyParser {
    type Value = Key;

    fn parse_ref(&self, cmd: &clap::Command, _arg: Option<&clap::Arg>, value: &OsStr) -> Result<Key, clap::Error> {
        key(value).map_err(|reason| {
            clap::Error::raw(ErrorKind::ValueValidation, format!("invalid KEY: {reason}\n")).with_cmd(cmd)
        })
    }
}

/// Splits what follows `run`'s flags into the key and the command; a line for the shell may come as a flag, too.
pub(crate) fn key_and_command(words: &[OsString], line: Option<&OsStr>) -> Result<(Key, Vec<OsString>), String> {
    let (first, rest) = words.split_first().ok_or("KEY is missing")?;
    let key = key(first).map_err(|reason| format!("invalid KEY: {reason}"))?;
    let shell = |line: &OsStr| vec!["sh".into(), "-c".into(), line.to_owned()];
    if let Some(line) = line {
        let is_alone = rest.is_empty();
        return if is_alone {
            Ok((key, shell(line)))
        } else {
            Err("COMMAND is given twice: by -c and after KEY".to_owned())
        };
    }
    match rest.split_first() {
        Some((word, command)) if word == "--" && !command.is_empty() => Ok((key, command.to_vec())),
        Some((word, _)) if word == "--" => Err("COMMAND is missing after `--`".to_owned()),
        None => Err("COMMAND is missing".to_owned()),
        // As flock(1) is used: `flock FILE -c LINE`.
        Some((word, [line])) if word == "-c" => Ok((key, shell(line))),
        Some((word, _)) if word.as_encoded_bytes().starts_with(b"-") => Err(format!(
            "`{}` stands after KEY, where the command begins; put flags before KEY",
            crate::output::escape(&word.to_string_lossy())
        )),
        Some(_) => Ok((key, rest.to_vec())),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn durations_need_a_unit_and_ttls_their_bounds() {
        assert_eq!(duration("1h30m").unwrap(), Duration::from_mins(90));
        assert_eq!(duration("500ms").unwrap(), Duration::from_millis(500));
        for text in ["30", "-5s", "1e3", "NaN", "0x10", "", "∞", "1.5", "5 parsecs"] {
            assert!(duration(text).is_err(), "{text}");
        }
        for text in ["0s", "500us", "367d", "1000000000years"] {
            assert!(ttl(text).is_err(), "{text}");
        }
        assert_eq!(wait("forever").unwrap(), Wait::Forever);
        assert_eq!(wait("0s").unwrap(), Wait::AtMost(Duration::ZERO));
    }

    #[test]
    fn everything_after_the_key_is_the_commands() {
        let given = words(&["k", "--", "sh", "-c", "x", "--", "-n"]);
        let (key, command) = key_and_command(&given, None).unwrap();
        assert_eq!(key.as_str(), "k");
        assert_eq!(command, words(&["sh", "-c", "x", "--", "-n"]));

        let given = words(&["k", "sh", "--ttl", "5s"]);
        assert_eq!(key_and_command(&given, None).unwrap().1.len(), 3);
    }

    #[test]
    fn a_line_for_the_shell_may_stand_on_either_side_of_the_key() {
        let shell = words(&["sh", "-c", "a | b"]);
        assert_eq!(key_and_command(&words(&["k", "-c", "a | b"]), None).unwrap().1, shell);
        assert_eq!(key_and_command(&words(&["k"]), Some(OsStr::new("a | b"))).unwrap().1, shell);
        assert!(key_and_command(&words(&["k", "true"]), Some(OsStr::new("a"))).unwrap_err().contains("twice"));
    }

    #[test]
    fn a_flag_after_the_key_is_a_mistake_and_not_a_command() {
        let given = words(&["k", "--ttl", "5s", "--", "sh"]);
        assert!(key_and_command(&given, None).unwrap_err().contains("put flags before KEY"));
        for missing in [&["k"][..], &["k", "--"][..]] {
            assert!(key_and_command(&words(missing), None).unwrap_err().contains("COMMAND is missing"));
        }
    }

    #[test]
    fn a_fence_is_read_with_and_without_its_zeros() {
        assert_eq!(fence("42"), fence("000000000000042"));
        for text in ["", "0", "-1", "+42", "4 2", "0x2a", "0000000000000042", "999999999999999"] {
            assert!(fence(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_loss_can_be_answered_by_a_signal() {
        assert_eq!(on_lost("signal:USR1").unwrap(), OnLost::Signal(Signal::USR1));
        assert_eq!(on_lost("signal:sigterm").unwrap(), OnLost::Signal(Signal::TERM));
        assert_eq!(on_lost("warn").unwrap(), OnLost::Warn);
        assert!(on_lost("signal:BOGUS").is_err());
        assert!(on_lost("ignore").is_err());
    }
}
