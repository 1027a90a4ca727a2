//! What does a refused client read?
//!
//! A problem document (RFC 9457). It names fences, never the key.

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};

use crate::{FenceError, StaleFence};

pub(super) fn stale<B: From<String>>(stale: StaleFence) -> Response<B> {
    let members = format!(r#","offered":"{}","seen":"{}""#, stale.offered, stale.seen);
    let detail = "a newer holder of the lock has been here; stop, and leave the work to it";
    respond(StatusCode::PRECONDITION_FAILED, "stale-fence", "The fence is stale", detail, &members)
}

pub(super) fn missing<B: From<String>>() -> Response<B> {
    let detail = "send Syncguard-Key and Syncguard-Fence of the lock that this write happens under";
    respond(StatusCode::PRECONDITION_REQUIRED, "fence-required", "A fence is required", detail, "")
}

pub(super) fn nonsense<B: From<String>>() -> Response<B> {
    let detail = "Syncguard-Key and Syncguard-Fence come together, once each; a fence is exactly 15 decimal digits";
    respond(StatusCode::BAD_REQUEST, "bad-fence", "The fence cannot be read", detail, "")
}

pub(super) fn of<B: From<String>>(error: &FenceError) -> Response<B> {
    match error.stale() {
        Some(refusal) => stale(refusal),
        None => {
            let detail = "the fence could not be compared, so nothing was written";
            respond(StatusCode::SERVICE_UNAVAILABLE, "fence-unchecked", "The fence was not checked", detail, "")
        }
    }
}

// By hand: every text is ours and needs no escaping, and the crate needs no JSON for anything else.
fn respond<B: From<String>>(status: StatusCode, kind: &str, title: &str, detail: &str, members: &str) -> Response<B> {
    let body = format!(
        r#"{{"type":"urn:syncguard:{kind}","title":"{title}","status":{},"detail":"{detail}"{members}}}"#,
        status.as_u16()
    );
    let mut response = Response::new(B::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response
}
