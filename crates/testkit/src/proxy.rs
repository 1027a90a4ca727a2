//! What does a bad network look like to the code under test?
//!
//! A TCP proxy on a port of its own in front of any server. The fault can be changed at any moment and holds for the
//! connections that exist as well as for new ones; the counters prove that it fired. Two threads per connection, one
//! per direction; each looks at the fault at least every [`TICK`].
//!
//! Longer than other files: every fault is a line in each of the steps of `Pump`, which are read together or not at all.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::place::Port;

/// How soon an idle connection notices another fault.
pub const TICK: Duration = Duration::from_millis(10);

/// What the proxy does to the bytes. Where only bytes are lost, the close of a connection still passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Everything passes.
    Pass,
    /// Everything passes, this much later in each direction.
    Delay(Duration),
    /// Connections are accepted and nothing moves. What was sent is delivered when the fault ends, as by a slow
    /// network.
    Stall,
    /// This many bytes of replies pass on each connection, then it is closed on both sides.
    CutAfter(u64),
    /// Connections are reset (RST): those that exist, and new ones after they were accepted.
    Reset,
    /// Connections are reset and new ones are refused: nobody listens.
    Refuse,
    /// Bytes vanish in both directions.
    BlackHole,
    /// Requests reach the server and take effect; replies vanish.
    DropReplies,
    /// Requests vanish; what the server still sends passes.
    DropRequests,
    /// One byte passes in this time, in each direction.
    Trickle(Duration),
    /// Replies vanish until these bytes have come by on one connection; that one is then closed on both sides, and
    /// everything passes again. Cuts exactly after an event in the server, however its replies are chunked.
    LoseRepliesThrough(&'static [u8]),
}

/// How often things happened since the proxy started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Connections accepted.
    pub accepted: u64,
    /// Times a fault took effect: a chunk delayed, dropped or held back, a connection cut, reset or refused by
    /// closing.
    pub faults: u64,
    /// Bytes sent on to the server.
    pub to_server: u64,
    /// Bytes sent on to the client.
    pub to_client: u64,
    /// Bytes that vanished.
    pub dropped: u64,
    /// Times that a piece of a reply vanished although the server had sent it, or was cut off inside.
    pub replies_lost: u64,
}

/// A proxy between a client and a server of the loopback interface; it ends, with its connections, when dropped.
#[derive(Debug)]
pub struct FaultProxy {
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    port: Port,
    target: AtomicU16,
    setting: Mutex<Setting>,
    connections: Mutex<Vec<Weak<Connection>>>,
    stopping: AtomicBool,
    /// Whether a connection that lost bytes may carry more of them.
    resets_holes: AtomicBool,
    accepted: AtomicU64,
    faults: AtomicU64,
    to_server: AtomicU64,
    to_client: AtomicU64,
    dropped: AtomicU64,
    replies_lost: AtomicU64,
}

#[derive(Debug, Clone, Copy)]
struct Setting {
    fault: Fault,
    /// Grows with every change, so that a direction knows when to count its bytes anew.
    generation: u64,
    /// The fault ends when it fires.
    once: bool,
}

#[derive(Debug)]
struct Connection {
    client: TcpStream,
    server: TcpStream,
    /// A black hole for good, whatever is set for the others.
    silent: AtomicBool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

impl FaultProxy {
    /// Starts a proxy in front of a port of 127.0.0.1, with no fault.
    ///
    /// # Panics
    ///
    /// When no port is free.
    pub fn start(target_port: u16) -> Self {
        Self::try_start(target_port).unwrap_or_else(|error| panic!("{error:#}"))
    }

    fn try_start(target_port: u16) -> Result<Self> {
        let port = Port::reserve()?;
        let listener = listen(port.number())?;
        let shared = Arc::new(Shared {
            port,
            target: AtomicU16::new(target_port),
            setting: Mutex::new(Setting { fault: Fault::Pass, generation: 0, once: false }),
            connections: Mutex::default(),
            stopping: AtomicBool::new(false),
            resets_holes: AtomicBool::new(false),
            accepted: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            to_server: AtomicU64::new(0),
            to_client: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            replies_lost: AtomicU64::new(0),
        });
        let acceptor = thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept_loop(&shared, listener)
        });
        Ok(Self { shared, acceptor: Some(acceptor) })
    }

    /// The port to connect to instead of the server's.
    pub fn port(&self) -> u16 {
        self.shared.port.number()
    }

    /// A URL of the server, turned into one that goes through the proxy: its port is replaced.
    ///
    /// # Panics
    ///
    /// When the URL does not contain the server's port.
    pub fn url(&self, server_url: &str) -> String {
        let target = format!(":{}", self.shared.target.load(Ordering::Relaxed));
        assert!(server_url.contains(&target), "the URL does not lead to the proxy's server");
        server_url.replacen(&target, &format!(":{}", self.port()), 1)
    }

    /// Sets the fault for all connections, from now on.
    pub fn set(&self, fault: Fault) {
        self.change(fault, matches!(fault, Fault::LoseRepliesThrough(_)));
    }

    /// Cuts the first connection that has carried `bytes` bytes of replies from now on; then everything passes again.
    pub fn cut_once(&self, bytes: u64) {
        self.change(Fault::CutAfter(bytes), true);
    }

    /// Makes the connections that exist black holes for good, as by a network that forgot them; new ones pass.
    pub fn silence_existing(&self) {
        let connections = self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
        for connection in connections.iter().filter_map(Weak::upgrade) {
            connection.silent.store(true, Ordering::Relaxed);
        }
    }

    /// From now on a connection that has lost bytes in one direction is reset when more would come through there. TCP
    /// delivers a stream without holes or not at all; a client that is handed the rest of one takes the reply to another
    /// request for its own, which says nothing about any real network.
    pub fn reset_holes(&self) {
        self.shared.resets_holes.store(true, Ordering::Relaxed);
    }

    /// Sends new connections to another port.
    pub fn set_target(&self, port: u16) {
        self.shared.target.store(port, Ordering::Relaxed);
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            accepted: read(&self.shared.accepted),
            faults: read(&self.shared.faults),
            to_server: read(&self.shared.to_server),
            to_client: read(&self.shared.to_client),
            dropped: read(&self.shared.dropped),
            replies_lost: read(&self.shared.replies_lost),
        }
    }

    fn change(&self, fault: Fault, once: bool) {
        let mut setting = self.shared.setting.lock().unwrap_or_else(PoisonError::into_inner);
        *setting = Setting { fault, generation: setting.generation + 1, once };
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        if let Some(acceptor) = self.acceptor.take() {
            drop(acceptor.join());
        }
        let connections = self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
        for connection in connections.iter().filter_map(Weak::upgrade) {
            connection.close();
        }
    }
}

impl Shared {
    fn setting(&self) -> Setting {
        *self.setting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Counts the fault; `false` when it was to fire once and another connection was first.
    fn fire(&self, seen: Setting) -> bool {
        let mut setting = self.setting.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.once {
            if setting.generation != seen.generation {
                return false;
            }
            *setting = Setting { fault: Fault::Pass, generation: setting.generation + 1, once: false };
        }
        self.faults.fetch_add(1, Ordering::Relaxed);
        true
    }
}

impl Connection {
    fn close(&self) {
        // Either side may have closed already.
        drop(self.client.shutdown(Shutdown::Both));
        drop(self.server.shutdown(Shutdown::Both));
    }

    /// The close that follows when the last thread lets go becomes a reset.
    fn arm_reset(&self) {
        let _ = rustix::net::sockopt::set_socket_linger(&self.client, Some(Duration::ZERO));
        let _ = rustix::net::sockopt::set_socket_linger(&self.server, Some(Duration::ZERO));
    }
}

fn listen(port: u16) -> Result<TcpListener> {
    let listener = TcpListener::bind(("127.0.0.1", port)).context("the proxy cannot listen")?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn accept_loop(shared: &Arc<Shared>, listener: TcpListener) {
    let mut listener = Some(listener);
    while !shared.is_stopping() {
        let refuse = shared.setting().fault == Fault::Refuse;
        match &listener {
            Some(_) if refuse => listener = None,
            None if !refuse => listener = listen(shared.port.number()).ok(),
            None => thread::sleep(TICK),
            Some(open) => {
                if wait_readable(open, TICK) {
                    accept(shared, open);
                }
            }
        }
    }
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    let Ok((client, _)) = listener.accept() else { return };
    shared.accepted.fetch_add(1, Ordering::Relaxed);
    let setting = shared.setting();
    let target = shared.target.load(Ordering::Relaxed);
    let server = TcpStream::connect(("127.0.0.1", target));
    let (Ok(server), false) = (server, setting.fault == Fault::Reset) else {
        shared.fire(setting);
        let _ = rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO));
        return;
    };
    drop((client.set_nonblocking(false), client.set_nodelay(true), server.set_nodelay(true)));
    let connection = Arc::new(Connection { client, server, silent: AtomicBool::new(false) });
    let mut connections = shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
    connections.retain(|old| old.strong_count() > 0);
    connections.push(Arc::downgrade(&connection));
    for direction in [Direction::ToServer, Direction::ToClient] {
        let (shared, connection) = (Arc::clone(shared), Arc::clone(&connection));
        thread::spawn(move || Pump::new(&shared, &connection, direction).run());
    }
}

/// One direction of one connection.
struct Pump<'a> {
    shared: &'a Shared,
    connection: &'a Connection,
    direction: Direction,
    /// What was read and is due later, oldest first.
    queue: VecDeque<(Instant, Vec<u8>)>,
    /// Bytes delivered since the fault was set.
    passed: u64,
    generation: u64,
    /// The replies that vanished since the fault was set, in which its end is looked for.
    lost: Vec<u8>,
    /// Whether holding back was counted for this generation.
    stall_counted: bool,
    source_ended: bool,
    /// Whether bytes of this direction have vanished.
    has_hole: bool,
}

/// Whether the direction goes on.
type Goes = Option<()>;

impl<'a> Pump<'a> {
    fn new(shared: &'a Shared, connection: &'a Connection, direction: Direction) -> Self {
        let generation = shared.setting().generation;
        Self {
            shared,
            connection,
            direction,
            queue: VecDeque::new(),
            passed: 0,
            generation,
            lost: Vec::new(),
            stall_counted: false,
            source_ended: false,
            has_hole: false,
        }
    }

    fn run(mut self) {
        while !self.shared.is_stopping() {
            if self.step().is_none() {
                break;
            }
        }
    }

    fn setting(&self) -> Setting {
        let setting = self.shared.setting();
        let silent = self.connection.silent.load(Ordering::Relaxed);
        if silent { Setting { fault: Fault::BlackHole, once: false, ..setting } } else { setting }
    }

    fn step(&mut self) -> Goes {
        let setting = self.setting();
        if setting.generation != self.generation {
            (self.generation, self.passed, self.stall_counted) = (setting.generation, 0, false);
            self.lost.clear();
        }
        match setting.fault {
            Fault::Reset | Fault::Refuse => {
                self.shared.fire(setting);
                self.connection.arm_reset();
                return None;
            }
            Fault::Stall => {
                self.hold_back(setting);
                return Some(());
            }
            _ => {}
        }
        self.deliver_due(setting)?;
        if self.source_ended {
            return self.finish();
        }
        let patience =
            self.queue.front().map_or(TICK, |(due, _)| due.saturating_duration_since(Instant::now()).min(TICK));
        if wait_readable(self.source(), patience) { self.read() } else { Some(()) }
    }

    fn hold_back(&mut self, setting: Setting) {
        if !self.stall_counted && wait_readable(self.source(), TICK) {
            self.stall_counted = true;
            self.shared.fire(setting);
        }
        thread::sleep(TICK);
    }

    /// The source said its last word; the target hears of it after everything before it.
    fn finish(&mut self) -> Goes {
        let Some((due, _)) = self.queue.front() else {
            drop(self.target().shutdown(Shutdown::Write));
            return None;
        };
        thread::sleep(due.saturating_duration_since(Instant::now()).min(TICK));
        Some(())
    }

    fn read(&mut self) -> Goes {
        let mut buffer = [0; 16 * 1024];
        match self.source().read(&mut buffer) {
            Ok(0) => self.source_ended = true,
            // The fault of this moment: the one from before the wait may be over, and a test that sets a fault and then
            // sends must see these very bytes meet it.
            Ok(count) => return self.take(&buffer[..count], self.setting()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // A reset by one side reaches the other.
            Err(_) => {
                self.connection.arm_reset();
                self.connection.close();
                return None;
            }
        }
        Some(())
    }

    fn take(&mut self, bytes: &[u8], setting: Setting) -> Goes {
        let now = Instant::now();
        let to_server = self.direction == Direction::ToServer;
        let vanishes = match setting.fault {
            Fault::BlackHole => true,
            Fault::DropReplies | Fault::LoseRepliesThrough(_) => !to_server,
            Fault::DropRequests => to_server,
            _ => false,
        };
        if self.has_hole && !vanishes && self.shared.resets_holes.load(Ordering::Relaxed) {
            self.connection.arm_reset();
            self.connection.close();
            return None;
        }
        self.has_hole |= vanishes;
        match setting.fault {
            Fault::BlackHole => self.lose(bytes, setting),
            Fault::DropReplies if !to_server => self.lose(bytes, setting),
            Fault::DropRequests if to_server => self.lose(bytes, setting),
            Fault::LoseRepliesThrough(end) if !to_server => return self.lose_through(end, bytes, setting),
            Fault::Delay(delay) => {
                self.shared.fire(setting);
                self.queue.push_back((now + delay, bytes.to_vec()));
            }
            Fault::Trickle(pause) => {
                self.shared.fire(setting);
                let mut due = self.queue.back().map_or(now, |(due, _)| *due);
                for byte in bytes {
                    due += pause;
                    self.queue.push_back((due, vec![*byte]));
                }
            }
            _ => self.queue.push_back((now, bytes.to_vec())),
        }
        Some(())
    }

    fn lose_through(&mut self, end: &[u8], bytes: &[u8], setting: Setting) -> Goes {
        self.count_lost(bytes);
        self.lost.extend_from_slice(bytes);
        let ended = self.lost.windows(end.len()).any(|window| window == end);
        if ended && self.shared.fire(setting) {
            self.connection.close();
            return None;
        }
        Some(())
    }

    fn lose(&self, bytes: &[u8], setting: Setting) {
        self.shared.fire(setting);
        self.count_lost(bytes);
    }

    fn count_lost(&self, bytes: &[u8]) {
        self.shared.dropped.fetch_add(length(bytes), Ordering::Relaxed);
        if self.direction == Direction::ToClient {
            self.shared.replies_lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn deliver_due(&mut self, setting: Setting) -> Goes {
        while let Some((due, _)) = self.queue.front() {
            if *due > Instant::now() {
                break;
            }
            let (_, bytes) = self.queue.pop_front()?;
            self.deliver(&bytes, setting)?;
        }
        Some(())
    }

    fn deliver(&mut self, bytes: &[u8], setting: Setting) -> Goes {
        let mut bytes = bytes;
        let mut cut = false;
        if let (Fault::CutAfter(limit), Direction::ToClient) = (setting.fault, self.direction) {
            let left = usize::try_from(limit - self.passed).unwrap_or(usize::MAX);
            cut = bytes.len() > left && self.shared.fire(setting);
            if cut {
                self.count_lost(&bytes[left..]);
                bytes = &bytes[..left];
            }
        }
        self.passed += length(bytes);
        let counter = match self.direction {
            Direction::ToServer => &self.shared.to_server,
            Direction::ToClient => &self.shared.to_client,
        };
        // Counted first: who has seen the bytes must find them counted.
        counter.fetch_add(length(bytes), Ordering::Relaxed);
        self.target().write_all(bytes).ok()?;
        if cut {
            self.connection.close();
            return None;
        }
        Some(())
    }

    fn source(&self) -> &'a TcpStream {
        match self.direction {
            Direction::ToServer => &self.connection.client,
            Direction::ToClient => &self.connection.server,
        }
    }

    fn target(&self) -> &'a TcpStream {
        match self.direction {
            Direction::ToServer => &self.connection.server,
            Direction::ToClient => &self.connection.client,
        }
    }
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

fn wait_readable(socket: impl std::os::fd::AsFd, patience: Duration) -> bool {
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(patience.min(TICK).subsec_nanos()) };
    let mut fds = [PollFd::new(&socket, PollFlags::IN)];
    poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0)
}
