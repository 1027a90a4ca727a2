//! What if a process's wall clock jumps?
//!
//! The clock of the machine must stay right for everybody else, so one process gets a library between itself and the
//! kernel that adds an offset to the wall clock. The offset lies in a file that the process has mapped: a step takes
//! effect at once.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::PoisonError;

use anyhow::{Context, Result, ensure};

use crate::place;
use crate::program::Program;

const SOURCE: &str = include_str!("clock_shim.c");
const COMPILER: Program = Program { name: "cc", package: "gcc libc6-dev" };

/// The wall clock of one process, which a test may step.
#[derive(Debug)]
pub struct SteppableClock {
    library: PathBuf,
    path: PathBuf,
    /// Nanoseconds, as they are in the file.
    offset: Mutex<i64>,
    file: File,
}

impl SteppableClock {
    /// Makes a clock that is right, with its file in `folder`.
    ///
    /// # Errors
    ///
    /// When the file cannot be written, or there is no C compiler.
    pub fn create(folder: &Path) -> Result<Self> {
        let path = folder.join("clock");
        fs::write(&path, 0_i64.to_ne_bytes())?;
        let file = OpenOptions::new().write(true).open(&path)?;
        Ok(Self { library: library()?, path, offset: Mutex::new(0), file })
    }

    /// Makes `command` live by this clock.
    pub fn apply(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("SYNCGUARD_CLOCK_FILE", &self.path);
    }

    /// Moves the clock by so many milliseconds, backwards if negative. Steps add up.
    ///
    /// # Errors
    ///
    /// When the step is longer than any clock can show.
    pub fn step(&self, milliseconds: i64) -> Result<()> {
        let mut offset = self.offset.lock().unwrap_or_else(PoisonError::into_inner);
        *offset = milliseconds.checked_mul(1_000_000).and_then(|step| offset.checked_add(step)).context("too far")?;
        // Eight aligned bytes arrive whole.
        self.file.write_all_at(&offset.to_ne_bytes(), 0)?;
        Ok(())
    }
}

/// Compiles the library once per version of its source; other processes wait for the first.
fn library() -> Result<PathBuf> {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    SOURCE.hash(&mut hasher);
    let home = place::home()?;
    let library = home.join(format!("clock-{:016x}.so", hasher.finish()));
    let lock = File::create(home.join("clock.lock"))?;
    lock.lock()?;
    if library.exists() {
        return Ok(library);
    }
    let source = home.join("clock_shim.c");
    fs::write(&source, SOURCE)?;
    let half_made = library.with_extension("making");
    let output = Command::new(COMPILER.find()?)
        .args(["-O2", "-shared", "-fPIC", "-o"])
        .args([&half_made, &source])
        .output()
        .context("cannot run the C compiler")?;
    ensure!(output.status.success(), "cannot compile the clock: {}", String::from_utf8_lossy(&output.stderr));
    // Only a whole library gets the name that servers load.
    fs::rename(&half_made, &library)?;
    Ok(library)
}
