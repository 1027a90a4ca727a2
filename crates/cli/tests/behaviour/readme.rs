//! Is what the documentation shows what people will see?
//!
//! Every `console` block of `README.md` and `docs/*.md` is run by a shell against the real command, in the order of the
//! page, in a directory of its own. What differs from run to run (times, durations, process numbers, hashes, lock ids)
//! is masked on both sides, so that the page can show whole and honest lines. Fences and exit codes are not masked.
//!
//! The pages of single backends need their servers and are not run here.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::support::{Lab, own};
use snapbox::IntoData;

/// Ends the output of one command in the output of a whole block.
const END: char = '\u{1e}';

/// The pages for operators show a server, as operators have one.
const ON_A_SERVER: [&str; 2] = ["cli.md", "stuck-lock.md"];
/// How those pages write its address.
const SERVER: &str = "redis://locks.internal:6379";

#[test]
fn every_console_block_of_the_readme_is_true() {
    let commands = check(&root().join("README.md"), &furnished(Lab::new()));
    assert!(commands >= 6, "only {commands} commands were found");
}

#[test]
fn every_console_block_of_the_docs_is_true() {
    let pages: Vec<_> = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let here = |page: &&PathBuf| {
        page.extension().is_some_and(|e| e == "md") && !ON_A_SERVER.iter().any(|name| page.ends_with(name))
    };
    let commands: usize = pages.iter().filter(here).map(|page| check(page, &furnished(Lab::new()))).sum();
    assert!(commands >= 6, "only {commands} commands were found");
}

#[cfg(feature = "redis")]
#[test]
fn every_console_block_for_operators_is_true() {
    let server = syncguard_testkit::RedisServer::start(syncguard_testkit::RedisOptions::new());
    let check = |name: &str| {
        server.command(&["FLUSHALL"]);
        check(&root().join("docs").join(name), &furnished(Lab::on(server.url())))
    };
    let commands: usize = ON_A_SERVER.into_iter().map(check).sum();
    assert!(commands >= 20, "only {commands} commands were found");
}

/// Jobs for a shell have no output to compare; that each is understood and ends well is what can be asked of them.
#[test]
fn every_job_for_a_shell_runs() {
    let mut codes = Vec::new();
    for page in ["docs/recipes/README.md", "docs/fencing.md"] {
        let text = fs::read_to_string(root().join(page)).unwrap();
        for job in text.split("\n```sh\n").skip(1).map(|rest| rest.split("\n```").next().unwrap()) {
            // What needs PostgreSQL is run with one in `fence_postgres`.
            if job.contains("syncguard run") && !job.contains("--fence-postgres") {
                codes.extend(codes_of(job));
            }
        }
    }
    // The one that asks for a backend that other machines see is refused on the store of this one.
    let refused = codes.iter().filter(|code| *code == "78").count();
    assert!(codes.len() >= 5 && refused == 1 && codes.iter().all(|code| code == "0" || code == "78"), "{codes:?}");
}

/// The exit codes of all uses of the command in a script whose own programs do nothing.
fn codes_of(job: &str) -> Vec<String> {
    let lab = furnished(Lab::new());
    for program in ["report.sh", "deploy.sh", "migrate", "mailer", "bin/psql"] {
        script(&lab.path(program), "exit 0");
    }
    fs::remove_file(lab.path("bin/syncguard")).unwrap();
    let recorded = format!("{} \"$@\"\ncode=$?\necho $code >>codes\nexit $code", own());
    script(&lab.path("bin/syncguard"), &recorded);
    run(&lab, &Block { line: 0, steps: vec![Step { command: format!("RUN_ID=7\n{job}"), output: String::new() }] });
    fs::read_to_string(lab.path("codes")).unwrap().lines().map(str::to_owned).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs all blocks of a page and says how many commands they had.
fn check(page: &Path, lab: &Lab) -> usize {
    let text = fs::read_to_string(page).unwrap();
    let mut commands = 0;
    for block in blocks(&text) {
        commands += block.steps.len();
        let actual = mask(&run(lab, &block).replace(&lab.url(), SERVER));
        let expected = mask(&block.text());
        let place = format!("{}:{}", page.file_name().unwrap().display(), block.line);
        let verdict = snapbox::Assert::new().try_eq(Some(&place), actual.into_data(), expected.into_data());
        if let Err(difference) = verdict {
            panic!("{place} does not show what happens\n{difference}");
        }
    }
    commands
}

struct Block {
    line: usize,
    steps: Vec<Step>,
}

#[derive(Default)]
struct Step {
    command: String,
    output: String,
}

impl Block {
    fn text(&self) -> String {
        let mut text = String::new();
        for step in &self.steps {
            write!(text, "$ {}\n{}", step.command, step.output).unwrap();
        }
        text
    }
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut inside = false;
    for (index, line) in page.lines().enumerate() {
        if line.trim_end() == "```console" {
            inside = true;
            blocks.push(Block { line: index + 1, steps: Vec::new() });
        } else if line.starts_with("```") {
            inside = false;
        } else if inside {
            let steps = &mut blocks.last_mut().unwrap().steps;
            if let Some(command) = line.strip_prefix("$ ") {
                steps.push(Step { command: command.to_owned(), output: String::new() });
            } else {
                writeln!(steps.last_mut().expect("a block starts with a command").output, "{line}").unwrap();
            }
        }
    }
    blocks
}

/// A lab with what the examples call: the command itself, `cargo run` of it, a deployment that takes a while, and a worker
/// that can be asked to end.
fn furnished(lab: Lab) -> Lab {
    fs::create_dir(lab.path("bin")).unwrap();
    std::os::unix::fs::symlink(own(), lab.path("bin/syncguard")).unwrap();
    let cargo = "[ \"$1 $2 $3\" = 'run -q --' ] || exit 2\nshift 3\nexec syncguard \"$@\"";
    script(&lab.path("bin/cargo"), cargo);
    script(&lab.path("deploy.sh"), "touch started\nexec sleep 60");
    script(&lab.path("worker.sh"), "exec 2>/dev/null\ntrap 'exit 0' USR1\ntouch started\nwhile :; do sleep 0.05; done");
    lab
}

fn script(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs a block in one shell, so that variables and background jobs live from line to line.
fn run(lab: &Lab, block: &Block) -> String {
    let mut shell = String::from("trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\nrm -f started\n");
    for step in &block.steps {
        writeln!(shell, "{}", step.command).unwrap();
        if step.command.ends_with('&') {
            // The next line of the page is typed by somebody who saw the first one start.
            writeln!(shell, "for _ in $(seq 500); do [ -e started ] && break; sleep 0.02; done").unwrap();
        }
        writeln!(shell, "printf '{END}'").unwrap();
    }
    fs::write(lab.path("block.sh"), shell).unwrap();
    // A file and not a pipe: a job in the background would keep a pipe open.
    let output = File::create(lab.path("output")).unwrap();
    let search = format!("{}:{}", lab.path("bin").display(), std::env::var("PATH").unwrap());
    let mut shell = lab.program("timeout", ["60", "bash", "block.sh"]);
    if !lab.is_on_a_server() {
        shell.env_remove("SYNCGUARD_URL");
    }
    let status = shell
        .env("PATH", search)
        .current_dir(lab.dir.path())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .status()
        .unwrap();
    assert_ne!(status.code(), Some(124), "line {}: the block did not end within a minute", block.line);
    let said = fs::read_to_string(lab.path("output")).unwrap();
    let outputs = said.split(END).map(str::to_owned);
    let steps = block.steps.iter().zip(outputs).map(|(step, output)| Step { command: step.command.clone(), output });
    Block { line: block.line, steps: steps.collect() }.text()
}

/// Hides what differs from run to run. A line that tells an exit code is left as it is.
fn mask(text: &str) -> String {
    let mask = |line: &str| match line.split_once("backend   sqlite:/") {
        // The store of the reader.
        Some((before, _)) => format!("{before}backend   sqlite:/PATH"),
        None if line.starts_with("exit ") => line.to_owned(),
        None => columns(&mask_line(line)),
    };
    text.lines().map(|line| mask(line) + "\n").collect()
}

/// A column is as wide as its widest cell, which differs from run to run: between two columns there are two spaces here.
fn columns(line: &str) -> String {
    let end = line.len() - line.trim_start().len();
    let words = line[end..].split("  ").map(str::trim).filter(|word| !word.is_empty());
    format!("{}{}", &line[..end], words.collect::<Vec<_>>().join("  "))
}

fn mask_line(line: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "-_…".contains(c);
    let mut masked = String::new();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let word = if end == 0 { &rest[..first.len_utf8()] } else { &rest[..end] };
        masked.push_str(&mask_word(word));
        rest = &rest[word.len()..];
    }
    masked
}

fn mask_word(word: &str) -> String {
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_fence = word.len() == 15 && word.bytes().all(|byte| byte.is_ascii_digit());
    if is_fence {
        return word.to_owned();
    }
    match word.split_once('…') {
        Some((first, last)) if first.len() == 4 && last.len() == 4 && is_hex(first) && is_hex(last) => {
            return "HASH".to_owned();
        }
        _ => {}
    }
    if word.len() == 24 && is_hex(word) {
        return "HASH".to_owned();
    }
    let mixed = word.contains(|c: char| c.is_ascii_uppercase()) && word.contains(|c: char| c.is_ascii_lowercase());
    if word.len() == 22 && mixed {
        return "LOCKID".to_owned();
    }
    numbers(word)
}

/// Each run of digits becomes one `N`.
fn numbers(word: &str) -> String {
    let mut out = String::new();
    for character in word.chars() {
        let shown = if character.is_ascii_digit() { 'N' } else { character };
        if shown != 'N' || !out.ends_with('N') || !character.is_ascii_digit() {
            out.push(shown);
        }
    }
    out
}

#[test]
fn masking_hides_what_varies_and_keeps_fences_and_exit_codes() {
    let shown = mask("lock 9c1f…e2a4, fence 000000000000041, 14:02:11Z (3s ago), group 41877\nexit 75\n");
    assert_eq!(shown, "lock HASH, fence 000000000000041, N:N:NZ (Ns ago), group N\nexit 75\n");
    assert_ne!(mask("fence 000000000000001\n"), mask("fence 000000000000002\n"));
    assert_eq!(mask("9b4d08ac5c7b66450ce0d908 g37IISZ2TvNJf3htay44xw\n"), "HASH LOCKID\n");
}
