//! Prints the SQL that creates the tables: `cargo run -p syncguard-postgres --example schema [TABLE FENCE_TABLE]
//! [--protect]`.

use syncguard_postgres::{PostgresBuilder, protect_counters_sql, schema_sql};

fn main() -> Result<(), syncguard_core::LockError> {
    let (flags, names): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|word| word.starts_with("--"));
    let mut options = PostgresBuilder::default();
    if let [table, fence_table] = names.as_slice() {
        options = options.table(table).fence_table(fence_table);
    }
    println!("{}", schema_sql(&options)?);
    if flags.iter().any(|flag| flag == "--protect") {
        println!("{}", protect_counters_sql(&options)?);
    }
    Ok(())
}
