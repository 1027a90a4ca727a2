//! What do the command and its watchdog say to each other?
//!
//! One JSON object per packet of a `SOCK_SEQPACKET` pair: a packet arrives whole or not at all, so neither side can be
//! left waiting for the rest of a message by a partner that was stopped in the middle of one.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::tree::Process;

/// The command tells the watchdog. Times are milliseconds of the boot clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Start the work with these variables. Without an end nobody is stopped when the lease ends.
    Start { lease_ends: Option<u64>, variables: Vec<(String, String)> },
    /// The lease was renewed until then.
    Renewed { lease_ends: u64 },
    /// Pass a signal on to the work.
    Signal(i32),
    /// Ask everything to stop now, and kill then what is left.
    End { kill_at: u64 },
}

/// The watchdog tells the command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Event {
    Started {
        pid: i32,
    },
    /// The work could not be started.
    Failed {
        errno: i32,
    },
    /// The process that was started has ended; what it left behind may run on.
    Exited {
        code: Option<i32>,
        signal: Option<i32>,
    },
    /// No process of the work is left.
    Empty,
    /// No news came in time: the watchdog is ending the work on its own.
    Overdue,
    /// These could not be ended.
    Survivors(Vec<Process>),
}

/// The two ends; neither is inherited by the work.
pub(crate) fn pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Sends without waiting: a partner that does not read must not hold us up.
pub(crate) fn send(socket: impl AsFd, message: &impl Serialize) -> rustix::io::Result<()> {
    let bytes = serde_json::to_vec(message).map_err(|_| Errno::INVAL)?;
    rustix::net::send(socket, &bytes, SendFlags::NOSIGNAL).map(|_| ())
}

/// The next message; `None` when the other side is gone, `WOULDBLOCK` when there is none yet.
pub(crate) fn receive<M: DeserializeOwned>(socket: impl AsFd) -> rustix::io::Result<Option<M>> {
    // Its length first: memory for the longest message would have to be cleared for every one of them.
    let length = take(&socket, &mut [], RecvFlags::PEEK | RecvFlags::TRUNC)?;
    if length == 0 {
        return Ok(None);
    }
    let mut bytes = vec![0; length];
    take(&socket, &mut bytes, RecvFlags::empty())?;
    serde_json::from_slice(&bytes).map(Some).map_err(|_| Errno::BADMSG)
}

fn take(socket: impl AsFd, bytes: &mut [u8], flags: RecvFlags) -> rustix::io::Result<usize> {
    let mut received = rustix::net::recv(&socket, &mut *bytes, flags);
    if matches!(received, Err(Errno::CONNRESET)) {
        // The other side died with something of ours unread. That is said once; what it said before follows.
        received = rustix::net::recv(&socket, bytes, flags);
    }
    received.map(|(_, length)| length)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_and_in_order_and_an_end_is_seen() {
        let (ours, theirs) = pair().unwrap();
        assert_eq!(receive::<Order>(&theirs), Err(Errno::WOULDBLOCK));
        let variables = vec![("SYNCGUARD_KEY".to_owned(), "it's\n\u{1f600}".repeat(500))];
        let orders = [Order::Start { lease_ends: Some(u64::MAX), variables }, Order::End { kill_at: 7 }];
        for order in &orders {
            send(&ours, order).unwrap();
        }
        drop(ours);

        let received: Vec<Order> = std::iter::from_fn(|| receive(&theirs).unwrap()).collect();

        assert_eq!(received, orders);
    }
}
