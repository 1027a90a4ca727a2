//! Who are we to the server, and is the line private?
//!
//! The emulator stands behind TLS here, as the real service does; what it thinks of a token is its own business, but
//! what arrives is checked.

use std::path::{Path, PathBuf};
use std::process::Command;

use axum::Router;
use axum::routing::post;
use syncguard_core::{ErrorCode, LockBackend, LockId};
use syncguard_firestore::{FirestoreBackend, FirestoreBuilder};
use syncguard_testkit::tls::Certificates;
use tempfile::TempDir;

use super::support::{Project, key, request, tls};

struct Tls {
    project: Project,
    folder: TempDir,
    certificates: Certificates,
    url: String,
}

impl Tls {
    async fn start() -> Self {
        let (project, folder) = (Project::start().await, TempDir::new().unwrap());
        let certificates = Certificates::create(folder.path()).unwrap();
        let url = tls::in_front_of(project.address.clone(), &certificates).await;
        Self { project, folder, certificates, url }
    }

    fn builder(&self) -> FirestoreBuilder {
        FirestoreBackend::builder(self.project.id.as_str()).endpoint(self.url.as_str()).tls_ca(&self.certificates.ca)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

/// A service account whose key was made a moment ago.
fn service_account(folder: &Path) -> String {
    let made = Command::new("openssl")
        .args(["genpkey", "-quiet", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", "key.pem"])
        .current_dir(folder)
        .status()
        .expect("openssl makes the key of a test account; apt-get install -y openssl");
    assert!(made.success());
    serde_json::json!({
        "type": "service_account",
        "project_id": "p",
        "private_key_id": "one",
        "private_key": std::fs::read_to_string(folder.join("key.pem")).unwrap(),
        "client_email": "locks@p.iam.gserviceaccount.com",
    })
    .to_string()
}

/// What the emulator saw of one call. It has its own opinion about tokens that it did not make.
async fn tokens_of_one_call(tls: &Tls, backend: &FirestoreBackend) -> Vec<String> {
    let _ = backend.is_locked(&key("k")).await;
    tls.project.faults.tokens()
}

#[tokio::test]
async fn an_emulator_is_told_that_we_own_it() {
    let project = Project::start().await;
    project.backend().await.is_locked(&key("k")).await.unwrap();
    assert_eq!(project.faults.tokens(), ["Bearer owner"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_account_signs_its_own_token_and_sends_it_over_tls() {
    let tls = Tls::start().await;
    let file = tls.file("account.json", &service_account(tls.folder.path()));
    let backend = tls.builder().credentials(&file).connect().await.unwrap();

    let tokens = tokens_of_one_call(&tls, &backend).await;

    let [token] = tokens.as_slice() else { panic!("{} tokens", tokens.len()) };
    let jwt = token.strip_prefix("Bearer ").unwrap();
    assert_eq!(jwt.split('.').count(), 3, "a signed token has three parts");
    assert!(!format!("{backend:?}").contains("account.json"), "{backend:?}");
}

#[test]
fn credentials_outlive_the_runtime_that_loaded_them() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (server, first) = (runtime(), runtime());
    let tls = server.block_on(Tls::start());
    let file = tls.file("account.json", &service_account(tls.folder.path()));
    let backend = first.block_on(tls.builder().credentials(&file).connect()).unwrap();
    assert_eq!(first.block_on(tokens_of_one_call(&tls, &backend)).len(), 1);
    drop(first);

    let tokens = runtime().block_on(tokens_of_one_call(&tls, &backend));

    assert_eq!(tokens.len(), 2, "the second call arrived, with a token");
    assert!(tokens.iter().all(|token| token.starts_with("Bearer ")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workload_identity_exchanges_the_platforms_token_for_googles() {
    let tls = Tls::start().await;
    // `owner` is the one token that the emulator accepts, so this goes all the way to a lock.
    let granted = r#"{"access_token":"owner","issued_token_type":"urn:ietf:params:oauth:token-type:access_token","token_type":"Bearer","expires_in":3600}"#;
    let exchange = Router::new().route(
        "/token",
        post(async move |body: String| {
            assert!(body.contains("subject_token=of-the-platform"), "{body}");
            ([("content-type", "application/json")], granted)
        }),
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, exchange).await });
    let subject = tls.file("subject", "of-the-platform");
    let config = serde_json::json!({
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/pool/providers/it",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": format!("http://127.0.0.1:{port}/token"),
        "credential_source": { "file": subject },
    });
    let file = tls.file("workload.json", &config.to_string());
    let backend = tls.builder().credentials(file).connect().await.unwrap();

    let id = LockId::random();
    let _ = backend.acquire(request(&key("k"), &id, 30_000)).await.unwrap();

    assert!(backend.release(&id).await.unwrap().is_released());
    assert!(tls.project.faults.tokens().iter().all(|token| token == "Bearer owner"));
}

/// The environment belongs to the whole process, so this one runs itself in a process of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_application_default_credentials_are_found_by_the_environment() {
    const NAME: &str = "auth::the_application_default_credentials_are_found_by_the_environment";
    if std::env::var_os("SYNCGUARD_TEST_CHILD").is_none() {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("account.json");
        std::fs::write(&file, service_account(folder.path())).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME])
            .env("SYNCGUARD_TEST_CHILD", "1")
            .env("GOOGLE_APPLICATION_CREDENTIALS", file)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout).into_owned();
        assert!(child.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let tls = Tls::start().await;
    let backend = tls.builder().connect().await.unwrap();
    let tokens = tokens_of_one_call(&tls, &backend).await;
    assert!(tokens.len() == 1 && tokens[0].starts_with("Bearer ey"), "a signed token was sent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_nobody_vouches_for_never_sees_the_token() {
    let tls = Tls::start().await;
    let stranger = TempDir::new().unwrap();
    let wrong = Certificates::create(stranger.path()).unwrap().ca;
    let file = tls.file("account.json", &service_account(tls.folder.path()));
    let backend = tls.builder().tls_ca(wrong).credentials(file).connect().await.unwrap();

    let error = backend.is_locked(&key("k")).await.unwrap_err();

    assert_eq!((error.code(), error.is_ambiguous()), (ErrorCode::ServiceUnavailable, false));
    assert!(tls.project.faults.tokens().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_that_cannot_be_used_are_refused_at_once_and_not_repeated() {
    let tls = Tls::start().await;
    let files = [
        tls.folder.path().join("absent.json"),
        tls.file("text.json", "canary"),
        tls.file("typeless.json", r#"{"private_key":"canary"}"#),
        tls.file("strange.json", r#"{"type":"canary"}"#),
        tls.file("keyless.json", r#"{"type":"service_account","private_key":"canary"}"#),
    ];
    for file in files {
        let error = tls.builder().credentials(&file).connect().await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::AuthFailed, "{}", file.display());
        assert!(error.hint().is_some());
        assert!(!format!("{error} {error:?}").contains("canary"), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_whose_key_signs_nothing_is_a_failed_authentication() {
    let tls = Tls::start().await;
    let mut account: serde_json::Value = serde_json::from_str(&service_account(tls.folder.path())).unwrap();
    account["private_key"] = "-----BEGIN PRIVATE KEY-----\nY2FuYXJ5\n-----END PRIVATE KEY-----\n".into();
    let file = tls.file("account.json", &account.to_string());

    let error = match tls.builder().credentials(file).connect().await {
        Ok(backend) => backend.is_locked(&key("k")).await.unwrap_err(),
        Err(error) => error,
    };

    assert_eq!((error.code(), error.is_ambiguous()), (ErrorCode::AuthFailed, false));
    assert!(!format!("{error:?}").contains("Y2FuYXJ5"), "{error:?}");
}
