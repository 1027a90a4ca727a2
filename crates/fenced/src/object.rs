//! How does an object store refuse a stale writer?
//!
//! By its conditional put, through the `object_store` crate. [`FencedObject`] keeps the fence in the object's metadata
//! and replaces exactly the version it has compared with: S3, GCS, Azure, and the store in memory. [`FencedVersions`]
//! needs no more than "create if absent" and keeps the fence in the name: a local folder too.

use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion,
};
use syncguard_core::{ErrorCode, Fence, LockError};

use crate::{FenceError, Result, StaleFence, compare};

/// The name of the metadata that holds the fence.
pub const METADATA: &str = "syncguard-fence";

/// How often a writer starts again because another one was faster. Each time somebody has made progress.
const ATTEMPTS: u32 = 1_000;

/// One object that accepts new contents from a current holder, and refuses a stale one.
///
/// Readers need nothing of this. Writers that put without it are not held back, and leave an object without a fence,
/// which everybody may replace.
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
#[derive(Clone, Debug)]
pub struct FencedObject<'s, S: ?Sized> {
    store: &'s S,
    path: Path,
}

/// What is there: its fence, its version, its contents.
struct Present {
    fence: Option<Fence>,
    version: UpdateVersion,
    contents: Vec<u8>,
}

impl<'s, S: ObjectStore + ?Sized> FencedObject<'s, S> {
    /// Names an object. It need not exist.
    pub fn new(store: &'s S, path: Path) -> Self {
        Self { store, path }
    }

    /// Replaces the contents.
    ///
    /// # Errors
    /// [`Stale`](FenceError::Stale) when a higher fence has written; [`Failed`](FenceError::Failed) with what the store
    /// reports, also for one without conditional puts (use [`FencedVersions`] there).
    ///
    /// # Cancel safety
    /// A dropped call has replaced the contents or not.
    pub async fn put(&self, fence: Fence, contents: impl Into<PutPayload>) -> Result<()> {
        let contents = contents.into();
        self.replace(fence, |_| contents.clone()).await
    }

    /// Replaces the contents by what a function makes of the old ones (`None` when there is no object yet). It is
    /// called again when another writer came in between.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    ///
    /// # Cancel safety
    /// As [`put`](Self::put).
    pub async fn update(&self, fence: Fence, change: impl Fn(Option<&[u8]>) -> Vec<u8>) -> Result<()> {
        self.replace(fence, |old| PutPayload::from(change(old))).await
    }

    async fn replace(&self, fence: Fence, change: impl Fn(Option<&[u8]>) -> PutPayload) -> Result<()> {
        for _ in 0..ATTEMPTS {
            let present = self.look().await?;
            let _ = compare(fence, present.as_ref().and_then(|present| present.fence))?;
            let contents = change(present.as_ref().map(|present| present.contents.as_slice()));
            let mode = present.map_or(PutMode::Create, |present| PutMode::Update(present.version));
            let mut attributes = Attributes::new();
            attributes.insert(Attribute::Metadata(METADATA.into()), fence.to_string().into());
            let options = PutOptions { mode, attributes, ..PutOptions::default() };
            match self.store.put_opts(&self.path, contents, options).await {
                Ok(_) => return Ok(()),
                // Somebody was faster: look again.
                Err(Error::Precondition { .. } | Error::AlreadyExists { .. } | Error::NotFound { .. }) => {}
                Err(error) => return Err(failed(&error)),
            }
        }
        Err(too_many())
    }

    async fn look(&self) -> Result<Option<Present>> {
        let found = match self.store.get(&self.path).await {
            Ok(found) => found,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(failed(&error)),
        };
        let fence = match found.attributes.get(&Attribute::Metadata(METADATA.into())) {
            Some(text) => Some(text.parse().map_err(|_| FenceError::damaged("the object's metadata holds no fence"))?),
            None => None,
        };
        let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
        let contents = found.bytes().await.map_err(|error| failed(&error))?.to_vec();
        Ok(Some(Present { fence, version, contents }))
    }
}

/// A folder of versions of which the one with the highest fence counts.
///
/// Each write creates an object of its own, `FOLDER/FENCE-NUMBER`, and never replaces one. A stale writer that slips in
/// while a newer one writes creates a version that nobody reads, as if it had come before. Old versions are yours to
/// delete, the latest excepted.
///
/// There is no `update` here: a version that is made from an older one could leave out what was written in between.
#[derive(Clone, Debug)]
pub struct FencedVersions<'s, S: ?Sized> {
    store: &'s S,
    folder: Path,
}

/// A version's name, in the order in which versions count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    fence: Fence,
    number: u32,
}

impl Version {
    fn parse(name: &str) -> Option<Self> {
        let (fence, number) = name.split_once('-')?;
        Some(Self { fence: fence.parse().ok()?, number: number.parse().ok()? })
    }

    fn name(self) -> String {
        format!("{}-{:09}", self.fence, self.number)
    }
}

impl<'s, S: ObjectStore + ?Sized> FencedVersions<'s, S> {
    /// Names a folder. It need not exist.
    pub fn new(store: &'s S, folder: Path) -> Self {
        Self { store, folder }
    }

    /// Writes a new version.
    ///
    /// # Errors
    /// [`Stale`](FenceError::Stale) when there is a version with a higher fence, [`Failed`](FenceError::Failed) with
    /// what the store reports.
    ///
    /// # Cancel safety
    /// A dropped call has written its version or not.
    pub async fn put(&self, fence: Fence, contents: impl Into<PutPayload>) -> Result<()> {
        let contents = contents.into();
        for _ in 0..ATTEMPTS {
            let latest = self.latest().await?;
            let _ = compare(fence, latest.map(|latest| latest.fence))?;
            let number = latest.filter(|latest| latest.fence == fence).map_or(0, |latest| latest.number + 1);
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            let path = self.path(Version { fence, number });
            match self.store.put_opts(&path, contents.clone(), options).await {
                Ok(_) => return self.confirm(fence).await,
                Err(Error::AlreadyExists { .. }) => {}
                Err(error) => return Err(failed(&error)),
            }
        }
        Err(too_many())
    }

    /// Returns the contents of the version that counts.
    ///
    /// # Errors
    /// [`Failed`](FenceError::Failed) with what the store reports.
    pub async fn get(&self) -> Result<Option<Vec<u8>>> {
        match self.latest().await? {
            Some(latest) => self.read(latest).await.map(Some),
            None => Ok(None),
        }
    }

    // A newer version may have appeared while this one was written. Then nobody will read this one, and its writer
    // should know.
    async fn confirm(&self, fence: Fence) -> Result<()> {
        match self.latest().await? {
            Some(latest) if latest.fence > fence => Err(StaleFence { offered: fence, seen: latest.fence }.into()),
            _ => Ok(()),
        }
    }

    async fn latest(&self) -> Result<Option<Version>> {
        let found: Vec<_> = self.store.list(Some(&self.folder)).try_collect().await.map_err(|error| failed(&error))?;
        Ok(found.iter().filter_map(|object| Version::parse(object.location.filename()?)).max())
    }

    async fn read(&self, version: Version) -> Result<Vec<u8>> {
        let found = self.store.get(&self.path(version)).await.map_err(|error| failed(&error))?;
        Ok(found.bytes().await.map_err(|error| failed(&error))?.to_vec())
    }

    fn path(&self, version: Version) -> Path {
        self.folder.clone().join(version.name())
    }
}

fn too_many() -> FenceError {
    let message = "other writers were faster a thousand times";
    FenceError::Failed(LockError::new(ErrorCode::ServiceUnavailable, message))
}

// The store's own texts name the object, and its path may be a secret: only the kind of error is kept.
fn failed(error: &Error) -> FenceError {
    let (code, message) = match error {
        Error::NotImplemented { .. } | Error::NotSupported { .. } => {
            (ErrorCode::InvalidArgument, "this object store has no conditional put with metadata")
        }
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            (ErrorCode::AuthFailed, "the object store refused the credentials")
        }
        Error::NotFound { .. } | Error::InvalidPath { .. } => {
            (ErrorCode::InvalidArgument, "the object store has no such place")
        }
        _ => (ErrorCode::ServiceUnavailable, "the object store did not carry out the fenced put"),
    };
    let failure = LockError::new(code, message);
    let hint = "use FencedVersions, which needs no more than create if absent";
    FenceError::Failed(if code == ErrorCode::InvalidArgument { failure.with_hint(hint) } else { failure })
}
