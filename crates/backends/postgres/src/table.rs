//! Which names may the tables have, and how are they written?
//!
//! `table` or `schema.table`, each part a letter or underscore followed by letters, digits and underscores, at most 63
//! bytes. Names are validated *and* quoted, so mixed case and SQL keywords mean what they say. The two tables are
//! compared as `PostgreSQL` would fold them: a lock table that is also the counter table would lose its counters to
//! cleanup.

use syncguard_core::{HashId, LockError, Result};

/// What `PostgreSQL` keeps of a name; it cuts the rest off without a word.
const MAX_BYTES: usize = 63;

/// A validated table name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    schema: Option<String>,
    /// Where a table without a schema was found.
    place: Option<String>,
    name: String,
}

impl Table {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut parts = text.split('.');
        let (first, second, third) = (parts.next().unwrap_or(""), parts.next(), parts.next());
        if third.is_some() {
            return Err(malformed());
        }
        let (schema, name) = match second {
            Some(name) => (Some(first), name),
            None => (None, first),
        };
        for part in schema.into_iter().chain([name]) {
            check(part)?;
        }
        Ok(Self { schema: schema.map(str::to_owned), place: None, name: name.to_owned() })
    }

    /// As it stands in a statement: quoted, so nothing in it can be read as SQL.
    pub(crate) fn quoted(&self) -> String {
        match self.schema.as_ref().or(self.place.as_ref()) {
            // The server's own name for a schema may have anything in it.
            Some(schema) => format!("\"{}\".\"{}\"", schema.replace('"', "\"\""), self.name),
            None => format!("\"{}\"", self.name),
        }
    }

    /// As people write it.
    pub(crate) fn display(&self) -> String {
        match &self.schema {
            Some(schema) => format!("{schema}.{}", self.name),
            None => self.name.clone(),
        }
    }

    /// The quoted name of one of its indexes. An index lives in its table's schema.
    ///
    /// Cut names of two indexes would be one name, and the second would silently not be made: a long table
    /// name is shortened by a hash instead.
    pub(crate) fn index(&self, column: &str) -> String {
        let full = format!("idx_{}_{column}", self.name);
        if full.len() <= MAX_BYTES {
            return format!("\"{full}\"");
        }
        let hash = HashId::of(&self.name).to_string();
        let room = MAX_BYTES - "idx__".len() - column.len() - 9;
        format!("\"idx_{}_{}_{column}\"", &self.name[..room], &hash[..8])
    }

    fn folded(&self) -> (Option<String>, String) {
        (self.schema.as_ref().map(|schema| schema.to_ascii_lowercase()), self.name.to_ascii_lowercase())
    }
}

/// The two tables of one set of locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tables {
    pub(crate) locks: Table,
    pub(crate) fences: Table,
}

impl Tables {
    /// The same tables where the server found them. A schema that was given stays.
    pub(crate) fn within(mut self, places: &[Option<String>; 2]) -> Self {
        [self.locks.place, self.fences.place] = places.clone();
        self
    }

    pub(crate) fn parse(locks: &str, fences: &str) -> Result<Self> {
        let tables = Self { locks: Table::parse(locks)?, fences: Table::parse(fences)? };
        let ((lock_schema, lock_name), (fence_schema, fence_name)) = (tables.locks.folded(), tables.fences.folded());
        // An unqualified name may be any schema's, so it equals a qualified one.
        let same_schema = lock_schema == fence_schema || lock_schema.is_none() || fence_schema.is_none();
        if same_schema && lock_name == fence_name {
            return Err(LockError::invalid("the lock table and the fence table are the same")
                .with_hint("give them two names that differ in more than case"));
        }
        Ok(tables)
    }
}

fn check(part: &str) -> Result<()> {
    let mut bytes = part.bytes();
    let starts_well = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    if !starts_well || !bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return Err(malformed());
    }
    if part.len() > MAX_BYTES {
        return Err(LockError::invalid("a table name is longer than 63 bytes, and PostgreSQL would cut it off"));
    }
    let folded = part.to_ascii_lowercase();
    if folded.starts_with("pg_") || folded == "information_schema" {
        return Err(LockError::invalid("a table name is reserved by PostgreSQL")
            .with_hint("names that start with pg_ belong to the server"));
    }
    Ok(())
}

fn malformed() -> LockError {
    LockError::invalid("a table name is not `table` or `schema.table` of letters, digits and underscores")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_are_validated_and_quoted() {
        assert_eq!(Table::parse("MyLocks").unwrap().quoted(), "\"MyLocks\"");
        assert_eq!(Table::parse("app.locks").unwrap().quoted(), "\"app\".\"locks\"");
        // A keyword is an ordinary name once it is quoted.
        assert_eq!(Table::parse("select").unwrap().quoted(), "\"select\"");
        for bad in [
            "",
            ".",
            "a.",
            ".a",
            "a.b.c",
            "a;b",
            "a\"b",
            "1a",
            "a b",
            "ünïcode",
            "a-b",
            "pg_locks",
            "pg_x.a",
            "information_schema.a",
        ] {
            assert!(Table::parse(bad).is_err(), "{bad}");
        }
        assert!(Table::parse(&"a".repeat(63)).is_ok());
        assert!(Table::parse(&"a".repeat(64)).is_err());
    }

    #[test]
    fn the_two_tables_differ_in_more_than_case() {
        assert!(Tables::parse("locks", "fences").is_ok());
        assert!(Tables::parse("a.locks", "b.locks").is_ok());
        for (locks, fences) in [("locks", "locks"), ("Locks", "locks"), ("a.locks", "locks"), ("a.locks", "A.LOCKS")] {
            assert!(Tables::parse(locks, fences).is_err(), "{locks} {fences}");
        }
    }

    #[test]
    fn index_names_of_long_tables_stay_distinct_and_fit() {
        assert_eq!(Table::parse("syncguard_locks").unwrap().index("lock_id"), "\"idx_syncguard_locks_lock_id\"");
        for length in [50, 51, 52, 58, 63] {
            let table = Table::parse(&"t".repeat(length)).unwrap();
            let (id, expires) = (table.index("lock_id"), table.index("expires"));
            assert!(id.len() <= MAX_BYTES + 2 && expires.len() <= MAX_BYTES + 2, "{id} {expires}");
            assert_ne!(id, expires);
        }
        let (one, other) = (format!("{}a", "t".repeat(62)), format!("{}b", "t".repeat(62)));
        assert_ne!(Table::parse(&one).unwrap().index("lock_id"), Table::parse(&other).unwrap().index("lock_id"));
    }
}
