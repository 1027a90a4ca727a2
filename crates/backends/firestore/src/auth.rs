//! Who are we to Firestore?
//!
//! Google's own library finds the application default credentials (environment, `gcloud`, workload identity, the
//! metadata server) or reads a credentials file; it caches and renews tokens. It is built without its default
//! cryptography so that one provider, ring, serves TLS and signatures. An emulator believes `Bearer owner`.

use std::fmt;
use std::path::{Path, PathBuf};

use google_cloud_auth::credentials::{self, CacheableResource, Credentials};
use syncguard_core::{ErrorCode, LockError, Result};
use tonic::Request;
use tonic::metadata::{Ascii, MetadataKey, MetadataValue};

use crate::builder::FirestoreBuilder;
use crate::error::{Kind, RpcError};

const SCOPE: &str = "https://www.googleapis.com/auth/datastore";

/// Where credentials come from.
#[derive(Clone)]
pub(crate) enum AuthSource {
    Emulator,
    /// The application default credentials, or those of a file.
    Google(Option<PathBuf>),
}

// The path of a key file is nobody's business in a log.
impl fmt::Debug for AuthSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Emulator => "AuthSource(emulator)",
            Self::Google(_) => "AuthSource(google)",
        })
    }
}

impl AuthSource {
    pub(crate) fn of(settings: &FirestoreBuilder) -> Self {
        match settings.emulator {
            Some(_) => Self::Emulator,
            None => Self::Google(settings.credentials.clone()),
        }
    }

    /// Makes what signs requests. It renews its tokens on the runtime that this is called on.
    pub(crate) fn load(&self) -> Result<Auth> {
        match self {
            Self::Emulator => Ok(Auth::Emulator),
            Self::Google(file) => Auth::google(file.as_deref()),
        }
    }
}

/// What signs our requests.
#[derive(Clone)]
pub(crate) enum Auth {
    Emulator,
    Google(Credentials),
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Emulator => "Auth(emulator)",
            Self::Google(_) => "Auth(google)",
        })
    }
}

impl Auth {
    /// The application default credentials, or those of a file.
    fn google(file: Option<&Path>) -> Result<Self> {
        use_ring_if_nothing_else_was_chosen();
        let built = match file {
            None => credentials::Builder::default().with_scopes([SCOPE]).build(),
            Some(file) => from_file(file)?,
        };
        built.map(Self::Google).map_err(|error| {
            LockError::new(ErrorCode::AuthFailed, "there are no usable google credentials")
                .with_hint("run `gcloud auth application-default login`, or name a key file with `?credentials=FILE`")
                .with_source(error.to_string())
        })
    }

    /// Adds what the server wants to see.
    pub(crate) async fn sign<T>(&self, request: &mut Request<T>) -> Result<(), RpcError> {
        let credentials = match self {
            Self::Emulator => {
                request.metadata_mut().insert("authorization", MetadataValue::from_static("Bearer owner"));
                return Ok(());
            }
            Self::Google(credentials) => credentials,
        };
        let headers = credentials
            .headers(tonic::codegen::http::Extensions::new())
            .await
            .map_err(|error| RpcError::caused_by(Kind::NoToken(error.is_transient()), &error))?;
        let CacheableResource::New { data, .. } = headers else { return Err(RpcError::new(Kind::NoToken(true))) };
        for (name, value) in &data {
            let name = MetadataKey::<Ascii>::from_bytes(name.as_str().as_bytes());
            let value = MetadataValue::<Ascii>::try_from(value.as_bytes());
            let (Ok(name), Ok(mut value)) = (name, value) else { return Err(RpcError::new(Kind::NoToken(false))) };
            value.set_sensitive(true);
            request.metadata_mut().insert(name, value);
        }
        Ok(())
    }
}

type Built = std::result::Result<Credentials, google_cloud_auth::build_errors::Error>;

fn from_file(file: &Path) -> Result<Built> {
    let unusable = |message: &'static str| {
        LockError::new(ErrorCode::AuthFailed, message)
            .with_hint("`credentials` names a JSON file: a service account key or a workload identity configuration")
    };
    let bytes =
        std::fs::read(file).map_err(|error| unusable("the credentials file cannot be read").with_source(error))?;
    let json: serde_json::Value =
        serde_json::from_slice(&bytes).map_err(|_| unusable("the credentials file is not JSON"))?;
    let kind = json.get("type").and_then(serde_json::Value::as_str).map(str::to_owned);
    match kind.as_deref() {
        Some("service_account") => Ok(credentials::service_account::Builder::new(json)
            .with_access_specifier(credentials::service_account::AccessSpecifier::from_scopes([SCOPE]))
            .build()),
        Some("external_account") => Ok(credentials::external_account::Builder::new(json).with_scopes([SCOPE]).build()),
        Some("impersonated_service_account") => {
            Ok(credentials::impersonated::Builder::new(json).with_scopes([SCOPE]).build())
        }
        Some("authorized_user") => Ok(credentials::user_account::Builder::new(json).with_scopes([SCOPE]).build()),
        _ => Err(unusable("the credentials file is of no known type")),
    }
}

/// TLS and signatures both ask for the process's provider. An application that chose one keeps it.
fn use_ring_if_nothing_else_was_chosen() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Losing this race means that somebody else chose, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}
