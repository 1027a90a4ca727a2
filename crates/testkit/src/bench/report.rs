//! What is kept of a run?
//!
//! The head is that of the comparison with peers (`bench/src/report.rs`), so that one reader does for both.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;

use super::arguments::Arguments;
use super::figures::Figure;
use super::machine::{Machine, commit, date};
use super::processors::Processors;

/// The figures of one run, noted while they are printed.
pub struct Report {
    document: Document,
    processors: Processors,
    /// Where they end, if somebody wants them.
    file: Option<PathBuf>,
}

#[derive(Serialize)]
struct Document {
    /// When it began, in UTC.
    date: String,
    commit: String,
    command: String,
    rounds: usize,
    /// The share of the processors that nobody used before the run began, 0 to 1.
    idle: f64,
    /// Whether they were kept from sleeping.
    awake: bool,
    /// The share of their time that other machines of the host took during the run.
    stolen: f64,
    machine: Machine,
    figures: Vec<Figure>,
}

impl Report {
    /// Looks at the processors for half a second, prints how idle they are, and keeps them awake until the end.
    pub fn start(arguments: &Arguments, rounds: usize) -> Self {
        let processors = Processors::watch(arguments.may_sleep());
        println!("{}", processors.at_start());
        let document = Document {
            date: date(),
            commit: commit(),
            command: arguments.command().to_owned(),
            rounds,
            idle: processors.idle(),
            awake: processors.awake(),
            stolen: f64::NAN,
            machine: Machine::this(),
            figures: Vec::new(),
        };
        Self { document, processors, file: arguments.json().map(Path::to_owned) }
    }

    /// Keeps a figure.
    pub fn note(&mut self, figure: Figure) {
        self.document.figures.push(figure);
    }

    /// Writes the file of `--json`. A file that cannot be written is told and fails the run.
    pub fn finish(mut self) -> ExitCode {
        println!("{}", self.processors.at_end());
        self.document.stolen = self.processors.stolen();
        let Some(file) = &self.file else { return ExitCode::SUCCESS };
        match fs::write(file, self.json()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: cannot write {}: {error}", file.display());
                ExitCode::FAILURE
            }
        }
    }

    fn json(&self) -> String {
        serde_json::to_string_pretty(&self.document).expect("every name in it is a string") + "\n"
    }
}

/// Keeps several figures.
impl Extend<Figure> for Report {
    fn extend<T: IntoIterator<Item = Figure>>(&mut self, figures: T) {
        self.document.figures.extend(figures);
    }
}

/// What to type for the same run; where its figures were kept is nobody's business.
pub fn command(subject: &str, words: impl IntoIterator<Item = String>) -> String {
    let mut command = format!("cargo xtask bench {subject}");
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--json" => drop(words.next()),
            // Cargo's own, and what ends its arguments.
            "--bench" | "--" => {}
            word if word.starts_with("--json=") => {}
            word => command.extend([" ", word]),
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::*;

    fn words(line: &str) -> impl Iterator<Item = String> + '_ {
        line.split(' ').map(str::to_owned)
    }

    #[test]
    fn the_command_tells_no_path() {
        let command = command("compare", words("pairs --json /home/ada/x.json --rounds 3 --bench --json=/tmp/x"));
        assert_eq!(command, "cargo xtask bench compare pairs --rounds 3");
    }

    #[test]
    fn a_file_holds_what_was_noted_and_where_it_was_measured() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("redis.json");
        let line = format!("--rounds 2 --json {}", file.display());
        let arguments = Options::new("redis").rounds(7).parse(words(&line)).unwrap();
        let mut report = Report::start(&arguments, arguments.rounds());

        let figure = Figure::of("throughput", "pairs/s", "syncguard", &[8.0, 9.0]).at("tasks", 16);
        report.note(figure.setting("fsync on").beside("rslock", &[4.0, 3.0]));
        report.note(Figure::of("throughput", "pairs/s", "nobody", &[]));
        let written = report.finish();

        let read: serde_json::Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        assert_eq!(written, ExitCode::SUCCESS);
        assert_eq!(read["command"], "cargo xtask bench redis --rounds 2");
        assert!(
            read["awake"].is_boolean() && read["idle"].as_f64() >= Some(0.0) && read["stolen"].as_f64() >= Some(0.0)
        );
        assert!(read["machine"]["cores"].as_u64() > Some(0) && read["date"].as_str().unwrap().ends_with('Z'));
        let first = serde_json::json!({
            "measure": "throughput", "unit": "pairs/s", "contender": "syncguard", "setting": "fsync on",
            "by": "tasks", "at": 16,
            "value": { "median": 9.0, "low": 8.0, "high": 9.0 },
            "ratios": [{ "beside": "rslock", "median": 3.0, "low": 2.0, "high": 3.0 }],
        });
        assert_eq!(read["figures"][0], first);
        assert!(read["figures"][1]["value"].is_null());
    }
}
