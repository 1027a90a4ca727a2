//! Does a URL open the backend that it names, and does a wrong one say what would be right?

use syncguard::{ErrorCode, LockBackend, open};

#[tokio::test]
async fn memory_opens_and_takes_nothing_else() {
    assert_eq!(open("memory:").await.unwrap().capabilities().backend, "memory");
    for url in ["memory:x", "memory:?a=b", "memory://host"] {
        assert_eq!(open(url).await.unwrap_err().code(), ErrorCode::InvalidArgument, "{url}");
    }
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn sqlite_opens_a_path_and_refuses_an_unknown_option_by_naming_the_known_ones() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("locks.db");
    assert_eq!(open(&format!("sqlite:{}", path.display())).await.unwrap().capabilities().backend, "sqlite");

    let error = open(&format!("sqlite:{}?synchronus=full", path.display())).await.unwrap_err();

    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    let text = format!("{error} {}", error.hint().unwrap_or_default());
    assert!(text.contains("synchronous"), "{text}");
}

#[tokio::test]
async fn a_backend_that_was_not_compiled_in_names_its_feature() {
    let table = [
        ("sqlite:/x", "sqlite", cfg!(feature = "sqlite")),
        ("redis://127.0.0.1:1", "redis", cfg!(feature = "redis")),
        ("rediss+cluster://127.0.0.1:1", "redis", cfg!(feature = "redis")),
        ("postgresql://127.0.0.1:1/x", "postgres", cfg!(feature = "postgres")),
        ("firestore://p", "firestore", cfg!(feature = "firestore")),
    ];
    for (url, feature, compiled_in) in table {
        if !compiled_in {
            let error = open(url).await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidArgument);
            assert!(error.hint().unwrap().contains(&format!("`{feature}`")), "{url}: {error:?}");
        }
    }
}

#[tokio::test]
async fn a_wrong_url_lists_the_schemes_and_hides_its_password() {
    for url in ["http://u:CANARY@h/", "CANARY", "mysql://:CANARY@h"] {
        let error = open(url).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        assert!(error.hint().unwrap().contains("postgres://"));
        assert!(!format!("{error:?}").contains("CANARY"));
    }
}
