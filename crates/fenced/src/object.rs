//! How does an object store refuse a stale writer?
//!
//! By its conditional put, through the `object_store` crate: a writer replaces exactly the version that it has compared
//! with. That holds only if no two writes make the same version. On GCS and Azure a version is a number that grows. On
//! S3, R2 and `MinIO` it is a hash of the contents, which comes back with the same contents; there the fence must be part
//! of them. So there are two forms, and a store is tried before the first write: one whose conditions cannot tell a
//! stale writer is refused.

use std::fmt;
use std::sync::Arc;

use object_store::path::Path;
use object_store::{
    Attribute, Attributes, Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, PutResult,
    UpdateVersion,
};
use syncguard_core::{ErrorCode, Fence, LockError, LockId};
use tokio::sync::Mutex;

use crate::{FenceError, Result, compare};

/// The name of the metadata that holds the fence.
pub const METADATA: &str = "syncguard-fence";
/// The name of the metadata that tells one write from another.
const WRITE: &str = "syncguard-write";

/// How often a writer starts again because another one was faster. Each time somebody has made progress.
const ATTEMPTS: u32 = 1_000;

/// One object that accepts new contents from a current holder, and refuses a stale one.
///
/// Writers that put without it are not held back, and leave an object without a fence, which everybody may replace.
/// Keep the value (its clones are one) while you hold the lock: its first write tries the store, with five small
/// requests beside the object, and its writers take turns.
///
/// ```
/// use object_store::{memory::InMemory, path::Path};
/// use syncguard_core::Fence;
/// use syncguard_fenced::object::FencedObject;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = InMemory::new();
/// let report = FencedObject::new(&store, Path::from("report.json"));
/// report.put(Fence::new(42)?, "{}").await?;
/// assert!(report.put(Fence::new(41)?, "oops").await.unwrap_err().stale().is_some());
/// # Ok(())
/// # }
/// ```
pub struct FencedObject<'s, S: ?Sized> {
    store: &'s S,
    path: Path,
    form: Form,
    /// Whether the store was found to keep its conditions. Writers hold it while they write: a write whose answer was
    /// lost is recognized only while no other one of the same holder follows it.
    proven: Arc<Mutex<bool>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// The fence is metadata; the contents are the caller's.
    Plain,
    /// The fence is the first line of the contents.
    Enveloped,
}

/// What is there.
struct Present {
    fence: Option<Fence>,
    /// Which write it is from.
    write: Option<String>,
    version: UpdateVersion,
    /// Without the envelope.
    contents: Vec<u8>,
}

impl<'s, S: ObjectStore + ?Sized> FencedObject<'s, S> {
    /// Names an object whose contents are exactly what is put: on GCS and Azure. It need not exist.
    ///
    /// S3 and its relatives are refused at the first write: use [`enveloped`](Self::enveloped) there.
    pub fn new(store: &'s S, path: Path) -> Self {
        Self { store, path, form: Form::Plain, proven: Arc::default() }
    }

    /// Names an object whose first line is the fence: on S3, R2, `MinIO` and every other store with conditional puts.
    ///
    /// The line is `syncguard-fence 000000000000042 WRITE`, where `WRITE` is a random word; the contents follow.
    /// [`get`](Self::get) leaves it out, and elsewhere `tail -n +2` does.
    pub fn enveloped(store: &'s S, path: Path) -> Self {
        Self { form: Form::Enveloped, ..Self::new(store, path) }
    }

    /// Replaces the contents.
    ///
    /// # Errors
    /// [`Stale`](FenceError::Stale) when a higher fence has written; [`Failed`](FenceError::Failed) with what the store
    /// reports, also for one whose conditions cannot refuse a stale writer.
    ///
    /// # Cancel safety
    /// A dropped call has replaced the contents or not.
    pub async fn put(&self, fence: Fence, contents: impl AsRef<[u8]>) -> Result<()> {
        self.replace(fence, |_| contents.as_ref().to_vec()).await
    }

    /// Replaces the contents by what a function makes of the old ones (`None` when there is no object yet). It is
    /// called again when another writer came in between.
    ///
    /// The change is made once, also when the answer of the store is lost on its way: a write recognizes itself. Only
    /// where two processes write under one fence at the same time can such a change be made twice.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    ///
    /// # Cancel safety
    /// As [`put`](Self::put).
    pub async fn update(&self, fence: Fence, change: impl Fn(Option<&[u8]>) -> Vec<u8>) -> Result<()> {
        self.replace(fence, change).await
    }

    /// Refuses older holders from now on, and leaves the contents as they are. Where there is no object yet, an empty
    /// one is made.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    ///
    /// # Cancel safety
    /// As [`put`](Self::put).
    pub async fn announce(&self, fence: Fence) -> Result<()> {
        self.replace(fence, |old| old.unwrap_or_default().to_vec()).await
    }

    /// Returns the contents, without the envelope if there is one; `None` when there is no object.
    ///
    /// # Errors
    /// [`Failed`](FenceError::Failed) with what the store reports.
    pub async fn get(&self) -> Result<Option<Vec<u8>>> {
        Ok(self.look().await?.map(|present| present.contents))
    }

    /// Returns the highest fence that was accepted, for diagnostics.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn highest(&self) -> Result<Option<Fence>> {
        Ok(self.look().await?.and_then(|present| present.fence))
    }

    async fn replace(&self, fence: Fence, change: impl Fn(Option<&[u8]>) -> Vec<u8>) -> Result<()> {
        let mut proven = self.proven.lock().await;
        if !*proven {
            self.prove_the_store().await?;
            *proven = true;
        }
        let write = LockId::random().as_str().to_owned();
        for _ in 0..ATTEMPTS {
            let present = self.look().await?;
            if present.as_ref().is_some_and(|present| present.write.as_ref() == Some(&write)) {
                // The put took effect and its answer was lost; object_store sent it again, and met itself.
                return Ok(());
            }
            let _ = compare(fence, present.as_ref().and_then(|present| present.fence))?;
            let contents = change(present.as_ref().map(|present| present.contents.as_slice()));
            let mode = present.map_or(PutMode::Create, |present| PutMode::Update(present.version));
            match self.put_once(fence, &write, contents, mode).await {
                Ok(_) => return Ok(()),
                Err(error) if is_refusal(&error) => {}
                Err(error) => return Err(failed(&error)),
            }
        }
        let message = "other writers were faster a thousand times";
        Err(LockError::new(ErrorCode::ServiceUnavailable, message).into())
    }

    async fn put_once(
        &self,
        fence: Fence,
        write: &str,
        contents: Vec<u8>,
        mode: PutMode,
    ) -> object_store::Result<PutResult> {
        let mut attributes = Attributes::new();
        attributes.insert(Attribute::Metadata(METADATA.into()), fence.to_string().into());
        attributes.insert(Attribute::Metadata(WRITE.into()), write.to_owned().into());
        let contents = match self.form {
            Form::Plain => contents,
            Form::Enveloped => [format!("{METADATA} {fence} {write}\n").into_bytes(), contents].concat(),
        };
        let options = PutOptions { mode, attributes, ..PutOptions::default() };
        self.store.put_opts(&self.path, contents.into(), options).await
    }

    async fn look(&self) -> Result<Option<Present>> {
        let found = match self.store.get(&self.path).await {
            Ok(found) => found,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(failed(&error)),
        };
        let metadata = |name: &'static str| {
            found.attributes.get(&Attribute::Metadata(name.into())).map(|value| value.as_ref().to_owned())
        };
        let (fence, write) = (metadata(METADATA), metadata(WRITE));
        let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
        let mut contents = found.bytes().await.map_err(|error| failed(&error))?.to_vec();
        // In whatever form this one writes: an object may have come from the other one.
        let envelope = envelope(&contents).map(|(fence, write, length)| (fence.to_owned(), write.to_owned(), length));
        let (fence, write) = match envelope {
            Some((fence, write, length)) => {
                contents.drain(..length);
                (Some(fence), Some(write))
            }
            None => (fence, write),
        };
        let fence = fence.map(|text| text.parse()).transpose();
        let fence = fence.map_err(|_| FenceError::damaged("the fence of the object cannot be read"))?;
        Ok(Some(Present { fence, write, version, contents }))
    }

    /// Refuses a store that does not keep its conditions, or whose versions are not as this form needs them.
    async fn prove_the_store(&self) -> Result<()> {
        // A name of its own: what another process does there at the same time would look like a refusal.
        let path = format!("{}.fence-probe-{}", self.path, LockId::random().as_str());
        let path = Path::parse(path).map_err(|error| failed(&error.into()))?;
        let outcome = self.probe(&path).await;
        // Left behind if this fails, and in nobody's way.
        let _ = self.store.delete(&path).await;
        if outcome.map_err(|error| failed(&error))? {
            return Ok(());
        }
        let (message, hint) = match self.form {
            Form::Plain => (
                "two writes of the same contents are one version to this object store, so a stale writer would pass",
                "use FencedObject::enveloped, which makes the fence a part of the contents",
            ),
            Form::Enveloped => ("this object store does not keep the conditions of a put", "use another store"),
        };
        Err(LockError::invalid(message).with_hint(hint).into())
    }

    /// Whether the conditions hold: nothing is created twice, and an outdated version cannot be replaced.
    async fn probe(&self, path: &Path) -> object_store::Result<bool> {
        let put = async |contents: &'static str, mode| {
            self.store.put_opts(path, PutPayload::from(contents), PutOptions::from(mode)).await
        };
        let first = put("1", PutMode::Create).await?;
        match put("1", PutMode::Create).await {
            Ok(_) => return Ok(false),
            Err(error) if is_refusal(&error) => {}
            Err(error) => return Err(error),
        }
        let again = if self.form == Form::Plain { "1" } else { "2" };
        put(again, PutMode::Overwrite).await?;
        match put("3", PutMode::Update(first.into())).await {
            Ok(_) => Ok(false),
            Err(error) if is_refusal(&error) => Ok(true),
            Err(error) => Err(error),
        }
    }
}

impl<S: ?Sized> Clone for FencedObject<'_, S> {
    fn clone(&self) -> Self {
        Self { store: self.store, path: self.path.clone(), form: self.form, proven: self.proven.clone() }
    }
}

// The path may be a secret.
impl<S: ?Sized> fmt::Debug for FencedObject<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedObject").field("form", &self.form).finish_non_exhaustive()
    }
}

/// The fence, the write, and the length of the first line, if it is an envelope.
fn envelope(contents: &[u8]) -> Option<(&str, &str, usize)> {
    let rest = contents.strip_prefix(METADATA.as_bytes())?.strip_prefix(b" ")?;
    let length = rest.iter().position(|byte| *byte == b'\n')?;
    let (fence, write) = std::str::from_utf8(&rest[..length]).ok()?.split_once(' ')?;
    Some((fence, write, METADATA.len() + 1 + length + 1))
}

/// Whether the condition of a put did not hold.
fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Precondition { .. } | Error::AlreadyExists { .. } | Error::NotFound { .. })
}

// The store's own texts name the object, and its path may be a secret: only the kind of error is kept.
fn failed(error: &Error) -> FenceError {
    let (code, message) = match error {
        Error::NotImplemented { .. } | Error::NotSupported { .. } => {
            let failure = LockError::invalid("this object store has no conditional put");
            return failure.with_hint("for a folder of this machine use FencedFile").into();
        }
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            (ErrorCode::AuthFailed, "the object store refused the credentials")
        }
        Error::NotFound { .. } | Error::InvalidPath { .. } => {
            (ErrorCode::InvalidArgument, "the object store has no such place")
        }
        _ => (ErrorCode::ServiceUnavailable, "the object store did not carry out the fenced put"),
    };
    LockError::new(code, message).into()
}
