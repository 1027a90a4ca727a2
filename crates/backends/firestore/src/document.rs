//! What do the two documents of a lock look like?
//!
//! `locks/{id}` holds `lockId`, `expiresAtMs`, `acquiredAtMs`, `key`, `fence`; `fence_counters/{id}` holds `fence` and
//! `keyDebug`. Exactly these fields, as the TypeScript original writes them, so that both may share a lock, and one more
//! that the original does not look at: `holder`, for people. Reading is strict: a document that is not a lock is an error
//! that names the field, never a guess.

use std::collections::HashMap;

use googleapis_tonic_google_firestore_v1::google::firestore::v1 as proto;
use proto::precondition::ConditionType;
use proto::value::ValueType;
use proto::write::Operation;
use syncguard_core::{Fence, Key, Label, LockError, LockId, LockInfo, Result, Timestamp, Ttl};

pub(crate) const LOCK_ID: &str = "lockId";
pub(crate) const EXPIRES_AT: &str = "expiresAtMs";
const ACQUIRED_AT: &str = "acquiredAtMs";
pub(crate) const KEY: &str = "key";
const FENCE: &str = "fence";
const KEY_DEBUG: &str = "keyDebug";
const HOLDER: &str = "holder";
const LABEL: &str = "label";
const TTL: &str = "ttlMs";
const ASKED: &str = "asked";

/// A lock as it was read, with the version that a conditional write names.
#[derive(Clone)]
pub(crate) struct StoredLock {
    pub(crate) name: String,
    pub(crate) version: prost_types::Timestamp,
    pub(crate) lock_id: LockId,
    pub(crate) key: Key,
    pub(crate) fence: Fence,
    pub(crate) acquired_at: Timestamp,
    pub(crate) expires_at: Timestamp,
    pub(crate) holder: Holder,
}

impl StoredLock {
    pub(crate) fn read(document: proto::Document) -> Result<Self> {
        let fields = &document.fields;
        let lock_id = LockId::parse(text(fields, LOCK_ID, Place::Lock)?).map_err(|_| damaged(LOCK_ID, Place::Lock))?;
        // The original stores the key as the caller wrote it; normalising here gives every reader the same word.
        let key = Key::new(text(fields, KEY, Place::Lock)?).map_err(|_| damaged(KEY, Place::Lock))?;
        let fence = text(fields, FENCE, Place::Lock)?.parse().map_err(|_| damaged(FENCE, Place::Lock))?;
        let acquired_at = millis(fields, ACQUIRED_AT)?;
        let expires_at = millis(fields, EXPIRES_AT)?;
        let version = document.update_time.ok_or_else(|| damaged("update time", Place::Lock))?;
        let holder = Holder::read(fields, &lock_id);
        Ok(Self { name: document.name, version, lock_id, key, fence, acquired_at, expires_at, holder })
    }

    /// What an onlooker may know.
    pub(crate) fn into_info(self, now: Timestamp) -> LockInfo {
        LockInfo::new(self.key, self.lock_id, self.fence, self.acquired_at, self.expires_at, now)
            .with_label(self.holder.label)
            .with_ttl(self.holder.ttl)
            .with_asked_for(self.holder.is_asked_for)
    }
}

/// What is told to people about a holder.
#[derive(Clone, Default)]
pub(crate) struct Holder {
    pub(crate) label: Option<Label>,
    /// The length of the present lease.
    pub(crate) ttl: Option<Ttl>,
    pub(crate) is_asked_for: bool,
}

impl Holder {
    /// Reads the field if it was written for this lock id: whoever merges fields into the document may have left a former
    /// holder's. It decides nothing, so what cannot be read is left out.
    fn read(fields: &HashMap<String, proto::Value>, lock_id: &LockId) -> Self {
        let Some(ValueType::MapValue(map)) = value(fields, HOLDER) else { return Self::default() };
        let word = |name| match value(&map.fields, name) {
            Some(ValueType::StringValue(text)) => Some(text.as_str()),
            _ => None,
        };
        if word(LOCK_ID) != Some(lock_id.as_str()) {
            return Self::default();
        }
        let ttl = match value(&map.fields, TTL) {
            Some(ValueType::IntegerValue(millis)) => Ttl::from_millis(*millis).ok(),
            _ => None,
        };
        let is_asked_for = matches!(value(&map.fields, ASKED), Some(ValueType::BooleanValue(true)));
        Self { label: word(LABEL).and_then(|label| Label::new(label).ok()), ttl, is_asked_for }
    }

    fn write(&self, lock_id: &LockId) -> proto::Value {
        let mut fields = HashMap::from([(LOCK_ID.to_owned(), string(lock_id.as_str()))]);
        if let Some(label) = &self.label {
            fields.insert(LABEL.to_owned(), string(label.as_str()));
        }
        if let Some(ttl) = self.ttl {
            fields.insert(TTL.to_owned(), integer(ttl.as_millis()));
        }
        if self.is_asked_for {
            fields.insert(ASKED.to_owned(), proto::Value { value_type: Some(ValueType::BooleanValue(true)) });
        }
        proto::Value { value_type: Some(ValueType::MapValue(proto::MapValue { fields })) }
    }
}

/// A counter as it was read.
pub(crate) struct StoredCounter {
    pub(crate) version: prost_types::Timestamp,
    pub(crate) value: u64,
    /// Which key it counts for, where its writer said so.
    pub(crate) key: Option<Key>,
}

impl StoredCounter {
    pub(crate) fn read(document: &proto::Document) -> Result<Self> {
        let digits = text(&document.fields, FENCE, Place::Counter)?;
        // Past fifteen digits is past the limit, and refused like any other damage.
        if digits.len() != Fence::DIGITS || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(damaged(FENCE, Place::Counter));
        }
        let value = digits.parse().map_err(|_| damaged(FENCE, Place::Counter))?;
        let version = document.update_time.ok_or_else(|| damaged("update time", Place::Counter))?;
        let key = text(&document.fields, KEY_DEBUG, Place::Counter).ok().and_then(|key| Key::new(key).ok());
        Ok(Self { version, value, key })
    }
}

/// Refuses a lock document that belongs to another key.
pub(crate) fn expect_key(stored: &Key, asked: &Key) -> Result<()> {
    refuse_clash(stored, asked)?;
    if stored == asked { Ok(()) } else { Err(damaged(KEY, Place::Lock)) }
}

/// Refuses to let two keys become one lock.
///
/// A key that is 24 hexadecimal digits can equal the hashed id of another key. Refusing all such keys would refuse
/// every 24-digit database id; the stored key tells the rare real clash.
pub(crate) fn refuse_clash(stored: &Key, asked: &Key) -> Result<()> {
    let is_hash_of = |one: &Key, other: &Key| one.as_str() == other.hash().to_string();
    if !is_hash_of(stored, asked) && !is_hash_of(asked, stored) {
        return Ok(());
    }
    Err(LockError::invalid("another key is stored in the document of this key")
        .with_hint("one of the two is the hash of the other; use another key"))
}

/// The whole lock document, to be written.
pub(crate) struct NewLock<'a> {
    pub(crate) lock_id: &'a LockId,
    pub(crate) key: &'a Key,
    pub(crate) fence: Fence,
    pub(crate) acquired_at: Timestamp,
    pub(crate) expires_at: Timestamp,
    pub(crate) holder: Holder,
}

impl NewLock<'_> {
    /// Creates or overwrites the document, if it is still as it was read.
    pub(crate) fn write(&self, name: String, read: Option<prost_types::Timestamp>) -> proto::Write {
        let fields = HashMap::from([
            (LOCK_ID.to_owned(), string(self.lock_id.as_str())),
            (KEY.to_owned(), string(self.key.as_str())),
            (FENCE.to_owned(), string(&self.fence.to_string())),
            (ACQUIRED_AT.to_owned(), integer(self.acquired_at.as_millis())),
            (EXPIRES_AT.to_owned(), integer(self.expires_at.as_millis())),
            (HOLDER.to_owned(), self.holder.write(self.lock_id)),
        ]);
        conditional(Operation::Update(document(name, fields)), read)
    }
}

/// Moves the counter, if it is still as it was read.
pub(crate) fn write_counter(
    name: String,
    fence: Fence,
    key: &Key,
    read: Option<prost_types::Timestamp>,
) -> proto::Write {
    let fields =
        HashMap::from([(FENCE.to_owned(), string(&fence.to_string())), (KEY_DEBUG.to_owned(), string(key.as_str()))]);
    conditional(Operation::Update(document(name, fields)), read)
}

/// Replaces the lease of a lock, if it is still as it was read.
pub(crate) fn write_lease(lock: &StoredLock, expires_at: Timestamp, ttl: Ttl) -> proto::Write {
    let holder = Holder { ttl: Some(ttl), ..lock.holder.clone() };
    let expiry = (EXPIRES_AT, integer(expires_at.as_millis()));
    write_fields(lock, [expiry, (HOLDER, holder.write(&lock.lock_id))])
}

/// Marks a lock as asked for, if it is still as it was read.
pub(crate) fn write_mark(lock: &StoredLock) -> proto::Write {
    let holder = Holder { is_asked_for: true, ..lock.holder.clone() };
    write_fields(lock, [(HOLDER, holder.write(&lock.lock_id))])
}

/// Replaces some fields of a lock and leaves all others, if it is still as it was read.
fn write_fields<const N: usize>(lock: &StoredLock, fields: [(&str, proto::Value); N]) -> proto::Write {
    let field_paths = fields.iter().map(|(name, _)| (*name).to_owned()).collect();
    let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let mut write = conditional(Operation::Update(document(lock.name.clone(), fields)), Some(lock.version));
    write.update_mask = Some(proto::DocumentMask { field_paths });
    write
}

/// Deletes a lock, if it is still as it was read.
pub(crate) fn delete(lock: &StoredLock) -> proto::Write {
    conditional(Operation::Delete(lock.name.clone()), Some(lock.version))
}

fn conditional(operation: Operation, read: Option<prost_types::Timestamp>) -> proto::Write {
    let condition = read.map_or(ConditionType::Exists(false), ConditionType::UpdateTime);
    proto::Write {
        current_document: Some(proto::Precondition { condition_type: Some(condition) }),
        operation: Some(operation),
        ..proto::Write::default()
    }
}

fn document(name: String, fields: HashMap<String, proto::Value>) -> proto::Document {
    proto::Document { name, fields, create_time: None, update_time: None }
}

pub(crate) fn string(text: &str) -> proto::Value {
    proto::Value { value_type: Some(ValueType::StringValue(text.to_owned())) }
}

pub(crate) fn integer(value: i64) -> proto::Value {
    proto::Value { value_type: Some(ValueType::IntegerValue(value)) }
}

#[derive(Clone, Copy)]
enum Place {
    Lock,
    Counter,
}

fn value<'a>(fields: &'a HashMap<String, proto::Value>, field: &str) -> Option<&'a ValueType> {
    fields.get(field).and_then(|value| value.value_type.as_ref())
}

fn text<'a>(fields: &'a HashMap<String, proto::Value>, field: &'static str, place: Place) -> Result<&'a str> {
    match value(fields, field) {
        Some(ValueType::StringValue(text)) => Ok(text),
        _ => Err(damaged(field, place)),
    }
}

fn millis(fields: &HashMap<String, proto::Value>, field: &'static str) -> Result<Timestamp> {
    match value(fields, field) {
        Some(ValueType::IntegerValue(millis)) => Ok(Timestamp::from_millis(*millis)),
        // JavaScript has one kind of number, and some of its clients store it as a double.
        Some(ValueType::DoubleValue(millis)) => whole(*millis).ok_or_else(|| damaged(field, Place::Lock)),
        _ => Err(damaged(field, Place::Lock)),
    }
}

fn whole(millis: f64) -> Option<Timestamp> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if !millis.is_finite() || millis.abs() > EXACT {
        return None;
    }
    #[allow(clippy::as_conversions, clippy::cast_possible_truncation, reason = "inside ±2^53, checked above")]
    Some(Timestamp::from_millis(millis.trunc() as i64))
}

fn damaged(field: &'static str, place: Place) -> LockError {
    let (what, collection) = match place {
        Place::Lock => ("a lock", "lock"),
        Place::Counter => ("a fence counter", "fence"),
    };
    LockError::internal(format!(
        "the document in the {collection} collection is not {what}: `{field}` is missing or of a wrong form"
    ))
    .with_hint("something else writes to this collection; look at the document and repair or remove it by hand")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_javascript_stored_as_a_double_is_read() {
        let fields = HashMap::from([(
            EXPIRES_AT.to_owned(),
            proto::Value { value_type: Some(ValueType::DoubleValue(1_700_000_000_123.0)) },
        )]);
        assert_eq!(millis(&fields, EXPIRES_AT).unwrap(), Timestamp::from_millis(1_700_000_000_123));
        assert!(whole(f64::NAN).is_none());
        assert!(whole(1e300).is_none());
    }
}
