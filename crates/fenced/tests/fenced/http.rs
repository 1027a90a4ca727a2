//! Does a service refuse what it should?

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Extension;
use axum::routing::{any, put};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use syncguard_core::{Fence, Key, Locker, MemoryBackend};
use syncguard_fenced::http::{FenceHeadersLayer, FenceLayer, FencedRequest, fence_headers};
use syncguard_fenced::{FenceError, HighWater, MemoryMarks, Result};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinHandle;
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

/// A service that answers fence 41 when it is told to.
struct Stalling {
    service: Router,
    entered: Arc<Semaphore>,
    release: Arc<Semaphore>,
    ledger: Arc<Mutex<Vec<u64>>>,
}

impl Stalling {
    fn new() -> Self {
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
        Self { service, entered, release, ledger }
    }

    /// Starts a request, and lets it come as far as it can.
    async fn call(&self, number: u64) -> JoinHandle<StatusCode> {
        let service = self.service.clone();
        let call = tokio::spawn(async move { status(&service, request("PUT", "k", number)).await });
        settle().await;
        call
    }
}

/// Lets every other task of this thread come as far as it can without a timer.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_newer_request_waits_for_an_older_one_that_is_still_being_answered() {
    let stalling = Stalling::new();
    let older = stalling.call(41).await;
    stalling.entered.acquire().await.unwrap().forget();
    let newer = stalling.call(42).await;

    // From the arrival of the newer one on, another request of the older holder is turned away.
    for late in [40, 41] {
        assert_eq!(stalling.call(late).await.await.unwrap(), 412);
    }
    assert!(!newer.is_finished() && stalling.ledger.lock().await.is_empty());
    stalling.release.add_permits(1);

    assert_eq!((older.await.unwrap(), newer.await.unwrap()), (StatusCode::OK, StatusCode::OK));
    assert_eq!(*stalling.ledger.lock().await, [41, 42]);
}

#[tokio::test]
async fn no_older_request_gets_ahead_of_a_newer_one_that_waits() {
    let stalling = Stalling::new();
    let mut older = Box::pin(status(&stalling.service, request("PUT", "k", 41)));
    tokio::select! { biased; _ = &mut older => panic!("it was answered"), () = settle() => {} }
    let newer = stalling.call(42).await;

    // The older request ends in this task, and the next ones are there before the task of the newer one is woken.
    stalling.release.add_permits(100);
    assert_eq!(older.await, StatusCode::OK);
    for _ in 0..10 {
        assert_eq!(status(&stalling.service, request("PUT", "k", 41)).await, 412);
    }

    assert_eq!(newer.await.unwrap(), StatusCode::OK);
    assert_eq!(*stalling.ledger.lock().await, [41, 42]);
}

#[tokio::test]
async fn a_newer_request_that_went_away_while_it_waited_has_been_here() {
    let stalling = Stalling::new();
    let older = stalling.call(41).await;
    let newer = stalling.call(42).await;
    newer.abort();
    stalling.release.add_permits(100);

    assert_eq!(older.await.unwrap(), StatusCode::OK);
    assert_eq!(stalling.call(41).await.await.unwrap(), 412);
}

#[tokio::test]
async fn a_request_is_inside_until_its_body_has_ended() {
    let (send, receive) = tokio::sync::mpsc::channel::<&str>(1);
    let receive = Arc::new(Mutex::new(Some(receive)));
    let handler = async move |Extension(fenced): Extension<FencedRequest>| {
        let receive = receive.lock().await.take().filter(|_| fenced.fence == fence(41));
        let parts = futures_util::stream::unfold(receive, async |receive| {
            let mut receive = receive?;
            Some((Ok::<_, Infallible>(receive.recv().await?), Some(receive)))
        });
        Response::new(Body::from_stream(parts))
    };
    let service = Router::new().route("/ledger", put(handler)).layer(FenceLayer::new(MemoryMarks::new()));
    let older = service.clone().oneshot(request("PUT", "k", 41)).await.unwrap();
    let newer = tokio::spawn(service.clone().oneshot(request("PUT", "k", 42)));

    settle().await;
    assert!(!newer.is_finished(), "the newer one was let in while the older one streams");
    send.send("the end").await.unwrap();
    drop(send);
    assert_eq!(older.into_body().collect().await.unwrap().to_bytes(), "the end");

    assert_eq!(newer.await.unwrap().unwrap().status(), StatusCode::OK);
    assert_eq!(status(&service, request("PUT", "k", 41)).await, 412);
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
    let text = response.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&text).contains("fence-required"));
}
