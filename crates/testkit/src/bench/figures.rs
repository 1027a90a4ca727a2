//! What is one figure, and what is left of many rounds?

use std::fmt;

use serde::{Deserialize, Serialize};

/// The median of the rounds, the least and the most.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Half of the rounds lie below it.
    pub median: f64,
    /// The least.
    pub low: f64,
    /// The most.
    pub high: f64,
}

impl Spread {
    /// What is left where no round had a number.
    const NOTHING: Self = Self { median: f64::NAN, low: f64::NAN, high: f64::NAN };

    /// Of the values that are numbers; `None` if none is.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        let median = percentile(&mut values, 50.0)?;
        Some(Self { median, low: *values.first()?, high: *values.last()? })
    }
}

/// `0.95 (0.90–1.02)`, with as many digits as `{:.1}` asks for, two otherwise.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(2);
        write!(f, "{:.digits$} ({:.digits$}–{:.digits$})", self.median, self.low, self.high)
    }
}

/// Sorts and reads; `None` of nothing.
#[allow(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an index of a list that fits into memory"
)]
pub fn percentile(values: &mut [f64], percent: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    let at = (last as f64 * percent / 100.0).round() as usize;
    values.get(at).copied()
}

/// The median of the values that are numbers; no number if none is.
pub fn median(values: &[f64]) -> f64 {
    Spread::of(values).unwrap_or(Spread::NOTHING).median
}

/// One figure of one contender.
///
/// Measure, contender, setting and `at` together name it: whoever compares two files finds it by them, so they stay as
/// they are when the words on the terminal change.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    measure: String,
    unit: &'static str,
    contender: String,
    /// How the storage was set, where there is more than one way.
    #[serde(skip_serializing_if = "Option::is_none")]
    setting: Option<String>,
    /// What `at` counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<usize>,
    /// `null` if nothing came out.
    value: Option<Spread>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ratios: Vec<Ratio>,
    /// One value per round, in their order, for the ratios inside a round.
    #[serde(skip)]
    rounds: Vec<f64>,
}

/// How a contender stands beside another one.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    /// Whose figures it is divided by.
    beside: String,
    #[serde(flatten)]
    ratio: Option<Spread>,
}

impl Figure {
    /// What a contender reached in each round.
    pub fn of(measure: impl Into<String>, unit: &'static str, contender: impl Into<String>, rounds: &[f64]) -> Self {
        Self {
            measure: measure.into(),
            unit,
            contender: contender.into(),
            setting: None,
            by: None,
            at: None,
            value: Spread::of(rounds),
            ratios: Vec::new(),
            rounds: rounds.to_vec(),
        }
    }

    /// How many there were of what the measure varies.
    #[must_use]
    pub fn at(self, by: &'static str, at: usize) -> Self {
        Self { by: Some(by), at: Some(at), ..self }
    }

    /// How the storage was set.
    #[must_use]
    pub fn setting(self, setting: impl Into<String>) -> Self {
        Self { setting: Some(setting.into()), ..self }
    }

    /// Divides by what another one reached in the same rounds. May be called for several.
    #[must_use]
    pub fn beside(mut self, whom: impl Into<String>, theirs: &[f64]) -> Self {
        let ratios: Vec<f64> = self.rounds.iter().zip(theirs).map(|(own, other)| own / other).collect();
        self.ratios.push(Ratio { beside: whom.into(), ratio: Spread::of(&ratios) });
        self
    }

    /// The median of the rounds.
    pub fn median(&self) -> f64 {
        self.value.unwrap_or(Spread::NOTHING).median
    }

    /// The ratios inside the rounds to the one that was named last.
    pub fn ratio(&self) -> Spread {
        self.ratios.last().and_then(|last| last.ratio).unwrap_or(Spread::NOTHING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_reads_as_its_median_and_its_ends() {
        let spread = Spread::of(&[1.02, 0.9, 0.95]).unwrap();
        assert_eq!(format!("{spread} {spread:.1}"), "0.95 (0.90–1.02) 0.9 (0.9–1.0)");
    }

    #[test]
    fn what_is_no_number_counts_for_nothing() {
        assert!(Spread::of(&[f64::NAN]).is_none() && Spread::of(&[]).is_none());
        assert_eq!(Spread::of(&[f64::NAN, 2.0]).unwrap(), Spread { median: 2.0, low: 2.0, high: 2.0 });
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let mut values: Vec<f64> = (1..=101).rev().map(f64::from).collect();
        let read = [0.0, 50.0, 99.0, 100.0].map(|percent| percentile(&mut values, percent));
        assert_eq!(read, [Some(1.0), Some(51.0), Some(100.0), Some(101.0)]);
        assert_eq!(percentile(&mut [], 50.0), None);
    }

    #[test]
    fn ratios_are_taken_inside_a_round() {
        let figure = Figure::of("throughput", "pairs/s", "theirs", &[20.0, 300.0, 4000.0]);

        let figure = figure.beside("ours", &[10.0, 100.0, 1000.0]);

        assert_eq!(figure.ratio(), Spread { median: 3.0, low: 2.0, high: 4.0 });
    }
}
