//! Do the stores of marks keep their promise, and would the suite notice if not?

use std::sync::Arc;

use crate::support::marks::{Files, Memory, Objects, Postgres, Redis, SqliteFile};
use crate::support::shelf::ETags;
use syncguard_fenced::fenced_suite;

fenced_suite!(memory, Memory(Arc::default()));
fenced_suite!(files, Files::new());
fenced_suite!(sqlite, SqliteFile::new());
fenced_suite!(postgres, Postgres::new(false));
fenced_suite!(postgres_taking_over, Postgres::new(true));
fenced_suite!(redis, Redis::new());
fenced_suite!(objects_with_hashes_of_contents, Objects::new(ETags::OfContents));
fenced_suite!(objects_with_generations, Objects::new(ETags::Generations));
