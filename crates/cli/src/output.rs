//! How does anything reach the reader?
//!
//! stdout carries data (or the child's own output), stderr everything of ours. Writing never panics: a reader that went
//! away (`| head`) is no reason to leave a lock behind. Keys and labels are user input, so [`escape`] stands between
//! them and a terminal.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use syncguard::HashId;

use crate::exit::Failure;
use crate::holder::LockObject;

/// Where and how this run of the command speaks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) json: bool,
    pub(crate) quiet: bool,
    pub(crate) verbose: u8,
    /// What `--color` said; `Auto` also looks at the terminal and at `NO_COLOR`.
    pub(crate) color: ColorChoice,
    /// stdout belongs to the child, so JSON goes to stderr.
    pub(crate) stdout_is_the_childs: bool,
}

pub(crate) const ERROR: Style = AnsiColor::Red.on_default().bold();
pub(crate) const WARNING: Style = AnsiColor::Yellow.on_default().bold();
pub(crate) const HINT: Style = AnsiColor::Cyan.on_default();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default().bold();

impl Output {
    /// Whether somebody watches stderr.
    pub(crate) fn is_watched(self) -> bool {
        !self.json && !self.quiet && std::io::stderr().is_terminal()
    }

    /// Writes data to stdout. A reader that went away is no error.
    pub(crate) fn data(self, text: &str) {
        let _ = self.deliver(text);
    }

    /// Writes data to stdout that somebody must get.
    pub(crate) fn deliver(self, text: &str) -> std::io::Result<()> {
        if was_closed(std::io::stdout()) {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        }
        let mut stdout = AutoStream::new(std::io::stdout(), self.color);
        writeln!(stdout, "{text}")?;
        stdout.flush()
    }

    /// Writes one JSON object, with the schema's number in front.
    pub(crate) fn object(self, fields: &impl Serialize) {
        let text = with_schema(fields);
        if self.stdout_is_the_childs { self.stderr(&text) } else { self.data(&text) }
    }

    /// Writes one JSON object to stdout that somebody must get.
    pub(crate) fn deliver_object(self, fields: &impl Serialize) -> std::io::Result<()> {
        self.deliver(&with_schema(fields))
    }

    /// Says something that `-q` hides.
    pub(crate) fn note(self, text: &str) {
        if !self.quiet && !self.json {
            self.stderr(text);
        }
    }

    /// Says something that only `-v` shows.
    pub(crate) fn detail(self, text: &str) {
        if self.verbose > 0 && !self.json {
            self.stderr_within(text, PATIENCE_WHEN_ASKED);
        }
    }

    /// Warns, once per call.
    pub(crate) fn warn(self, message: &str, hint: Option<&str>) {
        if self.quiet {
            return;
        }
        if self.json {
            // A warning is never the answer: it must not stand where the one object of stdout is expected.
            self.stderr(&with_schema(&WarningObject { warning: message, hint }));
            return;
        }
        self.stderr(&format!("{WARNING}warning:{WARNING:#} {message}"));
        if let Some(hint) = hint {
            self.stderr(&format!("{HINT}hint:{HINT:#} {hint}"));
        }
    }

    /// Reports why the command ends.
    pub(crate) fn failure(self, failure: &Failure) {
        if failure.silent {
            return;
        }
        if self.json {
            self.object(&failure_object(failure));
            return;
        }
        self.stderr(&render(failure));
    }

    /// As [`failure`](Self::failure), unless that would mean to wait for a reader: while a lock is held there is no
    /// time for it.
    pub(crate) fn failure_if_heard(self, failure: &Failure) {
        if is_read_within(Duration::ZERO) {
            self.failure(failure);
        }
    }

    /// As [`warn`](Self::warn), unless that would mean to wait for a reader.
    pub(crate) fn warn_if_heard(self, message: &str) {
        if is_read_within(Duration::ZERO) {
            self.warn(message, None);
        }
    }

    /// As [`note`](Self::note), unless that would mean to wait for a reader.
    pub(crate) fn note_if_heard(self, text: &str) {
        if is_read_within(Duration::ZERO) {
            self.note(text);
        }
    }

    /// Says that a command is started again; a crash loop must not be silent for machines either.
    pub(crate) fn respawn(self, how: &str, delay: Duration) {
        let delay = delay.as_secs();
        if self.json {
            self.stderr(&with_schema(&RespawnEvent { event: "respawn", ended: how, delay_ms: delay * 1000 }));
        } else {
            self.note_if_heard(&format!("the command ended with {how}; starting it again in {delay} s"));
        }
    }

    pub(crate) fn stderr(self, text: &str) {
        self.stderr_within(text, PATIENCE);
    }

    fn stderr_within(self, text: &str, patience: Duration) {
        if !is_read_within(patience) {
            return;
        }
        let mut stderr = AutoStream::new(std::io::stderr(), self.color);
        let _ = writeln!(stderr, "{text}");
    }
}

/// Whether a stream was closed (`>&-`) when we were started.
///
/// The standard library then opens `/dev/null` in its place for reading and writing, which nobody who redirects does.
fn was_closed(stream: impl std::os::fd::AsFd) -> bool {
    let Ok(stat) = rustix::fs::fstat(&stream) else { return true };
    let is_null = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::CharacterDevice
        && (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)) == (1, 3);
    is_null && rustix::fs::fcntl_getfl(stream).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::RDWR))
}

/// How long a reader who reads nothing may hold us up where nothing is at stake.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same for whoever asked for every line.
const PATIENCE_WHEN_ASKED: Duration = Duration::from_secs(30);

/// Whether stderr takes a line now or soon: a full pipe or a stopped terminal does not.
fn is_read_within(limit: Duration) -> bool {
    let seconds = i64::try_from(limit.as_secs()).unwrap_or(i64::MAX);
    let limit = Timespec { tv_sec: seconds, tv_nsec: 0 };
    let stderr = std::io::stderr();
    poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&limit)).is_ok_and(|ready| ready > 0)
}

/// A command that is started again, for machines.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RespawnEvent<'a> {
    event: &'static str,
    ended: &'a str,
    delay_ms: u64,
}

/// A warning for machines.
#[derive(Serialize)]
struct WarningObject<'a> {
    warning: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
}

/// A failure for machines. That somebody else holds the lock is an everyday answer and stays short: who, not what to do.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FailureObject<'a> {
    ok: bool,
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    details: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_hash: Option<HashId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<LockObject>,
}

fn failure_object(failure: &Failure) -> FailureObject<'_> {
    let everyday = matches!(failure.reason, "locked" | "absent");
    FailureObject {
        ok: false,
        reason: failure.reason,
        exit_code: (failure.reason != "absent").then_some(failure.code),
        message: (!everyday).then_some(failure.message.as_str()),
        details: if everyday { &[] } else { &failure.details },
        hint: failure.hint.as_deref().filter(|_| !everyday),
        key_hash: failure.key_hash,
        holder: failure.holder.as_ref().map(|info| LockObject::new(info, false)),
    }
}

pub(crate) fn with_schema(fields: &impl Serialize) -> String {
    // What is serialised here are our own structs of plain fields: it cannot fail, and a message about it would help
    // nobody.
    let body = serde_json::to_string(fields).unwrap_or_default();
    match body.strip_prefix('{') {
        Some("}") | None => "{\"schema\":1}".to_owned(),
        Some(rest) => format!("{{\"schema\":1,{rest}"),
    }
}

pub(crate) fn render(failure: &Failure) -> String {
    let mut text = format!("{ERROR}error:{ERROR:#} {}", failure.message);
    for line in &failure.details {
        let _ = write!(text, "\n  {line}");
    }
    if let Some(hint) = &failure.hint {
        let _ = write!(text, "\n{HINT}hint:{HINT:#} {}", hint.replace('\n', "\n      "));
    }
    text
}

/// User input as it may be shown: control characters, bidirectional overrides and invisible characters are escaped.
pub(crate) fn escape(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' => shown.push_str("\\\\"),
            _ if character.is_control() || is_invisible(character) => {
                let _ = write!(shown, "{}", character.escape_default());
            }
            _ => shown.push(character),
        }
    }
    shown
}

// What moves, hides or reorders its neighbours on a terminal: format characters, separators, private use, tags.
fn is_invisible(character: char) -> bool {
    matches!(character,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{e000}'..='\u{f8ff}' | '\u{e0000}'..='\u{10ffff}')
}

/// A word as a POSIX shell reads it back.
pub(crate) fn shell_quote(text: &str) -> String {
    let plain =
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-./:=@%+,".contains(&byte));
    if plain { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// A key as it can be typed into a command of ours: what a terminal would obey is written in the shell's escapes
/// (`$'…'`), and what looks like a flag stands behind `--`.
pub(crate) fn typed(key: &str) -> String {
    let is_visible = !key.chars().any(|character| character.is_control() || is_invisible(character));
    let word = if is_visible { shell_quote(key) } else { escaped_word(key) };
    if key.starts_with('-') { format!("-- {word}") } else { word }
}

fn escaped_word(text: &str) -> String {
    let mut word = String::from("$'");
    for character in text.chars() {
        match character {
            '\\' | '\'' => word.extend(['\\', character]),
            _ if character.is_control() || is_invisible(character) => {
                for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                    let _ = write!(word, "\\x{byte:02x}");
                }
            }
            _ => word.push(character),
        }
    }
    word.push('\'');
    word
}

/// A duration for people: `0.4s`, `13s`, `1m 17s`, `2h 5m`, `3d 4h`.
pub(crate) fn human(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => pair(seconds / 60, "m", seconds % 60, "s"),
        3_600..86_400 => pair(seconds / 3_600, "h", seconds % 3_600 / 60, "m"),
        _ => pair(seconds / 86_400, "d", seconds % 86_400 / 3_600, "h"),
    }
}

/// A short duration with tenths, where they matter: `5.0s`.
pub(crate) fn tenths(duration: Duration) -> String {
    if duration >= Duration::from_mins(1) {
        return human(duration);
    }
    let tenths = duration.as_millis().saturating_add(50) / 100;
    format!("{}.{}s", tenths / 10, tenths % 10)
}

fn pair(large: u64, large_unit: &str, small: u64, small_unit: &str) -> String {
    if small == 0 { format!("{large}{large_unit}") } else { format!("{large}{large_unit} {small}{small_unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_moves_a_cursor_survives() {
        let hostile = "a\n\r\x1b[31mb\u{202e}c\u{200b}\u{feff}\u{9b}31m\x07\\";

        let shown = escape(hostile);

        assert_eq!(shown, "a\\n\\r\\u{1b}[31mb\\u{202e}c\\u{200b}\\u{feff}\\u{9b}31m\\u{7}\\\\");
        assert_eq!(escape("deploy:prod café 😀"), "deploy:prod café 😀");
    }

    #[test]
    fn durations_read_as_people_say_them() {
        let seconds = Duration::from_secs;
        for (duration, text) in [
            (seconds(13), "13s"),
            (seconds(77), "1m 17s"),
            (seconds(120), "2m"),
            (seconds(7_500), "2h 5m"),
            (seconds(273_600), "3d 4h"),
        ] {
            assert_eq!(human(duration), text);
        }
        assert_eq!(tenths(Duration::from_millis(4_960)), "5.0s");
        assert_eq!(tenths(Duration::from_millis(340)), "0.3s");
    }

    #[test]
    fn a_quoted_word_cannot_leave_its_quotes() {
        assert_eq!(shell_quote("deploy:prod"), "deploy:prod");
        assert_eq!(shell_quote("it's; rm"), "'it'\\''s; rm'");
        assert_eq!(shell_quote(""), "''");
    }

    #[test]
    fn a_key_in_a_hint_is_read_back_as_it_is() {
        for (key, text) in [
            ("deploy:prod", "deploy:prod"),
            ("a\\b", "'a\\b'"),
            ("-k", "-- -k"),
            ("a\x1b[2Jb", "$'a\\x1b[2Jb'"),
            ("it's\n", "$'it\\'s\\x0a'"),
        ] {
            assert_eq!(typed(key), text);
            let line = format!("printf %s {}", text.trim_start_matches("-- "));
            let shell = std::process::Command::new("bash").args(["-c", &line]).output();
            if let Ok(shell) = shell {
                assert_eq!(String::from_utf8_lossy(&shell.stdout), key);
            }
        }
    }

    #[test]
    fn the_schema_stands_first() {
        let locked = Failure::new(75, "locked", "k is locked");
        assert_eq!(with_schema(&failure_object(&locked)), r#"{"schema":1,"ok":false,"reason":"locked","exitCode":75}"#);
    }
}
