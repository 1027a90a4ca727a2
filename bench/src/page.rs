//! How do the figures get into docs/benchmarks.md? Between markers, by this program and by nobody's hand.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::report::{Document, Measure, Point, Series};

/// The name between the markers, and what makes the text; empty if it was not measured.
type Part = (&'static str, fn(&Document) -> String);

/// The parts of the page that are made here, in the order of the page.
const PARTS: [Part; 7] = [
    ("run", run),
    ("throughput", |document| grouped(document, "throughput", "tasks", ratio_first)),
    ("latency", |document| flat(document, "latency", "p")),
    ("hand-off", |document| flat(document, "hand-off p50", "waiters")),
    ("hand-off p99", |document| flat(document, "hand-off p99", "waiters")),
    ("counters", |document| flat(document, "counters", "counters")),
    ("memory", memory),
];

pub(crate) fn print(document: &Document) {
    for (name, part) in PARTS {
        let text = part(document);
        if !text.is_empty() {
            println!("\n== {name}\n{text}");
        }
    }
}

/// Puts every part that was measured between its markers.
pub(crate) fn rewrite(document: &Document, page: &Path) -> Result<()> {
    let mut text = fs::read_to_string(page).with_context(|| format!("cannot read {}", page.display()))?;
    for (name, part) in PARTS {
        let made = part(document);
        if !made.is_empty() {
            text = replaced(&text, name, &made)?;
        }
    }
    Ok(fs::write(page, text)?)
}

fn replaced(text: &str, name: &str, made: &str) -> Result<String> {
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->"));
    let (Some((before, rest)), true) = (text.split_once(&begin), text.contains(&end)) else {
        bail!("docs/benchmarks.md has no place for {name}: it needs the lines {begin}and {end}");
    };
    let (_, after) = rest.split_once(&end).context("the end comes before the beginning")?;
    Ok(format!("{before}{begin}{}\n{end}{after}", made.trim_end()))
}

fn run(document: &Document) -> String {
    let Document { date, commit, command, rounds, idle, awake, stolen, machine, versions, .. } = document;
    let mut text = format!("`{command}`, {date}, commit `{commit}`, {rounds} rounds.\n");
    let _ = writeln!(
        text,
        "{} cores ({}), {}, {}; {:.0} % of the processors were idle before the run, they {}, and {:.1} % of their time \
         went to other machines of the host.\n{}.",
        machine.cores,
        machine.processor,
        machine.memory,
        machine.kernel,
        idle * 100.0,
        if *awake { "were kept awake" } else { "slept when they could" },
        stolen * 100.0,
        versions.join(", ")
    );
    text
}

/// `2.41× (2.30–2.55), 47 300`
fn ratio_first(point: &Point) -> String {
    let value = number(point.value.median);
    match point.ratio {
        Some(ratio) if (ratio.high - ratio.low).abs() > 1e-9 => {
            format!("{}× ({}–{}), {value}", number(ratio.median), number(ratio.low), number(ratio.high))
        }
        _ => format!("**{value}**"),
    }
}

/// `0.021 (0.019–0.025)`
fn with_spread(point: &Point) -> String {
    let spread = point.value;
    if (spread.high - spread.low).abs() < 1e-9 {
        return number(spread.median);
    }
    format!("{} ({}–{})", number(spread.median), number(spread.low), number(spread.high))
}

/// One table for each group of contenders.
fn grouped(document: &Document, measure: &str, by: &str, cell: fn(&Point) -> String) -> String {
    let Some(measure) = document.measure(measure) else { return String::new() };
    let mut groups: Vec<&str> = Vec::new();
    for series in &measure.contenders {
        if !groups.contains(&series.group.as_str()) {
            groups.push(&series.group);
        }
    }
    let tables = groups.iter().map(|group| {
        let rows = measure.contenders.iter().filter(|series| series.group == *group);
        table(group, rows, &columns(measure), by, cell)
    });
    tables.collect::<Vec<_>>().join("\n")
}

fn flat(document: &Document, measure: &str, by: &str) -> String {
    let Some(measure) = document.measure(measure) else { return String::new() };
    table(&measure.unit, measure.contenders.iter(), &columns(measure), by, with_spread)
}

fn memory(document: &Document) -> String {
    let sides = ["memory of the client", "memory of the server"].map(|name| {
        let Some(measure) = document.measure(name) else { return String::new() };
        let side = name.rsplit(' ').next().unwrap_or_default();
        let title = format!("{side}, {}", measure.unit);
        table(&title, measure.contenders.iter(), &columns(measure), "locks", with_spread)
    });
    sides.join("\n").trim().to_owned()
}

fn columns(measure: &Measure) -> Vec<f64> {
    let mut columns: Vec<f64> =
        measure.contenders.iter().flat_map(|series| &series.points).map(|point| point.at).collect();
    columns.sort_by(f64::total_cmp);
    columns.dedup();
    columns
}

fn table<'a>(
    title: &str,
    rows: impl Iterator<Item = &'a Series>,
    columns: &[f64],
    by: &str,
    cell: fn(&Point) -> String,
) -> String {
    let heads = columns.iter().map(|at| match by {
        "p" => format!("p{at}"),
        by if *at > 1.0 => format!("{} {by}", number(*at)),
        by => format!("1 {}", by.trim_end_matches('s')),
    });
    let mut text =
        format!("| {title} | {} |\n|---|{}\n", heads.collect::<Vec<_>>().join(" | "), "---:|".repeat(columns.len()));
    for series in rows {
        let cells = columns.iter().map(|at| series.at(*at).map_or_else(|| "–".to_owned(), cell));
        let _ = writeln!(text, "| {} | {} |", series.name, cells.collect::<Vec<_>>().join(" | "));
    }
    text
}

/// Three digits that count, thousands apart: `0.0214`, `3.52`, `47 300`.
pub(crate) fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let digits = value.abs().log10().floor() as i32;
    if digits < 2 {
        let decimals = usize::try_from(2 - digits).unwrap_or(0).min(6);
        let text = format!("{value:.decimals$}");
        return if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text };
    }
    let step = 10_f64.powi(digits - 2);
    let whole = format!("{:.0}", (value / step).round() * step);
    let mut text = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_that_count() {
        let shown = [0.021_44, 1.0, 3.519, 99.96, 100.0, 347.2, 1234.0, 47_312.0, 10_000_000.0].map(number);
        assert_eq!(shown, ["0.0214", "1", "3.52", "100", "100", "347", "1 230", "47 300", "10 000 000"]);
    }

    #[test]
    fn a_part_is_replaced_and_the_rest_stays() {
        let text = "a\n<!-- begin x -->\nold\n<!-- end x -->\nb\n";
        assert_eq!(replaced(text, "x", "new\n").unwrap(), "a\n<!-- begin x -->\nnew\n<!-- end x -->\nb\n");
        assert!(replaced(text, "y", "new").is_err());
    }
}
