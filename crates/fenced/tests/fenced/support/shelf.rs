//! An object store whose versions are made as real ones make theirs, and whose writers can be paused.
//!
//! `object_store`'s own store in memory counts its versions, so it hides what S3 does. Nothing can be listed here: a
//! guard that lists depends on how fresh a listing is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use futures_util::stream::{self, BoxStream, StreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio::sync::{Mutex, Semaphore};

/// What a version of an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ETags {
    /// As on S3: the same bytes are the same version.
    OfContents,
    /// As on GCS and Azure: no version comes back.
    Generations,
}

/// The store as one process sees it.
#[derive(Debug)]
pub(crate) struct Shelf {
    pub(crate) tags: ETags,
    inner: Arc<InMemory>,
    /// Held from the comparison of a version to the write.
    turn: Arc<Mutex<()>>,
    /// Whether the next put of an object waits before it is carried out.
    pauses: AtomicBool,
    paused: Semaphore,
    resumed: Semaphore,
    /// How many puts take effect and are answered with a refusal, as if the store had been asked twice.
    lost_answers: AtomicU32,
    /// Whether conditions are ignored, as by old relatives of S3.
    pub(crate) is_careless: bool,
}

impl Shelf {
    pub(crate) fn new(tags: ETags) -> Self {
        Self {
            tags,
            inner: Arc::default(),
            turn: Arc::default(),
            pauses: AtomicBool::new(false),
            paused: Semaphore::new(0),
            resumed: Semaphore::new(0),
            lost_answers: AtomicU32::new(0),
            is_careless: false,
        }
    }

    pub(crate) fn of_another_process(&self) -> Self {
        Self { inner: self.inner.clone(), turn: self.turn.clone(), ..Self::new(self.tags) }
    }

    pub(crate) fn pause_the_next_put(&self) {
        self.pauses.store(true, Ordering::SeqCst);
    }

    pub(crate) async fn somebody_is_paused(&self) {
        self.paused.acquire().await.unwrap().forget();
    }

    pub(crate) fn go_on(&self) {
        self.resumed.add_permits(1);
    }

    pub(crate) fn lose_answers(&self, number: u32) {
        self.lost_answers.store(number, Ordering::SeqCst);
    }

    fn tag(&self, contents: &[u8], counted: Option<String>) -> Option<String> {
        match self.tags {
            ETags::OfContents => Some(syncguard_core::HashId::of(&String::from_utf8_lossy(contents)).to_string()),
            ETags::Generations => counted,
        }
    }

    async fn carry_out(&self, location: &Path, payload: PutPayload, mut options: PutOptions) -> Result<PutResult> {
        let _turn = self.turn.lock().await;
        if let PutMode::Update(wanted) = &options.mode {
            let now = self.get(location).await?.meta.e_tag;
            if now != wanted.e_tag && !self.is_careless {
                return Err(refused(location));
            }
            options.mode = PutMode::Overwrite;
        }
        if self.is_careless {
            options.mode = PutMode::Overwrite;
        }
        let contents: Vec<u8> = payload.iter().flat_map(|part| part.to_vec()).collect();
        let mut put = self.inner.put_opts(location, payload, options).await?;
        put.e_tag = self.tag(&contents, put.e_tag);
        Ok(put)
    }
}

fn refused(location: &Path) -> Error {
    Error::Precondition { path: location.to_string(), source: "another version".into() }
}

impl std::fmt::Display for Shelf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shelf")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Shelf {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let is_probe = location.as_ref().contains("fence-probe");
        if !is_probe && self.pauses.swap(false, Ordering::SeqCst) {
            self.paused.add_permits(1);
            self.resumed.acquire().await.unwrap().forget();
        }
        let put = self.carry_out(location, payload, options).await?;
        let lost = |left: u32| left.checked_sub(1);
        if !is_probe && self.lost_answers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, lost).is_ok() {
            return Err(refused(location));
        }
        Ok(put)
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let found = self.inner.get_opts(location, options).await?;
        let (mut meta, attributes, range) = (found.meta.clone(), found.attributes.clone(), found.range.clone());
        let extensions = found.extensions.clone();
        let contents = found.bytes().await?;
        meta.e_tag = self.tag(&contents, meta.e_tag);
        let payload = GetResultPayload::Stream(stream::once(async { Ok(contents) }).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        panic!("a guard put an object in parts")
    }

    fn list(&self, _: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        panic!("a guard listed objects")
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        panic!("a guard listed objects")
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        panic!("a guard copied an object")
    }
}
