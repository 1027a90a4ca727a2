//! Which documents belong to a key?

use syncguard_core::storage_key::{StorageLimit, fence_key, lock_key};
use syncguard_core::{HashId, Key, Result};

/// 1500 bytes: the limit of a document id.
const LIMIT: StorageLimit = StorageLimit::new(1500, 0);

/// The document ids of one key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DocumentIds {
    pub(crate) lock: String,
    pub(crate) counter: String,
}

impl DocumentIds {
    pub(crate) fn of(key: &Key) -> Result<Self> {
        let name = lock_key("", key, LIMIT)?;
        let lock = if is_document_id(&name) { name } else { HashId::of(&name).to_string() };
        let counter = fence_key("", &lock, LIMIT)?;
        Ok(Self { lock, counter })
    }
}

/// Firestore's rules for ids, but for the length.
pub(crate) fn is_document_id(name: &str) -> bool {
    let reserved = name.len() >= 4 && name.starts_with("__") && name.ends_with("__");
    !(name.is_empty() || name == "." || name == ".." || name.contains('/') || reserved)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(key: &str) -> DocumentIds {
        DocumentIds::of(&Key::new(key).unwrap()).unwrap()
    }

    #[test]
    fn ordinary_keys_are_their_own_document_ids() {
        for key in ["job", "payment:42", "a b", "_x_", "__x", "x__", "...", "é", "id:AAAA", "___"] {
            assert_eq!(ids(key), DocumentIds { lock: key.to_owned(), counter: format!("fence:{key}") });
        }
    }

    #[test]
    fn keys_that_cannot_be_ids_take_their_hash() {
        for key in ["a/b", "/a", "a//b", "a/b/c", "/", ".", "..", "__x__", "__id7__", "____"] {
            let hash = HashId::of(key).to_string();
            assert_eq!(ids(key), DocumentIds { lock: hash.clone(), counter: format!("fence:{hash}") });
        }
    }
}
