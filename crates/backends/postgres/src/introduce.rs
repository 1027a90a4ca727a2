//! Who is at the other end of a new connection?
//!
//! One question tells it, and makes the settings of a session that nobody shares with us. What is set stands in
//! `sql/introduce.sql`.

use std::future::poll_fn;

use tokio_postgres::{Client, Error};

use crate::connect::Messages;
use crate::statement::without_comments;
use crate::table::Tables;

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Locks: where no pooler stands in between, the session gets the settings that they need.
    Locks,
    /// Anything else: the session stays as the server made it.
    Other,
}

/// What a connection for locks is bounded by, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// How long the server may wait for another transaction.
    pub(crate) lock_timeout: u128,
    /// How long one statement may take.
    pub(crate) statement_timeout: u128,
}

/// What a new connection is asked first. For other purposes than locks it is told a process id that nobody has, so that
/// it sets nothing.
pub(crate) fn question(purpose: Purpose, announced_pid: i32, bounds: Bounds, tables: &Tables) -> String {
    let pid = if purpose == Purpose::Locks { announced_pid } else { -1 };
    without_comments(include_str!("../sql/introduce.sql"))
        // Names are letters, digits and underscores, so they end no literal.
        .replace("{locks}", &tables.locks.quoted())
        .replace("{fences}", &tables.fences.quoted())
        .replace("{announced_pid}", &pid.to_string())
        .replace("{lock_timeout}", &bounds.lock_timeout.to_string())
        .replace("{statement_timeout}", &bounds.statement_timeout.to_string())
}

/// What a server says of itself.
pub(crate) struct Introduction {
    pub(crate) pid: i32,
    pub(crate) in_recovery: bool,
    pub(crate) read_only: bool,
    /// The schemas of the two tables: where they are, or where they would be made.
    pub(crate) places: [Option<String>; 2],
}

/// Asks the question and reads the answer.
pub(crate) async fn introduce(
    client: Client,
    mut messages: Messages,
    question: &str,
) -> Result<(Client, Messages, Introduction), Error> {
    let server = {
        let asking = client.simple_query(question);
        let mut asking = std::pin::pin!(asking);
        // The connection has no task of its own yet, so it is driven by hand while it answers.
        poll_fn(|cx| {
            while let std::task::Poll::Ready(message) = messages.as_mut().poll_next(cx) {
                if let None | Some(Err(_)) = message {
                    break;
                }
            }
            asking.as_mut().poll(cx)
        })
        .await?
    };
    let row = server.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    // A proxy may answer with anything at all.
    let told = |index: usize| row.and_then(|row| row.try_get(index).ok().flatten());
    let column = |index: usize| told(index).unwrap_or_default();
    let introduction = Introduction {
        // Minus one is nobody's: a server that does not say is treated as a pooler.
        pid: column(0).parse().unwrap_or(-1),
        in_recovery: column(1) == "t",
        read_only: column(2) == "t",
        places: [3, 4].map(|table| told(table).or(told(5)).map(str::to_owned)),
    };
    Ok((client, messages, introduction))
}
