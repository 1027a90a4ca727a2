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

use crate::session::Session;
use crate::table::Tables;

pub(crate) const BEGIN: &str = include_str!("../sql/begin.sql");
pub(crate) const COMMIT: &str = "COMMIT";

/// Which of the columns are there that a table may lack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Columns {
    /// Of the counters: the key, for people.
    pub(crate) key_debug: bool,
    /// Of the locks: what operators read. Tables of earlier versions and of the TypeScript original lack it.
    pub(crate) holder: bool,
}

impl Columns {
    pub(crate) const EVERY_CHOICE: [Self; 4] = [
        Self { key_debug: false, holder: false },
        Self { key_debug: true, holder: false },
        Self { key_debug: false, holder: true },
        Self { key_debug: true, holder: true },
    ];

    /// Its place in [`EVERY_CHOICE`](Self::EVERY_CHOICE).
    pub(crate) fn place(self) -> usize {
        usize::from(self.key_debug) + 2 * usize::from(self.holder)
    }
}

/// Leaves out the lines of a statement that are for other cases: `-- if CASE` or `-- unless CASE` at their end says so.
fn choose(text: &str, case: &str, is_so: bool) -> String {
    let wanted = |line: &&str| match (line.split_once(" -- if "), line.split_once(" -- unless ")) {
        (Some((_, named)), _) => named != case || is_so,
        (_, Some((_, named))) => named != case || !is_so,
        _ => true,
    };
    let lines: Vec<&str> = text.lines().filter(wanted).collect();
    lines.join("\n")
}

/// A statement with the table names in it.
#[derive(Debug)]
pub(crate) struct Sql {
    /// The name of its file. With the columns, what a connection remembers a prepared statement by.
    pub(crate) name: &'static str,
    pub(crate) columns: Columns,
    pub(crate) text: String,
}

/// The statements of one pair of tables with some columns.
#[derive(Debug)]
pub(crate) struct Statements {
    /// For one lock and for several: one file, and the same decision.
    pub(crate) acquire: [Sql; 2],
    /// As `acquire`.
    pub(crate) release: [Sql; 2],
    /// Bounds a transaction.
    pub(crate) bounds_gate: Sql,
    pub(crate) extend: Sql,
    pub(crate) is_locked: Sql,
    pub(crate) lookup_by_key: Sql,
    pub(crate) lookup_by_lock_id: Sql,
    pub(crate) purge: Sql,
    pub(crate) purge_key: Sql,
    pub(crate) list: Sql,
    pub(crate) count: Sql,
    /// Only for tables with the column `holder`.
    pub(crate) ask: Sql,
}

impl Statements {
    pub(crate) fn new(tables: &Tables, columns: Columns) -> Self {
        let sql = |name, text: &str| Sql { name, columns, text: render(text, tables, columns) };
        let both = |names: [&'static str; 2], text| {
            [sql(names[0], &choose(text, "many", false)), sql(names[1], &choose(text, "many", true))]
        };
        Self {
            acquire: both(["acquire", "acquire_many"], include_str!("../sql/acquire.sql")),
            release: both(["release", "release_many"], include_str!("../sql/release.sql")),
            bounds_gate: sql("bounds_gate", include_str!("../sql/bounds_gate.sql")),
            extend: sql("extend", include_str!("../sql/extend.sql")),
            is_locked: sql("is_locked", include_str!("../sql/is_locked.sql")),
            lookup_by_key: sql("lookup_by_key", include_str!("../sql/lookup_by_key.sql")),
            lookup_by_lock_id: sql("lookup_by_lock_id", include_str!("../sql/lookup_by_lock_id.sql")),
            purge: sql("purge", include_str!("../sql/purge.sql")),
            purge_key: sql("purge_key", include_str!("../sql/purge_key.sql")),
            list: sql("list", include_str!("../sql/list.sql")),
            count: sql("count", include_str!("../sql/count.sql")),
            ask: sql("ask", include_str!("../sql/ask.sql")),
        }
    }
}

/// Puts the quoted table names in, and leaves out the lines for other columns and the comments that only a reader of
/// the file needs.
pub(crate) fn render(text: &str, tables: &Tables, columns: Columns) -> String {
    let text = choose(text, "holder", columns.holder);
    without_comments(&choose(&text, "key_debug", columns.key_debug))
        .replace("{locks}", &tables.locks.quoted())
        .replace("{fences}", &tables.fences.quoted())
}

pub(crate) fn without_comments(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("--"));
    let lines: Vec<&str> = lines.map(|line| line.split_once(" -- ").map_or(line, |(code, _)| code)).collect();
    lines.join("\n")
}

/// A statement's values and their types, so that an unnamed statement needs no extra question.
pub(crate) type Values = Vec<(Box<dyn ToSql + Sync + Send>, Type)>;

/// A key or a lock id on its way to the server, or several of them. The driver logs parameters by their `Debug` form.
pub(crate) struct Hidden<T>(pub(crate) T);

impl<T> fmt::Debug for Hidden<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<hidden>")
    }
}

impl<T: ToSql> ToSql for Hidden<T> {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        self.0.to_sql(ty, out)
    }

    fn accepts(ty: &Type) -> bool {
        T::accepts(ty)
    }

    to_sql_checked!();
}

/// A text that no log shows.
pub(crate) fn text(value: impl Into<String>) -> (Box<dyn ToSql + Sync + Send>, Type) {
    (Box::new(Hidden(value.into())), Type::TEXT)
}

/// A number.
pub(crate) fn number(value: i64) -> (Box<dyn ToSql + Sync + Send>, Type) {
    (Box::new(value), Type::INT8)
}

/// A statement with its values, named or not.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) sql: &'a Sql,
    pub(crate) values: &'a Values,
}

/// A call whose statement the connection knows, if it should be named.
pub(crate) enum Ready<'a> {
    Named(tokio_postgres::Statement, &'a Values),
    Unnamed(Call<'a>),
}

impl<'a> Call<'a> {
    /// Prepares the statement if it is to be named and this connection has seen it once.
    pub(crate) async fn ready(self, session: &Session, named: bool) -> Result<Ready<'a>, tokio_postgres::Error> {
        if !named {
            return Ok(Ready::Unnamed(self));
        }
        let types: Vec<Type> = self.values.iter().map(|(_, ty)| ty.clone()).collect();
        let statement = session.prepare(self.sql, &types).await?;
        Ok(statement.map_or(Ready::Unnamed(self), |statement| Ready::Named(statement, self.values)))
    }
}

impl Ready<'_> {
    /// Runs it. The request is queued at the first poll, so calls that are polled in turn arrive in turn.
    pub(crate) async fn run(&self, client: &tokio_postgres::Client) -> Result<Vec<Row>, tokio_postgres::Error> {
        match self {
            Self::Named(statement, values) => {
                let values: Vec<&(dyn ToSql + Sync)> =
                    values.iter().map(|(value, _)| -> &(dyn ToSql + Sync) { &**value }).collect();
                client.query(statement, &values).await
            }
            Self::Unnamed(call) => client.query_typed(&call.sql.text, &borrowed(call.values)).await,
        }
    }
}

/// As the driver takes them.
pub(crate) fn borrowed(values: &Values) -> Vec<(&(dyn ToSql + Sync), Type)> {
    let mut borrowed: Vec<(&(dyn ToSql + Sync), Type)> = Vec::with_capacity(values.len());
    for (value, ty) in values {
        borrowed.push((&**value, ty.clone()));
    }
    borrowed
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::HashSet;

    use syncguard_core::Fence;
    use syncguard_core::time::{CLEANUP_GUARD_MS, TOLERANCE_MS};

    use super::*;

    /// Every statement that is sent.
    fn all(statements: &Statements) -> [&Sql; 14] {
        let s = statements;
        [
            &s.acquire[0],
            &s.acquire[1],
            &s.release[0],
            &s.release[1],
            &s.bounds_gate,
            &s.extend,
            &s.is_locked,
            &s.lookup_by_key,
            &s.lookup_by_lock_id,
            &s.purge,
            &s.purge_key,
            &s.list,
            &s.count,
            &s.ask,
        ]
    }

    #[test]
    fn rendered_statements_have_quoted_names_and_no_comments() {
        for columns in Columns::EVERY_CHOICE {
            let statements = Statements::new(&Tables::parse("App.MyLocks", "fences").unwrap(), columns);
            let acquire = &statements.acquire[0].text;
            assert!(acquire.contains("\"App\".\"MyLocks\"") && acquire.contains("\"fences\""));
            for sql in all(&statements) {
                assert!(!sql.text.contains(['{', '}']) || sql.name.starts_with("acquire"), "{}", sql.name);
                assert!(!sql.text.contains("{locks}") && !sql.text.contains("{fences}") && !sql.text.contains("--"));
            }
        }
    }

    #[test]
    fn no_two_statements_share_a_name_or_a_text() {
        let statements = Statements::new(&Tables::parse("l", "f").unwrap(), Columns { key_debug: true, holder: true });
        let names: HashSet<&str> = all(&statements).iter().map(|sql| sql.name).collect();
        let texts: HashSet<&str> = all(&statements).iter().map(|sql| sql.text.as_str()).collect();
        assert_eq!((names.len(), texts.len()), (14, 14));
    }

    #[test]
    fn a_column_that_is_not_there_is_not_mentioned() {
        for columns in Columns::EVERY_CHOICE {
            assert_eq!(Columns::EVERY_CHOICE[columns.place()], columns);
            let statements = Statements::new(&Tables::parse("l", "f").unwrap(), columns);
            assert_eq!(statements.acquire[0].text.matches("key_debug").count(), usize::from(columns.key_debug));
            let s = &statements;
            for sql in [&s.acquire[0], &s.acquire[1], &s.extend, &s.lookup_by_key, &s.lookup_by_lock_id, &s.list] {
                assert_eq!(sql.text.contains("holder"), columns.holder, "{}", sql.name);
            }
        }
    }

    /// The tolerance and the cleanup guard are written out in SQL, where a reader looks for them; here they are
    /// compared.
    #[test]
    fn the_numbers_in_the_statements_are_the_constants_of_the_core() {
        let statements = Statements::new(&Tables::parse("l", "f").unwrap(), Columns { key_debug: true, holder: true });
        let (tolerance, guard) = (TOLERANCE_MS.to_string(), CLEANUP_GUARD_MS.to_string());
        let expected: [(&str, &[&str]); 11] = [
            ("acquire", &[&tolerance, &tolerance, &tolerance]),
            ("acquire_many", &[&tolerance, &tolerance, &tolerance]),
            ("extend", &[&tolerance]),
            ("release", &[&tolerance]),
            ("release_many", &[&tolerance]),
            ("is_locked", &[&tolerance, &guard]),
            ("purge", &[&guard]),
            ("purge_key", &[&guard]),
            ("list", &[&tolerance]),
            ("count", &[&tolerance]),
            ("ask", &[&tolerance]),
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
        for sql in &statements.acquire {
            assert!(sql.text.contains(&format!("BETWEEN 0 AND {}", Fence::MAX.get() - 1)));
        }
    }

    #[test]
    fn a_hidden_value_does_not_show() {
        let list = Hidden(vec!["canary".to_owned()]);
        assert!(!format!("{:?} {list:?}", Hidden("canary")).contains("canary"));
    }
}
