//! Which servers are there?

use std::any::Any;

use syncguard::Locker;
use syncguard_testkit::{PostgresOptions, PostgresServer, RedisOptions, RedisServer};

pub(crate) const BACKENDS: [&str; 5] = ["memory", "sqlite", "redis", "postgres", "firestore"];

/// One client, and what it talks to.
pub(crate) struct World {
    // Dropped before its server.
    pub(crate) locker: Locker,
    _server: Box<dyn Any>,
}

pub(crate) async fn start(backend: &str) -> World {
    let (url, server): (String, Box<dyn Any>) = match backend {
        "sqlite" => {
            let folder = tempfile::tempdir().unwrap();
            (format!("sqlite:{}", folder.path().join("locks.db").display()), Box::new(folder))
        }
        "redis" => {
            let server = RedisServer::start(RedisOptions::new());
            (format!("{}?connections=1", server.url()), Box::new(server))
        }
        "postgres" => {
            let server = PostgresServer::start(PostgresOptions::new());
            (server.url(), Box::new(server))
        }
        "firestore" => firestore(),
        _ => ("memory:".to_owned(), Box::new(())),
    };
    World { locker: syncguard::connect(&url).await.unwrap(), _server: server }
}

/// The emulator on a thread of its own, so that the crowd does not wait for it on its own workers.
fn firestore() -> (String, Box<dyn Any>) {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let admin = hidane::Admin::default();
            let listeners = hidane::bind("127.0.0.1", 0).await.unwrap();
            tell.send(listeners[0].local_addr().unwrap().port()).unwrap();
            let (grpc, http) = (hidane::grpc_routes(&admin), hidane::http_routes(admin));
            drop(hidane::serve(listeners, grpc, http, std::future::pending()).await);
        });
    });
    (format!("firestore://waiters?emulator=127.0.0.1:{}", told.recv().unwrap()), Box::new(()))
}
