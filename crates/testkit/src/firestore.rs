//! How does a test get Google's own Firestore emulator?
//!
//! It is a Java program that comes with the Google Cloud command line. It is used when it is there and is no part of
//! what `cargo xtask setup` installs: the tests that need an emulator everywhere use one that runs inside the test
//! process.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use rustix::process::Signal;

use crate::place::{Folder, Port};
use crate::process::ServerProcess;
use crate::program::Program;

/// Where the emulator may be: Debian's package, then the places where `gcloud components install` puts it.
const PLACES: [&str; 3] = ["/usr/lib/google-cloud-sdk", "/usr/share/google-cloud-sdk", "/opt/google-cloud-sdk"];
const JAR: &str = "platform/cloud-firestore-emulator/cloud-firestore-emulator.jar";
/// Google's jar names no main class.
const MAIN: &str = "com.google.cloud.datastore.emulator.firestore.CloudFirestore";
const JAVA: Program = Program { name: "java", package: "default-jre-headless" };

/// Google's Firestore emulator, in memory.
#[derive(Debug)]
pub struct FirestoreEmulator {
    // Fields drop in this order: the process before its files.
    process: ServerProcess,
    port: Port,
    _folder: Folder,
}

impl FirestoreEmulator {
    /// The emulator's jar and the Java that runs it.
    ///
    /// # Errors
    ///
    /// When either is absent; the message says which.
    pub fn find() -> Result<(PathBuf, PathBuf)> {
        let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join("google-cloud-sdk"));
        let named = std::env::var_os("SYNCGUARD_TEST_FIRESTORE_JAR").map(PathBuf::from);
        let jar = named
            .into_iter()
            .chain(PLACES.iter().map(PathBuf::from).chain(home).map(|place| place.join(JAR)))
            .find(|jar| jar.is_file())
            .context(
                "the firestore emulator is not installed\n\
                 hint: apt-get install -y google-cloud-cli-firestore-emulator, or name its jar in SYNCGUARD_TEST_FIRESTORE_JAR",
            )?;
        Ok((JAVA.find()?, jar))
    }

    /// Starts the emulator and waits until it answers.
    ///
    /// # Errors
    ///
    /// When it is not installed or does not start.
    pub fn try_start() -> Result<Self> {
        let (java, jar) = Self::find()?;
        let folder = Folder::new("firestore")?;
        let port = Port::reserve()?;
        let mut command = Command::new(java);
        command
            .args(["-Xmx512m", "-Duser.language=en", "-cp"])
            .arg(jar)
            .args([MAIN, "start", "--host=127.0.0.1", &format!("--port={}", port.number())])
            .current_dir(folder.path());
        let mut process =
            ServerProcess::spawn("firestore emulator", command, &folder.path().join("firestore.log"), Signal::KILL)?;
        process.wait_ready(|| ping(port.number()))?;
        Ok(Self { process, port, _folder: folder })
    }

    /// `host:port`, as `FIRESTORE_EMULATOR_HOST` wants it.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port.number())
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Kills the emulator with SIGKILL and waits until it is gone, with all its documents.
    pub fn kill_hard(&mut self) {
        self.process.kill().expect("a child can be killed");
    }

    /// Freezes the emulator with SIGSTOP: connections stay open, nothing is answered.
    pub fn pause(&self) {
        self.process.signal(Signal::STOP).expect("the emulator runs");
    }

    /// Thaws a paused emulator.
    pub fn resume(&self) {
        self.process.signal(Signal::CONT).expect("the emulator runs");
    }
}

/// The emulator answers `Ok` on its root once it serves.
fn ping(port: u16) -> Result<()> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(std::time::Duration::from_secs(5)))?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut head = [0; 12];
    stream.read_exact(&mut head)?;
    anyhow::ensure!(&head == b"HTTP/1.1 200", "the emulator does not serve yet");
    Ok(())
}
