//! Under which settings does the server work for us, and what do others find of them?
//!
//! A trigger on the lock table writes down what holds in the transaction that changes a row.

use syncguard_core::LockBackend;
use syncguard_postgres::PostgresBackend;
use syncguard_testkit::{PgBouncer, PgBouncerOptions, PostgresOptions, PostgresServer};
use tokio_postgres::Client;

use crate::support::{Tables, sql, try_acquire, ttl};

/// A server whose defaults are all unfit.
fn unfit_server() -> PostgresServer {
    let options = PostgresOptions::new()
        .config("default_transaction_isolation = 'serializable'")
        .config("synchronous_commit = off")
        .config("lock_timeout = 0");
    PostgresServer::start(options)
}

/// Writes down the settings of every change of a lock.
async fn observe(owner: &Client, tables: &Tables) {
    let locks = &tables.locks;
    let statements = format!(
        "CREATE TABLE seen_{locks} (operation TEXT, isolation TEXT, commits TEXT, lock_timeout TEXT);
         CREATE FUNCTION note_{locks}() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ BEGIN
             INSERT INTO seen_{locks} VALUES (TG_OP, current_setting('transaction_isolation'),
                 current_setting('synchronous_commit'), current_setting('lock_timeout'));
             RETURN NULL;
         END $$;
         CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {locks}
             FOR EACH ROW EXECUTE FUNCTION note_{locks}()"
    );
    owner.batch_execute(&statements).await.unwrap();
}

/// Takes, extends and releases a lock, and asserts that each change ran under the settings that it needs.
async fn assert_fit(backend: &PostgresBackend, owner: &Client, tables: &Tables) {
    owner.batch_execute(&format!("TRUNCATE seen_{}", tables.locks)).await.unwrap();
    // More often than the server plans a statement anew.
    for _ in 0..8 {
        let (id, _) = try_acquire(backend, "k", 60_000).await.unwrap();
        assert!(backend.extend(&id, ttl(60_000)).await.unwrap().is_extended());
        assert!(backend.release(&id).await.unwrap().is_released());
    }
    let select = format!("SELECT * FROM seen_{}", tables.locks);
    let rows = owner.query(&select, &[]).await.unwrap();
    assert_eq!(rows.len(), 24);
    for row in rows {
        let found: [String; 4] = std::array::from_fn(|column| row.get(column));
        assert_eq!(found[1..], ["read committed", "on", "7s"], "{found:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_change_is_bounded_and_durable_whatever_the_servers_defaults() {
    let (server, tables) = (unfit_server(), Tables::fresh());
    let patient = |url: &str| tables.at(url).lock_timeout(std::time::Duration::from_secs(7));
    let direct = patient(&server.url()).connect().await.unwrap();
    let owner = sql(&server.url()).await;
    observe(&owner, &tables).await;
    assert_fit(&direct, &owner, &tables).await;

    let pooler = PgBouncer::try_start_at(&server, server.port(), &PgBouncerOptions::new()).unwrap();
    assert_fit(&patient(&pooler.url()).connect().await.unwrap(), &owner, &tables).await;

    let mut config = deadpool_postgres::Config::new();
    config.url = Some(server.url());
    let pool = config.create_pool(Some(deadpool_postgres::Runtime::Tokio1), tokio_postgres::NoTls).unwrap();
    let brought = tables.builder().lock_timeout(std::time::Duration::from_secs(7));
    assert_fit(&brought.connect_with_pool(pool.clone()).await.unwrap(), &owner, &tables).await;
    assert_untouched(&pool.get().await.unwrap()).await;
}

/// The session has the server's own settings.
async fn assert_untouched(client: &Client) {
    let select = "SELECT current_setting('transaction_isolation'), current_setting('synchronous_commit'),
                  current_setting('lock_timeout'), current_setting('enable_seqscan')";
    let row = client.query_typed_one(select, &[]).await.unwrap();
    let found: [String; 4] = std::array::from_fn(|column| row.get(column));
    assert_eq!(found, ["serializable", "off", "0", "on"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_hands_no_setting_of_ours_to_others() {
    let (server, tables) = (unfit_server(), Tables::fresh());
    // One connection to the server, which everybody shares.
    let options = PgBouncerOptions::new().config("default_pool_size = 1");
    let pooler = PgBouncer::try_start_at(&server, server.port(), &options).unwrap();
    let backend = tables.at(&pooler.url()).pool_size(1).connect().await.unwrap();
    let (id, _) = try_acquire(&backend, "k", 60_000).await.unwrap();
    assert!(backend.extend(&id, ttl(60_000)).await.unwrap().is_extended());
    assert!(backend.release(&id).await.unwrap().is_released());

    assert_untouched(&sql(&pooler.url()).await).await;
}
