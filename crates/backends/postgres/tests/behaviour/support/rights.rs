//! Which rights does the documentation name?
//!
//! Read from its page, so that the page cannot say something else than what was tested.

use syncguard_core::LockId;

use super::{Tables, sql};

/// A password that no output may show: `cargo xtask test` looks for it in everything that was printed.
pub(crate) const CANARY: &str = "sgcanary-postgres-password";

/// The grants to a role in `docs/backends/postgres.md`, for the default tables.
pub(crate) fn documented(role: &str) -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/backends/postgres.md");
    let page = std::fs::read_to_string(path).expect("the page is there");
    let end = format!(" TO {role};");
    let grants = page.lines().filter(|line| line.starts_with("GRANT ") && line.ends_with(&end));
    grants.map(str::to_owned).collect()
}

/// A role of one test.
pub(crate) struct Role {
    name: String,
    /// Whose grants it gets.
    documented_as: &'static str,
}

impl Role {
    /// Makes one with the grants of the documentation on such tables.
    pub(crate) async fn create(url: &str, documented_as: &'static str, tables: &Tables) -> Self {
        let role = Self { name: format!("r_{}", LockId::random().hash()), documented_as };
        let create = format!("CREATE ROLE {} LOGIN PASSWORD '{CANARY}'; {}", role.name, role.grants(tables));
        sql(url).await.batch_execute(&create).await.expect("a new role");
        role
    }

    /// Gives it the same on other tables.
    pub(crate) async fn grant(&self, url: &str, tables: &Tables) {
        sql(url).await.batch_execute(&self.grants(tables)).await.expect("grants that the server knows");
    }

    /// The URL of a server, as this role.
    pub(crate) fn url(&self, url: &str) -> String {
        let as_role = url.replace("//postgres@", &format!("//{}:{CANARY}@", self.name));
        assert_ne!(as_role, url);
        as_role
    }

    fn grants(&self, tables: &Tables) -> String {
        let (documented_as, name) = (self.documented_as, &self.name);
        let grants = documented(documented_as).join(" ");
        assert!(!grants.is_empty(), "docs/backends/postgres.md grants nothing to {documented_as}");
        grants
            .replace("syncguard_locks", &tables.locks)
            .replace("syncguard_fence_counters", &tables.fences)
            .replace(&format!(" TO {documented_as};"), &format!(" TO {name};"))
    }
}
