//! Which statements does the backend speak?
//!
//! The files in `sql/`, with the table names put in once. Every value travels as a parameter; none is ever part of the text.
//!
//! A statement is *named* (prepared once per connection) where the connection leads straight to a server, and *unnamed* (parsed
//! at every call, half the speed) behind a pooler: there the next transaction may run on another server connection, on
//! which the same name may stand for somebody else's statement.

use std::error::Error;
use std::fmt;

use tokio_postgres::Row;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use crate::pool::Session;
use crate::table::Tables;

pub(crate) const BEGIN: &str = include_str!("../sql/begin.sql");
pub(crate) const COMMIT: &str = "COMMIT";

/// The statements of one pair of tables.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) acquire_gate: String,
    pub(crate) acquire: String,
    pub(crate) extend_gate: String,
    pub(crate) extend: String,
    pub(crate) release_gate: String,
    pub(crate) release: String,
    pub(crate) is_locked: String,
    pub(crate) lookup_by_key: String,
    pub(crate) lookup_by_lock_id: String,
    pub(crate) purge: String,
    pub(crate) purge_key: String,
}

impl Statements {
    pub(crate) fn new(tables: &Tables) -> Self {
        let render = |text| render(text, tables);
        Self {
            acquire_gate: render(include_str!("../sql/acquire_gate.sql")),
            acquire: render(include_str!("../sql/acquire.sql")),
            extend_gate: render(include_str!("../sql/extend_gate.sql")),
            extend: render(include_str!("../sql/extend.sql")),
            release_gate: render(include_str!("../sql/release_gate.sql")),
            release: render(include_str!("../sql/release.sql")),
            is_locked: render(include_str!("../sql/is_locked.sql")),
            lookup_by_key: render(include_str!("../sql/lookup_by_key.sql")),
            lookup_by_lock_id: render(include_str!("../sql/lookup_by_lock_id.sql")),
            purge: render(include_str!("../sql/purge.sql")),
            purge_key: render(include_str!("../sql/purge_key.sql")),
        }
    }
}

/// Puts the quoted table names in, and leaves out the comments that only a reader of the file needs.
pub(crate) fn render(text: &str, tables: &Tables) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
    lines.join("\n").replace("{locks}", &tables.locks.quoted()).replace("{fences}", &tables.fences.quoted())
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
pub(crate) struct Call<'a> {
    pub(crate) sql: &'a str,
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
            Self::Unnamed(call) => client.query_typed(call.sql, call.params).await,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn rendered_statements_have_quoted_names_and_no_comments() {
        let statements = Statements::new(&Tables::parse("App.MyLocks", "fences").unwrap());
        let text = format!("{statements:?}");
        assert!(statements.acquire.contains("\"App\".\"MyLocks\"") && statements.acquire.contains("\"fences\""));
        assert!(!text.contains("{locks}") && !text.contains("{fences}") && !text.contains("--"));
    }

    #[test]
    fn a_hidden_value_does_not_show() {
        assert!(!format!("{:?}", Hidden("canary")).contains("canary"));
    }
}
