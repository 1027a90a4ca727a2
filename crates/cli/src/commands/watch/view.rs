//! What does the picture show?
//!
//! Pure: locks and changes go in, lines that fit the terminal come out. Above, how many there are and what happened; in the
//! middle the table; below, the last changes, where hand-overs show who waited for whom.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use anstyle::Style;
use syncguard::{Clock, Key, LockError, LockInfo, SystemClock, Timestamp, Transition, TransitionKind};

use super::events::name;
use crate::args::Sort;
use crate::commands::list::place;
use crate::holder;
use crate::output::{ERROR, HINT, escape};
use crate::table::{Layout, Row, cut};

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
/// A lock that is taken so soon after its last holder was seen was waited for: looks are about a second apart.
const AT_ONCE: Duration = Duration::from_millis(2500);
/// How many changes are remembered.
const REMEMBERED: usize = 100;
/// Turns of so many keys are remembered; beyond that only of those that are held.
const KEYS: usize = 10_000;

pub(super) struct View {
    prefix: String,
    backend: String,
    sort: Sort,
    raw: bool,
    began: Timestamp,
    /// As of the last look; `None` before the first.
    locks: Option<Vec<LockInfo>>,
    turns: HashMap<Key, u32>,
    recent: VecDeque<Change>,
    counts: Counts,
    /// Why the last look failed, and since when they do.
    outage: Option<(Timestamp, String)>,
}

#[derive(Default)]
struct Counts {
    hand_overs: u64,
    renewals: u64,
    expired: u64,
    stolen: u64,
}

/// Something that happened, and the lock that it happened to.
struct Change {
    word: &'static str,
    lock: LockInfo,
    from: Option<LockInfo>,
}

impl View {
    pub(super) fn new(prefix: &str, backend: String, sort: Sort, raw: bool) -> Self {
        Self {
            prefix: prefix.to_owned(),
            backend,
            sort,
            raw,
            began: SystemClock.wall(),
            locks: None,
            turns: HashMap::new(),
            recent: VecDeque::new(),
            counts: Counts::default(),
            outage: None,
        }
    }

    pub(super) fn sort_differently(&mut self) {
        self.sort = self.sort.next();
    }

    pub(super) fn toggle_raw(&mut self) {
        self.raw = !self.raw;
    }

    pub(super) fn miss(&mut self, error: &LockError) {
        let since = self.outage.take().map_or_else(|| SystemClock.wall(), |(since, _)| since);
        self.outage = Some((since, escape(&error.to_string())));
    }

    pub(super) fn take_in<'a>(&mut self, transitions: &[Transition], locks: impl Iterator<Item = &'a LockInfo>) {
        self.outage = None;
        self.locks = Some(locks.cloned().collect());
        for transition in transitions {
            let key = transition.lock.reveal().key;
            let mut from = transition.previous.clone();
            let word = match transition.kind {
                TransitionKind::Present => continue,
                TransitionKind::Renewed => {
                    self.counts.renewals += 1;
                    continue;
                }
                TransitionKind::Acquired => match self.take_back_release(&transition.lock) {
                    Some(before) => {
                        self.counts.hand_overs += 1;
                        from = Some(before);
                        "handed over"
                    }
                    None => "acquired",
                },
                TransitionKind::Expired => {
                    self.counts.expired += 1;
                    "expired"
                }
                TransitionKind::Stolen => {
                    self.counts.stolen += 1;
                    "stolen"
                }
                kind => kind.as_str(),
            };
            if from.is_some() {
                *self.turns.entry(key.clone()).or_insert(0) += 1;
            }
            self.remember(Change { word, lock: transition.lock.clone(), from });
        }
        self.forget_turns();
    }

    /// The holder before, if it let go just before the lock was taken again: somebody waited for it. One line tells both.
    fn take_back_release(&mut self, taken: &LockInfo) -> Option<LockInfo> {
        let follows = |change: &Change| {
            change.word == TransitionKind::Released.as_str()
                && change.lock.reveal().key == taken.reveal().key
                && taken.acquired_at.since(change.lock.observed_at) <= AT_ONCE
        };
        let index = self.recent.iter().rposition(follows)?;
        self.recent.remove(index).map(|change| change.lock)
    }

    fn remember(&mut self, change: Change) {
        self.recent.push_back(change);
        if self.recent.len() > REMEMBERED {
            self.recent.pop_front();
        }
    }

    fn forget_turns(&mut self) {
        if self.turns.len() > KEYS {
            let held: std::collections::HashSet<&Key> =
                self.locks.iter().flatten().map(|info| info.reveal().key).collect();
            self.turns.retain(|key, _| held.contains(key));
        }
    }

    /// The picture, in at most so many columns and lines.
    pub(super) fn frame(&self, (columns, lines): (usize, usize)) -> Vec<String> {
        let changes = self.changes(columns, (lines / 4).clamp(2, 10).min(lines.saturating_sub(5)));
        let room = lines.saturating_sub(changes.len() + 5);
        let mut frame = vec![self.title(columns), self.summary(columns)];
        frame.extend(self.table(columns, room));
        frame.resize(lines.saturating_sub(changes.len() + 1), String::new());
        frame.extend(changes);
        frame.push(self.footer(columns));
        frame
    }

    fn title(&self, columns: usize) -> String {
        let prefix = if self.prefix.is_empty() { "all keys".to_owned() } else { format!("{}*", escape(&self.prefix)) };
        let text = cut(&format!("syncguard watch  {prefix}  {}", escape(&self.backend)), columns);
        format!("{BOLD}{text}{BOLD:#}")
    }

    fn summary(&self, columns: usize) -> String {
        if let Some((since, why)) = &self.outage {
            let text = format!("no answer since {}: {why}; still trying", holder::hour(*since));
            return format!("{ERROR}{}{ERROR:#}", cut(&text, columns));
        }
        let Some(locks) = &self.locks else { return "looking …".to_owned() };
        let Counts { hand_overs, renewals, expired, stolen } = self.counts;
        let (held, since) = (locks.len(), holder::hour(self.began));
        let (hand_overs, renewals) = (counted(hand_overs, "hand-over"), counted(renewals, "renewal"));
        let text = format!("{held} held; {hand_overs}, {renewals}, {expired} expired, {stolen} stolen");
        let long = format!("{text} since {since}");
        if long.len() <= columns { long } else { cut(&text, columns) }
    }

    fn table(&self, columns: usize, room: usize) -> Vec<String> {
        let Some(locks) = &self.locks else { return Vec::new() };
        let mut locks: Vec<&LockInfo> = locks.iter().collect();
        locks.sort_by_cached_key(|info| place(self.sort, info, self.raw));
        let fits = if locks.len() > room { room.saturating_sub(1) } else { room };
        let turns = |info: &LockInfo| self.turns.get(info.reveal().key).copied().unwrap_or(0);
        let rows: Vec<Row> =
            locks.iter().take(fits).map(|info| Row::new(info, self.raw).with_turns(turns(info))).collect();
        let layout = Layout::new(&rows, Some(columns));
        let mut table = vec![String::new(), format!("{HINT}{}{HINT:#}", cut(&layout.header(), columns))];
        table.extend(rows.iter().map(|row| layout.row(row)));
        if locks.len() > fits {
            table.push(format!("{DIM}… {} more{DIM:#}", locks.len() - fits));
        }
        table
    }

    fn changes(&self, columns: usize, room: usize) -> Vec<String> {
        let shown = self.recent.iter().skip(self.recent.len().saturating_sub(room));
        let line = |change: &Change| {
            let (info, hash) = (&change.lock, || holder::short(change.lock.key_hash()));
            let key = if self.raw { name(info, true) } else { hash() };
            let fence = info.fence.get();
            let who = match &change.from {
                Some(old) => {
                    format!("fence {} → {fence}  {} → {}", old.fence.get(), holder::who(old), holder::who(info))
                }
                None => format!("fence {fence}  {}", holder::who(info)),
            };
            let text = format!("{} {:<11}  {key}  {who}", holder::hour(info.observed_at), change.word);
            let style = if change.from.is_some() { BOLD } else { DIM };
            format!("{style}{}{style:#}", cut(&text, columns))
        };
        shown.map(line).collect()
    }

    fn footer(&self, columns: usize) -> String {
        let shown = if self.raw { "hashes" } else { "keys" };
        let text = format!("q quit   s sort (by {})   r show {shown}", self.sort.word());
        format!("{HINT}{}{HINT:#}", cut(&text, columns))
    }
}

/// `1 renewal`, `2 renewals`
fn counted(count: u64, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use syncguard::{Inspector, Label, LockBackend, Locker, MemoryBackend};
    use unicode_width::UnicodeWidthStr;

    use super::*;

    fn plain(frame: &[String]) -> Vec<String> {
        frame.iter().map(|line| anstream::adapter::strip_str(line).to_string()).collect()
    }

    /// A view of two holders, one of which handed its lock over.
    async fn seen() -> View {
        let locker = Locker::new(MemoryBackend::new());
        let inspector: Inspector = locker.backend().inspector().unwrap();
        let mut watch = inspector.watch("");
        let mut view = View::new("", "memory:".to_owned(), Sort::Age, false);
        let label = Label::new("ada@runner-7:41877 deploy.sh").unwrap();
        let first = locker.lock("deploy:prod").label(&label).acquire().await.unwrap();
        let _migration = locker.lock("migrate:app").label("bob@runner-9:7 migrate").acquire().await.unwrap().leak();
        let transitions = watch.next().await.unwrap();
        view.take_in(&transitions, watch.locks());
        let _ = first.release().await.unwrap();
        let _second = locker.lock("deploy:prod").label("eve@runner-8:5 deploy.sh").acquire().await.unwrap().leak();
        let transitions = watch.next().await.unwrap();
        view.take_in(&transitions, watch.locks());
        view
    }

    #[tokio::test]
    async fn a_hand_over_shows_who_followed_whom() {
        let view = seen().await;

        let text = plain(&view.frame((160, 24))).join("\n");

        assert!(text.contains("2 held; 1 hand-over, "), "{text}");
        assert!(text.contains("handed over  "), "{text}");
        assert!(text.contains("fence 1 → 2  ada@runner-7:41877 deploy.sh → eve@runner-8:5 deploy.sh"), "{text}");
        assert!(!text.contains("released"), "a hand-over is one line: {text}");
    }

    #[tokio::test]
    async fn every_picture_fits_its_terminal() {
        let mut view = seen().await;
        for (columns, lines) in [(60, 20), (80, 24), (160, 40), (20, 6)] {
            for _ in 0..2 {
                let frame = plain(&view.frame((columns, lines)));
                assert_eq!(frame.len(), lines, "{columns}×{lines}");
                for line in frame.iter().filter(|_| columns >= 60) {
                    assert!(line.width() <= columns, "{columns}×{lines}: {line}");
                }
                view.toggle_raw();
            }
        }
    }

    #[tokio::test]
    async fn an_outage_is_shown_and_what_was_seen_stays() {
        let mut view = seen().await;
        view.miss(&LockError::new(syncguard::ErrorCode::ServiceUnavailable, "redis did not accept the connection"));
        let text = plain(&view.frame((80, 24))).join("\n");
        assert!(text.contains("no answer since") && text.contains("migrate"), "{text}");
    }
}
