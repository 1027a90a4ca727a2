//! Does the testkit's Redis start, answer, die and come back as promised?

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

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
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", server.port())).unwrap();
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
fn a_tls_redis_shows_a_certificate_of_its_authority() {
    let server = RedisServer::start(RedisOptions::new().tls());
    assert_eq!(openssl_verdict(server.tls_port(), server.ca_path()), "Verify return code: 0 (ok)");

    let other = RedisServer::start(RedisOptions::new().tls());

    let verdict = openssl_verdict(server.tls_port(), other.ca_path());
    assert_ne!(verdict, "Verify return code: 0 (ok)", "the authority of another server must not do");
}

/// What the OpenSSL command thinks of the certificate.
fn openssl_verdict(port: u16, ca: &std::path::Path) -> String {
    let output = std::process::Command::new("openssl")
        .args(["s_client", "-verify_hostname", "localhost", "-connect", &format!("127.0.0.1:{port}"), "-CAfile"])
        .arg(ca)
        .stdin(std::process::Stdio::null())
        .output()
        .expect("openssl is installed (apt-get install -y openssl)");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().map(str::trim).find(|line| line.starts_with("Verify return code")).unwrap_or("no verdict").to_owned()
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
