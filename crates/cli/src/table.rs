//! How do many locks fit on a screen?
//!
//! One row for each, in columns that `list` and `watch` share. A pipe gets everything; on a terminal the columns give way in
//! an order: first the zeros of a fence, then the middle of a key, then the end of a holder's name.

use std::fmt::Write as _;

use syncguard::LockInfo;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::holder;
use crate::output::{WARNING, escape, human};

/// What is shown of a lock, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Key,
    Held,
    Lease,
    Renewed,
    /// How often it changed hands while we watched.
    Turns,
    Fence,
    Holder,
}

impl Column {
    const ALL: [Self; 7] = [Self::Key, Self::Held, Self::Lease, Self::Renewed, Self::Turns, Self::Fence, Self::Holder];

    fn title(self) -> &'static str {
        match self {
            Self::Key => "KEY",
            Self::Held => "HELD FOR",
            Self::Lease => "LEASE",
            Self::Renewed => "RENEWED",
            Self::Turns => "TURNS",
            Self::Fence => "FENCE",
            Self::Holder => "HELD BY",
        }
    }

    /// What its texts usually need, so that rows which are printed later stand under the first ones.
    fn usual_width(self) -> usize {
        match self {
            Self::Held => 8,
            Self::Lease | Self::Renewed => 7,
            _ => self.title().len(),
        }
    }
}

/// Between two columns.
const GAP: usize = 2;
/// The least that is shown of a raw key and of a holder.
const KEY_AT_LEAST: usize = 9;
const HOLDER_AT_LEAST: usize = 10;
/// A terminal that is narrower shows no turns.
const WIDE: usize = 80;

/// One lock, ready to be shown.
pub(crate) struct Row {
    key: String,
    /// The key is a hash and may be shortened in its middle.
    is_hash: bool,
    held: String,
    lease: String,
    renewed: String,
    turns: Option<u32>,
    fence: String,
    holder: String,
    /// Half of its lease is over and nobody renewed it.
    is_in_doubt: bool,
}

impl Row {
    pub(crate) fn new(info: &LockInfo, raw: bool) -> Self {
        let left = info.expires_at.since(info.observed_at);
        let asked = if info.is_asked_for() { " (asked to release)" } else { "" };
        Self {
            key: if raw { escape(info.reveal().key.as_str()) } else { info.key_hash().to_string() },
            is_hash: !raw,
            held: human(info.held_for()),
            lease: if left.is_zero() { "over".to_owned() } else { human(left) },
            renewed: holder::renewed(info),
            turns: None,
            fence: info.fence.to_string(),
            holder: format!("{}{asked}", holder::who(info)),
            is_in_doubt: matches!(info.renewal(), syncguard::Renewal::NotRenewed) || left.is_zero(),
        }
    }

    /// Adds how often it changed hands.
    pub(crate) fn with_turns(mut self, turns: u32) -> Self {
        self.turns = Some(turns);
        self
    }
}

/// How wide the columns are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    columns: Vec<(Column, usize)>,
    short_hashes: bool,
    short_fences: bool,
    /// The last column ends somewhere.
    is_bounded: bool,
}

impl Layout {
    /// The layout for these rows, and for later ones that are like them.
    pub(crate) fn new(rows: &[Row], limit: Option<usize>) -> Self {
        let turns = rows.iter().any(|row| row.turns.is_some()) && limit.is_none_or(|limit| limit >= WIDE);
        let columns = Column::ALL.into_iter().filter(|column| *column != Column::Turns || turns);
        let columns = columns.map(|column| (column, 0)).collect();
        let mut layout = Self { columns, short_hashes: false, short_fences: false, is_bounded: limit.is_some() };
        layout.measure(rows);
        let Some(limit) = limit else { return layout };
        if layout.total() > limit {
            layout.short_fences = true;
            layout.measure(rows);
        }
        if layout.total() > limit {
            layout.short_hashes = true;
            layout.measure(rows);
        }
        layout.shrink(rows.iter().all(|row| row.is_hash), limit);
        layout
    }

    fn measure(&mut self, rows: &[Row]) {
        for index in 0..self.columns.len() {
            let column = self.columns[index].0;
            let widest = rows.iter().map(|row| self.cell(row, column).width()).max().unwrap_or(0);
            self.columns[index].1 = widest.max(column.usual_width());
        }
    }

    /// Of two long texts both give way.
    fn shrink(&mut self, are_hashes: bool, limit: usize) {
        let last = self.columns.len() - 1;
        let (key, holder) = (self.columns[0].1, self.columns[last].1);
        let key_at_least = if are_hashes { key } else { KEY_AT_LEAST.min(key) };
        let holder_at_least = HOLDER_AT_LEAST.min(holder);
        while self.total() > limit {
            let (key, holder) = (self.columns[0].1, self.columns[last].1);
            if key > key_at_least && (key > holder || holder <= holder_at_least) {
                self.columns[0].1 -= 1;
            } else if holder > holder_at_least {
                self.columns[last].1 -= 1;
            } else {
                return;
            }
        }
    }

    fn total(&self) -> usize {
        self.columns.iter().map(|(_, width)| width).sum::<usize>() + GAP * (self.columns.len() - 1)
    }

    fn cell(&self, row: &Row, column: Column) -> String {
        match column {
            Column::Key if row.is_hash && self.short_hashes => middle_cut(&row.key),
            Column::Key => row.key.clone(),
            Column::Held => row.held.clone(),
            Column::Lease => row.lease.clone(),
            Column::Renewed => row.renewed.clone(),
            Column::Turns => row.turns.map_or(String::new(), |turns| turns.to_string()),
            Column::Fence if self.short_fences => row.fence.trim_start_matches('0').to_owned(),
            Column::Fence => row.fence.clone(),
            Column::Holder => row.holder.clone(),
        }
    }

    pub(crate) fn header(&self) -> String {
        self.line(|column| column.title().to_owned())
    }

    pub(crate) fn row(&self, row: &Row) -> String {
        let line = self.line(|column| self.cell(row, column));
        if row.is_in_doubt { format!("{WARNING}{line}{WARNING:#}") } else { line }
    }

    fn line(&self, cell: impl Fn(Column) -> String) -> String {
        let mut line = String::new();
        for (column, width) in self.columns.iter().copied() {
            let text = cell(column);
            let is_last = column == Column::Holder;
            let text = if self.is_bounded && (is_last || column == Column::Key) { cut(&text, width) } else { text };
            line.push_str(&text);
            if !is_last {
                let _ = write!(line, "{:1$}", "", width.saturating_sub(text.width()) + GAP);
            }
        }
        line
    }
}

/// `9c1f…e2a4`
fn middle_cut(hash: &str) -> String {
    match (hash.get(..4), hash.get(hash.len().saturating_sub(4)..)) {
        (Some(first), Some(last)) if hash.len() > 9 => format!("{first}…{last}"),
        _ => hash.to_owned(),
    }
}

/// The beginning of a text, in at most so many columns of a terminal.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let (mut shown, mut used) = (String::new(), 1);
    for character in text.chars() {
        used += character.width().unwrap_or(0);
        if used > columns {
            break;
        }
        shown.push(character);
    }
    shown.push('…');
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: &str, is_hash: bool, holder: &str) -> Row {
        Row {
            key: key.to_owned(),
            is_hash,
            held: "4m 10s".to_owned(),
            lease: "13s".to_owned(),
            renewed: "6s ago".to_owned(),
            turns: None,
            fence: "000000000000042".to_owned(),
            holder: holder.to_owned(),
            is_in_doubt: false,
        }
    }

    fn shown(rows: &[Row], limit: Option<usize>) -> Vec<String> {
        let layout = Layout::new(rows, limit);
        std::iter::once(layout.header()).chain(rows.iter().map(|row| layout.row(row))).collect()
    }

    #[test]
    fn a_pipe_gets_everything() {
        let rows = [row("9b4d08ac5c7b66450ce0d908", true, "ci@runner-7:41877 deploy.sh")];
        assert_eq!(
            shown(&rows, None),
            [
                "KEY                       HELD FOR  LEASE    RENEWED  FENCE            HELD BY",
                "9b4d08ac5c7b66450ce0d908  4m 10s    13s      6s ago   000000000000042  ci@runner-7:41877 deploy.sh",
            ]
        );
    }

    #[test]
    fn a_narrow_terminal_keeps_every_column() {
        let rows = [row("9b4d08ac5c7b66450ce0d908", true, "ci@runner-7:41877 deploy.sh")];
        assert_eq!(
            shown(&rows, Some(80))[1],
            "9b4d…d908  4m 10s    13s      6s ago   42     ci@runner-7:41877 deploy.sh"
        );
        assert_eq!(shown(&rows, Some(60))[1], "9b4d…d908  4m 10s    13s      6s ago   42     ci@runner-7:4…");
        for width in [60, 80, 100, 160] {
            for line in shown(&rows, Some(width)) {
                assert!(line.width() <= width, "{width}: {line}");
            }
        }
    }

    #[test]
    fn turns_are_shown_where_there_is_room() {
        let rows = [row("9b4d08ac5c7b66450ce0d908", true, "ci").with_turns(3)];
        assert!(shown(&rows, Some(80))[0].contains("TURNS") && shown(&rows, None)[0].contains("TURNS"));
        assert!(!shown(&rows, Some(60))[0].contains("TURNS"));
    }

    #[test]
    fn wide_characters_take_two_columns() {
        let rows = [row("部署:生产环境:欧洲中部:一个很长的名字", false, "操作员@主机"), row("deploy", false, "ci")];
        for width in [60, 80] {
            for line in shown(&rows, Some(width)) {
                assert!(line.width() <= width, "{width}: {line} is {}", line.width());
            }
        }
        assert_eq!(cut("部署环境", 5), "部署…");
        assert_eq!(cut("部署环境", 6), "部署…");
        assert_eq!(cut("部署", 4), "部署");
    }
}
