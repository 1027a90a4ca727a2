//! A file that refuses a holder who woke up too late, also one in another process.
//!
//! `cargo run -p syncguard-fenced --features file --example file`

use std::path::Path;
use std::time::Duration;

use syncguard_core::{Locker, MemoryBackend};
use syncguard_fenced::StaleFence;
use syncguard_fenced::file::FencedFile;

/// One holder falls asleep, a second one writes, the first one wakes up and tries to.
pub(crate) async fn story(path: &Path) -> Result<(Vec<u8>, Option<StaleFence>), Box<dyn std::error::Error>> {
    let locker = Locker::new(MemoryBackend::new()); // a backend that all your processes share
    let report = FencedFile::new(path);

    let sleeper = locker.lock("report").ttl(Duration::from_millis(50)).acquire().await?;
    let successor = locker.lock("report").acquire().await?; // as soon as the lease of the sleeper is over
    report.write(successor.fence(), "by the successor")?;

    let late = report.write(sleeper.fence(), "by the sleeper").err().and_then(|error| error.stale());
    Ok((report.read()?, late))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let (contents, late) = story(&folder.path().join("report.txt")).await?;
    println!("the file was written {}; the sleeper was told: {late:?}", String::from_utf8_lossy(&contents));
    Ok(())
}
