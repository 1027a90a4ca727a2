//! May a stranger who can create in the schema have code of his run as the client?

use syncguard_core::{ErrorCode, LockBackend};
use syncguard_testkit::fresh_postgres_database;
use tokio_postgres::Client;

use crate::support::{Tables, sql, try_acquire};

/// What a stranger's code leaves behind: the names of those as whom it ran.
const LOOT: &str = "CREATE TABLE IF NOT EXISTS loot (victim text); GRANT ALL ON loot TO PUBLIC";

/// A database in which everybody may create, a role that will be robbed, and its URL.
async fn open_house() -> (Client, String, Tables) {
    let (url, tables) = (fresh_postgres_database(), Tables::fresh());
    let owner = sql(&url).await;
    let (victim, stranger) = (format!("victim_{}", tables.locks), format!("stranger_{}", tables.locks));
    owner
        .batch_execute(&format!(
            "{LOOT}; GRANT CREATE ON SCHEMA public TO PUBLIC; CREATE ROLE {victim} LOGIN; CREATE ROLE {stranger}"
        ))
        .await
        .unwrap();
    let (before, after) = url.split_once("//").unwrap();
    let place = after.split_once('@').map_or(after, |(_, place)| place);
    (owner, format!("{before}//{victim}@{place}"), tables)
}

async fn as_stranger(owner: &Client, tables: &Tables, batch: &str) {
    let stranger = format!("stranger_{}", tables.locks);
    owner.batch_execute(&format!("SET ROLE {stranger}; {batch}; RESET ROLE")).await.unwrap();
}

async fn loot(owner: &Client) -> i64 {
    owner.query_one("SELECT count(*) FROM loot", &[]).await.unwrap().get(0)
}

const THIEF: &str = "CREATE FUNCTION thief() RETURNS trigger LANGUAGE plpgsql AS
                     'BEGIN INSERT INTO public.loot VALUES (current_user); RETURN NEW; END'";

#[tokio::test]
async fn tables_and_triggers_of_a_stranger_are_refused_before_his_code_runs() {
    let (owner, url, tables) = open_house().await;
    let sql = syncguard_postgres::schema_sql(&tables.builder()).unwrap();
    let trigger = format!(
        "{THIEF}; CREATE TRIGGER thief BEFORE INSERT ON \"{}\" FOR EACH ROW EXECUTE FUNCTION thief()",
        tables.fences
    );
    as_stranger(&owner, &tables, &format!("{sql} {trigger}")).await;

    for create in [true, false] {
        let error = tables.at(&url).auto_create_tables(create).connect().await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error:?}");
        assert!(error.to_string().contains("belongs to stranger_"), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("table=SCHEMA.NAME")), "{error:?}");
    }

    // The tables are ours now, the trigger is not.
    let alter = |table: &str| format!("ALTER TABLE \"{table}\" OWNER TO CURRENT_USER;");
    owner.batch_execute(&format!("{}{}", alter(&tables.locks), alter(&tables.fences))).await.unwrap();
    let error = tables.at(&url).connect().await.unwrap_err();
    assert!(error.to_string().contains("the trigger thief on the table"), "{error}");
    assert_eq!(loot(&owner).await, 0);
}

#[tokio::test]
async fn functions_and_operators_of_a_stranger_are_not_called() {
    let (owner, url, tables) = open_house().await;
    // They fit the calls of our statements better than those of the server.
    let thief = |name: &str, arguments: &str, result: &str, value: &str| {
        format!(
            "CREATE FUNCTION public.{name}({arguments}) RETURNS {result} LANGUAGE plpgsql AS
             'BEGIN INSERT INTO public.loot VALUES (current_user); RETURN {value}; END'"
        )
    };
    let times = thief("times", "float8, int4", "float8", "$1 * $2::float8");
    let operator = "CREATE OPERATOR public.* (LEFTARG = float8, RIGHTARG = int4, FUNCTION = public.times)";
    as_stranger(&owner, &tables, &format!("{times}; {operator}")).await;

    let backend = tables.at(&url).connect().await.unwrap();
    let (id, _) = try_acquire(&backend, "k", 60_000).await.unwrap();
    assert!(backend.release(&id).await.unwrap().is_released());
    assert_eq!(loot(&owner).await, 0);
}

#[tokio::test]
async fn a_path_of_the_role_still_says_where_the_tables_are() {
    let (owner, url, tables) = open_house().await;
    owner
        .batch_execute("CREATE SCHEMA \"odd \"\" name\"; GRANT ALL ON SCHEMA \"odd \"\" name\" TO PUBLIC")
        .await
        .unwrap();
    let victim = format!("victim_{}", tables.locks);
    owner.batch_execute(&format!("ALTER ROLE {victim} SET search_path = \"odd \"\" name\", public")).await.unwrap();

    let backend = tables.at(&url).connect().await.unwrap();

    try_acquire(&backend, "k", 60_000).await.unwrap();
    let count = format!("SELECT count(*) FROM \"odd \"\" name\".\"{}\"", tables.locks);
    assert_eq!(owner.query_one(&count, &[]).await.unwrap().get::<_, i64>(0), 1);
    let again = tables.at(&url).connect().await.unwrap();
    assert!(try_acquire(&again, "k", 60_000).await.is_none());
}
