//! Which database does a `firestore:` URL name, and with which settings?

use std::path::PathBuf;
use std::time::Duration;

use syncguard_core::{LockError, Result};
use url::Url;

use crate::FirestoreBuilder;

const KNOWN: &str = "collection, fence_collection, clock, credentials, emulator, fence_floor, \
                     cleanup_in_is_locked, request_timeout";

impl FirestoreBuilder {
    /// Reads `firestore://PROJECT[/DATABASE][?option=value…]`.
    ///
    /// ```
    /// # use syncguard_firestore::FirestoreBuilder;
    /// assert!(FirestoreBuilder::from_url("firestore://my-project?collection=locks&clock=strict").is_ok());
    /// let error = FirestoreBuilder::from_url("firestore://my-project?colection=locks").unwrap_err();
    /// assert_eq!(error.to_string(), "unknown option `colection` in the firestore URL");
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](syncguard_core::ErrorCode::InvalidArgument) for another scheme, a missing project, an unknown
    /// option or a value that the option does not take.
    pub fn from_url(url: &str) -> Result<Self> {
        let url = Url::parse(url).map_err(|_| bad_url("this is not a firestore URL"))?;
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
        for (name, value) in url.query_pairs() {
            builder.set(&name, &value)?;
        }
        builder.check()?;
        Ok(builder)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "collection" => value.clone_into(&mut self.collection),
            "fence_collection" => value.clone_into(&mut self.fence_collection),
            "clock" => self.strict_clock = one_of(name, value, &[("strict", true), ("warn", false)])?,
            "fence_floor" => self.fence_floor = one_of(name, value, &[("clock", true), ("none", false)])?,
            "cleanup_in_is_locked" => {
                self.cleanup_in_is_locked = one_of(name, value, &[("true", true), ("false", false)])?;
            }
            "credentials" => self.credentials = Some(PathBuf::from(value)),
            "emulator" => self.emulator = Some(value.to_owned()),
            "request_timeout" => self.request_timeout = duration(value)?,
            _ => {
                let shown: String = name.chars().filter(|c| !c.is_control()).take(40).collect();
                return Err(LockError::invalid(format!("unknown option `{shown}` in the firestore URL"))
                    .with_hint(format!("the options are: {KNOWN}")));
            }
        }
        Ok(())
    }
}

fn bad_url(message: &'static str) -> LockError {
    LockError::invalid(message).with_hint("write firestore://PROJECT, or firestore://PROJECT/DATABASE")
}

fn one_of(name: &str, value: &str, choices: &[(&str, bool)]) -> Result<bool> {
    if let Some((_, chosen)) = choices.iter().find(|(choice, _)| *choice == value) {
        return Ok(*chosen);
    }
    let choices: Vec<_> = choices.iter().map(|(choice, _)| *choice).collect();
    Err(LockError::invalid(format!("`{name}` in the firestore URL has a value it does not take"))
        .with_hint(format!("it takes: {}", choices.join(", "))))
}

fn duration(value: &str) -> Result<Duration> {
    let (digits, unit) = value.split_at(value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len()));
    let number: Option<u64> = digits.parse().ok().filter(|number| (1..=3_600_000).contains(number));
    match (number, unit) {
        (Some(number), "ms") => Ok(Duration::from_millis(number)),
        (Some(number), "s") => Ok(Duration::from_secs(number)),
        _ => Err(LockError::invalid("`request_timeout` in the firestore URL is not a time")
            .with_hint("write it as 500ms or 5s")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncguard_core::ErrorCode;

    fn refused(url: &str) -> LockError {
        let error = FirestoreBuilder::from_url(url).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{url}");
        error
    }

    #[test]
    fn a_url_carries_every_option() {
        let builder = FirestoreBuilder::from_url(
            "firestore://proj-1/other?collection=l&fence_collection=f&clock=strict&credentials=%2Ftmp%2Fk.json\
             &emulator=127.0.0.1:8080&fence_floor=clock&cleanup_in_is_locked=true&request_timeout=750ms",
        )
        .unwrap();
        assert_eq!((builder.project.as_str(), builder.database.as_str()), ("proj-1", "other"));
        assert_eq!((builder.collection.as_str(), builder.fence_collection.as_str()), ("l", "f"));
        assert!(builder.strict_clock && builder.fence_floor && builder.cleanup_in_is_locked);
        assert_eq!(builder.credentials, Some(PathBuf::from("/tmp/k.json")));
        assert_eq!(builder.emulator.as_deref(), Some("127.0.0.1:8080"));
        assert_eq!(builder.request_timeout, Duration::from_millis(750));
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
            "firestore://p?clock=loose",
            "firestore://p?request_timeout=5",
            "firestore://p?request_timeout=0s",
            "firestore://p?emulator=10.0.0.1:8080",
            "firestore://p?emulator=example.com:8080",
            "firestore://p?emulator=127.0.0.1.example.com:8080",
            "firestore://p?emulator=localhost",
        ] {
            let error = refused(url);
            assert!(!format!("{error:?}").contains("secret"), "{error:?}");
        }
    }
}
