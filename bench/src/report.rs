//! What is kept of a run? One document, from which tables and charts are made without a hand in between.

use serde::{Deserialize, Serialize};
use syncguard_testkit::bench::{Machine, Spread};

/// One run.
#[derive(Serialize, Deserialize)]
pub(crate) struct Document {
    /// When it began, in UTC.
    pub(crate) date: String,
    pub(crate) commit: String,
    pub(crate) command: String,
    pub(crate) rounds: usize,
    /// The share of the processors that nobody used before the run began, 0 to 1.
    pub(crate) idle: f64,
    /// Whether they were kept from sleeping.
    #[serde(default)]
    pub(crate) awake: bool,
    /// The share of their time that other machines of the host took during the run.
    #[serde(default)]
    pub(crate) stolen: f64,
    pub(crate) machine: Machine,
    /// Servers and crates.
    pub(crate) versions: Vec<String>,
    pub(crate) measures: Vec<Measure>,
}

/// One question, asked of everybody.
#[derive(Serialize, Deserialize)]
pub(crate) struct Measure {
    pub(crate) name: String,
    pub(crate) unit: String,
    /// What [`Point::at`] counts.
    pub(crate) by: String,
    pub(crate) contenders: Vec<Series>,
}

#[derive(Serialize, Deserialize, Clone)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) group: String,
    /// Whose figures the ratios divide by.
    pub(crate) beside: String,
    pub(crate) points: Vec<Point>,
}

#[derive(Serialize, Deserialize, Clone)]
pub(crate) struct Point {
    pub(crate) at: f64,
    /// The median of the rounds, the least and the most.
    pub(crate) value: Spread,
    /// The same of the ratios inside each round.
    pub(crate) ratio: Option<Spread>,
}

impl Document {
    pub(crate) fn measure(&self, name: &str) -> Option<&Measure> {
        self.measures.iter().find(|measure| measure.name == name)
    }
}

impl Series {
    pub(crate) fn at(&self, at: f64) -> Option<&Point> {
        self.points.iter().find(|point| (point.at - at).abs() < 1e-9)
    }
}

/// The figures of one measure while it is taken: by contender, by point, one per round.
pub(crate) struct Table {
    name: &'static str,
    unit: &'static str,
    by: &'static str,
    rows: Vec<Row>,
}

struct Row {
    series: Series,
    rounds: Vec<(f64, Vec<f64>)>,
}

impl Table {
    pub(crate) fn new(name: &'static str, unit: &'static str, by: &'static str) -> Self {
        Self { name, unit, by, rows: Vec::new() }
    }

    /// Notes what one contender reached in one round.
    pub(crate) fn note(&mut self, (name, group, beside): (&str, &str, &str), at: f64, value: f64) {
        let row = match self.rows.iter().position(|row| row.series.name == name) {
            Some(index) => &mut self.rows[index],
            None => {
                let series =
                    Series { name: name.into(), group: group.into(), beside: beside.into(), points: Vec::new() };
                self.rows.push(Row { series, rounds: Vec::new() });
                self.rows.last_mut().expect("it was just pushed")
            }
        };
        match row.rounds.iter_mut().find(|(known, _)| (*known - at).abs() < 1e-9) {
            Some((_, values)) => values.push(value),
            None => row.rounds.push((at, vec![value])),
        }
    }

    pub(crate) fn finish(self) -> Measure {
        let ratios = |row: &Row, at: f64, values: &[f64]| -> Option<Spread> {
            let other = self.rows.iter().find(|other| other.series.name == row.series.beside)?;
            let (_, others) = other.rounds.iter().find(|(known, _)| (*known - at).abs() < 1e-9)?;
            Spread::of(&values.iter().zip(others).map(|(value, other)| value / other).collect::<Vec<_>>())
        };
        let contenders = self.rows.iter().map(|row| {
            let points = row.rounds.iter().filter_map(|(at, values)| {
                Some(Point { at: *at, value: Spread::of(values)?, ratio: ratios(row, *at, values) })
            });
            Series { points: points.collect(), ..row.series.clone() }
        });
        let contenders = contenders.collect();
        Measure { name: self.name.into(), unit: self.unit.into(), by: self.by.into(), contenders }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_inside_a_round() {
        let mut table = Table::new("throughput", "pairs/s", "tasks");
        for (ours, theirs) in [(10.0, 20.0), (100.0, 300.0), (1000.0, 4000.0)] {
            table.note(("ours", "g", "ours"), 1.0, ours);
            table.note(("theirs", "g", "ours"), 1.0, theirs);
        }
        let measure = table.finish();
        let ratio = measure.contenders[1].at(1.0).unwrap().ratio.unwrap();
        assert_eq!((ratio.low, ratio.median, ratio.high), (2.0, 3.0, 4.0));
        assert!((measure.contenders[0].at(1.0).unwrap().value.median - 100.0).abs() < 1e-9);
    }
}
