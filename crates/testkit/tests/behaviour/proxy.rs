//! Does every fault do what its name says, and do the counters tell?

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::Duration;

use syncguard_testkit::{Fault, FaultProxy, RedisOptions, RedisServer};

/// Long enough for a loaded machine, never the expected case.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long silence is listened to.
const SILENCE: Duration = Duration::from_millis(300);

struct Rig {
    server: RedisServer,
    proxy: FaultProxy,
}

impl Rig {
    fn start() -> Self {
        let server = RedisServer::start(RedisOptions::new());
        let proxy = FaultProxy::start(server.port());
        Self { server, proxy }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.proxy.port())).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn faults(&self) -> u64 {
        self.proxy.counts().faults
    }
}

fn send(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).unwrap();
}

fn receive(stream: &mut TcpStream, count: usize) -> String {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn is_silent(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(SILENCE)).unwrap();
    let outcome = stream.read(&mut [0]);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    matches!(outcome, Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

#[test]
fn without_a_fault_everything_passes_and_nothing_fires() {
    let rig = Rig::start();
    let mut stream = rig.connect();

    send(&mut stream, "PING\r\n");

    assert_eq!(receive(&mut stream, 7), "+PONG\r\n");
    let counts = rig.proxy.counts();
    assert_eq!((counts.accepted, counts.to_server, counts.to_client), (1, 6, 7));
    assert_eq!((counts.faults, counts.dropped), (0, 0));
    assert_eq!(rig.proxy.url(&rig.server.url()), format!("redis://127.0.0.1:{}/", rig.proxy.port()));
}

#[test]
fn megabytes_pass_unharmed_in_both_directions() {
    let rig = Rig::start();
    let value = "0123456789abcdef".repeat(256 * 1024);
    let mut stream = rig.connect();

    send(&mut stream, &format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n{value}\r\n", value.len()));
    assert_eq!(receive(&mut stream, 5), "+OK\r\n");
    send(&mut stream, "GET k\r\n");

    let head = format!("${}\r\n", value.len());
    assert_eq!(receive(&mut stream, head.len()), head);
    assert!(receive(&mut stream, value.len()) == value, "the value changed on its way");
}

#[test]
fn a_delay_holds_for_each_direction() {
    let rig = Rig::start();
    let mut stream = rig.connect();
    rig.proxy.set(Fault::Delay(Duration::from_millis(400)));

    send(&mut stream, "PING\r\n");

    assert!(is_silent(&mut stream), "300 of 800 milliseconds");
    assert_eq!(receive(&mut stream, 7), "+PONG\r\n");
    assert_eq!(rig.faults(), 2);
}

#[test]
fn a_stalled_request_is_delivered_when_the_stall_ends() {
    let rig = Rig::start();
    rig.proxy.set(Fault::Stall);
    let mut stream = rig.connect();

    send(&mut stream, "SET k v\r\n");
    assert!(is_silent(&mut stream));
    assert_eq!(rig.server.command(&["EXISTS", "k"]), "0");
    assert_eq!(rig.faults(), 1);
    rig.proxy.set(Fault::Pass);

    assert_eq!(receive(&mut stream, 5), "+OK\r\n");
    assert_eq!(rig.server.command(&["EXISTS", "k"]), "1");
}

#[test]
fn a_cut_lets_so_many_bytes_of_the_reply_pass_and_the_command_took_effect() {
    let rig = Rig::start();
    let mut stream = rig.connect();
    send(&mut stream, "PING\r\n");
    receive(&mut stream, 7);
    rig.proxy.set(Fault::CutAfter(2));

    send(&mut stream, "SET k v\r\n");

    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    assert_eq!(reply, b"+O");
    assert_eq!(rig.server.command(&["GET", "k"]), "v");
    assert_eq!((rig.faults(), rig.proxy.counts().dropped), (1, 3));
}

#[test]
fn a_single_cut_spares_the_next_connection() {
    let rig = Rig::start();
    rig.proxy.cut_once(0);
    let (mut first, mut second) = (rig.connect(), rig.connect());

    send(&mut first, "PING\r\n");
    let mut reply = Vec::new();
    first.read_to_end(&mut reply).unwrap();
    send(&mut second, "PING\r\n");

    assert!(reply.is_empty());
    assert_eq!(receive(&mut second, 7), "+PONG\r\n");
    assert_eq!(rig.faults(), 1);
}

#[test]
fn a_reset_ends_old_and_new_connections_with_rst() {
    let rig = Rig::start();
    let mut old = rig.connect();
    send(&mut old, "PING\r\n");
    receive(&mut old, 7);

    rig.proxy.set(Fault::Reset);

    assert_eq!(old.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    let mut new = rig.connect();
    assert_eq!(new.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(rig.faults() >= 2);
}

#[test]
fn refused_means_refused_until_the_fault_ends() {
    let rig = Rig::start();
    let mut old = rig.connect();
    send(&mut old, "PING\r\n");
    receive(&mut old, 7);

    rig.proxy.set(Fault::Refuse);
    assert!(old.read(&mut [0]).is_err(), "the old connection is reset");
    let port = rig.proxy.port();
    let refused = || TcpStream::connect(("127.0.0.1", port)).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused);
    eventually(refused);
    rig.proxy.set(Fault::Pass);

    eventually(|| !refused());
    let mut new = rig.connect();
    send(&mut new, "PING\r\n");
    assert_eq!(receive(&mut new, 7), "+PONG\r\n");
}

fn eventually(condition: impl Fn() -> bool) {
    let probe = || Ok(condition().then_some(()));
    syncguard_testkit::process::wait_for("the proxy to follow", PATIENCE, probe).unwrap();
}

#[test]
fn dropped_replies_leave_the_effect_and_dropped_requests_do_not() {
    let rig = Rig::start();
    let (mut replies, mut requests) = (rig.connect(), rig.connect());

    rig.proxy.set(Fault::DropReplies);
    send(&mut replies, "SET a 1\r\n");
    assert!(is_silent(&mut replies));
    rig.proxy.set(Fault::DropRequests);
    send(&mut requests, "SET b 1\r\n");
    assert!(is_silent(&mut requests));

    assert_eq!(rig.server.command(&["MGET", "a", "b"]), "1\n");
    assert_eq!((rig.faults(), rig.proxy.counts().dropped), (2, 5 + 9));
}

#[test]
fn a_black_hole_swallows_what_a_stall_would_deliver() {
    let rig = Rig::start();
    let mut stream = rig.connect();
    rig.proxy.set(Fault::BlackHole);

    send(&mut stream, "SET k v\r\n");
    assert!(is_silent(&mut stream));
    rig.proxy.set(Fault::Pass);
    assert!(is_silent(&mut stream), "the bytes are gone for good");

    assert_eq!(rig.server.command(&["EXISTS", "k"]), "0");
    assert_eq!(rig.proxy.counts().dropped, 9);
}

#[test]
fn a_trickle_delivers_byte_by_byte() {
    let rig = Rig::start();
    let mut stream = rig.connect();
    rig.proxy.set(Fault::Trickle(Duration::from_millis(100)));

    send(&mut stream, "PING\r\n");

    assert!(is_silent(&mut stream), "six bytes take 600 milliseconds to the server");
    assert_eq!(receive(&mut stream, 7), "+PONG\r\n");
    assert_eq!(rig.faults(), 2);
}

#[test]
fn connections_follow_the_server_through_a_restart_and_end_with_the_proxy() {
    let mut rig = Rig::start();
    let mut before = rig.connect();
    rig.server.restart();
    assert!(matches!(before.read(&mut [0]), Ok(0) | Err(_)), "the death of the server reaches the client");
    let mut after = rig.connect();
    send(&mut after, "PING\r\n");
    assert_eq!(receive(&mut after, 7), "+PONG\r\n");

    let (done, ended) = mpsc::channel();
    let reader = std::thread::spawn(move || done.send(matches!(after.read(&mut [0]), Ok(0) | Err(_))).unwrap());
    drop(rig.proxy);

    assert!(ended.recv_timeout(PATIENCE).unwrap());
    reader.join().unwrap();
}

#[test]
fn a_stream_that_lost_bytes_is_reset_where_holes_are_not_allowed_and_goes_on_elsewhere() {
    let rig = Rig::start();
    let mut lenient = rig.connect();
    rig.proxy.set(Fault::DropReplies);
    send(&mut lenient, "SET a 1\r\n");
    eventually(|| rig.proxy.counts().dropped == 5);
    rig.proxy.set(Fault::Pass);
    // The reply to the next request is taken for the answer to the first: no network does that.
    send(&mut lenient, "PING\r\n");
    assert_eq!(receive(&mut lenient, 7), "+PONG\r\n");

    rig.proxy.reset_holes();
    let (mut torn, mut whole) = (rig.connect(), rig.connect());
    send(&mut whole, "PING\r\n");
    assert_eq!(receive(&mut whole, 7), "+PONG\r\n");
    rig.proxy.set(Fault::DropReplies);
    send(&mut torn, "SET b 1\r\n");
    eventually(|| rig.proxy.counts().dropped == 10);
    rig.proxy.set(Fault::Pass);
    send(&mut torn, "PING\r\n");

    assert!(matches!(torn.read(&mut [0]), Ok(0) | Err(_)), "a stream with a hole carried more bytes");
    send(&mut whole, "PING\r\n");
    assert_eq!(receive(&mut whole, 7), "+PONG\r\n", "a stream without a hole goes on");
    assert_eq!(rig.server.command(&["MGET", "a", "b"]), "1\n1");
}

#[test]
fn a_stream_that_lost_requests_is_reset_before_the_server_hears_the_rest() {
    let rig = Rig::start();
    rig.proxy.reset_holes();
    let mut torn = rig.connect();
    rig.proxy.set(Fault::DropRequests);
    send(&mut torn, "SET a 1\r\n");
    eventually(|| rig.proxy.counts().dropped == 9);
    rig.proxy.set(Fault::Pass);

    send(&mut torn, "SET b 1\r\n");

    assert!(matches!(torn.read(&mut [0]), Ok(0) | Err(_)));
    assert_eq!(rig.server.command(&["EXISTS", "a", "b"]), "0");
}
