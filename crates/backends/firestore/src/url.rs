//! Which database does a `firestore:` URL name, and with which settings?

use syncguard_core::url_options::UrlOptions;
use syncguard_core::{LockError, Result};
use url::Url;

use crate::FirestoreBuilder;

impl FirestoreBuilder {
    /// Reads `firestore://PROJECT[/DATABASE][?option=value…]`.
    ///
    /// ```
    /// # use syncguard_firestore::FirestoreBuilder;
    /// assert!(FirestoreBuilder::from_url("firestore://my-project?collection=locks&strict_clock=true").is_ok());
    /// let error = FirestoreBuilder::from_url("firestore://my-project?colection=locks").unwrap_err();
    /// assert_eq!(error.to_string(), "`colection` is not an option of a firestore URL");
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](syncguard_core::ErrorCode::InvalidArgument) for another scheme, a missing project, an
    /// unknown option or a value that the option does not take.
    pub fn from_url(url: &str) -> Result<Self> {
        let (address, mut options) = UrlOptions::parse("firestore", url)?;
        let url = Url::parse(address).map_err(|_| bad_url("this is not a firestore URL"))?;
        if url.scheme() != "firestore" {
            return Err(bad_url("the scheme is not `firestore`"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(bad_url("a firestore URL holds no user or password"));
        }
        let project =
            url.host_str().filter(|host| !host.is_empty()).ok_or_else(|| bad_url("the project is missing"))?;
        let mut builder = Self::new(project);
        match url.path().trim_matches('/') {
            "" => {}
            database => database.clone_into(&mut builder.database),
        }
        builder.take_options(&mut options)?;
        options.finish()?;
        builder.check()?;
        Ok(builder)
    }

    fn take_options(&mut self, options: &mut UrlOptions) -> Result<()> {
        options.refuse_renamed("request_timeout", "timeout")?;
        options.refuse_renamed("clock", "strict_clock")?;
        if let Some(collection) = options.take_text("collection") {
            self.collection = collection;
        }
        if let Some(collection) = options.take_text("fence_collection") {
            self.fence_collection = collection;
        }
        if let Some(strict) = options.take_bool("strict_clock")? {
            self.strict_clock = strict;
        }
        if let Some(credentials) = options.take_path("credentials") {
            self.credentials = Some(credentials);
        }
        // The endpoint first: it switches an emulator off that only the environment names.
        if let Some(endpoint) = options.take_text("endpoint") {
            self.endpoint = Some(endpoint);
            self.emulator = None;
        }
        if let Some(emulator) = options.take_text("emulator") {
            self.emulator = Some(emulator);
            self.emulator_is_ambient = false;
        }
        if let Some(file) = options.take_path("tls_ca") {
            self.tls.roots = Some(file);
        }
        if let Some(floor) = options.take_word("fence_floor", &[("clock", true), ("none", false)])? {
            self.fence_floor = floor;
        }
        if let Some(cleanup) = options.take_bool("cleanup_in_is_locked")? {
            self.cleanup_in_is_locked = cleanup;
        }
        if let Some(timeout) = options.take_duration("timeout")? {
            self.timeout = timeout;
        }
        Ok(())
    }
}

fn bad_url(message: &'static str) -> LockError {
    LockError::invalid(message).with_hint("write firestore://PROJECT, or firestore://PROJECT/DATABASE")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::time::Duration;
    use syncguard_core::ErrorCode;

    fn refused(url: &str) -> LockError {
        let error = FirestoreBuilder::from_url(url).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{url}");
        error
    }

    #[test]
    fn a_url_carries_every_option() {
        let builder = FirestoreBuilder::from_url(
            "firestore://proj-1/other?collection=l&fence_collection=f&strict_clock=true&credentials=%2Ftmp%2Fk.json\
             &emulator=127.0.0.1:8080&fence_floor=clock&cleanup_in_is_locked=true&timeout=750ms&tls_ca=%2Fca.pem\
             &endpoint=https:%2F%2Ffirestore.example",
        )
        .unwrap();
        assert_eq!(builder.tls.roots, Some(PathBuf::from("/ca.pem")));
        assert_eq!(builder.endpoint.as_deref(), Some("https://firestore.example"));
        assert_eq!((builder.project.as_str(), builder.database.as_str()), ("proj-1", "other"));
        assert_eq!((builder.collection.as_str(), builder.fence_collection.as_str()), ("l", "f"));
        assert!(builder.strict_clock && builder.fence_floor && builder.cleanup_in_is_locked);
        assert_eq!(builder.credentials, Some(PathBuf::from("/tmp/k.json")));
        assert_eq!(builder.emulator.as_deref(), Some("127.0.0.1:8080"));
        assert_eq!(builder.timeout, Duration::from_millis(750));
    }

    #[test]
    fn defaults_are_those_of_the_original() {
        let builder = FirestoreBuilder::from_url("firestore://p").unwrap();
        assert_eq!(builder.database, "(default)");
        assert_eq!((builder.collection.as_str(), builder.fence_collection.as_str()), ("locks", "fence_counters"));
        assert!(!builder.strict_clock && !builder.cleanup_in_is_locked);
    }

    #[test]
    fn an_unknown_option_names_the_known_ones() {
        let error = refused("firestore://p?prefix=x");
        assert!(error.hint().unwrap().contains("fence_collection"), "{error:?}");
    }

    #[test]
    fn what_cannot_work_is_refused_before_any_io() {
        for url in [
            "not a url",
            "redis://p",
            "firestore://",
            "firestore://user:secret@p",
            "firestore://p/a/b",
            "firestore://p?collection=",
            "firestore://p?collection=a%2Fb",
            "firestore://p?collection=__x__",
            "firestore://p?collection=.",
            "firestore://p?fence_collection=a%2Fb",
            "firestore://p?fence_collection=locks",
            "firestore://p?collection=x&fence_collection=x",
            "firestore://p?strict_clock=maybe",
            "firestore://p?clock=strict",
            "firestore://p?timeout=5",
            "firestore://p?request_timeout=5s",
            "firestore://p?timeout=0s",
            "firestore://p?emulator=10.0.0.1:8080",
            "firestore://p?emulator=example.com:8080",
            "firestore://p?emulator=127.0.0.1.example.com:8080",
            "firestore://p?emulator=localhost",
            "firestore://p?endpoint=http:%2F%2Ffirestore.example",
        ] {
            let error = refused(url);
            assert!(!format!("{error:?}").contains("secret"), "{error:?}");
        }
    }
}
