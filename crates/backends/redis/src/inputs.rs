//! What may an answer of a server, or a value under a lock's name, do?
//!
//! One function per kind. It takes bytes from anywhere and panics when the readers do, or when they believe something
//! that nobody may believe. The fuzz targets in `fuzz/` call them, and the bounded properties below: in no other build is
//! anything of this left.

use redis::Value;
use syncguard_core::{AcquireOutcome, Fence, LockError, Timestamp};

use crate::operations::value_head;
use crate::reply::{self, AcquireReply, Stored};

/// A message is not longer than this, whatever was answered.
const LONGEST_MESSAGE: usize = 1_024;

/// The id that the readers believe to have asked with.
const OURS: &str = "AAAAAAAAAAAAAAAAAAAAAA";

/// What arrived on a connection: what each operation makes of it.
///
/// # Panics
/// When a promise is broken; so for all of them.
pub fn answer(bytes: &[u8]) {
    let Ok(value) = redis::parse_redis_value(bytes) else { return };
    judge(&value);
}

/// What lies under the name of a lock.
pub fn stored(bytes: &[u8]) {
    judge(&Value::BulkString(bytes.to_vec()));
    for millis in [i64::MIN, -1, 0, 1, 1_700_000_000_000, i64::MAX] {
        see(Stored::parse(&Value::BulkString(bytes.to_vec())), Timestamp::from_millis(millis));
    }
}

/// Panics unless the reader of the scripts, run by a server, makes the same of each value as ours: what the one takes for
/// a dead lock and overwrites, the other must not call something else.
pub fn both_readers(connection: &mut redis::Connection, values: &[Vec<u8>]) {
    const SCRIPT: &str = concat!(
        include_str!("../scripts/read.lua"),
        r"
        local seen = {}
        for number, value in ipairs(ARGV) do
          local data = read(value)
          local id = data and type(data.lockId) == 'string' and data.lockId or ''
          seen[number] = data and string.format('%.0f ', data.expiresAtMs + 0) .. id or 'no lock'
        end
        return seen
        "
    );
    let seen: Vec<Vec<u8>> =
        redis::cmd("EVAL").arg(SCRIPT).arg(0).arg(values).query(connection).expect("the script runs");
    for (value, theirs) in values.iter().zip(seen) {
        let ours = match Stored::parse(&Value::BulkString(value.clone())) {
            Ok(Some(stored)) => format!("{} {}", stored.expires_at.as_millis(), stored.lock_id.unwrap_or_default()),
            _ => "no lock".to_owned(),
        };
        let shown = String::from_utf8_lossy(value);
        assert_eq!(ours, String::from_utf8_lossy(&theirs), "of {shown:?}: ours, and that of the scripts");
    }
}

/// Lets every reader read it.
fn judge(value: &Value) {
    let id = syncguard_core::LockId::parse(OURS).expect("an id");
    match reply::acquire(value, &value_head(&id)) {
        Ok(AcquireReply::Decided(AcquireOutcome::Acquired(lease))) => {
            assert!((1..=Fence::MAX.get()).contains(&lease.fence.get()), "a fence outside of its limits");
            assert!(lease.expires_at.as_millis() > 0, "a lease that never was");
        }
        Ok(_) => {}
        Err(error) => refused(&error),
    }
    let errors = [
        reply::release(value).err(),
        reply::extend(value).err(),
        reply::ask(value).err(),
        reply::purged(value).err(),
        reply::time(value).err(),
        reply::string(value).err(),
    ];
    errors.iter().flatten().for_each(refused);
    match reply::found(value) {
        Ok(Some((stored, now))) => see(Ok(Some(stored)), now),
        Ok(None) => {}
        Err(error) => refused(&error),
    }
}

/// Looks at a stored lock as an onlooker does.
fn see(parsed: syncguard_core::Result<Option<Stored>>, now: Timestamp) {
    let stored = match parsed {
        Ok(Some(stored)) => stored,
        Ok(None) => return,
        Err(error) => return refused(&error),
    };
    let live = stored.is_live(now);
    match stored.info(now) {
        Ok(info) => {
            let shown = format!("{info:?} {:?}", info.renewal());
            assert!(!shown.contains(info.reveal().lock_id.as_str()), "Debug shows the secret");
            // At the ends of all numbers the tolerance has no room.
            let has_room = (0..1 << 53).contains(&now.as_millis());
            assert!(!has_room || info.free_in().is_zero() != live, "two readers disagree on whether it lives");
        }
        Err(error) => refused(&error),
    }
}

fn refused(error: &LockError) {
    let shown = format!("{error}\n{error:?}\n{}", error.hint().unwrap_or(""));
    assert!(error.to_string().len() <= LONGEST_MESSAGE, "a message of {} bytes", error.to_string().len());
    assert!(!shown.contains(OURS), "the refusal shows an id");
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::{Index, select};

    /// A lock as it is stored, and what may stand in its place.
    const VALUES: [&str; 4] = [
        r#"{"lockId":"AAAAAAAAAAAAAAAAAAAAAA","expiresAtMs":1700000030000,"acquiredAtMs":1700000000000,"key":"k","ttlMs":30000,"fence":"000000000000007"}"#,
        r#"{"lockId":"AAAAAAAAAAAAAAAAAAAAAA","expiresAtMs":9223372036854775807,"acquiredAtMs":-9223372036854775808,"key":"k","fence":"900000000000000"}"#,
        r#"{"expiresAtMs":1.7e12}"#,
        "",
    ];

    fn damaged(pieces: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
        let whole = vec(select(pieces), 1..6).prop_map(|pieces| pieces.concat());
        (whole, vec((any::<Index>(), any::<u8>()), 0..3), any::<Index>(), any::<bool>()).prop_map(
            |(mut bytes, changes, end, cut)| {
                for (at, byte) in changes {
                    if !bytes.is_empty() {
                        let at = at.index(bytes.len());
                        bytes[at] = byte;
                    }
                }
                if cut && !bytes.is_empty() {
                    bytes.truncate(end.index(bytes.len()));
                }
                bytes
            },
        )
    }

    fn answers() -> impl Strategy<Value = Vec<u8>> {
        let plain = [
            "+OK\r\n",
            ":1\r\n",
            ":-2\r\n",
            ":9223372036854775807\r\n",
            ":-9223372036854775808\r\n",
            "$-1\r\n",
            "*-1\r\n",
            "*0\r\n",
            "*1\r\n",
            "*2\r\n",
            "*3\r\n",
            "*536870912\r\n",
            "$2\r\n",
            "$536870912\r\n",
            "-ERR no\r\n",
            "$13\r\n1700000000000\r\n",
        ];
        let stored = VALUES.map(|value| format!("${}\r\n{value}\r\n", value.len()));
        damaged(plain.map(str::to_owned).into_iter().chain(stored).map(String::into_bytes).collect())
    }

    fn stored() -> impl Strategy<Value = Vec<u8>> {
        damaged(VALUES.map(|value| value.as_bytes().to_vec()).to_vec())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_answer_makes_the_readers_panic_or_believe_what_nobody_may(bytes in answers()) {
            super::answer(&bytes);
        }

        #[test]
        fn no_stored_value_makes_the_readers_panic_or_tell(bytes in stored()) {
            super::stored(&bytes);
        }
    }

    /// Pieces of which a value is made that one reader could take for a lock, and another not.
    const PIECES: [&str; 56] = [
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        " ",
        "\n",
        "\u{c}",
        "\0",
        "\"",
        "\\",
        "\u{1}",
        "é",
        "\u{7f}",
        "true",
        "false",
        "null",
        "nan",
        "-",
        "+",
        "0",
        "1",
        "9",
        ".",
        "e",
        "E",
        "01",
        "0x10",
        "1.",
        ".5",
        "1e400",
        "-1e400",
        "1e-400",
        "0e999999999",
        "Infinity",
        "1.5",
        "1.7e12",
        "9007199254740991",
        "9007199254740993",
        "9223372036854775807",
        "184467440737095516160",
        "\\u0041",
        "\\ud800",
        "\\ud83d\\ude00",
        "\\udc00",
        "\\x",
        "\\/",
        "\"x\"",
        "\"expiresAtMs\":",
        "\"expiresAtMs\":1,",
        "\"expires\\u0041tMs\":2,",
        "\"lockId\":\"AAAAAAAAAAAAAAAAAAAAAA\",",
        "\"acquiredAtMs\":",
        "{\"expiresAtMs\":1",
        "[[[[",
    ];

    fn lock_like() -> impl Strategy<Value = Vec<u8>> {
        let whole = VALUES.map(str::to_owned).to_vec();
        let insert = vec(select(PIECES.to_vec()), 0..4).prop_map(|pieces| pieces.concat().into_bytes());
        (damaged_once(whole), any::<Index>(), insert).prop_map(|(mut value, at, piece)| {
            let at = if value.is_empty() { 0 } else { at.index(value.len() + 1) };
            value.splice(at..at, piece);
            value
        })
    }

    fn damaged_once(pieces: Vec<String>) -> impl Strategy<Value = Vec<u8>> {
        (select(pieces), vec((any::<Index>(), any::<u8>()), 0..2)).prop_map(|(whole, changes)| {
            let mut bytes = whole.into_bytes();
            for (at, byte) in changes {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                }
            }
            bytes
        })
    }

    #[test]
    fn scripts_and_library_take_the_same_values_for_locks() {
        let server = syncguard_testkit::redis_url();
        let mut connection = redis::Client::open(server).unwrap().get_connection().unwrap();
        let lock = |field: &str| {
            format!(r#"{{"lockId":"AAAAAAAAAAAAAAAAAAAAAA",{field}"key":"k","expiresAtMs":1,"fence":"1"}}"#)
        };
        let odd = [
            lock(r#""acquiredAtMs":1e400,"#),
            lock(&format!(r#""acquiredAtMs":{},"#, "9".repeat(400))),
            lock(r#""expiresAtMs":1700000000000,"#),
            lock(&format!(r#""x":{}{},"#, "[".repeat(126), "]".repeat(126))),
            lock(&format!(r#""x":{}{},"#, "[".repeat(127), "]".repeat(127))),
            lock(&format!(r#""x":"{}","#, "y".repeat(70_000))),
            lock("\"x\":\"\n\","),
            format!("{}\0", lock("")),
            r#"{"lockId":"AAAAAAAAAAAAAAAAAAAAAA","expiresAtMs":1,"acquiredAtMs":1,"key":"a"b","fence":"1"}"#
                .to_owned(),
        ];
        super::both_readers(&mut connection, &odd.map(String::into_bytes));
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
            cases: 200,
            failure_persistence: None,
            ..ProptestConfig::default()
        });
        let connection = std::cell::RefCell::new(connection);
        runner
            .run(&vec(lock_like(), 100), |values| {
                super::both_readers(&mut connection.borrow_mut(), &values);
                Ok(())
            })
            .unwrap();
    }

    #[test]
    fn what_a_server_really_answers_is_read() {
        for value in VALUES {
            super::stored(value.as_bytes());
            super::answer(format!("*2\r\n${}\r\n{value}\r\n:1700000000000\r\n", value.len()).as_bytes());
        }
    }
}
