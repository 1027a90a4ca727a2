//! When is a request over?
//!
//! Not with the head of its response: a handler may write while its body streams. So the body carries the place inside,
//! and leaves with its end.

use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};

use super::gate::Inside;

/// The body of a response behind a [`FenceLayer`](super::FenceLayer). Its request counts as inside until the body has
/// ended or was dropped.
pub struct FencedBody<B> {
    body: B,
    inside: Option<Inside>,
}

impl<B> FencedBody<B> {
    pub(super) fn new(body: B, inside: Option<Inside>) -> Self {
        Self { body, inside }
    }
}

impl<B> std::fmt::Debug for FencedBody<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FencedBody").field("is_inside", &self.inside.is_some()).finish_non_exhaustive()
    }
}

impl<B: Body + Unpin> Body for FencedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        let is_over = matches!(polled, Poll::Ready(None | Some(Err(_)))) || self.body.is_end_stream();
        if is_over {
            self.inside = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
