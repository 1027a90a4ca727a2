//! Which statements does the backend speak?
//!
//! The files in `sql/`, with the table names put in once. Every value travels as a parameter; none is ever part of the
//! text.
//!
//! A statement is *named* (prepared once per connection) where the connection leads straight to a server, and *unnamed*
//! (parsed at every call, half the speed) behind a pooler: there the next transaction may run on another server
//! connection, on which the same name may stand for somebody else's statement.

use std::error::Error;
use std::fmt;

use tokio_postgres::Row;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use crate::pool::Session;
use crate::table::Tables;

pub(crate) const BEGIN: &str = include_str!("../sql/begin.sql");
pub(crate) const COMMIT: &str = "COMMIT";

/// A statement with the table names in it.
#[derive(Debug)]
pub(crate) struct Sql {
    /// The name of its file, under which a connection remembers that it is prepared. No two statements share one.
    pub(crate) name: &'static str,
    pub(crate) text: String,
}

/// The statements of one pair of tables.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) acquire_gate: Sql,
    pub(crate) acquire: Sql,
    pub(crate) acquire_without_key_debug: Sql,
    /// Bounds a transaction whose deciding statement takes the locks that it needs.
    pub(crate) bounds_gate: Sql,
    pub(crate) extend: Sql,
    pub(crate) release: Sql,
    pub(crate) is_locked: Sql,
    pub(crate) lookup_by_key: Sql,
    pub(crate) lookup_by_lock_id: Sql,
    pub(crate) purge: Sql,
    pub(crate) purge_key: Sql,
}

impl Statements {
    pub(crate) fn new(tables: &Tables) -> Self {
        let sql = |name, text: &str| Sql { name, text: render(text, tables) };
        let acquire = include_str!("../sql/acquire.sql");
        Self {
            acquire_gate: sql("acquire_gate", include_str!("../sql/acquire_gate.sql")),
            acquire: sql("acquire", acquire),
            acquire_without_key_debug: sql("acquire_without_key_debug", &without_key_debug(acquire)),
            bounds_gate: sql("bounds_gate", include_str!("../sql/bounds_gate.sql")),
            extend: sql("extend", include_str!("../sql/extend.sql")),
            release: sql("release", include_str!("../sql/release.sql")),
            is_locked: sql("is_locked", include_str!("../sql/is_locked.sql")),
            lookup_by_key: sql("lookup_by_key", include_str!("../sql/lookup_by_key.sql")),
            lookup_by_lock_id: sql("lookup_by_lock_id", include_str!("../sql/lookup_by_lock_id.sql")),
            purge: sql("purge", include_str!("../sql/purge.sql")),
            purge_key: sql("purge_key", include_str!("../sql/purge_key.sql")),
        }
    }
}

/// For counters without the column that people read.
fn without_key_debug(acquire: &str) -> String {
    acquire.replace("(fence_key, fence, key_debug)", "(fence_key, fence)").replace("ELSE 1 END, $5", "ELSE 1 END")
}

/// Puts the quoted table names in, and leaves out the comments that only a reader of the file needs.
pub(crate) fn render(text: &str, tables: &Tables) -> String {
    without_comments(text).replace("{locks}", &tables.locks.quoted()).replace("{fences}", &tables.fences.quoted())
}

pub(crate) fn without_comments(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
    lines.join("\n")
}

/// A value and its type. The type is fixed here, so that an unnamed statement needs no extra question.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// A key or a lock id on its way to the server. The driver logs parameters by their `Debug` form.
pub(crate) struct Hidden<'a>(pub(crate) &'a str);

impl fmt::Debug for Hidden<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<hidden>")
    }
}

impl ToSql for Hidden<'_> {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        self.0.to_sql(ty, out)
    }

    fn accepts(ty: &Type) -> bool {
        <&str as ToSql>::accepts(ty)
    }

    to_sql_checked!();
}

/// Several keys on their way to the server.
pub(crate) struct HiddenList(pub(crate) Vec<String>);

impl fmt::Debug for HiddenList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<hidden>")
    }
}

impl ToSql for HiddenList {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        self.0.to_sql(ty, out)
    }

    fn accepts(ty: &Type) -> bool {
        <Vec<String> as ToSql>::accepts(ty)
    }

    to_sql_checked!();
}

/// A text parameter that may be logged.
pub(crate) fn text(value: &(dyn ToSql + Sync)) -> Param<'_> {
    (value, Type::TEXT)
}

/// A number.
pub(crate) fn number(value: &(dyn ToSql + Sync)) -> Param<'_> {
    (value, Type::INT8)
}

/// Yes or no.
pub(crate) fn flag(value: &(dyn ToSql + Sync)) -> Param<'_> {
    (value, Type::BOOL)
}

/// A statement with its values, named or not.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) sql: &'a Sql,
    pub(crate) params: &'a [Param<'a>],
}

/// A call whose statement the connection knows, if it should be named.
pub(crate) enum Ready<'a> {
    Named(tokio_postgres::Statement, &'a [Param<'a>]),
    Unnamed(Call<'a>),
}

impl<'a> Call<'a> {
    /// Prepares the statement if it is to be named and this connection has not seen it yet.
    pub(crate) async fn ready(self, session: &Session, named: bool) -> Result<Ready<'a>, tokio_postgres::Error> {
        if !named {
            return Ok(Ready::Unnamed(self));
        }
        let types: Vec<Type> = self.params.iter().map(|(_, ty)| ty.clone()).collect();
        let statement = session.prepare(self.sql, &types).await?;
        Ok(Ready::Named(statement, self.params))
    }
}

impl Ready<'_> {
    /// Runs it. The request is queued at the first poll, so calls that are polled in turn arrive in turn.
    pub(crate) async fn run(&self, client: &tokio_postgres::Client) -> Result<Vec<Row>, tokio_postgres::Error> {
        match self {
            Self::Named(statement, params) => {
                let values: Vec<&(dyn ToSql + Sync)> = params.iter().map(|(value, _)| *value).collect();
                client.query(statement, &values).await
            }
            Self::Unnamed(call) => client.query_typed(&call.sql.text, call.params).await,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::HashSet;

    use syncguard_core::Fence;
    use syncguard_core::time::{CLEANUP_GUARD_MS, TOLERANCE_MS};

    use super::*;

    /// Every statement that is sent.
    fn all(statements: &Statements) -> [&Sql; 11] {
        let s = statements;
        [
            &s.acquire_gate,
            &s.acquire,
            &s.acquire_without_key_debug,
            &s.bounds_gate,
            &s.extend,
            &s.release,
            &s.is_locked,
            &s.lookup_by_key,
            &s.lookup_by_lock_id,
            &s.purge,
            &s.purge_key,
        ]
    }

    #[test]
    fn rendered_statements_have_quoted_names_and_no_comments() {
        let statements = Statements::new(&Tables::parse("App.MyLocks", "fences").unwrap());
        let acquire = &statements.acquire.text;
        assert!(acquire.contains("\"App\".\"MyLocks\"") && acquire.contains("\"fences\""));
        for sql in all(&statements) {
            assert!(!sql.text.contains(['{', '}']) || sql.name.starts_with("acquire"), "{}", sql.name);
            assert!(!sql.text.contains("{locks}") && !sql.text.contains("{fences}") && !sql.text.contains("--"));
        }
    }

    #[test]
    fn no_two_statements_share_a_name_or_a_text() {
        let statements = Statements::new(&Tables::parse("l", "f").unwrap());
        let names: HashSet<&str> = all(&statements).iter().map(|sql| sql.name).collect();
        let texts: HashSet<&str> = all(&statements).iter().map(|sql| sql.text.as_str()).collect();
        assert_eq!((names.len(), texts.len()), (11, 11));
    }

    #[test]
    fn the_column_for_people_is_written_or_not_mentioned() {
        let statements = Statements::new(&Tables::parse("l", "f").unwrap());
        assert_eq!(statements.acquire.text.matches("key_debug").count(), 1);
        assert_eq!(statements.acquire.text.matches("$5").count(), 2);
        assert!(!statements.acquire_without_key_debug.text.contains("key_debug"));
        assert_eq!(statements.acquire_without_key_debug.text.matches("$5").count(), 1);
    }

    /// The tolerance and the cleanup guard are written out in SQL, where a reader looks for them; here they are
    /// compared.
    #[test]
    fn the_numbers_in_the_statements_are_the_constants_of_the_core() {
        let statements = Statements::new(&Tables::parse("l", "f").unwrap());
        let (tolerance, guard) = (TOLERANCE_MS.to_string(), CLEANUP_GUARD_MS.to_string());
        let expected: [(&str, &[&str]); 6] = [
            ("acquire", &[&tolerance, &tolerance, &tolerance, &tolerance]),
            ("extend", &[&tolerance]),
            ("release", &[&tolerance]),
            ("is_locked", &[&tolerance, &guard]),
            ("purge", &[&guard]),
            ("purge_key", &[&guard]),
        ];
        for (name, numbers) in expected {
            let sql = all(&statements).into_iter().find(|sql| sql.name == name).unwrap();
            let found: Vec<&str> = sql
                .text
                .split("- ")
                .skip(1)
                .map(|rest| &rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())])
                .filter(|digits| !digits.is_empty())
                .collect();
            assert_eq!(found, numbers, "{name}");
        }
        assert!(statements.acquire.text.contains(&format!("BETWEEN 0 AND {}", Fence::MAX.get() - 1)));
    }

    #[test]
    fn a_hidden_value_does_not_show() {
        let list = HiddenList(vec!["canary".to_owned()]);
        assert!(!format!("{:?} {list:?}", Hidden("canary")).contains("canary"));
    }
}
