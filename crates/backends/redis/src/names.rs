//! Under which names does Redis keep a lock?
//!
//! `prefix:key` holds the lock, `prefix:id:<lock id>` leads from an id to it, `prefix:fence:prefix:key` counts. On a
//! cluster all three must live in one slot, so the prefix becomes one of sixteen hash tags `{prefix:0}` … `{prefix:f}`:
//! the key's hash chooses it and the lock id carries it, so that a release finds the slot from the id alone.

use syncguard_core::{HashId, Key, LockError, LockId, Result};

/// The longest prefix, in bytes, under which no name of the longest key has to be shortened. The TypeScript original
/// shortens in another form: beyond this, a fleet of both would count one lock twice, and later hold it twice.
const MAX_PREFIX: usize = 227;

/// The prefix and what follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    /// One prefix, or one for each tag.
    prefixes: Vec<String>,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Lock,
    Index,
    Counter,
}

/// The three names of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyNames {
    pub(crate) lock: String,
    pub(crate) counter: String,
    /// Which of the sixteen tags; 0 where there is only one prefix.
    pub(crate) tag: u8,
}

impl Names {
    /// Validates the prefix. `cluster` spreads an untagged prefix over sixteen slots.
    pub(crate) fn new(prefix: &str, cluster: bool) -> Result<Self> {
        let prefix = prefix.trim_end_matches(':');
        if prefix.chars().any(char::is_control) {
            return Err(
                LockError::invalid("the prefix contains a control character").with_hint("use printable characters")
            );
        }
        if prefix.split(':').any(|part| part == "fence" || part == "id") {
            return Err(LockError::invalid(
                "a part of the prefix is `fence` or `id`, where another prefix keeps its counters",
            )
            .with_hint("use another word between the colons"));
        }
        let prefixes: Vec<String> = if cluster && hash_tag(prefix).is_none() {
            if prefix.contains(['{', '}']) {
                return Err(LockError::invalid("the prefix has a brace but no hash tag")
                    .with_hint("write the whole prefix in braces, such as {app}, or use none"));
            }
            (0..16).map(|tag| format!("{{{prefix}:{tag:x}}}")).collect()
        } else {
            vec![prefix.to_owned()]
        };
        if prefixes.iter().any(|prefix| prefix.len() > MAX_PREFIX) {
            let message = format!("the prefix is longer than {MAX_PREFIX} bytes, a hash tag included");
            return Err(LockError::invalid(message).with_hint("longer ones leave no room for the names of long keys"));
        }
        Ok(Self { prefixes })
    }

    /// The names of a key.
    pub(crate) fn of(&self, key: &Key) -> Result<KeyNames> {
        let tag = self.tag_of(key);
        let prefix = self.prefix(tag);
        refuse_reserved(prefix, key)?;
        let lock = join(prefix, "", key.as_str());
        let counter = join(prefix, "fence:", &lock);
        Ok(KeyNames { lock, counter, tag })
    }

    /// The name of the lock alone.
    pub(crate) fn lock(&self, key: &Key) -> Result<String> {
        let prefix = self.prefix(self.tag_of(key));
        refuse_reserved(prefix, key)?;
        Ok(join(prefix, "", key.as_str()))
    }

    /// The name of the index of an id.
    pub(crate) fn index(&self, lock_id: &LockId) -> String {
        join(self.prefix(lock_id.tag()), "id:", lock_id.as_str())
    }

    /// The name of the line of processes that wait for a lock; `lock_id` is any id made for that lock.
    ///
    /// It has the form of an index, which is reserved and passed over by whoever lists or cleans up, also by programs
    /// that know no lines. No index has this name: of an id that is made by chance nobody knows the hash beforehand.
    pub(crate) fn line(&self, lock: &str, lock_id: &LockId) -> String {
        let hash = HashId::of(lock).to_string();
        join(self.prefix(lock_id.tag()), "id:", &hash[..LockId::LENGTH])
    }

    /// A fresh id that leads to the key's slot.
    pub(crate) fn lock_id(&self, key: &Key) -> LockId {
        if self.is_tagged() { LockId::random_with_tag(self.tag_of(key)) } else { LockId::random() }
    }

    /// Whether this id can belong to a lock with this tag.
    pub(crate) fn accepts(&self, lock_id: &LockId, tag: u8) -> bool {
        !self.is_tagged() || lock_id.tag() == tag
    }

    /// Whether a stored name is a lock's, and not an index or a counter.
    pub(crate) fn is_lock(&self, name: &str) -> bool {
        matches!(self.kind(name), Some((_, Kind::Lock)))
    }

    /// What a stored name stands for, with the number of its prefix; `None` for a name of another prefix.
    pub(crate) fn kind(&self, name: &str) -> Option<(usize, Kind)> {
        self.prefixes.iter().enumerate().find_map(|(number, prefix)| {
            let rest = if prefix.is_empty() {
                Some(name)
            } else {
                name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix(':'))
            };
            let kind = match rest? {
                rest if is_counter(prefix, rest) => Kind::Counter,
                rest if is_index(rest) => Kind::Index,
                _ => Kind::Lock,
            };
            Some((number, kind))
        })
    }

    /// A pattern for the names of all keys that begin with `beginning`, and for some others.
    pub(crate) fn pattern(&self, beginning: &str) -> String {
        let beginning = escaped(beginning);
        match self.prefixes.as_slice() {
            [prefix] if prefix.is_empty() => format!("{beginning}*"),
            [prefix] => format!("{}:{beginning}*", escaped(prefix)),
            // `{prefix:0}` and its fifteen siblings. Written as the documented rights write it: Redis lets a restricted
            // user subscribe to a pattern only if the very same pattern was granted.
            [first, ..] => format!("{}*}}:{beginning}*", escaped(first.trim_end_matches("0}"))),
            [] => "*".to_owned(),
        }
    }

    /// A pattern for the names of all counters, and for some others.
    pub(crate) fn counters(&self) -> String {
        self.pattern("fence:")
    }

    fn is_tagged(&self) -> bool {
        self.prefixes.len() > 1
    }

    fn tag_of(&self, key: &Key) -> u8 {
        if !self.is_tagged() {
            return 0;
        }
        let hash = key.hash().to_string();
        u8::from_str_radix(&hash[..1], 16).unwrap_or(0)
    }

    fn prefix(&self, tag: u8) -> &str {
        self.prefixes.get(usize::from(tag)).unwrap_or(&self.prefixes[0])
    }
}

/// Whatever the key, no name has to be shortened: see [`MAX_PREFIX`].
fn join(prefix: &str, kind: &str, rest: &str) -> String {
    let colon = if prefix.is_empty() { "" } else { ":" };
    [prefix, colon, kind, rest].concat()
}

/// What Redis takes for a pattern is literal in a prefix or a key.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        // The rest has a meaning only between brackets. An escape too many would make it another pattern than the one that
        // a restricted user was granted: `&my-app:*`.
        if matches!(character, '*' | '?' | '[' | ']' | '\\') {
            out.push('\\');
        }
        out.push(character);
    }
    out
}

/// A key whose lock would be another lock's index or counter could stop that lock from ever being acquired.
fn refuse_reserved(prefix: &str, key: &Key) -> Result<()> {
    let name = key.as_str();
    if is_counter(prefix, name) || is_index(name) {
        return Err(LockError::invalid("redis keeps its indexes and counters under this key").with_hint(
            "choose a key that is not `id:` and 22 characters, and does not start with `fence:` and the prefix",
        ));
    }
    Ok(())
}

/// Counters are named `prefix:fence:prefix:key`, and `fence:key` without a prefix. `name` is what follows `prefix:`.
fn is_counter(prefix: &str, name: &str) -> bool {
    let Some(counted) = name.strip_prefix("fence:") else { return false };
    prefix.is_empty() || counted.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(':'))
}

fn is_index(name: &str) -> bool {
    name.strip_prefix("id:").is_some_and(|id| LockId::parse(id).is_ok())
}

/// The part of a name that decides its slot, if it names one in braces.
fn hash_tag(name: &str) -> Option<&str> {
    let (_, rest) = name.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

/// The cluster slot of a name: CRC-16 (XMODEM) of its tag, or of all of it.
pub(crate) fn slot(name: &str) -> u16 {
    let hashed = hash_tag(name).unwrap_or(name);
    let crc = hashed.bytes().fold(0_u16, |crc, byte| {
        (0..8)
            .fold(crc ^ (u16::from(byte) << 8), |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 })
    });
    crc % 16_384
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use syncguard_core::storage_key::{StorageLimit, fence_key, lock_key};

    use super::*;

    fn key(name: &str) -> Key {
        Key::new(name).unwrap()
    }

    #[test]
    fn names_are_those_of_the_original() {
        let names = Names::new("syncguard", false).unwrap();
        let of = names.of(&key("resource:123")).unwrap();
        assert_eq!(of.lock, "syncguard:resource:123");
        assert_eq!(of.counter, "syncguard:fence:syncguard:resource:123");
        let id = LockId::parse("AAAAAAAAAAAAAAAAAAAAAA").unwrap();
        assert_eq!(names.index(&id), "syncguard:id:AAAAAAAAAAAAAAAAAAAAAA");
        assert_eq!(Names::new("", false).unwrap().index(&id), "id:AAAAAAAAAAAAAAAAAAAAAA");
    }

    #[test]
    fn a_pattern_takes_prefix_and_key_literally_and_covers_every_tag() {
        let names = |prefix, cluster| Names::new(prefix, cluster).unwrap();
        assert_eq!(names("syncguard", false).pattern(""), "syncguard:*");
        assert_eq!(names("my-app^1", false).pattern(""), "my-app^1:*", "as the documented rights write it");
        assert_eq!(names("", false).pattern("a*b[c]?\\"), "a\\*b\\[c\\]\\?\\\\*");
        assert_eq!(names("a*", false).pattern("deploy:"), "a\\*:deploy:*");
        assert_eq!(names("syncguard", true).pattern(""), "{syncguard:*}:*");
        assert_eq!(names("x0", true).pattern(""), "{x0:*}:*");
        assert_eq!(names("{app}", true).pattern("k"), "{app}:k*");
    }

    #[test]
    fn every_name_is_known_by_its_kind() {
        let names = Names::new("app", true).unwrap();
        let of = names.of(&key("job")).unwrap();
        let id = names.lock_id(&key("job"));
        let number = usize::from(of.tag);
        assert_eq!(names.kind(&of.lock), Some((number, Kind::Lock)));
        assert_eq!(names.kind(&of.counter), Some((number, Kind::Counter)));
        assert_eq!(names.kind(&names.index(&id)), Some((number, Kind::Index)));
        assert_eq!(names.kind(&names.line(&of.lock, &id)), Some((number, Kind::Index)), "nobody lists or purges it");
        assert_eq!(names.kind("{other:0}:job"), None);
    }

    #[test]
    fn keys_in_the_namespaces_of_indexes_and_counters_are_refused() {
        let names = Names::new("syncguard", false).unwrap();
        for reserved in ["id:AAAAAAAAAAAAAAAAAAAAAA", "fence:syncguard:foo", "fence:syncguard:"] {
            assert!(names.of(&key(reserved)).is_err(), "{reserved}");
            assert!(names.lock(&key(reserved)).is_err(), "{reserved}");
        }
        for fine in [
            "id:short",
            "id:",
            "fence",
            "fence:x",
            "fence:syncguard",
            "fence:syncguards:x",
            "fences:x",
            "id:AAAAAAAAAAAAAAAAAAAAA+",
            "foo",
        ] {
            assert!(names.of(&key(fine)).is_ok(), "{fine}");
        }
        let bare = Names::new("", false).unwrap();
        assert!(bare.of(&key("fence:x")).is_err() && bare.of(&key("fence")).is_ok());
        let tagged = Names::new("app", true).unwrap();
        for tag in 0..16 {
            // Only a key of the same tag can meet the counter; whichever tag it has, its own counters are out of reach.
            let name = key(&format!("fence:{{app:{tag:x}}}:k"));
            assert_eq!(tagged.of(&name).is_err(), tagged.tag_of(&name) == tag, "{tag}");
        }
    }

    #[test]
    fn on_a_cluster_the_three_names_share_a_slot_and_the_id_knows_it() {
        let names = Names::new("app", true).unwrap();
        let mut tags = std::collections::HashSet::new();
        for number in 0..200 {
            let key = key(&format!("job{{{number}}}"));
            let of = names.of(&key).unwrap();
            let id = names.lock_id(&key);
            assert_eq!(slot(&of.lock), slot(&of.counter));
            assert_eq!(slot(&of.lock), slot(&names.index(&id)));
            assert_eq!(slot(&of.lock), slot(&names.line(&of.lock, &id)));
            assert!(names.accepts(&id, of.tag));
            tags.insert(of.tag);
        }
        assert_eq!(tags.len(), 16);
    }

    #[test]
    fn a_tagged_prefix_keeps_everything_in_one_slot() {
        let names = Names::new("{app}", true).unwrap();
        assert_eq!(names.prefixes, ["{app}"]);
        assert_eq!(slot(&names.lock(&key("a")).unwrap()), slot("app"));
    }

    #[test]
    fn prefixes_that_could_reach_a_counter_are_refused() {
        for bad in ["fence", "app:fence:app", "app:id", "a\nb", &"p".repeat(228)] {
            assert!(Names::new(bad, false).is_err(), "{bad}");
        }
        assert!(Names::new("a{b", true).is_err());
        for fine in ["", "app", "app:", "a*b", "{app}", &"p".repeat(227)] {
            assert!(Names::new(fine, false).is_ok(), "{fine}");
        }
        assert!(Names::new(&"p".repeat(224), true).is_err(), "the hash tag counts");
    }

    #[test]
    fn names_are_those_of_every_backend_and_none_is_ever_shortened() {
        let limit = StorageLimit::new(1000, 26);
        let longest = key(&"k".repeat(Key::MAX_BYTES));
        for prefix in [&"p".repeat(MAX_PREFIX), "app", ""] {
            let names = Names::new(prefix, false).unwrap().of(&longest).unwrap();
            assert_eq!(names.lock, lock_key(prefix, &longest, limit).unwrap());
            assert_eq!(names.counter, fence_key(prefix, &names.lock, limit).unwrap());
            assert!(names.lock.ends_with(longest.as_str()) && names.counter.ends_with(&names.lock));
        }
    }

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(slot("123456789"), 0x31C3);
        assert_eq!(slot("a{foo}b"), slot("foo"));
    }

    #[test]
    fn a_scan_tells_locks_from_indexes_and_counters() {
        let names = Names::new("app", false).unwrap();
        assert!(names.is_lock("app:job") && names.is_lock("app:id:short"));
        for other in ["app:id:AAAAAAAAAAAAAAAAAAAAAA", "app:fence:app:job", "other:job", "application:job"] {
            assert!(!names.is_lock(other), "{other}");
        }
    }
}
