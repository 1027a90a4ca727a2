//! What do people download?
//!
//! One tree for each target, `bin` and `share` below a prefix: the archive is unpacked into `/usr/local` or `~/.local`,
//! and the Debian package has the same files below `/usr`. The binary is linked statically to musl, so that neither the
//! age of a system nor its absence (an empty container) matters.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};

use super::{deb, fresh, manifest, sbom};
use crate::scope::Scope;
use crate::{cargo, setup};

/// A system that binaries are made for.
pub(crate) struct Target {
    pub(crate) triple: &'static str,
    /// Debian's and Docker's word for the processor.
    pub(crate) architecture: &'static str,
    /// Compiles the C code inside (`SQLite`, ring); Debian's package of it.
    compiler: (&'static str, &'static str),
}

pub(crate) const TARGETS: [Target; 2] = [
    Target { triple: "x86_64-unknown-linux-musl", architecture: "amd64", compiler: ("musl-gcc", "musl-tools") },
    Target {
        triple: "aarch64-unknown-linux-musl",
        architecture: "arm64",
        compiler: ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    },
];

/// What was made for one target.
pub(crate) struct Made {
    pub(crate) binary: PathBuf,
    pub(crate) archive: PathBuf,
    pub(crate) package: PathBuf,
}

/// Makes everything for one target, this machine's unless it is named, and tries it.
pub(crate) fn run(triple: Option<&str>, check: bool) -> Result<ExitCode> {
    let triple = triple.unwrap_or(native()?.triple);
    let target = TARGETS.iter().find(|target| target.triple == triple);
    let known = || TARGETS.map(|target| target.triple).join(", ");
    let target = target.with_context(|| format!("no binaries are made for {triple}\nhint: one of {}", known()))?;
    let made = make(target)?;
    for file in [&made.binary, &made.archive, &made.package] {
        println!("{:>9} bytes  {}", fs::metadata(file)?.len(), file.display());
    }
    if check {
        fresh::check(&made)?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn native() -> Result<&'static Target> {
    let processor = std::env::consts::ARCH;
    TARGETS
        .iter()
        .find(|target| target.triple.starts_with(processor))
        .context("no binaries are made for this processor")
}

/// The program of the packages for this machine.
pub(crate) fn program() -> Result<PathBuf> {
    build(native()?, &Scope::new(&[])?.target_folder()?)
}

fn make(target: &Target) -> Result<Made> {
    let folder = Scope::new(&[])?.target_folder()?;
    let dist = folder.join("dist");
    fs::create_dir_all(&dist)?;
    let binary = build(target, &folder)?;
    let tree = dist.join(format!("syncguard-{}-{}", version()?, target.triple));
    stage(target, &binary, &tree)?;
    let archive = archive(&tree)?;
    let package = deb::build(target, &tree, &dist, &version()?)?;
    stage_image(target, &binary, &dist)?;
    let inside = dist.join(format!("{}.cdx.json", file_name(&tree)?));
    install(&tree.join("share/doc/syncguard/sbom.cdx.json"), &inside, 0o644)?;
    for file in [&archive, &package] {
        write_checksum(file)?;
    }
    Ok(Made { binary: tree.join("bin/syncguard"), archive, package })
}

pub(crate) fn version() -> Result<String> {
    let published = manifest::published()?;
    let version = published.first().and_then(|package| package.metadata["version"].as_str());
    version.map(str::to_owned).context("no crate is published")
}

fn build(target: &Target, folder: &Path) -> Result<PathBuf> {
    let (compiler, package) = target.compiler;
    if Command::new(compiler).arg("--version").output().is_err() {
        setup::install_packages(&[package])?;
    }
    let installed =
        Command::new("rustup").args(["target", "add", target.triple]).current_dir(cargo::root()).status()?;
    ensure!(installed.success(), "cannot install the target {}", target.triple);
    let mut command = cargo::command(["build", "--release", "--locked", "--package", "syncguard-cli"]);
    command.args(["--features", "full", "--target", target.triple]);
    let suffix = target.triple.replace('-', "_");
    command.env(format!("CC_{suffix}"), compiler);
    if target.triple != native()?.triple {
        // Rust brings its own musl; only a linker for the other processor is needed.
        command.env(format!("CARGO_TARGET_{}_LINKER", suffix.to_uppercase()), "rust-lld");
    }
    ensure!(command.status()?.success(), "the command does not build for {}", target.triple);
    Ok(folder.join(target.triple).join("release/syncguard"))
}

/// Lays out `bin` and `share`. Manual and completions are printed by the command itself, of this machine's kind.
fn stage(target: &Target, binary: &Path, tree: &Path) -> Result<()> {
    if tree.exists() {
        fs::remove_dir_all(tree)?;
    }
    let speaker = if target.triple == native()?.triple { binary.to_owned() } else { native_command()? };
    install(binary, &tree.join("bin/syncguard"), 0o755)?;
    for (shell, path) in [
        ("bash", "share/bash-completion/completions/syncguard"),
        ("zsh", "share/zsh/site-functions/_syncguard"),
        ("fish", "share/fish/vendor_completions.d/syncguard.fish"),
    ] {
        write(&tree.join(path), &said(&speaker, &["completions", shell])?)?;
    }
    let manual = said(&speaker, &["man"])?;
    for command in commands(&manual) {
        write(&tree.join(format!("share/man/man1/syncguard-{command}.1")), &said(&speaker, &["man", &command])?)?;
    }
    write(&tree.join("share/man/man1/syncguard.1"), &manual)?;
    let documents = tree.join("share/doc/syncguard");
    let root = cargo::root();
    for file in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE", "docs/cli.md", "docs/stuck-lock.md"] {
        install(&root.join(file), &documents.join(file.trim_start_matches("docs/")), 0o644)?;
    }
    for file in ["report.service", "report.timer"] {
        install(&root.join("packaging/systemd").join(file), &documents.join("examples").join(file), 0o644)?;
    }
    write(&documents.join("sbom.cdx.json"), &sbom::render(target.triple)?)?;
    write_uninstaller(tree, &documents.join("uninstall.sh"))
}

/// The command for this machine, when the one that is shipped cannot run here.
fn native_command() -> Result<PathBuf> {
    let mut command = cargo::command(["build", "--locked", "--workspace", "--all-features", "--bin", "syncguard"]);
    ensure!(command.status()?.success(), "the command does not build");
    Ok(Scope::new(&[])?.target_folder()?.join("debug/syncguard"))
}

/// The subcommands that the manual lists: `syncguard\-run(1)`.
fn commands(manual: &str) -> Vec<String> {
    let named = manual.lines().filter_map(|line| line.trim().strip_prefix("syncguard\\-"));
    named.filter_map(|rest| rest.split_once("(1)")).map(|(name, _)| name.replace("\\-", "-")).collect()
}

fn write_uninstaller(tree: &Path, path: &Path) -> Result<()> {
    let template = fs::read_to_string(cargo::root().join("packaging/uninstall.sh"))?;
    let mut brought = files(tree)?;
    brought.push(path.strip_prefix(tree)?.display().to_string());
    write(path, &template.replace("@FILES@", &brought.join("\n")))
}

/// All files below a folder, by their paths in it, in order.
pub(crate) fn files(tree: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut folders = vec![tree.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(tree)?.display().to_string());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The same bytes for the same commit: sorted, without owners, dated as the commit.
fn archive(tree: &Path) -> Result<PathBuf> {
    let (folder, name) = (tree.parent().context("a tree has a place")?, file_name(tree)?);
    let archive = folder.join(format!("{name}.tar.gz"));
    let mut command = Command::new("tar");
    command.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--use-compress-program=gzip -9n"]);
    command.arg(format!("--mtime=@{}", commit_time()?)).arg("-C").arg(folder).arg("-cf").arg(&archive).arg(&name);
    ensure!(command.status()?.success(), "tar failed");
    Ok(archive)
}

pub(crate) fn commit_time() -> Result<String> {
    let output = Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(cargo::root()).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// What `docker build` is given: binaries by processor, the roots of TLS, and the licences.
fn stage_image(target: &Target, binary: &Path, dist: &Path) -> Result<()> {
    let image = dist.join("image");
    install(binary, &image.join(target.architecture).join("syncguard"), 0o755)?;
    write(&image.join("ca-certificates.crt"), &roots()?)?;
    for file in ["LICENSE-MIT", "LICENSE-APACHE"] {
        install(&cargo::root().join(file), &image.join(file), 0o644)?;
    }
    Ok(())
}

/// The roots that Debian took from Mozilla. Not the bundle of this machine, which may trust somebody's proxy.
fn roots() -> Result<String> {
    let folder = Path::new("/usr/share/ca-certificates/mozilla");
    if !folder.exists() {
        setup::install_packages(&["ca-certificates"])?;
    }
    let texts: Vec<String> =
        files(folder)?.iter().map(|file| fs::read_to_string(folder.join(file))).collect::<Result<_, _>>()?;
    ensure!(texts.len() > 50, "only {} roots are in {}", texts.len(), folder.display());
    Ok(texts.concat())
}

fn write_checksum(file: &Path) -> Result<()> {
    let folder = file.parent().context("a file has a folder")?;
    let output = Command::new("sha256sum").arg(file_name(file)?).current_dir(folder).output()?;
    ensure!(output.status.success(), "sha256sum failed");
    fs::write(folder.join(format!("{}.sha256", file_name(file)?)), output.stdout).map_err(Into::into)
}

fn file_name(path: &Path) -> Result<String> {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).context("a path has a name")
}

pub(crate) fn said(program: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output()?;
    if !output.status.success() {
        bail!("{} {}: {}", program.display(), arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}

pub(crate) fn install(from: &Path, to: &Path, mode: u32) -> Result<()> {
    fs::create_dir_all(to.parent().context("a file has a folder")?)?;
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).map_err(Into::into)
}

pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    fs::create_dir_all(path.parent().context("a file has a folder")?)?;
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_read_from_the_manual() {
        let manual = ".SH SUBCOMMANDS\n.TP\nsyncguard\\-run(1)\nRun a command\n.TP\nsyncguard\\-fence\\-check(1)\n";
        assert_eq!(commands(manual), ["run", "fence-check"]);
    }

    /// The units are read by systemd, where it is; the command line in them is one that the command understands.
    #[test]
    fn the_example_of_a_timer_names_what_the_package_installs() {
        let unit = fs::read_to_string(cargo::root().join("packaging/systemd/report.service")).unwrap();
        assert!(unit.contains("\nExecStart=/usr/bin/syncguard run --skip-if-locked "));
        assert!(unit.contains(" --require-remote "), "a host must not take a file of its own for the lock");
        let timer = fs::read_to_string(cargo::root().join("packaging/systemd/report.timer")).unwrap();
        assert!(timer.contains("\nOnCalendar=") && timer.contains("\nWantedBy=timers.target"));
    }

    #[test]
    fn the_image_runs_the_command_alone_and_not_as_root() {
        let text = fs::read_to_string(cargo::root().join("packaging/docker/Dockerfile")).unwrap();
        let steps: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(steps[0], "FROM scratch");
        assert!(steps.contains(&"ARG TARGETARCH"), "a default would be built into the images of all processors");
        assert!(steps.iter().any(|step| step.starts_with("USER ") && !step.contains(" 0")));
        assert!(steps.contains(&"ENTRYPOINT [\"/usr/bin/syncguard\"]"));
        assert!(text.contains(&format!("ghcr.io/syncguard/syncguard:v{} ", version().unwrap())), "another version");
    }
}
