//! What was asked of a benchmark?
//!
//! No crate for command lines: the test kit is below every test, and this is all that benchmarks need of one. What
//! nobody declared is refused before anything is started, because a misspelt flag costs the minutes of a whole run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;

use super::report;

/// What every benchmark understands beside `--json`.
const LET_SLEEP: (&str, &str) = ("let-sleep", "let idle processors sleep, as they do otherwise");

/// What a benchmark can be asked for.
pub struct Options {
    subject: &'static str,
    /// The default of `--rounds`; `None` if nobody takes turns.
    rounds: Option<usize>,
    parts: Vec<(&'static str, &'static str)>,
    numbers: Vec<(&'static str, u64, &'static str)>,
    switches: Vec<(&'static str, &'static str)>,
}

/// What it was asked for.
#[derive(Debug)]
pub struct Arguments {
    command: String,
    default_rounds: usize,
    rounds: Option<usize>,
    json: Option<PathBuf>,
    may_sleep: bool,
    /// Empty if everything is wanted.
    parts: Vec<&'static str>,
    /// Every one that was declared, by its default where none was given.
    numbers: Vec<(&'static str, u64)>,
    switches: Vec<&'static str>,
}

impl Options {
    /// The benchmark that `cargo xtask bench` knows by this name.
    pub fn new(subject: &'static str) -> Self {
        let (parts, numbers, switches) = (Vec::new(), Vec::new(), Vec::new());
        Self { subject, rounds: None, parts, numbers, switches }
    }

    /// Everybody takes this many turns, unless `--rounds` says otherwise.
    #[must_use]
    pub fn rounds(self, default: usize) -> Self {
        Self { rounds: Some(default), ..self }
    }

    /// A part that can be asked for alone, by its bare name or after `--only`.
    #[must_use]
    pub fn part(mut self, name: &'static str, what: &'static str) -> Self {
        self.parts.push((name, what));
        self
    }

    /// A number after `--name`. Only one that is 0 by default may be 0.
    #[must_use]
    pub fn number(mut self, name: &'static str, default: u64, what: &'static str) -> Self {
        self.numbers.push((name, default, what));
        self
    }

    /// Something that `--name` switches on.
    #[must_use]
    pub fn switch(mut self, name: &'static str, what: &'static str) -> Self {
        self.switches.push((name, what));
        self
    }

    /// Reads the command line of this process. Ends it with 2 if the line asks for what there is not, and with 0 after
    /// `--help`.
    pub fn read(&self) -> Arguments {
        let words: Vec<String> = std::env::args().skip(1).collect();
        if words.iter().any(|word| word == "--help" || word == "-h") {
            print!("{}", self.usage());
            process::exit(0);
        }
        let arguments = self.parse(words).and_then(Arguments::with_a_folder);
        arguments.unwrap_or_else(|reason| {
            eprint!("error: {reason}\n{}", self.usage());
            process::exit(2);
        })
    }

    /// Reads words. The error says what is wrong with them.
    pub(super) fn parse(&self, words: impl IntoIterator<Item = String>) -> Result<Arguments, String> {
        let words: Vec<String> = words.into_iter().collect();
        let mut arguments = Arguments {
            command: report::command(self.subject, words.iter().cloned()),
            default_rounds: self.rounds.unwrap_or(1),
            rounds: None,
            json: None,
            may_sleep: false,
            parts: Vec::new(),
            numbers: self.numbers.iter().map(|(name, default, _)| (*name, *default)).collect(),
            switches: Vec::new(),
        };
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            match word.strip_prefix("--") {
                // Cargo's own, and what ends its arguments.
                Some("" | "bench") => {}
                Some(flag) => {
                    let (flag, value) = flag.split_once('=').map_or((flag, None), |(flag, value)| (flag, Some(value)));
                    self.flag(&mut arguments, flag, value.map(str::to_owned), &mut words)?;
                }
                None => arguments.parts.push(self.part_named(&word)?),
            }
        }
        Ok(arguments)
    }

    fn flag(
        &self,
        arguments: &mut Arguments,
        flag: &str,
        value: Option<String>,
        rest: &mut impl Iterator<Item = String>,
    ) -> Result<(), String> {
        let switch = self.switches.iter().find(|(name, _)| *name == flag);
        if switch.is_some() || flag == LET_SLEEP.0 {
            arguments.switches.extend(switch.map(|(name, _)| *name));
            arguments.may_sleep |= switch.is_none();
            return value.map_or(Ok(()), |_| Err(format!("`--{flag}` takes no value")));
        }
        // Another flag is not a value: whoever forgot one should hear of that.
        let mut value = || {
            let value = value.clone().or_else(|| rest.next());
            value
                .filter(|value| !value.is_empty() && !value.starts_with("--"))
                .ok_or(format!("`--{flag}` takes a value"))
        };
        match flag {
            "rounds" if self.rounds.is_some() => arguments.rounds = Some(at_least(flag, &value()?, 1)?),
            "json" => arguments.json = Some(value()?.into()),
            "only" if !self.parts.is_empty() => arguments.parts.push(self.part_named(&value()?)?),
            _ => {
                let declared = self.numbers.iter().find(|(name, ..)| *name == flag);
                let (name, default, _) = declared.ok_or(format!("there is no `--{flag}`"))?;
                let number = at_least(flag, &value()?, (*default).min(1))?;
                arguments.numbers.iter_mut().filter(|(known, _)| known == name).for_each(|known| known.1 = number);
            }
        }
        Ok(())
    }

    /// `hand-off` and `handoff` are one.
    fn part_named(&self, word: &str) -> Result<&'static str, String> {
        let plain = |name: &str| name.replace('-', "");
        let part = self.parts.iter().find(|(name, _)| plain(name) == plain(word) && !word.starts_with('-'));
        part.map(|(name, _)| *name).ok_or(format!("there is no part `{word}`"))
    }

    fn usage(&self) -> String {
        let names: Vec<&str> = self.parts.iter().map(|(name, _)| *name).collect();
        let mut words = vec![format!("usage: cargo xtask bench {}", self.subject)];
        words.extend((!names.is_empty()).then(|| format!("[{}]…", names.join("|"))));
        let flags = self.flags();
        words.extend(flags.iter().map(|(flag, _)| format!("[{flag}]")));
        let parts = self.parts.iter().map(|(name, what)| ((*name).to_owned(), (*what).to_owned()));
        let lines = parts.chain(flags).map(|(name, what)| format!("  {name:<14} {what}\n"));
        words.join(" ") + "\n" + &lines.collect::<String>()
    }

    /// Every flag as it is typed, and what it does.
    fn flags(&self) -> Vec<(String, String)> {
        let rounds = self.rounds.map(|rounds| format!("how often everybody takes a turn [{rounds}]"));
        let rounds = rounds.map(|what| ("--rounds N".to_owned(), what));
        let numbers = self.numbers.iter();
        let numbers = numbers.map(|(name, default, what)| (format!("--{name} N"), format!("{what} [{default}]")));
        let switches =
            self.switches.iter().chain([&LET_SLEEP]).map(|(name, what)| (format!("--{name}"), (*what).to_owned()));
        let json = ("--json FILE".to_owned(), "write the figures to this file".to_owned());
        rounds.into_iter().chain(numbers).chain(switches).chain([json]).collect()
    }
}

fn at_least<T: TryFrom<u64>>(flag: &str, value: &str, least: u64) -> Result<T, String> {
    let number = value.parse().ok().filter(|number: &u64| *number >= least).and_then(|number| T::try_from(number).ok());
    number.ok_or(format!("`--{flag}` takes a number from {least} up, not `{value}`"))
}

impl Arguments {
    /// Whether this part is to be measured: all are, if none was named.
    pub fn wants(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.contains(&part)
    }

    /// How often everybody takes a turn.
    pub fn rounds(&self) -> usize {
        self.rounds_or(self.default_rounds)
    }

    /// The same, where another switch changed the default.
    pub fn rounds_or(&self, default: usize) -> usize {
        self.rounds.unwrap_or(default)
    }

    /// The value of a number that was declared.
    pub fn number(&self, name: &str) -> u64 {
        let known = self.numbers.iter().find(|(known, _)| *known == name);
        known.unwrap_or_else(|| panic!("`--{name}` was not declared")).1
    }

    /// Whether a switch was given.
    pub fn has(&self, switch: &str) -> bool {
        self.switches.contains(&switch)
    }

    /// Where the figures go.
    pub(super) fn json(&self) -> Option<&Path> {
        self.json.as_deref()
    }

    /// Whether idle processors may sleep meanwhile.
    pub(super) fn may_sleep(&self) -> bool {
        self.may_sleep
    }

    /// What to type for the same run.
    pub(super) fn command(&self) -> &str {
        &self.command
    }

    /// Makes the folder of the file: what cannot be written should be known before the minutes of a run, not after them.
    fn with_a_folder(self) -> Result<Self, String> {
        let Some(file) = &self.json else { return Ok(self) };
        let made = file.parent().map_or(Ok(()), fs::create_dir_all);
        made.map_err(|error| format!("no folder for {}: {error}", file.display()))?;
        if file.is_dir() { Err(format!("{} is a folder", file.display())) } else { Ok(self) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options::new("postgres")
            .rounds(5)
            .part("pairs", "acquire and release")
            .part("hand-off", "from a release to the next holder")
            .number("seconds", 2, "how long a contender runs")
            .number("counters", 0, "how many keys were locked before")
            .switch("google", "Google's emulator as well")
    }

    fn parse(line: &str) -> Result<Arguments, String> {
        options().parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn an_empty_line_asks_for_everything_by_default() {
        let arguments = parse("--bench").unwrap();
        assert!(arguments.wants("pairs") && arguments.wants("hand-off") && !arguments.has("google"));
        assert_eq!((arguments.rounds(), arguments.number("seconds"), arguments.number("counters")), (5, 2, 0));
        assert_eq!((arguments.rounds_or(1), arguments.json()), (1, None));
        assert!(!arguments.may_sleep() && parse("--let-sleep").unwrap().may_sleep());
    }

    #[test]
    fn a_part_is_named_bare_or_after_only() {
        for line in ["hand-off", "handoff", "--only hand-off", "--only=hand-off", "-- hand-off"] {
            let arguments = parse(line).unwrap();
            assert!(arguments.wants("hand-off") && !arguments.wants("pairs"), "{line}");
        }
        let both = parse("pairs --only hand-off").unwrap();
        assert!(both.wants("hand-off") && both.wants("pairs"));
    }

    #[test]
    fn a_value_stands_behind_a_space_or_an_equals_sign() {
        for line in
            ["--rounds 3 --seconds 7 --google --json a/b.json", "--rounds=3 --seconds=7 --json=a/b.json --google"]
        {
            let arguments = parse(line).unwrap();
            assert_eq!((arguments.rounds(), arguments.rounds_or(1), arguments.number("seconds")), (3, 3, 7), "{line}");
            assert_eq!(arguments.json(), Some(Path::new("a/b.json")), "{line}");
            assert!(arguments.has("google"), "{line}");
        }
    }

    #[test]
    fn what_was_not_declared_is_refused() {
        for (line, reason) in [
            ("--round 3", "there is no `--round`"),
            ("-pairs", "there is no part `-pairs`"),
            ("peers", "there is no part `peers`"),
            ("3", "there is no part `3`"),
            ("--only peers", "there is no part `peers`"),
            ("--google=yes", "`--google` takes no value"),
            ("--let-sleep=no", "`--let-sleep` takes no value"),
            ("--rounds", "`--rounds` takes a value"),
            ("--json --rounds 3", "`--json` takes a value"),
            ("--json=", "`--json` takes a value"),
            ("--rounds many", "`--rounds` takes a number from 1 up, not `many`"),
            ("--rounds 0", "`--rounds` takes a number from 1 up, not `0`"),
            ("--seconds -1", "`--seconds` takes a number from 1 up, not `-1`"),
            ("--counters x", "`--counters` takes a number from 0 up, not `x`"),
        ] {
            assert_eq!(parse(line).unwrap_err(), reason, "{line}");
        }
        let nobody_takes_turns = Options::new("waiters").parse(["--rounds".to_owned(), "3".to_owned()]);
        assert_eq!(nobody_takes_turns.unwrap_err(), "there is no `--rounds`");
    }

    #[test]
    fn the_usage_names_everything_there_is() {
        let usage = options().usage();
        let first = "usage: cargo xtask bench postgres [pairs|hand-off]… [--rounds N] [--seconds N] [--counters N] \
                     [--google] [--let-sleep] [--json FILE]";
        assert_eq!(usage.lines().next(), Some(first));
        assert!(usage.contains("\n  --seconds N    how long a contender runs [2]\n"), "{usage}");
    }

    #[test]
    fn a_folder_cannot_be_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = |path: &Path| parse(&format!("--json {}", path.display())).unwrap().with_a_folder();
        assert!(file(folder.path()).is_err());
        assert!(file(&folder.path().join("a/b.json")).is_ok() && folder.path().join("a").is_dir());
        fs::write(folder.path().join("taken"), "").unwrap();
        assert!(file(&folder.path().join("taken/b.json")).is_err());
    }
}
