//! What may operators see, and what is it billed?
//!
//! A listing asks for locks in the order of their keys, so many at a time, each time after the last one it saw. The order
//! of keys is one that no renewal changes, and one range of its index is all locks with a prefix: nothing else is read, and
//! nothing else is billed. Watching is listing again and again: a stream of all changes would be billed on top of it.

use googleapis_tonic_google_firestore_v1::google::firestore::v1 as proto;
use proto::structured_query as query;
use proto::value::ValueType;
use query::filter::FilterType;
use syncguard_core::time::{TOLERANCE_MS, is_live};
use syncguard_core::{AskOutcome, Counts, Cursor, Inspect, ListRequest, LockError, LockId, Page, Result};

use crate::backend::FirestoreBackend;
use crate::document::{EXPIRES_AT, KEY, StoredLock, integer, string, write_mark};
use crate::rpc::collection_of;

/// The name of a document, where a field is asked for.
const NAME: &str = "__name__";

impl Inspect for FirestoreBackend {
    async fn list(&self, request: ListRequest<'_>) -> Result<Page> {
        let retry = self.begin();
        let size = request.page_size.clamp(1, 10_000);
        let query = proto::StructuredQuery {
            from: vec![collection_of(&self.options.collection)],
            r#where: Some(range_of(request.prefix)),
            order_by: vec![ascending(KEY), ascending(NAME)],
            start_at: request.cursor.map(|cursor| self.after(cursor)).transpose()?,
            limit: i32::try_from(size).ok(),
            ..Default::default()
        };
        let found = self.rpc.query(query, retry.patience).await;
        let found = found.map_err(|error| self.explain_query(error, KEY, &retry))?;
        let now = self.now();
        let more = u32::try_from(found.documents.len()).is_ok_and(|count| count >= size);
        let next = found.documents.last().filter(|_| more).and_then(cursor_at);
        // What is not a lock is passed over: a listing shows what is held.
        let locks = found.documents.into_iter().filter_map(|document| StoredLock::read(document).ok());
        let live = locks.filter(|lock| is_live(lock.expires_at, now)).map(|lock| lock.into_info(now));
        Ok(Page::new(live.collect(), next))
    }

    async fn count(&self) -> Result<Counts> {
        let retry = self.begin();
        let newest_dead = self.now().as_millis().saturating_sub(TOLERANCE_MS);
        let live = proto::StructuredQuery {
            from: vec![collection_of(&self.options.collection)],
            r#where: Some(compare(EXPIRES_AT, query::field_filter::Operator::GreaterThan, integer(newest_dead))),
            ..Default::default()
        };
        let all_counters =
            proto::StructuredQuery { from: vec![collection_of(&self.options.fence_collection)], ..Default::default() };
        let locks = self.rpc.count(live, retry.patience).await;
        let locks = locks.map_err(|error| self.explain_query(error, EXPIRES_AT, &retry))?;
        let counters = self.rpc.count(all_counters, retry.patience).await;
        Ok(Counts::new(locks, counters.map_err(|error| retry.read_failed(error))?))
    }

    async fn ask(&self, lock_id: &LockId) -> Result<AskOutcome> {
        let mut retry = self.begin();
        loop {
            let owned = self.find_owned(lock_id, &retry).await?;
            let Some(lock) = &owned.live else { return Ok(AskOutcome::Absent) };
            match self.rpc.commit(vec![write_mark(lock)], retry.patience).await {
                Ok(()) => return Ok(AskOutcome::Asked),
                Err(error) => retry.write_failed(error).await?,
            }
        }
    }
}

impl FirestoreBackend {
    fn after(&self, cursor: &Cursor) -> Result<proto::Cursor> {
        let (id, key) = cursor.as_str().split_once('/').ok_or_else(not_ours)?;
        let name = ValueType::ReferenceValue(self.rpc.name(&self.options.collection, id));
        Ok(proto::Cursor { values: vec![string(key), proto::Value { value_type: Some(name) }], before: false })
    }
}

/// A document's id, which holds no slash, and its key as it is stored: what the server orders by.
fn cursor_at(document: &proto::Document) -> Option<Cursor> {
    let id = document.name.rsplit('/').next()?;
    match document.fields.get(KEY)?.value_type.as_ref()? {
        ValueType::StringValue(key) => Some(Cursor::new(format!("{id}/{key}"))),
        // The range holds nothing but texts.
        _ => None,
    }
}

fn not_ours() -> LockError {
    LockError::invalid("this cursor was not made by the firestore backend")
        .with_hint("begin the listing again without a cursor")
}

/// The texts that begin with a prefix, as one range. With an empty prefix, all texts.
fn range_of(prefix: &str) -> query::Filter {
    use query::field_filter::Operator::{GreaterThanOrEqual, LessThan};
    let mut filters = vec![compare(KEY, GreaterThanOrEqual, string(prefix))];
    filters.extend(end_of(prefix).map(|end| compare(KEY, LessThan, string(&end))));
    let filter = query::CompositeFilter { op: query::composite_filter::Operator::And.into(), filters };
    query::Filter { filter_type: Some(FilterType::CompositeFilter(filter)) }
}

/// The first text after all that begin with a prefix; none when there is no such text.
fn end_of(prefix: &str) -> Option<String> {
    let mut end: Vec<char> = prefix.chars().collect();
    while let Some(last) = end.pop() {
        // The step knows that there are no characters between U+D7FF and U+E000.
        if let Some(next) = (last..=char::MAX).nth(1) {
            end.push(next);
            return Some(end.into_iter().collect());
        }
    }
    None
}

fn compare(field: &str, op: query::field_filter::Operator, value: proto::Value) -> query::Filter {
    let field = Some(query::FieldReference { field_path: field.to_owned() });
    let filter = query::FieldFilter { field, op: op.into(), value: Some(value) };
    query::Filter { filter_type: Some(FilterType::FieldFilter(filter)) }
}

fn ascending(field: &str) -> query::Order {
    let field = Some(query::FieldReference { field_path: field.to_owned() });
    query::Order { field, direction: query::Direction::Ascending.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_text_that_does_not_begin_with_it() {
        for (prefix, end) in [
            ("", None),
            ("deploy:", Some("deploy;")),
            ("a\u{d7ff}", Some("a\u{e000}")),
            ("a\u{10ffff}", Some("b")),
            ("\u{10ffff}\u{10ffff}", None),
        ] {
            assert_eq!(end_of(prefix).as_deref(), end, "{prefix:?}");
        }
    }
}
