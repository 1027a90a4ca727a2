//! What is held right now?
//!
//! Memory is bounded and the first line comes soon, however many locks there are. A few are sorted by age; more than a few
//! are printed as they are found, unless an order was asked for: then all are read, and the first of that order are kept.

use std::collections::BTreeMap;

use syncguard::{ListRequest, LockInfo};

use crate::args::{ListArgs, Sort};
use crate::config::Backend;
use crate::exit::{self, Failure, Stage};
use crate::holder::LockObject;
use crate::output::Output;
use crate::table::{Layout, Row};

/// So many are sorted without being asked to: what a person reads, and what the first steps of a listing find.
const FEW: usize = 200;
/// So many are kept of an order if no limit is given.
const KEPT: usize = 1000;

pub(crate) async fn list(args: &ListArgs, backend: &Backend, output: Output) -> Result<u8, Failure> {
    let locker = super::open(backend).await?;
    let inspector = super::inspector(&locker)?;
    let mut listing = Listing::new(args, Printer::new(args.raw, output));
    let mut cursor = None;
    loop {
        let request = ListRequest::new(&args.prefix).page_size(500).after(cursor.as_ref());
        let page = inspector.list(request).await.map_err(|error| Failure::from_lock(&error, Stage::Operating))?;
        let locks = page.locks.into_iter();
        let is_enough = listing.add(locks.filter(|info| args.older_than.is_none_or(|age| info.held_for() >= age)));
        match page.next {
            Some(next) if !is_enough => cursor = Some(next),
            _ => break,
        }
    }
    let found = listing.finish();
    Ok(if output.quiet && found == 0 { exit::NO } else { exit::OK })
}

/// What becomes of the locks that are found.
enum Plan {
    /// Printed at once.
    Stream,
    /// Kept and sorted by age as long as there are few; from then on printed at once.
    SortFew(Vec<LockInfo>),
    /// The first of an order are kept, at most so many.
    First { kept: BTreeMap<Place, LockInfo>, sort: Sort, limit: usize },
}

/// A lock's place in an order. The last part tells locks of one place apart, and makes two sights of one lock the same.
type Place = (i64, String, String);

struct Listing {
    plan: Plan,
    printer: Printer,
    limit: Option<usize>,
    found: usize,
}

impl Listing {
    fn new(args: &ListArgs, printer: Printer) -> Self {
        let limit = args.limit.map(std::num::NonZeroUsize::get);
        let plan = match (args.sort, limit) {
            (Some(Sort::None), _) => Plan::Stream,
            (None, None) => Plan::SortFew(Vec::new()),
            (sort, limit) => {
                Plan::First { kept: BTreeMap::new(), sort: sort.unwrap_or(Sort::Age), limit: limit.unwrap_or(KEPT) }
            }
        };
        Self { plan, printer, limit, found: 0 }
    }

    /// Takes in what was found, and says whether nothing more is needed.
    fn add(&mut self, locks: impl Iterator<Item = LockInfo>) -> bool {
        for info in locks {
            self.found += 1;
            if self.printer.output.quiet {
                return true;
            }
            match &mut self.plan {
                Plan::Stream if self.limit.is_some_and(|limit| self.found > limit) => return true,
                Plan::Stream => self.printer.print(&info),
                Plan::SortFew(few) if few.len() < FEW => few.push(info),
                Plan::SortFew(few) => {
                    let few = std::mem::take(few);
                    self.plan = Plan::Stream;
                    self.printer.note_unsorted();
                    self.printer.print_all(by_age(few));
                    self.printer.print(&info);
                }
                Plan::First { kept, sort, limit } => {
                    kept.insert(place(*sort, &info, self.printer.raw), info);
                    if kept.len() > *limit {
                        kept.pop_last();
                    }
                }
            }
            if self.printer.is_broken {
                return true;
            }
        }
        false
    }

    fn finish(self) -> usize {
        let Self { plan, mut printer, found, .. } = self;
        match plan {
            Plan::Stream => {}
            Plan::SortFew(few) => printer.print_all(by_age(few)),
            Plan::First { kept, .. } => {
                let left_out = found.saturating_sub(kept.len());
                printer.print_all(kept.into_values().collect());
                if left_out > 0 {
                    printer.output.note(&format!("{left_out} more are not shown; --limit shows more"));
                }
            }
        }
        printer.end();
        found
    }
}

/// The longest held first. One that was listed twice is shown once.
fn by_age(mut few: Vec<LockInfo>) -> Vec<LockInfo> {
    few.sort_by_cached_key(|info| (info.acquired_at.as_millis(), info.lock_id_hash().to_string()));
    few.dedup_by_key(|info| info.lock_id_hash());
    few
}

/// Where a lock stands in an order.
pub(crate) fn place(sort: Sort, info: &LockInfo, raw: bool) -> Place {
    let (number, text) = match sort {
        Sort::Age | Sort::None => (info.acquired_at.as_millis(), String::new()),
        Sort::Lease => (info.expires_at.as_millis(), String::new()),
        Sort::Key if raw => (0, info.reveal().key.as_str().to_owned()),
        Sort::Key => (0, info.key_hash().to_string()),
        // Those without a name come last.
        Sort::Holder => (
            i64::from(info.label().is_none()),
            info.label().map_or_else(String::new, |label| label.as_str().to_owned()),
        ),
    };
    (number, text, info.lock_id_hash().to_string())
}

/// Writes rows, and notices when nobody reads them any more.
struct Printer {
    raw: bool,
    output: Output,
    layout: Option<Layout>,
    is_broken: bool,
}

impl Printer {
    fn new(raw: bool, output: Output) -> Self {
        Self { raw, output, layout: None, is_broken: false }
    }

    fn write(&mut self, line: &str) {
        self.is_broken = self.is_broken || self.output.deliver(line).is_err();
    }

    fn print_all(&mut self, locks: Vec<LockInfo>) {
        if self.layout.is_none() && !self.output.json && !locks.is_empty() {
            let rows: Vec<Row> = locks.iter().map(|info| Row::new(info, self.raw)).collect();
            self.begin(&rows);
        }
        for info in locks {
            self.print(&info);
        }
    }

    fn begin(&mut self, rows: &[Row]) {
        let layout = Layout::new(rows, terminal_width());
        self.write(&layout.header());
        self.layout = Some(layout);
    }

    fn print(&mut self, info: &LockInfo) {
        if self.is_broken {
            return;
        }
        if self.output.json {
            self.is_broken = self.output.deliver_object(&LockObject::new(info, self.raw)).is_err();
            return;
        }
        let row = Row::new(info, self.raw);
        if self.layout.is_none() {
            self.begin(std::slice::from_ref(&row));
        }
        if let Some(layout) = &self.layout {
            self.write(&layout.row(&row));
        }
    }

    fn note_unsorted(&self) {
        self.output
            .note(&format!("more than {FEW} locks: shown as they are found; --sort age --limit N shows the oldest"));
    }

    fn end(&self) {
        match &self.layout {
            Some(_) if !self.raw => self.output.note("keys are shown as hashes; --raw shows the keys"),
            None if !self.output.json && !self.output.quiet => self.output.note("no live lock matches"),
            _ => {}
        }
    }
}

fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use syncguard::{Fence, Key, LockId, Timestamp};

    use super::*;

    fn lock(key: &str, acquired: i64, ends: i64) -> LockInfo {
        let at = Timestamp::from_millis;
        LockInfo::new(Key::new(key).unwrap(), LockId::random(), Fence::FIRST, at(acquired), at(ends), at(100))
    }

    fn first(sort: Sort, limit: usize, locks: Vec<LockInfo>) -> Vec<String> {
        let mut kept = BTreeMap::new();
        for info in locks {
            kept.insert(place(sort, &info, true), info);
            if kept.len() > limit {
                kept.pop_last();
            }
        }
        kept.values().map(|info| info.reveal().key.as_str().to_owned()).collect()
    }

    #[test]
    fn the_first_of_each_order_are_kept() {
        let locks = || vec![lock("b", 30, 110), lock("c", 10, 130), lock("a", 20, 120)];
        assert_eq!(first(Sort::Age, 2, locks()), ["c", "a"]);
        assert_eq!(first(Sort::Lease, 2, locks()), ["b", "a"]);
        assert_eq!(first(Sort::Key, 9, locks()), ["a", "b", "c"]);
    }

    #[test]
    fn a_lock_that_was_listed_twice_is_shown_once() {
        let twice = lock("a", 20, 120);
        let sorted = by_age(vec![twice.clone(), lock("b", 10, 120), twice]);
        assert_eq!(sorted.len(), 2);
        assert_eq!(sorted[0].reveal().key.as_str(), "b");
    }
}
