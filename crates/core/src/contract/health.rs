//! Is the storage fit to carry locks?
//!
//! Each backend answers with lines for an operator: what was checked, how it stands, what to do. `syncguard doctor`
//! prints them.

use std::borrow::Cow;

/// How one check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum HealthStatus {
    /// Worth knowing, neither good nor bad.
    Info,
    /// As it should be.
    Pass,
    /// Works today; a promise is weaker than it could be.
    Warn,
    /// Locks do not work, or fences may repeat.
    Fail,
}

/// One line of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HealthCheck {
    /// What was checked, in one or two words.
    pub name: Cow<'static, str>,
    /// How it stands.
    pub status: HealthStatus,
    /// What was seen. No key, lock id or password.
    pub detail: String,
    /// What to do about it.
    pub hint: Option<Cow<'static, str>>,
}

/// All lines of one look at a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HealthReport {
    /// In the order in which they were checked.
    pub checks: Vec<HealthCheck>,
}

impl HealthReport {
    /// Adds a line.
    pub fn push(
        &mut self,
        status: HealthStatus,
        name: impl Into<Cow<'static, str>>,
        detail: impl Into<String>,
    ) -> &mut HealthCheck {
        self.checks.push(HealthCheck { name: name.into(), status, detail: detail.into(), hint: None });
        self.checks.last_mut().expect("a line was just added")
    }

    /// Returns the worst line's status; [`HealthStatus::Pass`] when there is nothing to complain about.
    pub fn worst(&self) -> HealthStatus {
        self.checks.iter().map(|check| check.status).max().unwrap_or(HealthStatus::Pass).max(HealthStatus::Pass)
    }
}

impl HealthCheck {
    /// Adds what to do about it.
    pub fn hint(&mut self, hint: impl Into<Cow<'static, str>>) -> &mut Self {
        self.hint = Some(hint.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_line_counts_and_information_does_not() {
        let mut report = HealthReport::default();
        assert_eq!(report.worst(), HealthStatus::Pass);
        report.push(HealthStatus::Info, "version", "7.0");
        assert_eq!(report.worst(), HealthStatus::Pass);
        report.push(HealthStatus::Fail, "eviction", "allkeys-lru").hint("set noeviction");
        report.push(HealthStatus::Warn, "persistence", "off");
        assert_eq!(report.worst(), HealthStatus::Fail);
    }
}
