//! Does a PostgreSQL database refuse what it should?

use syncguard_core::{ErrorCode, Fence, Key};
use syncguard_fenced::postgres::PostgresOptions;
use syncguard_fenced::{FenceError, StaleFence, postgres};
use syncguard_testkit::fresh_postgres_database;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, IsolationLevel};

use crate::support::ledger::connect;

fn fence(number: u64) -> Fence {
    Fence::new(number).unwrap()
}

fn key() -> Key {
    Key::new("it's a \"ledger\"").unwrap()
}

async fn database() -> (String, Client) {
    let url = fresh_postgres_database();
    let client = connect(&url).await;
    postgres::install(&client).await.unwrap();
    client
        .batch_execute("CREATE TABLE \"led ger\" (balance bigint); INSERT INTO \"led ger\" VALUES (0)")
        .await
        .unwrap();
    (url, client)
}

async fn balance(client: &Client) -> i64 {
    client.query_one("SELECT balance FROM \"led ger\"", &[]).await.unwrap().get(0)
}

const UPDATE: &str = "UPDATE \"led ger\" SET balance = balance + 1";

#[tokio::test]
async fn a_refusal_aborts_the_transaction_even_if_nobody_looks() {
    let (_, mut client) = database().await;
    postgres::begin(&mut client, &key(), fence(42)).await.unwrap().commit().await.unwrap();

    let tx = client.transaction().await.unwrap();
    tx.execute(UPDATE, &[]).await.unwrap();
    let stale = postgres::check(&tx, &key(), fence(41)).await.unwrap_err().stale();
    // The caller ignores the answer and commits; PostgreSQL makes a rollback of it.
    let _ = tx.commit().await;

    assert_eq!(stale, Some(StaleFence { offered: fence(41), seen: fence(42) }));
    assert_eq!(balance(&client).await, 0);
}

#[tokio::test]
async fn a_mark_is_remembered_only_with_the_write_it_came_with() {
    let (_, mut client) = database().await;
    postgres::begin(&mut client, &key(), fence(50)).await.unwrap().rollback().await.unwrap();

    postgres::begin(&mut client, &key(), fence(49)).await.unwrap().commit().await.unwrap();

    assert!(postgres::begin(&mut client, &key(), fence(48)).await.is_err());
}

#[tokio::test]
async fn an_equal_fence_writes_no_new_mark() {
    let (_, mut client) = database().await;
    let row = "SELECT ctid::text FROM syncguard_marks";
    postgres::begin(&mut client, &key(), fence(7)).await.unwrap().commit().await.unwrap();
    let before: String = client.query_one(row, &[]).await.unwrap().get(0);
    for _ in 0..3 {
        postgres::begin(&mut client, &key(), fence(7)).await.unwrap().commit().await.unwrap();
    }
    let after: String = client.query_one(row, &[]).await.unwrap().get(0);
    postgres::begin(&mut client, &key(), fence(8)).await.unwrap().commit().await.unwrap();
    let moved: String = client.query_one(row, &[]).await.unwrap().get(0);

    assert_eq!(before, after);
    assert_ne!(after, moved, "the row has no new version although it changed: the test would see nothing");
}

#[tokio::test]
async fn a_newer_holder_waits_until_the_older_one_has_ended_also_when_its_fence_was_known() {
    for isolation in [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let (url, mut older) = database().await;
        let mut newer = connect(&url).await;
        let watcher = connect(&url).await;
        postgres::begin(&mut older, &key(), fence(41)).await.unwrap().commit().await.unwrap();
        let tx = older.build_transaction().isolation_level(isolation).start().await.unwrap();
        postgres::check(&tx, &key(), fence(41)).await.unwrap();

        let begin_newer = tokio::spawn(async move {
            postgres::begin(&mut newer, &key(), fence(42)).await.unwrap().commit().await.unwrap();
        });
        // It has come as far as the row's lock, and waits there.
        let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
        while watcher.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) == 0 {
            assert!(!begin_newer.is_finished(), "it did not wait");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        tx.execute(UPDATE, &[]).await.unwrap();
        tx.commit().await.unwrap();
        begin_newer.await.unwrap();

        assert_eq!(balance(&watcher).await, 1, "{isolation:?}");
    }
}

#[tokio::test]
async fn check_with_sends_the_first_statement_along_and_a_stale_one_changes_nothing() {
    let (_, mut client) = database().await;
    let tx = client.transaction().await.unwrap();
    let rows = postgres::check_with(&tx, &key(), fence(42), tx.execute_typed(UPDATE, &[])).await.unwrap().unwrap();
    tx.commit().await.unwrap();
    assert_eq!(rows, 1);

    let tx = client.transaction().await.unwrap();
    let refused = postgres::check_with(&tx, &key(), fence(41), tx.execute_typed(UPDATE, &[])).await;
    let _ = tx.commit().await;

    assert_eq!(refused.unwrap_err().stale().unwrap().seen, fence(42));
    assert_eq!(balance(&client).await, 1);
}

#[tokio::test]
async fn a_protected_table_takes_nothing_from_code_that_forgets() {
    let (_, mut client) = database().await;
    postgres::protect(&client, "led ger", &key()).await.unwrap();
    postgres::protect(&client, "led ger", &key()).await.unwrap();
    let writes = [UPDATE, "INSERT INTO \"led ger\" VALUES (1)", "DELETE FROM \"led ger\"", "TRUNCATE \"led ger\""];
    let undeclared = SqlState::from_code("SG002");

    for write in writes {
        let error = client.batch_execute(write).await.unwrap_err();
        assert_eq!(error.code(), Some(&undeclared), "{write}");
    }
    // Through begin, and by hand.
    let tx = postgres::begin(&mut client, &key(), fence(42)).await.unwrap();
    tx.execute(UPDATE, &[]).await.unwrap();
    tx.commit().await.unwrap();
    client.batch_execute(&format!("BEGIN; SET LOCAL syncguard.fence = 43; {UPDATE}; COMMIT")).await.unwrap();
    // A fence is local to its transaction: the next one of the same session has none.
    assert_eq!(client.batch_execute(UPDATE).await.unwrap_err().code(), Some(&undeclared));
    let late = client.batch_execute(&format!("BEGIN; SET LOCAL syncguard.fence = 42; {UPDATE}; COMMIT")).await;
    client.batch_execute("ROLLBACK").await.unwrap();

    let error = late.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::from_code("SG001")));
    assert_eq!(error.as_db_error().unwrap().detail(), Some("43"));
    assert_eq!(balance(&client).await, 2);
}

#[tokio::test]
async fn the_fence_of_another_key_opens_no_protected_table() {
    let (_, mut client) = database().await;
    postgres::protect(&client, "led ger", &key()).await.unwrap();

    let tx = postgres::begin(&mut client, &Key::new("other").unwrap(), Fence::MAX).await.unwrap();
    let error = tx.execute(UPDATE, &[]).await.unwrap_err();

    assert_eq!(error.code(), Some(&SqlState::from_code("SG002")));
}

/// A holder in the middle of its write: stopped, as far as anybody can see.
async fn stopped_holder(url: &str, number: u64) -> Client {
    let mut older = connect(url).await;
    let tx = postgres::begin(&mut older, &key(), fence(number)).await.unwrap();
    tx.execute(UPDATE, &[]).await.unwrap();
    // Its connection stays where it is, and so does its transaction on the server.
    std::mem::forget(tx);
    older
}

#[tokio::test]
async fn a_successor_ends_the_session_of_a_stopped_holder_and_says_whom() {
    let (url, client) = database().await;
    let older = stopped_holder(&url, 41).await;
    let pid: i32 = older.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);

    let ended = postgres::take_over(&client, &key(), fence(42)).await.unwrap();

    assert_eq!(ended.iter().map(|one| (one.pid, one.fence)).collect::<Vec<_>>(), [(pid, fence(41))]);
    assert_eq!(ended[0].role.as_deref(), Some("postgres"));
    assert!(older.batch_execute("COMMIT").await.is_err(), "the session lives");
    client.batch_execute(UPDATE).await.unwrap();
    assert_eq!(balance(&client).await, 1, "the write of the stopped holder was kept");
    assert!(postgres::take_over(&client, &key(), fence(41)).await.unwrap_err().stale().is_some());
    assert_eq!(postgres::take_over(&client, &key(), fence(42)).await.unwrap(), []);
}

#[tokio::test]
async fn a_successor_leaves_everybody_else_alone() {
    let (url, mut client) = database().await;
    let other_key = Key::new("other").unwrap();
    let (mut other, mut peer) = (connect(&url).await, connect(&url).await);
    postgres::announce(&client, &key(), fence(42)).await.unwrap();
    let other = postgres::begin(&mut other, &other_key, fence(7)).await.unwrap();
    let peer = postgres::begin(&mut peer, &key(), fence(42)).await.unwrap();

    assert_eq!(postgres::take_over(&client, &key(), fence(42)).await.unwrap(), []);

    // A newer one in its transaction is waited for, and not ended: this one is stale itself.
    peer.commit().await.unwrap();
    let newer = stopped_holder(&url, 43).await;
    let error = postgres::take_over(&client, &key(), fence(42)).await.unwrap_err();
    let FenceError::Failed(failure) = &error else { panic!("{error:?}") };
    assert_eq!(failure.code(), ErrorCode::NetworkTimeout);
    assert!(error.to_string().contains("fence 43"), "{error}");
    newer.batch_execute("COMMIT").await.unwrap();
    other.commit().await.unwrap();
    assert!(postgres::begin(&mut client, &key(), fence(42)).await.map(drop).unwrap_err().stale().is_some());
}

#[tokio::test]
async fn without_the_right_to_end_them_a_successor_names_the_sessions() {
    let (url, client) = database().await;
    let sql = "CREATE ROLE successor_without_rights LOGIN; \
               GRANT SELECT, INSERT, UPDATE ON syncguard_marks TO successor_without_rights";
    client.batch_execute(sql).await.unwrap();
    let older = stopped_holder(&url, 41).await;
    let successor = connect(&url.replace("//postgres@", "//successor_without_rights@")).await;

    let error = postgres::take_over(&successor, &key(), fence(42)).await.unwrap_err();

    let FenceError::Failed(failure) = &error else { panic!("{error:?}") };
    assert_eq!(failure.code(), ErrorCode::AuthFailed);
    assert!(error.to_string().contains("of role postgres") && error.to_string().contains("fence 41"), "{error}");
    assert!(failure.hint().unwrap().contains("pg_signal_backend"));
    older.batch_execute("COMMIT").await.unwrap();
    drop(successor);
    client.batch_execute("DROP OWNED BY successor_without_rights; DROP ROLE successor_without_rights").await.unwrap();
}

#[tokio::test]
async fn connections_of_one_holder_do_not_wait_for_each_other() {
    let (url, client) = database().await;
    postgres::announce(&client, &key(), fence(42)).await.unwrap();
    let mut connections = Vec::new();
    for _ in 0..16 {
        connections.push(connect(&url).await);
    }
    // All are inside at once, or this would wait for ever.
    let mut inside = Vec::new();
    for connection in &mut connections {
        inside.push(postgres::begin(connection, &key(), fence(42)).await.unwrap());
    }
    for tx in inside {
        tx.commit().await.unwrap();
    }
}

#[tokio::test]
async fn writes_that_name_a_partition_need_their_fence() {
    let (_, client) = database().await;
    let tables = "CREATE TABLE parted (id int) PARTITION BY RANGE (id); \
                  CREATE TABLE early PARTITION OF parted FOR VALUES FROM (0) TO (10); CREATE TABLE heir (CHECK (true)) \
                  INHERITS (\"led ger\")";
    client.batch_execute(tables).await.unwrap();
    for table in ["parted", "led ger"] {
        postgres::protect(&client, table, &key()).await.unwrap();
    }
    client.batch_execute("CREATE TABLE later PARTITION OF parted FOR VALUES FROM (10) TO (20)").await.unwrap();

    let writes = [
        "INSERT INTO early VALUES (1)",
        "INSERT INTO later VALUES (11)",
        "INSERT INTO parted VALUES (1), (11)",
        "TRUNCATE early",
        "INSERT INTO heir VALUES (1)",
        "DELETE FROM heir",
    ];
    for write in writes {
        let error = client.batch_execute(write).await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::from_code("SG002")), "{write}");
    }
    for write in writes {
        client.batch_execute(&format!("BEGIN; SET LOCAL syncguard.fence = 42; {write}; COMMIT")).await.unwrap();
    }
    let fenced = "BEGIN; SET LOCAL syncguard.fence = 42; UPDATE parted SET id = id + 1; DELETE FROM later; COMMIT";
    client.batch_execute(fenced).await.unwrap();
    let ids: i64 = client.query_one("SELECT count(*) FROM parted", &[]).await.unwrap().get(0);
    assert_eq!(ids, 0, "a trigger for rows has swallowed a write");
    let late = client.batch_execute("BEGIN; SET LOCAL syncguard.fence = 41; INSERT INTO later VALUES (12)").await;
    assert_eq!(late.unwrap_err().code(), Some(&SqlState::from_code("SG001")));
}

#[tokio::test]
async fn a_session_without_a_search_path_is_checked_all_the_same() {
    let (_, client) = database().await;
    postgres::protect(&client, "led ger", &key()).await.unwrap();
    let write = "INSERT INTO public.\"led ger\" VALUES (1)";
    client.batch_execute("SET search_path = ''").await.unwrap();

    let refused = client.batch_execute(write).await.unwrap_err();
    client.batch_execute(&format!("BEGIN; SET LOCAL syncguard.fence = 42; {write}; COMMIT")).await.unwrap();

    assert_eq!(refused.code(), Some(&SqlState::from_code("SG002")));
}

#[tokio::test]
async fn a_pool_made_for_one_holding_needs_no_begin() {
    let (url, client) = database().await;
    let key = Key::new(r"a \ 'key' = and more").unwrap();
    postgres::protect(&client, "led ger", &key).await.unwrap();
    let options = |number| PostgresOptions::new(&key, fence(number));
    let of_sqlx = |number| {
        let connect = url.parse::<sqlx::postgres::PgConnectOptions>().unwrap().options(options(number).settings());
        sqlx::PgPool::connect_with(connect)
    };
    let stale = of_sqlx(41).await.unwrap();
    sqlx::query(UPDATE).execute(&stale).await.unwrap();

    let mut config: tokio_postgres::Config = url.parse().unwrap();
    let (newer, connection) = config.options(options(42).to_string()).connect(tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    newer.batch_execute(UPDATE).await.unwrap();

    let refused = sqlx::query(UPDATE).execute(&stale).await.unwrap_err();
    assert_eq!(refused.as_database_error().unwrap().code().as_deref(), Some("SG001"));
    assert!(client.batch_execute(UPDATE).await.is_err(), "a session without a fence was let through");
    assert_eq!(balance(&client).await, 2);
    assert!(!format!("{:?}", options(42)).contains("key'"));
}

#[tokio::test]
async fn many_may_install_at_once() {
    let url = fresh_postgres_database();
    let installs = (0..8).map(async |_| postgres::install(&connect(&url).await).await.unwrap());
    futures_util::future::join_all(installs).await;
    assert!(postgres::begin(&mut connect(&url).await, &key(), fence(1)).await.is_ok());
}

#[tokio::test]
async fn marks_of_a_stranger_are_refused_before_his_code_runs() {
    let url = fresh_postgres_database();
    let owner = connect(&url).await;
    let name = url.rsplit('/').next().unwrap().split('?').next().unwrap();
    let (stranger, victim) = (format!("stranger_{name}"), format!("victim_{name}"));
    let marks = "CREATE TABLE syncguard_marks (key text PRIMARY KEY, fence bigint);
                 CREATE TABLE loot (victim text); GRANT ALL ON loot, syncguard_marks TO PUBLIC;
                 CREATE FUNCTION thief() RETURNS trigger LANGUAGE plpgsql AS
                     'BEGIN INSERT INTO loot VALUES (current_user); RETURN NEW; END';
                 CREATE TRIGGER thief BEFORE INSERT ON syncguard_marks FOR EACH ROW EXECUTE FUNCTION thief()";
    let roles = format!("CREATE ROLE {stranger}; CREATE ROLE {victim}; GRANT CREATE ON SCHEMA public TO PUBLIC");
    owner.batch_execute(&format!("{roles}; SET ROLE {stranger}; {marks}; SET ROLE {victim}")).await.unwrap();

    for of_others in ["trigger", "nothing"] {
        let error = postgres::install(&owner).await.unwrap_err();
        let FenceError::Failed(failure) = &error else { panic!("{error:?}") };
        assert_eq!(failure.code(), ErrorCode::InvalidArgument, "{error:?}");
        assert!(failure.hint().unwrap().contains("schema"), "{error:?}");
        owner.batch_execute("ROLLBACK; RESET ROLE").await.unwrap();
        assert_eq!(owner.query_one("SELECT count(*) FROM loot", &[]).await.unwrap().get::<_, i64>(0), 0);
        // Now only the function of the trigger is his, and then nothing.
        let mine = if of_others == "trigger" {
            "ALTER TABLE syncguard_marks OWNER TO"
        } else {
            "ALTER FUNCTION thief OWNER TO"
        };
        owner
            .batch_execute(&format!("{mine} {victim}; GRANT ALL ON loot TO {victim}; SET ROLE {victim}"))
            .await
            .unwrap();
    }
    postgres::install(&owner).await.unwrap();
}

#[tokio::test]
async fn without_the_migration_a_check_fails_and_says_what_to_do() {
    let mut client = connect(&fresh_postgres_database()).await;
    let error = postgres::begin(&mut client, &key(), fence(1)).await.map(drop).unwrap_err();
    let FenceError::Failed(failure) = &error else { panic!("{error:?}") };
    assert_eq!(failure.code(), ErrorCode::InvalidArgument);
    assert!(failure.hint().unwrap().contains("migration"));
    assert!(!format!("{error:?}").contains("it's a"), "{error:?}");
}

#[tokio::test]
async fn sqlx_shares_marks_functions_and_triggers() {
    let (url, mut client) = database().await;
    let pool = sqlx::PgPool::connect(&url).await.unwrap();
    syncguard_fenced::sqlx::install(&pool).await.unwrap();
    postgres::protect(&client, "led ger", &key()).await.unwrap();

    let mut tx = syncguard_fenced::sqlx::begin(&pool, &key(), fence(42)).await.unwrap();
    sqlx::query(UPDATE).execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    let late = postgres::begin(&mut client, &key(), fence(41)).await.map(drop).unwrap_err();
    postgres::begin(&mut client, &key(), fence(43)).await.unwrap().commit().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let later = syncguard_fenced::sqlx::check(&mut tx, &key(), fence(42)).await.unwrap_err();
    drop(tx);

    assert_eq!(late.stale(), Some(StaleFence { offered: fence(41), seen: fence(42) }));
    assert_eq!(later.stale(), Some(StaleFence { offered: fence(42), seen: fence(43) }));
    assert_eq!(balance(&client).await, 1);
}
