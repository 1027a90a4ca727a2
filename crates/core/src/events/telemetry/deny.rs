//! Which names stay hidden even from somebody who asked for names?

/// Words that mark a name as a secret or as personal, in any case.
const WORDS: &[&str] = &[
    "token",
    "secret",
    "passw",
    "pwd",
    "credential",
    "apikey",
    "api-key",
    "api_key",
    "key=",
    "auth",
    "bearer",
    "session",
    "cookie",
    "private",
    "ssn",
    "card",
    "iban",
    "jwt",
    "signature",
];

/// Returns whether a name looks like a secret: it contains one of the deny-listed words, or has the form of a lock id
/// or of a JWT.
///
/// ```
/// use syncguard_core::telemetry::is_sensitive;
///
/// assert!(is_sensitive("reset-Password:42"));
/// assert!(!is_sensitive("nightly-report"));
/// ```
pub fn is_sensitive(name: &str) -> bool {
    let lower = name.to_lowercase();
    WORDS.iter().any(|word| lower.contains(word)) || has_secret_form(name)
}

/// A lock id (22 base64url characters of mixed kinds) or a JWT, anywhere between separators.
fn has_secret_form(name: &str) -> bool {
    name.split(|c: char| !(c.is_ascii_alphanumeric() || "-_.".contains(c))).any(|part| is_jwt(part) || is_lock_id(part))
}

fn is_jwt(part: &str) -> bool {
    part.starts_with("eyJ") && part.matches('.').count() == 2
}

fn is_lock_id(part: &str) -> bool {
    part.len() == crate::LockId::LENGTH
        && !part.contains('.')
        && part.contains(|c: char| c.is_ascii_lowercase())
        && part.contains(|c: char| c.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_seen_and_ordinary_names_are_not() {
        for name in [
            "user-TOKEN:1",
            "password=hunter2",
            "api_key:x",
            "key=1",
            "oauth",
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
            "id:q1W2e3R4t5Y6u7I8o9P0aS",
        ] {
            assert!(is_sensitive(name), "{name}");
        }
        for name in ["deploy:prod", "report.2026-11-15", "a/b/c", "migrate:app", "000000000000000000001A"] {
            assert!(!is_sensitive(name), "{name}");
        }
    }
}
