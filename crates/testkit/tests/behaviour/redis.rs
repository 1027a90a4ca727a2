//! Does the testkit's Redis start, answer, die and come back as promised?

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use syncguard_testkit::process::is_alive;
use syncguard_testkit::redis::cluster::slot_of;
use syncguard_testkit::redis::{Appendonly, Reply};
use syncguard_testkit::{RedisCluster, RedisOptions, RedisSentinel, RedisServer};

#[test]
fn a_redis_answers_and_is_gone_after_the_drop() {
    let server = RedisServer::start(RedisOptions::new());
    let (pid, folder) = (server.pid(), server.data_dir());
    assert_eq!(server.command(&["SET", "k", "v"]), "OK");
    assert_eq!(server.command(&["GET", "k"]), "v");
    assert_eq!(server.try_command(&["GET", "absent"]).unwrap(), Reply::Nil);
    assert!(is_alive(pid));

    drop(server);

    assert!(!is_alive(pid));
    assert!(!folder.exists());
}

#[test]
fn an_append_only_redis_keeps_its_data_and_port_through_a_kill() {
    let mut server = RedisServer::start(RedisOptions::new().appendonly(Appendonly::Always));
    let (pid, port) = (server.pid(), server.port());
    server.command(&["SET", "k", "v"]);

    server.kill_hard();
    assert!(!is_alive(pid));
    assert!(server.try_command(&["GET", "k"]).is_err(), "nobody listens");
    server.restart();

    assert_eq!(server.port(), port);
    assert_eq!(server.command(&["GET", "k"]), "v");
}

#[test]
fn a_plain_redis_forgets_its_data_when_killed() {
    let mut server = RedisServer::start(RedisOptions::new());
    server.command(&["SET", "k", "v"]);

    server.restart();

    assert_eq!(server.try_command(&["GET", "k"]).unwrap(), Reply::Nil);
}

#[test]
fn a_password_is_asked_for_and_is_in_the_url() {
    let server = RedisServer::start(RedisOptions::new().password("s3cret"));
    assert!(server.url().contains(":s3cret@"));
    assert_eq!(server.command(&["PING"]), "PONG");

    let mut stranger = syncguard_testkit::redis::RespClient::connect(server.port()).unwrap();

    let refusal = stranger.command(&["GET", "k"]).unwrap_err().to_string();
    assert!(refusal.contains("NOAUTH"), "{refusal}");
}

#[test]
fn a_paused_redis_is_silent_until_it_is_resumed() {
    let server = RedisServer::start(RedisOptions::new());
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_millis(200))).unwrap();

    server.pause();
    stream.write_all(b"PING\r\n").unwrap();
    let mut answer = [0; 7];
    assert!(stream.read_exact(&mut answer).is_err(), "a frozen server answered");
    server.resume();

    stream.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+PONG\r\n");
}

#[test]
fn a_unix_socket_is_served() {
    let server = RedisServer::start(RedisOptions::new().unix_socket());
    let path = server.unix_url().strip_prefix("redis+unix://").unwrap().to_owned();
    let mut stream = UnixStream::connect(path).unwrap();

    stream.write_all(b"PING\r\n").unwrap();

    let mut answer = [0; 7];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+PONG\r\n");
}

#[test]
fn a_tls_redis_is_trusted_through_its_own_authority_only() {
    let server = RedisServer::start(RedisOptions::new().tls());
    let other = RedisServer::start(RedisOptions::new().tls());

    assert_eq!(tls_ping(server.tls_port(), server.ca_path()).unwrap(), "+PONG\r\n");

    let refusal = tls_ping(server.tls_port(), other.ca_path()).unwrap_err().to_string();
    assert!(refusal.contains("certificate"), "{refusal}");
}

/// PING through TLS, trusting `ca`.
fn tls_ping(port: u16, ca: &std::path::Path) -> std::io::Result<String> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connection = rustls::ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let mut stream = rustls::StreamOwned::new(connection, TcpStream::connect(("127.0.0.1", port))?);
    stream.write_all(b"PING\r\n")?;
    let mut answer = [0; 7];
    stream.read_exact(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[test]
fn a_cluster_serves_moves_a_slot_and_fails_over() {
    let mut cluster = RedisCluster::start(3, 1);
    let slot = slot_of("k");
    let owner = cluster.owner_of(slot).unwrap();
    cluster.node(owner).command(&["SET", "k", "v"]);

    let other = (owner + 1) % 3;
    cluster.migrate_slot(slot, other).unwrap();

    assert_eq!(cluster.node(other).command(&["GET", "k"]), "v");
    let refusal = cluster.node(owner).try_command(&["GET", "k"]).unwrap_err().to_string();
    assert!(refusal.contains("MOVED"), "{refusal}");

    // Wait until the replica has the key: replication is not part of the acknowledgement.
    let replica = 3 + other;
    syncguard_testkit::process::wait_for("replication", std::time::Duration::from_secs(30), || {
        let mut client = cluster.node(replica).client()?;
        client.command(&["READONLY"])?;
        Ok((client.command(&["GET", "k"])? == Reply::Text("v".to_owned())).then_some(()))
    })
    .unwrap();
    cluster.node_mut(other).kill_hard();
    cluster.wait_promoted(replica).unwrap();

    assert_eq!(cluster.owner_of(slot).unwrap(), replica);
    assert_eq!(cluster.node(replica).command(&["GET", "k"]), "v");
}

#[test]
fn sentinels_promote_a_replica_when_the_master_is_killed() {
    let mut sentinel = RedisSentinel::start(1);
    let first = sentinel.master_port().unwrap();
    assert_eq!(first, sentinel.servers()[0].port());
    let pids: Vec<u32> = sentinel.servers().iter().chain(sentinel.sentinels()).map(RedisServer::pid).collect();

    let killed = sentinel.kill_master();
    let second = sentinel.wait_for_new_master(killed);

    assert_eq!(killed, first);
    assert_eq!(second, sentinel.servers()[1].port());
    assert_eq!(sentinel.master().command(&["SET", "k", "v"]), "OK");
    drop(sentinel);
    assert!(pids.iter().all(|pid| !is_alive(*pid)));
}

#[test]
fn a_stepped_clock_moves_the_time_of_redis_and_what_expires_by_it() {
    let server = RedisServer::start(RedisOptions::new().steppable_clock());
    let seconds = || server.command(&["TIME"]).lines().next().unwrap().parse::<i64>().unwrap();
    server.command(&["SET", "k", "v", "PX", "600000"]);
    let before = seconds();

    server.step_clock(300_000);
    assert!((300..400).contains(&(seconds() - before)));
    assert_eq!(server.command(&["GET", "k"]), "v");
    server.step_clock(600_000);
    assert_eq!(server.command(&["EXISTS", "k"]), "0");
    server.step_clock(-1_000_000);

    assert!((-100..=0).contains(&(seconds() - before)), "the steps add up to minus 100 seconds");
}
