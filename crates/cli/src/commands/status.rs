//! Is it held, by whom, since when, until when?

use serde::Serialize;
use syncguard::{HashId, LockBackend, Lookup, RedactedUrl};

use crate::args::StatusArgs;
use crate::config::Backend;
use crate::exit::{self, Failure, Stage};
use crate::holder::{self, Holder, LockObject};
use crate::output::{Output, escape};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    locked: bool,
    /// Of a free key that was asked for; a lock has its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_hash: Option<HashId>,
    #[serde(flatten)]
    lock: Option<LockObject>,
}

pub(crate) async fn status(
    args: StatusArgs,
    resolve: impl FnOnce() -> Result<Backend, Failure>,
    output: Output,
) -> Result<u8, Failure> {
    let lock_id = args.id.as_deref().map(super::parse_lock_id).transpose()?;
    let query = match (&args.key, &lock_id) {
        (Some(key), _) => Lookup::Key(key),
        (None, Some(id)) => Lookup::LockId(id),
        (None, None) => return Err(Failure::usage("neither KEY nor --id is given")),
    };
    let backend = resolve()?;
    let locker = super::open(&backend).await?;
    let found = locker.backend().lookup(query).await.map_err(|error| Failure::from_lock(&error, Stage::Operating))?;
    let code = if found.is_some() { exit::OK } else { exit::NO };
    if output.json {
        let lock = found.as_ref().map(|info| LockObject::new(info, false));
        let key_hash = args.key.as_ref().filter(|_| lock.is_none()).map(syncguard::Key::hash);
        output.object(&Status { locked: found.is_some(), key_hash, lock });
        return Ok(code);
    }
    if output.quiet {
        return Ok(code);
    }
    output.detail(&format!("backend {}", escape(&RedactedUrl::new(&backend.url).to_string())));
    let name = args.key.as_ref().map_or_else(|| "the lock of this id".to_owned(), |key| escape(key.as_str()));
    match found {
        Some(info) => {
            let mut lines = holder::describe(&Holder::new(info));
            lines.push(format!("backend   {}", escape(&RedactedUrl::new(&backend.url).to_string())));
            output.data(&format!("{name} is locked\n  {}", lines.join("\n  ")));
        }
        None => output.data(&format!("{name} is free")),
    }
    Ok(code)
}
