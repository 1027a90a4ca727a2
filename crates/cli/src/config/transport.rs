//! Could a password reach somebody whom it is not for?

use syncguard::{LockError, Protection, RedactedUrl, Scheme, Way};

use crate::exit::{Failure, Stage};
use crate::output::Output;

/// Judges what a backend's own settings say, which were read by whoever will dial. Plaintext is common on private networks, so
/// it is a warning; what `--require-tls` refuses comes as an error.
pub(crate) fn check(
    url: &str,
    protection: Result<Protection, LockError>,
    require_tls: bool,
    output: Output,
) -> Result<(), Failure> {
    let protection = match protection {
        Ok(protection) => protection,
        Err(error) if require_tls => return Err(Failure::from_lock(&error, Stage::Opening)),
        // Opening says it, where there is something to open.
        Err(_) => return Ok(()),
    };
    let shown = RedactedUrl::new(url);
    if !matches!(Scheme::of(url), Ok(Scheme::Sqlite | Scheme::Memory)) {
        output.detail(&format!("connection to {shown}: {}", protection.way));
    }
    let what = match protection.way {
        _ if !protection.password => return Ok(()),
        Way::Plain => format!("the connection to {shown} is not encrypted: its password travels in the clear"),
        Way::Unverified => {
            format!("the server {shown} need not prove who it is: the password goes to whoever answers")
        }
        _ => return Ok(()),
    };
    let hint = match Scheme::of(url) {
        Ok(Scheme::Postgres) => "add ?sslmode=verify-full to the URL",
        _ => "use rediss:// (or rediss+cluster://, rediss+sentinel://)",
    };
    output.warn(&what, Some(hint));
    Ok(())
}
