//! Locks of files: the kernel keeps them, and they end with the process. One thread for each task, because they block.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::contender::{Boxed, Contender, HOLD, Pairs, Race, Track, millis};

/// The crate `fd-lock`, with the file opened once.
pub(super) struct FdLock(PathBuf);

impl FdLock {
    pub(super) fn new(folder: &Path) -> Self {
        Self(folder.to_owned())
    }
}

impl Contender for FdLock {
    fn pairs(&self, tasks: usize, slice: Duration) -> Boxed<'_, Pairs> {
        let folder = self.0.clone();
        Box::pin(on_threads(tasks, slice, move |task| {
            let mut lock = fd_lock::RwLock::new(open(&folder.join(format!("fd-{task}")))?);
            Ok(move || {
                drop(lock.write()?);
                Ok(())
            })
        }))
    }

    fn hand_offs(&self, race: Race) -> Option<Boxed<'_, Vec<f64>>> {
        let path = self.0.join(format!("race-{}-{}", race.waiters, race.number));
        Some(Box::pin(async move {
            let track = Arc::new(Track::new(race));
            let threads: Vec<_> = (0..=race.waiters)
                .map(|_| {
                    let (path, track) = (path.clone(), track.clone());
                    std::thread::spawn(move || run(&path, &track))
                })
                .collect();
            for thread in threads {
                thread.join().expect("a racer panicked")?;
            }
            Ok(track.waits())
        }))
    }
}

fn run(path: &Path, track: &Track) -> Result<()> {
    let mut lock = fd_lock::RwLock::new(open(path)?);
    while !track.over() {
        let held = lock.write()?;
        if track.over() {
            break;
        }
        let turn = track.taken();
        std::thread::sleep(HOLD);
        track.releasing();
        drop(held);
        for _ in 0..5000 {
            if track.passed(turn) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

fn open(path: &Path) -> Result<File> {
    Ok(OpenOptions::new().create(true).truncate(false).write(true).open(path)?)
}

/// The command `flock FILE true`: two processes for a pair.
pub(super) struct Flock(PathBuf);

impl Flock {
    pub(super) fn new(folder: &Path) -> Self {
        Self(folder.to_owned())
    }
}

impl Contender for Flock {
    fn pairs(&self, tasks: usize, slice: Duration) -> Boxed<'_, Pairs> {
        let folder = self.0.clone();
        Box::pin(on_threads(tasks, slice, move |task| {
            let path = folder.join(format!("flock-{task}"));
            Ok(move || {
                let status = Command::new("flock").arg(&path).arg("true").stdin(Stdio::null()).status()?;
                ensure!(status.success(), "flock failed: {status}");
                Ok(())
            })
        }))
    }
}

async fn on_threads<Pair, Make>(tasks: usize, slice: Duration, make: Make) -> Result<Pairs>
where
    Pair: FnMut() -> Result<()>,
    Make: Fn(usize) -> Result<Pair> + Send + Sync + Clone + 'static,
{
    let start = Instant::now();
    let threads: Vec<_> = (0..tasks)
        .map(|task| {
            let make = make.clone();
            std::thread::spawn(move || -> Result<Vec<f64>> {
                let (mut pair, mut took) = (make(task)?, Vec::new());
                while start.elapsed() < slice {
                    let begin = Instant::now();
                    pair()?;
                    took.push(millis(begin.elapsed()));
                }
                Ok(took)
            })
        })
        .collect();
    let mut took = Vec::new();
    for thread in threads {
        took.extend(thread.join().expect("a thread panicked")?);
    }
    Ok(Pairs { per_second: took.len() as f64 / start.elapsed().as_secs_f64(), took })
}
