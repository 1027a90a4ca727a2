//! How does a service refuse a stale client?
//!
//! Two headers travel with each request: `Syncguard-Key` and `Syncguard-Fence`. [`FenceLayer`] is the server's side,
//! [`FenceHeadersLayer`] the client's; both are tower layers, and `curl` needs neither.
//!
//! What the server's layer holds together is one process: while a request of an older fence is being answered (until the
//! end of its body), a newer one waits; once a newer one has come, older ones are refused. Where several servers write to one database, the
//! handler also checks in its own transaction (it finds the key and the fence in the request's extensions, as
//! [`FencedRequest`]), for between two processes nobody waits.

mod body;
mod client;
mod gate;
mod headers;
mod problem;
mod server;

pub use body::FencedBody;
pub use client::{FenceHeaders, FenceHeadersLayer};
pub use headers::{FENCE, FencedRequest, KEY, fence_headers};
pub use server::{FenceLayer, FenceService};
