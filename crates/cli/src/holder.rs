//! Who holds it, since when, and is the holder alive?
//!
//! One set of words for `status`, `list`, `watch`, a wait and a refusal, on every backend. Times are on the backend's
//! clock, so a skewed clock of the reader cannot make them lie. Whether a lease is renewed is told by what is stored: a lease
//! that began later than the lock was renewed then.

use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;
use syncguard::{Fence, HashId, Key, LockInfo, Renewal, Timestamp};

use crate::output::{escape, human, tenths};

/// What was seen of the present holder.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub(crate) info: LockInfo,
    /// The lease was seen to move while we watched.
    pub(crate) renewed: bool,
}

impl Holder {
    pub(crate) fn new(info: LockInfo) -> Self {
        Self { info, renewed: false }
    }
}

/// The two lines about a holder.
pub(crate) fn describe(holder: &Holder) -> Vec<String> {
    let info = &holder.info;
    let lock = short(info.lock_id_hash());
    let asked = if info.is_asked_for() { ", asked to release" } else { "" };
    let who = match info.label() {
        Some(label) => format!("held by   {}   (lock {lock}, fence {}{asked})", escape(label.as_str()), info.fence),
        None => format!("held by   lock {lock}   (fence {}{asked})", info.fence),
    };
    vec![who, format!("since     {}: {}", clock_time(info), alive(holder))]
}

/// `held for 4m 10s, lease ends in 13s, renewed 6s ago`
pub(crate) fn alive(holder: &Holder) -> String {
    format!("held for {}, {}", human(holder.info.held_for()), lease(holder))
}

/// `lease ends in 13s, renewed 6s ago`, or `not renewed; free in 14s at the latest`
fn lease(holder: &Holder) -> String {
    let info = &holder.info;
    let (left, free) = (info.expires_at.since(info.observed_at), human(whole_seconds(info.free_in())));
    if left.is_zero() {
        return format!("lease is over; free in {free} at the latest");
    }
    let left = human(left);
    match info.renewal() {
        Renewal::Renewed { ago } => format!("lease ends in {left}, renewed {} ago", human(ago)),
        Renewal::NotRenewed => format!("not renewed; free in {free} at the latest"),
        Renewal::NotYet => format!("lease ends in {left}, not renewed yet"),
        // The length of the lease is not stored, but we saw it move.
        _ if holder.renewed => format!("lease ends in {left}, renewed while we looked"),
        _ => format!("lease ends in {left}"),
    }
}

/// One word or two for a column: when the lease was last renewed.
pub(crate) fn renewed(info: &LockInfo) -> String {
    match info.renewal() {
        Renewal::Renewed { ago } => format!("{} ago", human(ago)),
        Renewal::NotRenewed => "no".to_owned(),
        Renewal::NotYet => "not yet".to_owned(),
        _ => "unknown".to_owned(),
    }
}

// Upwards: what is promised at the latest must not be promised too early.
fn whole_seconds(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs() + u64::from(duration.subsec_nanos() > 0))
}

/// The label, or the lock's pseudonym where there is none.
pub(crate) fn who(info: &LockInfo) -> String {
    info.label().map_or_else(|| format!("lock {}", short(info.lock_id_hash())), |label| escape(label.as_str()))
}

/// `14:02:11Z`. The date only where the hour alone would mislead.
fn clock_time(info: &LockInfo) -> String {
    let full = full_time(info.acquired_at);
    if info.held_for() >= Duration::from_hours(24) {
        return full;
    }
    full.split_once('T').map_or(full.clone(), |(_, time)| time.to_owned())
}

/// `2026-11-15T14:02:11Z`
fn full_time(at: Timestamp) -> String {
    let millis = u64::try_from(at.as_millis()).unwrap_or(0);
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(millis)).to_string()
}

/// `14:02:11Z`, for a line of something that has just happened.
pub(crate) fn hour(at: Timestamp) -> String {
    let full = full_time(at);
    full.split_once('T').map_or(full.clone(), |(_, time)| time.to_owned())
}

/// `9c1f…e2a4`
pub(crate) fn short(hash: HashId) -> String {
    let text = hash.to_string();
    match (text.get(..4), text.get(text.len() - 4..)) {
        (Some(first), Some(last)) => format!("{first}…{last}"),
        _ => text,
    }
}

/// One line about who is waited for; what a log gets every 30 seconds.
pub(crate) fn waiting(key: &Key, holder: Option<&Holder>, waited: Duration) -> String {
    let key = escape(key.as_str());
    let Some(holder) = holder else {
        return format!("waiting for {key} (waited {})", tenths(waited));
    };
    let info = &holder.info;
    format!(
        "waiting for {key}: held by {} (fence {}); {} (waited {})",
        who(info),
        info.fence,
        alive(holder),
        tenths(waited)
    )
}

/// The same for the one line of a spinner: what changes stands in front, where 80 columns show it.
pub(crate) fn waiting_briefly(key: &Key, holder: Option<&Holder>, waited: Duration) -> String {
    let (key, waited) = (escape(key.as_str()), human(waited));
    let Some(holder) = holder else { return format!("waited {waited} for {key}") };
    let held = human(holder.info.held_for());
    // That a young lease was not renewed yet is the one thing a narrow line can leave out.
    let lease = lease(holder).replace(", not renewed yet", "");
    format!("waited {waited}, {lease} · {key}: held by {} for {held}", who(&holder.info))
}

/// A live lock for machines.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LockObject {
    key_hash: HashId,
    /// Only with `--raw`.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    lock_id_hash: HashId,
    fence: Fence,
    acquired_at_ms: Timestamp,
    expires_at_ms: Timestamp,
    /// The backend's clock at the time of the look: all times are relative to it.
    observed_at_ms: Timestamp,
    free_in_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<i64>,
    renewal: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    renewed_ago_ms: Option<u64>,
    asked_for: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
}

impl LockObject {
    pub(crate) fn new(info: &LockInfo, raw: bool) -> Self {
        let (renewal, ago) = match info.renewal() {
            Renewal::Renewed { ago } => ("renewed", Some(millis(ago))),
            Renewal::NotRenewed => ("notRenewed", None),
            Renewal::NotYet => ("notYet", None),
            _ => ("unknown", None),
        };
        Self {
            key_hash: info.key_hash(),
            key: raw.then(|| info.reveal().key.as_str().to_owned()),
            lock_id_hash: info.lock_id_hash(),
            fence: info.fence,
            acquired_at_ms: info.acquired_at,
            expires_at_ms: info.expires_at,
            observed_at_ms: info.observed_at,
            free_in_ms: millis(info.free_in()),
            ttl_ms: info.ttl().map(syncguard::Ttl::as_millis),
            renewal,
            renewed_ago_ms: ago,
            asked_for: info.is_asked_for(),
            label: info.label().map(|label| label.as_str().to_owned()),
        }
    }
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use syncguard::{Label, LockId, Ttl};

    use super::*;

    /// Taken at 14:02:11Z, looked at 77 s later, with this lease since the last renewal.
    fn leased(ends_after: i64, ttl: Option<i64>) -> Holder {
        let start = 1_794_751_331_000;
        let id = LockId::parse("AAAAAAAAAAAAAAAAAAAAAA").unwrap();
        let (key, fence, at) = (Key::new("deploy:prod").unwrap(), Fence::new(41).unwrap(), Timestamp::from_millis);
        let info = LockInfo::new(key, id, fence, at(start), at(start + ends_after), at(start + 77_000));
        Holder::new(info.with_ttl(ttl.map(|millis| Ttl::from_millis(millis).unwrap())))
    }

    pub(crate) fn holder(label: Option<&str>) -> Holder {
        let Holder { info, .. } = leased(90_000, Some(30_000));
        Holder::new(info.with_label(label.map(|label| Label::new(label).unwrap())))
    }

    #[test]
    fn whether_a_holder_is_alive_is_said_in_the_same_words_everywhere() {
        let said = |ends_after, ttl| alive(&leased(ends_after, ttl));
        assert_eq!(said(90_000, Some(30_000)), "held for 1m 17s, lease ends in 13s, renewed 17s ago");
        assert_eq!(said(90_000, Some(90_000)), "held for 1m 17s, not renewed; free in 14s at the latest");
        assert_eq!(said(300_000, Some(300_000)), "held for 1m 17s, lease ends in 3m 43s, not renewed yet");
        assert_eq!(said(90_000, None), "held for 1m 17s, lease ends in 13s");
        assert_eq!(said(76_500, None), "held for 1m 17s, lease is over; free in 1s at the latest");
        let moving = Holder { renewed: true, ..leased(90_000, None) };
        assert_eq!(alive(&moving), "held for 1m 17s, lease ends in 13s, renewed while we looked");
    }

    #[test]
    fn eighty_columns_show_the_lease_and_the_wait() {
        let key = Key::new("a-rather-long-key-as-people-have-them:production:eu-central-1").unwrap();
        let line = waiting_briefly(&key, Some(&holder(Some("ci@runner-7"))), Duration::from_secs(75));
        let shown: String = line.chars().take(78).collect();
        assert!(shown.starts_with("waited 1m 15s, lease ends in 13s, renewed 17s ago"), "{shown}");
    }

    #[test]
    fn machines_see_the_key_only_when_it_was_asked_for() {
        let text = |raw| serde_json::to_string(&LockObject::new(&holder(None).info, raw)).unwrap();
        assert!(!text(false).contains("deploy:prod"));
        assert!(text(true).contains(r#""key":"deploy:prod""#));
        assert!(!text(true).contains("AAAAAAAAAAAAAAAAAAAAAA"), "the lock id stays a secret");
        assert!(text(false).contains(r#""renewal":"renewed","renewedAgoMs":17000"#), "{}", text(false));
    }
}
