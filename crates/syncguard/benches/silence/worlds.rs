//! Which servers are there, and what lies between them and their clients?

use std::any::Any;
use std::time::Duration;

use syncguard::Locker;
use syncguard_testkit::process::wait_for;
use syncguard_testkit::{FaultProxy, PostgresOptions, PostgresServer, RedisCluster, RedisOptions, RedisServer};

/// One kind of server, its proxies, and the two ways to it.
pub(crate) struct World {
    pub(crate) name: &'static str,
    /// The way through the proxies.
    far: String,
    /// The way past them, where there is one.
    near: String,
    proxies: Vec<FaultProxy>,
    _server: Box<dyn Any>,
}

impl World {
    pub(crate) async fn far(&self) -> Locker {
        syncguard::connect(&self.far).await.unwrap()
    }

    pub(crate) async fn near(&self) -> Locker {
        syncguard::connect(&self.near).await.unwrap()
    }

    /// Makes every connection through the proxies a black hole for good.
    pub(crate) fn silence(&self) {
        self.proxies.iter().for_each(FaultProxy::silence_existing);
    }
}

pub(crate) fn redis() -> World {
    let server = RedisServer::start(RedisOptions::new());
    let proxy = FaultProxy::start(server.port());
    let (far, near) = (proxy.url(&server.url()), server.url());
    World { name: "redis", far, near, proxies: vec![proxy], _server: Box::new(server) }
}

/// A cluster whose nodes name their proxies when they are asked where a slot is, so nobody gets past them.
pub(crate) fn cluster() -> World {
    let cluster = RedisCluster::start(3, 1);
    let proxies: Vec<FaultProxy> = cluster.nodes().iter().map(|node| FaultProxy::start(node.port())).collect();
    for (node, proxy) in cluster.nodes().iter().zip(&proxies) {
        node.command(&["CONFIG", "SET", "cluster-announce-port", &proxy.port().to_string()]);
    }
    let known = || {
        let everywhere = cluster.nodes().iter().all(|node| {
            let slots = node.command(&["CLUSTER", "NODES"]);
            proxies.iter().all(|proxy| slots.contains(&format!("127.0.0.1:{}@", proxy.port())))
        });
        Ok(everywhere.then_some(()))
    };
    wait_for("every node to name the proxies", Duration::from_secs(60), known).unwrap();
    let hosts: Vec<String> = proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port())).collect();
    let url = format!("redis+cluster://{}", hosts.join(","));
    World { name: "cluster", far: url.clone(), near: url, proxies, _server: Box::new(cluster) }
}

pub(crate) fn postgres() -> World {
    let server = PostgresServer::start(PostgresOptions::new());
    let proxy = FaultProxy::start(server.port());
    let (far, near) = (proxy.url(&server.url()), server.url());
    World { name: "postgres", far, near, proxies: vec![proxy], _server: Box::new(server) }
}

/// The emulator inside this process.
pub(crate) async fn firestore() -> World {
    let admin = hidane::Admin::default();
    let listeners = hidane::bind("127.0.0.1", 0).await.unwrap();
    let port = listeners[0].local_addr().unwrap().port();
    let (grpc, http) = (hidane::grpc_routes(&admin), hidane::http_routes(admin));
    let served = tokio::spawn(async move { drop(hidane::serve(listeners, grpc, http, std::future::pending()).await) });
    let proxy = FaultProxy::start(port);
    let url = |port: u16| format!("firestore://silence?emulator=127.0.0.1:{port}");
    let (far, near) = (url(proxy.port()), url(port));
    World { name: "firestore", far, near, proxies: vec![proxy], _server: Box::new(served) }
}
