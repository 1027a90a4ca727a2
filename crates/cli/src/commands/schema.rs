//! Which SQL makes the tables that a backend needs?
//!
//! The text that the PostgreSQL backend itself would run, for migrations by a role that may create tables.

use crate::args::SchemaArgs;
use crate::exit::Failure;
use crate::output::Output;

#[cfg(feature = "postgres")]
pub(crate) fn schema(args: &SchemaArgs, output: Output) -> Result<u8, Failure> {
    use syncguard::postgres::{PostgresBuilder, protect_counters_sql, schema_sql};

    use crate::exit::{self, Stage};

    let mut builder = PostgresBuilder::default();
    if let Some(table) = &args.table {
        builder = builder.table(table);
    }
    if let Some(table) = &args.fence_table {
        builder = builder.fence_table(table);
    }
    let failed = |error: syncguard::LockError| Failure::from_lock(&error, Stage::Operating);
    output.data(schema_sql(&builder).map_err(failed)?.trim_end());
    if args.protect {
        output.data(protect_counters_sql(&builder).map_err(failed)?.trim_end());
    }
    Ok(exit::OK)
}

#[cfg(not(feature = "postgres"))]
pub(crate) fn schema(_args: &SchemaArgs, _output: Output) -> Result<u8, Failure> {
    Err(Failure::config("only PostgreSQL has a schema, and this program was built without it"))
}
