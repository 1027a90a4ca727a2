//! Does the container image do what the recipes say of it?
//!
//! Built from what `dist` laid out, and run as people run it: as process 1, not as root, waiting for its turn as an
//! init container does, and copied into an image of somebody's own. By docker where its service runs, otherwise by
//! podman. Nothing is fetched: the image begins empty.

use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode, Output, Stdio};

use anyhow::{Context, Result, ensure};
use syncguard_testkit::{RedisOptions, RedisServer};

use super::dist;
use crate::cargo;
use crate::scope::Scope;

const PROGRAM: &str = "/usr/bin/syncguard";
/// How often the first holder is looked for; each look starts a container, which takes a few tenths of a second.
const LOOKS: usize = 200;

/// Builds the image for this machine's processor and tries it.
pub(crate) fn run() -> Result<ExitCode> {
    let architecture = dist::native()?.architecture;
    let context = Scope::new(&[])?.target_folder()?.join("dist/image");
    let is_made = context.join(architecture).join("syncguard").exists();
    ensure!(is_made, "there is no binary for {architecture}\nhint: cargo xtask dist");
    let redis = RedisServer::try_start(RedisOptions::new())?;
    let trial = Trial { engine: engine()?, name: format!("syncguard-trial-{}", std::process::id()), url: redis.url() };
    trial.build(&["--file", "packaging/docker/Dockerfile"], &trial.image(), &context, "")?;
    println!("built by {}: {}", trial.engine, trial.about("{{.Size}} bytes, user {{.Config.User}}")?);
    trial.as_process_1()?;
    trial.as_init_container()?;
    trial.inside_another_image(&context)?;
    Ok(ExitCode::SUCCESS)
}

fn engine() -> Result<&'static str> {
    let serves = |program: &&str| {
        let mut command = Command::new(program);
        command.arg("info").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    ["docker", "podman"].into_iter().find(serves).context("neither docker nor podman answers\nhint: install podman")
}

/// One trial of an image; what it made is removed with it.
struct Trial {
    engine: &'static str,
    /// Of the image, and of the one container that outlives its command.
    name: String,
    url: String,
}

impl Trial {
    fn image(&self) -> String {
        format!("localhost/{}", self.name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.engine);
        command.args(arguments).current_dir(cargo::root());
        command
    }

    fn build(&self, arguments: &[&str], image: &str, context: &Path, file: &str) -> Result<()> {
        let mut command = self.command(&["build", "--quiet", "--tag", image]);
        command.args(arguments).arg(context).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().context("the image is built")?;
        child.stdin.take().context("the input is piped")?.write_all(file.as_bytes())?;
        ensure!(child.wait()?.success(), "{} cannot build {image}", self.engine);
        Ok(())
    }

    fn about(&self, format: &str) -> Result<String> {
        let output = self.command(&["image", "inspect", "--format", format, &self.image()]).output()?;
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    /// `run` of the engine, on the network of this machine, where the Redis of this trial is.
    fn container(&self, options: &[&str], arguments: &[&str]) -> Command {
        let url = format!("SYNCGUARD_URL={}", self.url);
        let mut command = self.command(&["run", "--network", "host", "--env", &url]);
        command.args(options).arg(self.image()).args(arguments);
        command
    }

    fn expect(&self, what: &str, arguments: &[&str], code: i32) -> Result<Output> {
        let output = self.container(&["--rm"], arguments).output()?;
        told(what, output.status.code(), code, &String::from_utf8_lossy(&output.stderr))?;
        Ok(output)
    }

    fn as_process_1(&self) -> Result<()> {
        let user = self.about("{{.Config.User}}")?;
        ensure!(user == "65532:65532", "the image runs as `{user}`");
        let said = self.expect("runs a command as process 1", &["run", "first", "--", PROGRAM, "--version"], 0)?;
        ensure!(said.stdout.starts_with(b"syncguard "), "the command inside did not run");
        self.expect("hands on the exit code of its command", &["run", "first", "--", PROGRAM, "nonsense"], 64)?;
        // A file inside a container excludes nobody.
        self.expect("refuses a file as the backend", &["--url", "sqlite:/locks.db", "run", "k", "--", PROGRAM], 78)?;
        Ok(())
    }

    /// The first migrates until it is stopped, the second waits for its turn. The lease of the first is twice as long
    /// as the second waits: it must have been given back.
    fn as_init_container(&self) -> Result<()> {
        self.expect("takes a lock that outlives the container", &["acquire", "--ttl", "10m", "gate"], 0)?;
        let migrating = ["run", "--ttl", "2m", "migrate", "--", PROGRAM, "wait", "--wait", "5m", "gate"];
        let started = self.container(&["--detach", "--name", &self.name], &migrating).output()?;
        ensure!(started.status.success(), "cannot start: {}", String::from_utf8_lossy(&started.stderr).trim());
        let is_held = || self.container(&["--rm"], &["status", "migrate"]).output().is_ok_and(|o| o.status.success());
        ensure!((0..LOOKS).any(|_| is_held()), "the first container did not take the lock");
        let mut second = self.container(&["--rm"], &["run", "--wait", "1m", "migrate", "--", PROGRAM, "--version"]);
        let second = second.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let stopped = self.command(&["stop", "--time", "30", &self.name]).stdout(Stdio::null()).status()?;
        ensure!(stopped.success(), "cannot stop the first container");
        let code = self.command(&["inspect", "--format", "{{.State.ExitCode}}", &self.name]).output()?;
        let code = String::from_utf8(code.stdout)?.trim().parse().ok();
        told("ends its command when the container is stopped", code, 143, "")?;
        let second = second.wait_with_output()?;
        told("the next one takes over", second.status.code(), 0, &String::from_utf8_lossy(&second.stderr))
    }

    /// As the README and the recipe for Kubernetes do it.
    fn inside_another_image(&self, context: &Path) -> Result<()> {
        let copy = format!("COPY --from={} {PROGRAM} {PROGRAM}", self.image());
        let file = format!("FROM scratch\n{copy}\nENTRYPOINT [\"{PROGRAM}\", \"run\", \"own\", \"--\"]\n");
        let image = format!("{}-own", self.image());
        self.build(&["--file", "-"], &image, context, &file)?;
        let url = format!("SYNCGUARD_URL={}", self.url);
        let mut command =
            self.command(&["run", "--rm", "--network", "host", "--env", &url, &image, PROGRAM, "--version"]);
        let output = command.output()?;
        self.remove(&["rmi", &image]);
        told("works in an image of one's own", output.status.code(), 0, &String::from_utf8_lossy(&output.stderr))
    }

    fn remove(&self, arguments: &[&str]) {
        drop(self.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status());
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        self.remove(&["rm", "--force", &self.name]);
        self.remove(&["rmi", "--force", &self.image()]);
    }
}

fn told(what: &str, code: Option<i32>, expected: i32, said: &str) -> Result<()> {
    ensure!(code == Some(expected), "the image: {what}: exit {code:?} and not {expected}: {said}");
    println!("ok: image: {what}");
    Ok(())
}
