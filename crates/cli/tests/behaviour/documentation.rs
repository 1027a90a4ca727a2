//! Does the documentation point at things that exist?
//!
//! Links rot when a heading changes, and a promise whose test was renamed is a promise without a test.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All files below a folder whose name ends so, without those that cargo made.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            found.extend(files(&path, ending));
        } else if path.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
    found
}

#[test]
fn every_test_that_a_guarantee_names_exists() {
    let page = fs::read_to_string(root().join("docs/guarantees.md")).unwrap();
    let is_test_name = |word: &&str| {
        word.matches('_').count() >= 3 && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let named: Vec<&str> = page.split('`').skip(1).step_by(2).filter(is_test_name).collect();
    assert!(named.len() > 80, "only {} tests are named", named.len());
    let functions: HashSet<String> =
        files(&root().join("crates"), ".rs").iter().flat_map(|file| functions(file)).collect();

    let missing: Vec<_> = named.iter().filter(|name| !functions.contains(**name)).collect();

    assert!(missing.is_empty(), "no test is called {missing:#?}");
}

#[test]
fn every_promise_names_a_test() {
    let page = fs::read_to_string(root().join("docs/guarantees.md")).unwrap();
    let promises: Vec<&str> = page.split("\n## P").skip(1).collect();
    assert_eq!(promises.len(), 19);
    for promise in promises {
        let title = promise.lines().next().unwrap();
        assert!(promise.contains("\n*Holds* "), "P{title}: when does it hold?");
        assert!(promise.contains("\n- "), "P{title}: which test says so?");
    }
}

fn functions(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap();
    let name = |rest: &str| rest.split(['(', '<']).next().unwrap_or_default().to_owned();
    text.lines().filter_map(|line| line.split_once("fn ").map(|(_, rest)| name(rest))).collect()
}

#[test]
fn every_link_of_the_documentation_leads_somewhere() {
    let root = root();
    let mut pages = files(&root.join("docs"), ".md");
    pages.extend(["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root.join(name)));
    let mut checked = 0;
    let mut broken = Vec::new();
    for page in &pages {
        for link in links(&fs::read_to_string(page).unwrap()) {
            checked += 1;
            if !leads_somewhere(page, &link) {
                broken.push(format!("{}: {link}", page.strip_prefix(&root).unwrap().display()));
            }
        }
    }
    assert!(checked > 40, "only {checked} links were found");
    assert!(broken.is_empty(), "{broken:#?}");
}

/// The targets of all links that stay in the repository.
fn links(page: &str) -> Vec<String> {
    let prose = prose(page);
    let inline = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let defined = prose.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: ")).map(|(_, target)| target);
    let local = |target: &&str| !target.starts_with("http") && !target.is_empty();
    inline.chain(defined).filter(local).map(str::to_owned).collect()
}

/// A page without its code blocks.
fn prose(page: &str) -> String {
    page.split("\n```").step_by(2).collect::<Vec<_>>().join("\n")
}

fn leads_somewhere(page: &Path, link: &str) -> bool {
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() { page.to_owned() } else { page.parent().unwrap().join(file) };
    if !target.exists() || anchor.is_empty() {
        return target.exists();
    }
    let text = fs::read_to_string(&target).unwrap();
    prose(&text).lines().filter(|line| line.starts_with('#')).any(|heading| slug(heading) == anchor)
}

/// The anchor that a heading gets.
fn slug(heading: &str) -> String {
    let title = heading.trim_start_matches('#').trim().to_lowercase();
    title
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        })
        .collect()
}
