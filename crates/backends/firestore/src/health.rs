//! What should an operator know about this Firestore?
//!
//! Whether it answers, whether the query that release and extend live by works, and how far the clocks are apart: eight
//! round trips, of which the shortest tells most.

use syncguard_core::{HealthReport, HealthStatus, LockError, LockId};

use crate::backend::FirestoreBackend;
use crate::error::RpcError;
use crate::skew::ClockOffset;

const ROUND_TRIPS: usize = 8;
/// Never written: reading an absent document costs one read and tells the time.
const PROBE: &str = "syncguard-doctor";

impl FirestoreBackend {
    pub(crate) async fn check_health(&self) -> HealthReport {
        let mut report = HealthReport::default();
        let place = if self.options.emulator.is_some() { "emulator on this machine, no TLS" } else { "TLS" };
        report.push(HealthStatus::Info, "connection", place);
        let offset = match self.measure_offset().await {
            Ok(offset) => offset,
            Err(error) => {
                fail(&mut report, "reachable", &error);
                return report;
            }
        };
        report.push(HealthStatus::Pass, "reachable", "documents can be read");
        report.push(
            HealthStatus::Pass,
            "collections",
            format!("locks in `{}`, counters in `{}`", self.options.collection, self.options.fence_collection),
        );
        match self.find_owned(&LockId::random(), &self.begin()).await {
            Ok(_) => _ = report.push(HealthStatus::Pass, "index", "the query on `lockId` works"),
            Err(error) => fail(&mut report, "index", &error),
        }
        // Not to be allowed to list, or to be slow at it, is no finding.
        if let Ok(true) = self.rpc.has_nested(&self.options.collection, self.begin().patience).await {
            report
                .push(HealthStatus::Warn, "keys", "there are documents in collections below lock documents")
                .hint("another client stores keys like `a/b/c` there: such keys give no exclusion between it and this library");
        }
        match offset {
            Some(offset) => offset.report(&mut report),
            None => _ = report.push(HealthStatus::Warn, "clock", "the server gave no time to compare with"),
        }
        report
    }

    async fn measure_offset(&self) -> Result<Option<ClockOffset>, LockError> {
        let mut best: Option<ClockOffset> = None;
        for _ in 0..ROUND_TRIPS {
            let name = self.rpc.name(&self.options.collection, PROBE);
            let read = self.rpc.read([name], self.begin().patience).await.map_err(RpcError::into_lock_error)?;
            best = match (best, read.offset) {
                (Some(best), Some(offset)) if best.error_millis <= offset.error_millis => Some(best),
                (best, offset) => offset.or(best),
            };
        }
        Ok(best)
    }
}

fn fail(report: &mut HealthReport, name: &'static str, error: &LockError) {
    let line = report.push(HealthStatus::Fail, name, format!("{}: {error}", error.code()));
    if let Some(hint) = error.hint() {
        line.hint(hint.to_owned());
    }
}
