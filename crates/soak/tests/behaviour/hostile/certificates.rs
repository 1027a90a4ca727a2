//! Is a server refused whose certificate does not prove who it is, on every backend that speaks TLS?
//!
//! The server here only shakes hands, and counts who shook back; after that it hangs up. So a good certificate shows as
//! a handshake that was completed, and a bad one as an error without one. Nobody falls back to plaintext.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use syncguard::{AnyBackend, ErrorCode, LockBackend, LockError, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    None,
    WrongAuthority,
    WrongHost,
    Expired,
    NotYetValid,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Storage {
    Redis,
    Postgres,
    Firestore,
}

/// A server with such a certificate, and the authority that its clients trust.
struct Impostor {
    port: u16,
    authority: PathBuf,
    completed: Arc<AtomicUsize>,
    /// Connections that spoke without TLS.
    plain: Arc<AtomicUsize>,
}

fn authority() -> (Issuer<'static, KeyPair>, String) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    (Issuer::new(params, key), pem)
}

fn acceptor(flaw: Flaw, storage: Storage, signer: &Issuer<'static, KeyPair>) -> TlsAcceptor {
    let name = if flaw == Flaw::WrongHost { "elsewhere.example" } else { "localhost" };
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    if flaw == Flaw::Expired {
        (params.not_before, params.not_after) = (date_time_ymd(2001, 1, 1), date_time_ymd(2002, 1, 1));
    }
    if flaw == Flaw::NotYetValid {
        (params.not_before, params.not_after) = (date_time_ymd(2100, 1, 1), date_time_ymd(2101, 1, 1));
    }
    let key = KeyPair::generate().unwrap();
    let chain: Vec<CertificateDer<'static>> = vec![params.signed_by(&key, signer).unwrap().der().clone()];
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    if storage == Storage::Firestore {
        config.alpn_protocols = vec![b"h2".to_vec()];
    }
    TlsAcceptor::from(Arc::new(config))
}

impl Impostor {
    async fn start(folder: &Path, flaw: Flaw, storage: Storage) -> Self {
        let (signer, pem) = authority();
        let trusted = if flaw == Flaw::WrongAuthority { self::authority().1 } else { pem };
        let file = folder.join(format!("{flaw:?}-{storage:?}.pem"));
        std::fs::write(&file, trusted).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (completed, plain) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (acceptor, shaken, spoken) = (acceptor(flaw, storage, &signer), completed.clone(), plain.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, shaken, spoken) = (acceptor.clone(), shaken.clone(), spoken.clone());
                tokio::spawn(async move { shake(stream, storage, &acceptor, &shaken, &spoken).await });
            }
        });
        Self { port, authority: file, completed, plain }
    }

    async fn connect(&self, storage: Storage) -> Result<AnyBackend> {
        let (port, authority) = (self.port, self.authority.display());
        match storage {
            Storage::Redis => {
                syncguard::open(&format!("rediss://localhost:{port}/?tls_ca={authority}&connect_timeout=20s")).await
            }
            Storage::Postgres => {
                let tls = format!("sslmode=verify-full&sslrootcert={authority}");
                syncguard::open(&format!("postgres://user@localhost:{port}/db?{tls}&connect_timeout=20s")).await
            }
            Storage::Firestore => {
                let account = service_account(self.authority.parent().unwrap());
                let place = format!("endpoint=https://localhost:{port}&tls_ca={authority}&timeout=20s");
                syncguard::open(&format!("firestore://p?{place}&credentials={}", account.display())).await
            }
        }
    }
}

/// The file of an account whose key was made a moment ago. It signs its own tokens, so nobody is asked for one.
fn service_account(folder: &Path) -> PathBuf {
    let file = folder.join("account.json");
    if file.exists() {
        return file;
    }
    let made = Command::new("openssl")
        .args(["genpkey", "-quiet", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", "key.pem"])
        .current_dir(folder)
        .status()
        .expect("openssl makes the key of a test account; apt-get install -y openssl");
    assert!(made.success());
    let account = serde_json::json!({
        "type": "service_account",
        "project_id": "p",
        "private_key_id": "one",
        "private_key": std::fs::read_to_string(folder.join("key.pem")).unwrap(),
        "client_email": "locks@p.iam.gserviceaccount.com",
    });
    std::fs::write(&file, account.to_string()).unwrap();
    file
}

async fn shake(
    mut stream: TcpStream,
    storage: Storage,
    acceptor: &TlsAcceptor,
    completed: &AtomicUsize,
    plain: &AtomicUsize,
) {
    if storage == Storage::Postgres {
        // The request for encryption, to which the server says yes.
        let mut asked = [0; 8];
        if stream.read_exact(&mut asked).await.is_err() {
            return;
        }
        if asked != [0, 0, 0, 8, 4, 210, 22, 47] {
            plain.fetch_add(1, Ordering::SeqCst);
            return;
        }
        let _ = stream.write_all(b"S").await;
    }
    let mut first = [0];
    // 22 begins a handshake.
    if stream.peek(&mut first).await.is_ok_and(|length| length == 1) && first[0] != 22 {
        plain.fetch_add(1, Ordering::SeqCst);
        return;
    }
    let Ok(mut private) = acceptor.accept(stream).await else { return };
    // A client may object only after the server is done: what counts is that it goes on to speak.
    let mut word = [0; 16];
    if matches!(private.read(&mut word).await, Ok(1..)) {
        completed.fetch_add(1, Ordering::SeqCst);
    }
}

async fn first_error(connected: Result<AnyBackend>) -> LockError {
    match connected {
        Err(error) => error,
        Ok(backend) => {
            let key = syncguard::Key::new("k").unwrap();
            backend.is_locked(&key).await.expect_err("a server that only shakes hands answers nothing")
        }
    }
}

async fn check(storage: Storage) {
    let folder = tempfile::tempdir().unwrap();
    for flaw in [Flaw::None, Flaw::WrongAuthority, Flaw::WrongHost, Flaw::Expired, Flaw::NotYetValid] {
        let impostor = Impostor::start(folder.path(), flaw, storage).await;
        let error = first_error(impostor.connect(storage).await).await;
        let completed = impostor.completed.load(Ordering::SeqCst) > 0;
        assert_eq!(completed, flaw == Flaw::None, "{storage:?}, {flaw:?}: {error:?}");
        assert_eq!(impostor.plain.load(Ordering::SeqCst), 0, "{storage:?}, {flaw:?}: plaintext was tried");
        if flaw != Flaw::None {
            assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{storage:?}, {flaw:?}: {error:?}");
            assert!(!error.is_ambiguous(), "{storage:?}, {flaw:?}: nothing was sent");
            let said = format!("{error} {}", error.hint().unwrap_or_default());
            assert!(said.contains("TLS") && said.contains("certificate"), "{storage:?}, {flaw:?}: {error:?}");
        }
    }
}

#[tokio::test]
async fn redis_refuses_a_certificate_of_a_stranger_for_another_host_or_out_of_date() {
    check(Storage::Redis).await;
}

#[tokio::test]
async fn postgres_refuses_a_certificate_of_a_stranger_for_another_host_or_out_of_date() {
    check(Storage::Postgres).await;
}

#[tokio::test]
async fn firestore_refuses_a_certificate_of_a_stranger_for_another_host_or_out_of_date() {
    check(Storage::Firestore).await;
}
