//! Do the stores of marks keep their promise, and would the suite notice if not?

use std::sync::Arc;

use crate::support::marks::{Files, Memory, Postgres, Redis, SqliteFile};
use syncguard_fenced::fenced_suite;

fenced_suite!(memory, Memory(Arc::default()));
fenced_suite!(files, Files::new());
fenced_suite!(sqlite, SqliteFile::new());
fenced_suite!(postgres, Postgres::new());
fenced_suite!(redis, Redis::new());
