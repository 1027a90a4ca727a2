//! Do the recipes of the documentation work in a shell?
//!
//! Every `sh` block of `docs/fencing.md` that begins with the name of a program is run as it stands there, against real
//! servers: it writes under a fence, and is refused under a lower one.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use syncguard_core::Fence;
use syncguard_testkit::{RedisOptions, RedisServer, fresh_postgres_database};

use crate::support::ledger::connect;
use crate::support::service;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The recipes for a program, in the order of the page.
fn recipes(program: &str) -> Vec<String> {
    let page = std::fs::read_to_string(root().join("docs/fencing.md")).unwrap();
    let blocks = page.split("\n```sh\n").skip(1).map(|rest| rest.split("\n```").next().unwrap().to_owned());
    blocks.filter(|block| block.starts_with(&format!("# {program}:"))).collect()
}

fn run(recipe: &str, variable: &str, url: &str, fence: u64) -> Output {
    let fence = Fence::new(fence).unwrap().to_string();
    let mut shell = Command::new("sh");
    shell.args(["-euc", recipe]).current_dir(root()).env(variable, url).env("SYNCGUARD_FENCE", fence);
    shell.env_remove("http_proxy").env_remove("PGOPTIONS").output().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test]
async fn psql_writes_under_a_fence_and_is_refused_under_a_lower_one() {
    let url = fresh_postgres_database();
    let client = connect(&url).await;
    client.batch_execute("CREATE TABLE ledger (balance bigint); INSERT INTO ledger VALUES (100)").await.unwrap();
    let [set_up, write] = recipes("psql").try_into().unwrap();

    let prepared = run(&set_up, "DATABASE_URL", &url, 1);
    assert!(prepared.status.success(), "{}", text(&prepared));
    let accepted = run(&write, "DATABASE_URL", &url, 42);
    let refused = run(&write, "DATABASE_URL", &url, 41);

    assert!(accepted.status.success(), "{}", text(&accepted));
    assert!(!refused.status.success() && text(&refused).contains("the fence is stale"), "{}", text(&refused));
    assert!(client.batch_execute("UPDATE ledger SET balance = 0").await.is_err(), "the table is not protected");
    let balance: i64 = client.query_one("SELECT balance FROM ledger", &[]).await.unwrap().get(0);
    assert_eq!(balance, 90);
}

#[test]
fn redis_cli_writes_under_a_fence_and_is_refused_under_a_lower_one() {
    let server = RedisServer::start(RedisOptions::new());
    let [write] = recipes("redis-cli").try_into().unwrap();

    let accepted = run(&write, "REDIS_URL", &server.url(), 42);
    server.command(&["SET", "ledger", "100"]);
    let refused = run(&write, "REDIS_URL", &server.url(), 41);

    assert!(text(&accepted).contains("OK"), "{}", text(&accepted));
    assert!(text(&refused).contains("STALE 42 was here before"), "{}", text(&refused));
    assert_eq!(server.command(&["GET", "ledger"]), "100");
    // The recipe and the library share the mark.
    assert_eq!(server.command(&["GET", "syncguard:mark:{ledger}"]), "000000000000042");
}

#[test]
fn curl_writes_under_a_fence_and_is_refused_under_a_lower_one() {
    if Command::new("curl").arg("--version").output().is_err() {
        println!("SKIPPED curl_writes_under_a_fence: curl is not installed");
        return;
    }
    let url = service::start();
    let [write] = recipes("curl").try_into().unwrap();
    // The service of these tests takes entries by POST elsewhere.
    let write = write.replace("-X PUT", "-X POST --noproxy '*'").replace("/ledger\"", "/guarded\"");

    let accepted = run(&write, "SERVICE_URL", &url, 42);
    let refused = run(&write, "SERVICE_URL", &url, 41);

    assert!(accepted.status.success(), "{}", text(&accepted));
    assert!(!refused.status.success(), "{}", text(&refused));
    assert!(text(&refused).contains(r#""seen":"000000000000042""#), "{}", text(&refused));
}
