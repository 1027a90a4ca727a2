//! Does a service refuse what it should?

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Extension;
use axum::routing::{any, put};
use futures_util::future::join;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use syncguard_core::{Fence, Key, Locker, MemoryBackend};
use syncguard_fenced::http::{FenceHeadersLayer, FenceLayer, FencedRequest, fence_headers};
use syncguard_fenced::{FenceError, HighWater, MemoryMarks, Result};
use tokio::sync::{Mutex, Semaphore};
use tower::{Layer, Service, ServiceExt};

use crate::support::ledger::http_client;

fn fence(number: u64) -> Fence {
    Fence::new(number).unwrap()
}

fn request(method: &str, key: &str, number: u64) -> Request<Body> {
    let builder = Request::builder().method(method).uri("/ledger");
    builder
        .header("Syncguard-Key", key)
        .header("Syncguard-Fence", fence(number).to_string())
        .body(Body::empty())
        .unwrap()
}

fn service() -> Router {
    Router::new().route("/ledger", any(async || "done")).layer(FenceLayer::new(MemoryMarks::new()))
}

async fn status(service: &Router, request: Request<Body>) -> StatusCode {
    service.clone().oneshot(request).await.unwrap().status()
}

#[tokio::test]
async fn a_stale_request_reads_a_problem_document_with_both_fences() {
    let service = service();
    assert_eq!(status(&service, request("PUT", "canary", 42)).await, 200);
    assert_eq!(status(&service, request("PUT", "canary", 42)).await, 200);

    let response = service.clone().oneshot(request("PUT", "canary", 41)).await.unwrap();

    assert_eq!(response.status(), 412);
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let text = std::str::from_utf8(&body).unwrap();
    assert_eq!(
        text,
        r#"{"type":"urn:syncguard:stale-fence","title":"The fence is stale","status":412,"#.to_owned()
            + r#""detail":"a newer holder of the lock has been here; stop, and leave the work to it","#
            + r#""offered":"000000000000041","seen":"000000000000042"}"#
    );
    assert_eq!(status(&service, request("PUT", "other", 1)).await, 200);
}

#[tokio::test]
async fn a_write_needs_a_fence_and_a_read_does_not() {
    let bare = |method: &str| Request::builder().method(method).uri("/ledger").body(Body::empty()).unwrap();
    let half =
        Request::builder().method("PUT").uri("/ledger").header("Syncguard-Fence", "7").body(Body::empty()).unwrap();
    let service = service();

    for method in ["PUT", "POST", "PATCH", "DELETE"] {
        assert_eq!(status(&service, bare(method)).await, 428, "{method}");
    }
    for method in ["GET", "HEAD", "OPTIONS"] {
        assert_eq!(status(&service, bare(method)).await, 200, "{method}");
    }
    assert_eq!(status(&service, half).await, 400);
    // A read that carries a fence is held to it: it may be the read before a write.
    assert_eq!(status(&service, request("GET", "k", 42)).await, 200);
    assert_eq!(status(&service, request("GET", "k", 41)).await, 412);
    let lenient =
        Router::new().route("/ledger", put(async || ())).layer(FenceLayer::new(MemoryMarks::new()).optional());
    assert_eq!(status(&lenient, bare("PUT")).await, 200);
}

#[tokio::test]
async fn a_newer_request_waits_for_an_older_one_that_is_still_being_answered() {
    let (entered, release) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let ledger = Arc::new(Mutex::new(Vec::new()));
    let handler = {
        let (entered, release, ledger) = (entered.clone(), release.clone(), ledger.clone());
        async move |Extension(fenced): Extension<FencedRequest>| {
            entered.add_permits(1);
            if fenced.fence == fence(41) {
                release.acquire().await.unwrap().forget();
            }
            ledger.lock().await.push(fenced.fence.get());
        }
    };
    let service = Router::new().route("/ledger", put(handler)).layer(FenceLayer::new(MemoryMarks::new()));
    let call = |number| tokio::spawn(service.clone().oneshot(request("PUT", "k", number)));

    let older = call(41);
    entered.acquire().await.unwrap().forget();
    let newer = call(42);
    // From the arrival of the newer one on, another request of the older holder is turned away.
    while status(&service, request("PUT", "k", 40)).await != 412 || !is_turned_away(&service).await {
        tokio::task::yield_now().await;
    }
    assert!(!newer.is_finished());
    assert!(ledger.lock().await.is_empty());
    release.add_permits(1);
    let (older, newer) = join(older, newer).await;

    assert_eq!((older.unwrap().unwrap().status(), newer.unwrap().unwrap().status()), (StatusCode::OK, StatusCode::OK));
    assert_eq!(*ledger.lock().await, [41, 42]);
}

/// Whether fence 41 is refused already. While it is not, the request would wait inside the handler: so it is dropped.
async fn is_turned_away(service: &Router) -> bool {
    let call = service.clone().oneshot(request("PUT", "k", 41));
    tokio::select! {
        biased;
        response = call => response.unwrap().status() == 412,
        () = async { for _ in 0..20 { tokio::task::yield_now().await } } => false,
    }
}

/// A store that cannot tell.
struct Broken;

impl HighWater for Broken {
    async fn advance(&self, _: &Key, _: Fence) -> Result<()> {
        Err(FenceError::Failed(syncguard_core::LockError::internal("canary")))
    }

    async fn highest(&self, _: &Key) -> Result<Option<Fence>> {
        Ok(None)
    }
}

#[tokio::test]
async fn a_store_that_fails_lets_nobody_through() {
    let handler = async || -> () { panic!("the handler was called") };
    let service = Router::new().route("/ledger", put(handler)).layer(FenceLayer::new(Broken));

    let response = service.oneshot(request("PUT", "k", 1)).await.unwrap();

    assert_eq!(response.status(), 503);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert!(!String::from_utf8_lossy(&body).contains("canary"));
}

#[tokio::test]
async fn hypers_client_under_the_layer_speaks_for_its_lock() {
    let locker = Locker::new(MemoryBackend::new());
    let lock = locker.lock("caf\u{e9} \u{1f600}").acquire().await.unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let handler = {
        let seen = seen.clone();
        async move |Extension(fenced): Extension<FencedRequest>| seen.lock().await.push(fenced)
    };
    let service = Router::new().route("/ledger", put(handler)).layer(FenceLayer::new(MemoryMarks::new()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/ledger", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, service).await });

    let mut client = FenceHeadersLayer::new(lock.handle()).layer(http_client());
    let send = Request::put(&url).body(Body::empty()).unwrap();
    let by_hyper = client.ready().await.unwrap().call(send).await.unwrap();
    let mut by_hand = Request::put(&url).body(Body::empty()).unwrap();
    by_hand.headers_mut().extend(fence_headers(&lock));
    let by_hand = http_client().request(by_hand).await.unwrap();

    assert_eq!((by_hyper.status(), by_hand.status()), (StatusCode::OK, StatusCode::OK));
    let said = FencedRequest { key: lock.key().clone(), fence: lock.fence() };
    assert_eq!(*seen.lock().await, [said.clone(), said]);
}

#[tokio::test]
async fn the_layer_needs_no_particular_body() {
    let inner = tower::service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new("done".to_owned())));
    let mut service = FenceLayer::new(MemoryMarks::new()).layer(inner);
    let send = Request::put("/x").body(()).unwrap();
    let response = service.ready().await.unwrap().call(send).await.unwrap();
    assert_eq!(response.status(), 428);
    assert!(response.into_body().contains("fence-required"));
}
