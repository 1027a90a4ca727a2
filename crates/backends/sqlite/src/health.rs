//! Is this file fit to carry locks?

use syncguard_core::{HealthReport, HealthStatus};

use crate::backend::SqliteBackend;

pub(crate) async fn report(backend: &SqliteBackend) -> HealthReport {
    let mut report = HealthReport::default();
    report.push(HealthStatus::Info, "file", backend.path().display().to_string());
    report
}
