//! A service whose ledgers are in its memory: one behind the layer, one as an object, and each without a guard as well.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use object_store::memory::InMemory;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};
use syncguard_core::Fence;
use syncguard_fenced::MemoryMarks;
use syncguard_fenced::http::FenceLayer;
use syncguard_fenced::object::FencedObject;

#[derive(Clone, Default)]
struct Ledgers {
    guarded: Arc<Mutex<String>>,
    plain: Arc<Mutex<String>>,
    objects: Arc<InMemory>,
}

/// Serves until the process ends; returns the URL.
pub(crate) fn start() -> String {
    let (send, receive) = std::sync::mpsc::channel::<SocketAddr>();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            send.send(listener.local_addr().unwrap()).unwrap();
            axum::serve(listener, router()).await.unwrap();
        });
    });
    format!("http://{}", receive.recv().unwrap())
}

fn router() -> Router {
    let guarded = Router::new().route("/guarded", post(append_guarded)).layer(FenceLayer::new(MemoryMarks::new()));
    Router::new()
        .route("/plain", post(append_plain))
        .route("/object/{guarded}", post(append_object).get(show_object))
        .route("/entries/guarded", get(async |State(ledgers): State<Ledgers>| ledgers.guarded.lock().unwrap().clone()))
        .route("/entries/plain", get(async |State(ledgers): State<Ledgers>| ledgers.plain.lock().unwrap().clone()))
        .merge(guarded)
        .with_state(Ledgers::default())
}

fn fence(headers: &HeaderMap) -> Fence {
    headers["syncguard-fence"].to_str().unwrap().parse().unwrap()
}

async fn append_guarded(State(ledgers): State<Ledgers>, headers: HeaderMap) {
    // Other requests get their turn between being let in and writing; the layer must not let a newer one in meanwhile.
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
    writeln!(ledgers.guarded.lock().unwrap(), "{}", fence(&headers)).unwrap();
}

async fn append_plain(State(ledgers): State<Ledgers>, headers: HeaderMap) {
    writeln!(ledgers.plain.lock().unwrap(), "{}", fence(&headers)).unwrap();
}

async fn append_object(State(ledgers): State<Ledgers>, Path(guarded): Path<String>, headers: HeaderMap) -> Response {
    let (fence, path) = (fence(&headers), ObjectPath::from(guarded.as_str()));
    let line = format!("{fence}\n");
    if guarded == "guarded" {
        let object = FencedObject::new(&*ledgers.objects, path);
        let put = object.update(fence, |old| [old.unwrap_or_default(), line.as_bytes()].concat()).await;
        return match put.map_err(|error| (error.stale(), error)) {
            Ok(()) => StatusCode::OK.into_response(),
            Err((Some(stale), _)) => {
                let body = format!(r#"{{"offered":"{}","seen":"{}"}}"#, stale.offered, stale.seen);
                (StatusCode::PRECONDITION_FAILED, body).into_response()
            }
            Err((None, error)) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        };
    }
    let old = read(&ledgers.objects, &path).await;
    ledgers.objects.put(&path, (old + &line).into()).await.unwrap();
    StatusCode::OK.into_response()
}

async fn show_object(State(ledgers): State<Ledgers>, Path(guarded): Path<String>) -> String {
    read(&ledgers.objects, &ObjectPath::from(guarded)).await
}

async fn read(store: &dyn ObjectStore, path: &ObjectPath) -> String {
    match store.get(path).await {
        Ok(found) => String::from_utf8(found.bytes().await.unwrap().to_vec()).unwrap(),
        Err(_) => String::new(),
    }
}
