//! What may a document in the place of a lock or of a counter do?
//!
//! It takes bytes from anywhere, makes fields of them, and panics when the readers do, or when they believe something that
//! nobody may believe. The fuzz target in `fuzz/` calls it, and the bounded property below: in no other build is anything
//! of this left.

use std::collections::HashMap;

use googleapis_tonic_google_firestore_v1::google::firestore::v1 as proto;
use proto::value::ValueType;
use syncguard_core::time::is_live;
use syncguard_core::{Fence, Key, LockError, Timestamp};

use crate::document::{StoredCounter, StoredLock, expect_key};

/// A message is not longer than this, whatever was read.
const LONGEST_MESSAGE: usize = 1_024;

const NAMES: [&str; 10] =
    ["lockId", "expiresAtMs", "acquiredAtMs", "key", "fence", "keyDebug", "holder", "label", "ttlMs", "asked"];

/// A document whose fields these bytes describe, once as it is and once with the fields that it lacks.
///
/// # Panics
/// When a promise is broken.
pub fn document(bytes: &[u8]) {
    let described = fields(&mut Reader(bytes), 2);
    let mut completed = sound();
    completed.extend(described.clone());
    for fields in [described, completed] {
        for update_time in [None, Some(prost_types::Timestamp { seconds: i64::MAX, nanos: -1 })] {
            let document =
                proto::Document { name: String::new(), fields: fields.clone(), create_time: None, update_time };
            counter(&document);
            lock(&document);
        }
    }
}

fn counter(document: &proto::Document) {
    match StoredCounter::read(document) {
        Ok(counter) => assert!(counter.value < 10_u64.pow(15), "a counter of more than fifteen digits"),
        Err(error) => refused(&error, document),
    }
}

fn lock(document: &proto::Document) {
    let lock = match StoredLock::read(document.clone()) {
        Ok(lock) => lock,
        Err(error) => return refused(&error, document),
    };
    assert!((1..=Fence::MAX.get()).contains(&lock.fence.get()), "a fence outside of its limits");
    let asked = Key::new("asked").expect("a key");
    if let Err(error) = expect_key(&lock.key, &asked) {
        refused(&error, document);
    }
    for now in [i64::MIN, -1, 0, 1_700_000_000_000, i64::MAX].map(Timestamp::from_millis) {
        let live = is_live(lock.expires_at, now);
        let info = lock.clone().into_info(now);
        let shown = format!("{info:?} {:?}", info.renewal());
        assert!(!shown.contains(lock.lock_id.as_str()), "Debug shows the secret");
        // At the ends of all numbers the tolerance has no room.
        let has_room = (0..1 << 53).contains(&now.as_millis());
        assert!(!has_room || info.free_in().is_zero() != live, "two readers disagree on whether it lives");
    }
}

/// A refusal is short and does not show whose lock it is.
fn refused(error: &LockError, document: &proto::Document) {
    assert!(error.to_string().len() <= LONGEST_MESSAGE, "a message of {} bytes", error.to_string().len());
    if let Some(ValueType::StringValue(id)) = document.fields.get("lockId").and_then(|id| id.value_type.as_ref()) {
        let shown = format!("{error}\n{error:?}\n{}", error.hint().unwrap_or(""));
        assert!(id.len() < 22 || !shown.contains(id.as_str()), "the refusal shows an id");
    }
}

/// The fields of a lock that is one.
fn sound() -> HashMap<String, proto::Value> {
    let text = |text: &str| ValueType::StringValue(text.to_owned());
    let fields = [
        ("lockId", text("AAAAAAAAAAAAAAAAAAAAAA")),
        ("key", text("asked")),
        ("fence", text("000000000000007")),
        ("acquiredAtMs", ValueType::IntegerValue(1_700_000_000_000)),
        ("expiresAtMs", ValueType::IntegerValue(1_700_000_030_000)),
    ];
    fields.map(|(name, value)| (name.to_owned(), proto::Value { value_type: Some(value) })).into()
}

/// What is left of the bytes.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn eight(&mut self) -> [u8; 8] {
        std::array::from_fn(|_| self.byte().unwrap_or(0))
    }

    fn some(&mut self) -> Vec<u8> {
        let length = usize::from(self.byte().unwrap_or(0)).min(self.0.len());
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        text.to_vec()
    }
}

fn fields(bytes: &mut Reader<'_>, depth: u8) -> HashMap<String, proto::Value> {
    let mut fields = HashMap::new();
    while let Some(name) = bytes.byte() {
        let Some(name) = NAMES.get(usize::from(name % 16)) else { break };
        fields.insert((*name).to_owned(), value(bytes, depth));
    }
    fields
}

fn value(bytes: &mut Reader<'_>, depth: u8) -> proto::Value {
    let value_type = match bytes.byte().unwrap_or(0) % 12 {
        0 => None,
        1 => Some(ValueType::NullValue(0)),
        2 => Some(ValueType::BooleanValue(bytes.byte() == Some(1))),
        3 => Some(ValueType::IntegerValue(i64::from_le_bytes(bytes.eight()))),
        4 => Some(ValueType::DoubleValue(f64::from_le_bytes(bytes.eight()))),
        5 => Some(ValueType::BytesValue(bytes.some())),
        6 => Some(ValueType::StringValue(format!("{:015}", u64::from_le_bytes(bytes.eight())))),
        7 => Some(ValueType::StringValue("AAAAAAAAAAAAAAAAAAAAAA".to_owned())),
        8 if depth > 0 => Some(ValueType::MapValue(proto::MapValue { fields: fields(bytes, depth - 1) })),
        9 => Some(ValueType::IntegerValue(i64::from(bytes.byte().unwrap_or(0)) * 1_000)),
        _ => Some(ValueType::StringValue(String::from_utf8_lossy(&bytes.some()).into_owned())),
    };
    proto::Value { value_type }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_document_makes_the_readers_panic_or_believe_what_nobody_may(
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), 0..16_u8], 0..96)
        ) {
            super::document(&bytes);
        }
    }

    #[test]
    fn a_sound_document_is_read_as_a_lock() {
        super::document(&[]);
        // A map as the holder, with a text as its label: what is for people is read too.
        super::document(&[6, 8, 0, 7, 7, 10, 3, b'm', b'e', b'!', 8, 9, 30, 9, 2, 1]);
    }
}
