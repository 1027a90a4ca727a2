//! Which backend is meant?
//!
//! `--url`, `SYNCGUARD_URL`, `--url-file`, the user's config file, the machine's, and at last the embedded store of
//! this user. Never a file of the current directory: a checkout must not decide where its deployment locks. Whatever
//! could send two hosts to two different stores without anybody noticing (an empty variable, a misspelt one, two
//! answers at once) is refused instead of guessed.

mod file;
pub(crate) mod transport;

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use file::Require;
use syncguard::{OpenOptions, RedactedUrl, Scheme};

use crate::args::Global;
use crate::exit::Failure;
use crate::output::{Output, escape};

/// A backend that was chosen, and by what.
#[derive(Clone)]
pub(crate) struct Backend {
    pub(crate) url: String,
    pub(crate) scheme: Scheme,
    /// Root's store, where it exists beside the one of this user that was chosen by default.
    roots_store: Option<PathBuf>,
    pub(crate) options: OpenOptions,
    source: Source,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    CommandLine,
    Variable,
    File(PathBuf),
    Default(PathBuf),
}

impl Backend {
    /// The URL without its secrets, fit for a terminal.
    pub(crate) fn shown(&self) -> String {
        escape(&RedactedUrl::new(&self.url).to_string())
    }

    /// That root has a store too, where that is so.
    pub(crate) fn two_stores(&self) -> Option<String> {
        let Source::Default(own) = &self.source else { return None };
        Some(two_stores(own, self.roots_store.as_deref()?))
    }

    /// The file of an embedded store, if it does not exist although it could.
    pub(crate) fn missing_file(&self) -> Option<PathBuf> {
        let path = match &self.source {
            Source::Default(path) => path.clone(),
            _ if self.scheme == Scheme::Sqlite => {
                let path = self.url.split_once(':')?.1.split('?').next()?;
                PathBuf::from(path.replace("%3F", "?").replace("%23", "#").replace("%25", "%"))
            }
            _ => return None,
        };
        let could = matches!(self.source, Source::Default(_)) || path.parent().is_some_and(Path::is_dir);
        (could && !path.exists()).then_some(path)
    }
}

/// Chooses the backend, or says what stands in the way.
pub(crate) fn resolve(global: &Global, url_on_command_line: bool, output: Output) -> Result<Backend, Failure> {
    let backend = resolve_untouched(global, url_on_command_line, output)?;
    if let Source::Default(path) = &backend.source {
        make_parent(path)?;
        warn_of_open_folder(path, output);
        if let Some(roots) = &backend.roots_store {
            tell_of_roots_store(path, roots, output);
        }
    }
    Ok(backend)
}

/// As [`resolve`], without making the place of the default store.
pub(crate) fn resolve_untouched(
    global: &Global,
    url_on_command_line: bool,
    output: Output,
) -> Result<Backend, Failure> {
    refuse_misspelt_variables(env::vars_os().map(|(name, _)| name))?;
    let mut require = global.require.as_deref().map(parse_require).transpose()?;
    let found = from_arguments(global, url_on_command_line)?;
    let mut backend = match found {
        Some(backend) => backend,
        None => match from_config_files(&mut require)? {
            Some((url, path)) => chosen(url, Source::File(path))?,
            None => default_store()?,
        },
    };
    if global.require_remote {
        require = Some(Require::Remote);
    }
    check_locality(&backend, require, output)?;
    warn_of_exposed_password(&backend, output);
    backend.options = OpenOptions::new().require_tls(global.require_tls);
    transport::check(&backend.url, backend.options.protection(&backend.url), global.require_tls, output)?;
    refuse_memory(&backend)?;
    #[cfg(feature = "firestore")]
    check_emulator(&backend, require, output)?;
    let is_users = matches!(backend.source, Source::Default(_)) && !rustix::process::geteuid().is_root();
    if is_users && require != Some(Require::Local) {
        // Its folder is root's alone, so nobody else can look inside: not being allowed to is as good as seeing it.
        backend.roots_store = Some(machines(ROOTS_STORE)).filter(|store| store.try_exists().unwrap_or(true));
    }
    Ok(backend)
}

/// A variable that a test left behind must not lead the locks of production to a toy.
#[cfg(feature = "firestore")]
fn check_emulator(backend: &Backend, require: Option<Require>, output: Output) -> Result<(), Failure> {
    if backend.scheme != Scheme::Firestore {
        return Ok(());
    }
    // What is wrong with the URL, opening says.
    let builder = syncguard::firestore::FirestoreBuilder::from_url(&backend.url).ok();
    let Some(address) = builder.as_ref().and_then(|builder| builder.ambient_emulator()) else { return Ok(()) };
    let what = format!(
        "FIRESTORE_EMULATOR_HOST leads the locks of {} to the emulator at {}",
        backend.shown(),
        escape(address)
    );
    let hint = "unset the variable, or write emulator=HOST:PORT into the URL if it is meant";
    if require == Some(Require::Remote) {
        return Err(Failure::config(format!("{what}, and a remote backend is required")).hint(hint));
    }
    output.warn(&what, Some(hint));
    Ok(())
}

/// Every command has a memory of its own: a lock in it excludes nobody.
fn refuse_memory(backend: &Backend) -> Result<(), Failure> {
    if backend.scheme != Scheme::Memory || backend.url != "memory:" {
        return Ok(());
    }
    Err(Failure::config("a lock in memory: excludes nobody, because each command has a memory of its own")
        .hint("use sqlite:PATH for this machine; memory: is for tests of programs that use the library"))
}

/// The default store is this user's. Where root has one too, two people may believe that they share one. Said once, to
/// somebody who watches, and to whoever asks for details: cron would mail it for ever.
fn tell_of_roots_store(own: &Path, roots: &Path, output: Output) {
    let told = own.with_file_name("told-of-roots-store");
    if output.verbose > 0 || (output.is_watched() && !told.exists()) {
        output.warn(&two_stores(own, roots), Some(SHARE_ONE));
    }
    if output.is_watched() {
        // Where it cannot be written, it is said again.
        let _ = std::fs::write(told, "");
    }
}

fn two_stores(own: &Path, roots: &Path) -> String {
    format!("the locks of this user are in {}, those of root in {}", show(own), show(roots))
}

/// What to do where a user and root have a store each.
pub(crate) const SHARE_ONE: &str =
    "share one on purpose with SYNCGUARD_URL=sqlite:PATH?mode=660; SYNCGUARD_REQUIRE=local silences this";

fn chosen(url: String, source: Source) -> Result<Backend, Failure> {
    let scheme = Scheme::of(&url).map_err(|error| Failure::from_lock(&error, crate::exit::Stage::Opening))?;
    Ok(Backend { url, scheme, options: OpenOptions::new(), roots_store: None, source })
}

fn from_arguments(global: &Global, url_on_command_line: bool) -> Result<Option<Backend>, Failure> {
    if global.url.is_some() && global.url_file.is_some() {
        return Err(Failure::config("two backends are given at once: a URL and a file with a URL")
            .hint("keep one of --url (or SYNCGUARD_URL) and --url-file (or SYNCGUARD_URL_FILE)"));
    }
    if let Some(url) = &global.url {
        let source = if url_on_command_line { Source::CommandLine } else { Source::Variable };
        if url.trim().is_empty() {
            let name = if url_on_command_line { "--url" } else { "SYNCGUARD_URL" };
            return Err(Failure::config(format!("{name} is empty"))
                .hint("give it a backend URL, or unset it to use the store of this user"));
        }
        return chosen(url.clone(), source).map(Some);
    }
    match &global.url_file {
        Some(path) => {
            let url = read_url_file(path)?;
            chosen(url, Source::File(path.clone())).map(Some)
        }
        None => Ok(None),
    }
}

pub(crate) fn read_url_file(path: &Path) -> Result<String, Failure> {
    refuse_if_anybody_writes(path)?;
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::config(format!("cannot read the URL file {}: {error}", show(path))))?;
    let url = text.trim();
    if url.is_empty() || url.contains('\n') {
        return Err(Failure::config(format!("{} does not hold one URL on one line", show(path))));
    }
    Ok(url.to_owned())
}

fn from_config_files(require: &mut Option<Require>) -> Result<Option<(String, PathBuf)>, Failure> {
    let user = config_home().map(|home| home.join("syncguard/config.toml"));
    for path in user.into_iter().chain([machines("/etc/syncguard/config.toml")]) {
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Failure::config(format!("cannot read {}: {error}", show(&path)))),
        };
        refuse_if_anybody_writes(&path)?;
        let config = file::parse(&text).map_err(|error| bad_config(&path, &error))?;
        *require = require.or(config.require);
        match (config.url, config.url_file) {
            (Some(_), Some(_)) => {
                return Err(Failure::config(format!("{} gives both `url` and `url_file`", show(&path)))
                    .hint("keep one of them"));
            }
            (Some(url), None) => return Ok(Some((url, path))),
            (None, Some(file)) => return Ok(Some((read_url_file(&file)?, file))),
            (None, None) => {}
        }
    }
    Ok(None)
}

fn bad_config(path: &Path, error: &str) -> Failure {
    Failure::config(format!("{} is not understood: {}", show(path), escape(error)))
        .hint("it may hold `url = \"…\"` or `url_file = \"…\"`, and `require = \"remote\"` or `\"local\"`")
}

fn parse_require(text: &str) -> Result<Require, Failure> {
    match text {
        "remote" => Ok(Require::Remote),
        "local" => Ok(Require::Local),
        _ => Err(Failure::config("SYNCGUARD_REQUIRE (or --require) is neither `remote` nor `local`")),
    }
}

fn check_locality(backend: &Backend, require: Option<Require>, output: Output) -> Result<(), Failure> {
    if !backend.scheme.is_local() || require == Some(Require::Local) {
        return Ok(());
    }
    let what = format!("the backend {} is seen by this machine only", RedactedUrl::new(&backend.url));
    let hint = "set SYNCGUARD_URL to a redis://, postgres:// or firestore:// backend that all hosts share";
    if require == Some(Require::Remote) {
        return Err(Failure::config(format!("{what}, and a remote one is required")).hint(hint));
    }
    let fleet =
        ["KUBERNETES_SERVICE_HOST", "CI"].into_iter().find(|name| env::var_os(name).is_some_and(|v| !v.is_empty()));
    if let Some(name) = fleet {
        let hint = format!("{hint}; SYNCGUARD_REQUIRE=local says that one machine is meant");
        output.warn(&format!("{what}, but {name} is set: other runners will not see the lock"), Some(&hint));
    }
    Ok(())
}

fn warn_of_exposed_password(backend: &Backend, output: Output) {
    if !RedactedUrl::new(&backend.url).has_password() {
        return;
    }
    match &backend.source {
        Source::CommandLine => output.warn(
            "the password in --url can be read by every user of this machine (ps)",
            Some("pass the URL in SYNCGUARD_URL or by --url-file"),
        ),
        Source::File(path) if is_world_readable(path) => output.warn(
            &format!("{} holds a password and can be read by every user of this machine", show(path)),
            Some(&format!("chmod 600 {}", show(path))),
        ),
        _ => {}
    }
}

/// What names the backend decides whom a lock keeps out.
fn refuse_if_anybody_writes(path: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::PermissionsExt;
    let is_open = |metadata: &std::fs::Metadata| metadata.is_file() && metadata.permissions().mode() & 0o002 != 0;
    if std::fs::metadata(path).is_ok_and(|metadata| is_open(&metadata)) {
        return Err(Failure::config(format!(
            "{} names the backend, and every user of this machine may change it",
            show(path)
        ))
        .hint(format!("chmod o-w {}", show(path))));
    }
    Ok(())
}

/// Who may write to the folder may put another store in the place of ours. Where everybody may, it is not opened.
fn warn_of_open_folder(store: &Path, output: Output) {
    use std::os::unix::fs::PermissionsExt;
    let Some(folder) = store.parent() else { return };
    if std::fs::metadata(folder).is_ok_and(|metadata| metadata.permissions().mode() & 0o022 == 0o020) {
        let folder = show(folder);
        output.warn(
            &format!("its group may write to {folder}, which holds the locks of this user"),
            Some(&format!("chmod g-w {folder}")),
        );
    }
}

fn is_world_readable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o004 != 0)
}

const VARIABLES: [&str; 5] =
    ["SYNCGUARD_URL", "SYNCGUARD_URL_FILE", "SYNCGUARD_REQUIRE", "SYNCGUARD_LOG", "SYNCGUARD_LOCK_ID"];

/// A variable one or two letters away from ours would be ignored, and the lock taken somewhere else.
///
/// Any other `SYNCGUARD_…` is somebody else's: Kubernetes alone adds a dozen for a service of that name.
fn refuse_misspelt_variables(names: impl Iterator<Item = OsString>) -> Result<(), Failure> {
    for name in names {
        let Some(name) = name.to_str() else { continue };
        let meant = VARIABLES.iter().find(|known| name != **known && is_near(name, known));
        if let Some(meant) = meant.filter(|_| !crate::run::environment::is_ours(name) && !VARIABLES.contains(&name)) {
            return Err(Failure::config(format!("the variable {} is unknown", escape(name)))
                .hint(format!("did you mean {meant}? unset it if not")));
        }
    }
    Ok(())
}

/// Whether one word becomes the other by at most two changed, added or removed letters.
fn is_near(left: &str, right: &str) -> bool {
    let (left, right) = (left.as_bytes(), right.as_bytes());
    if left.len().abs_diff(right.len()) > 2 {
        return false;
    }
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, l) in left.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, r) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(!l.eq_ignore_ascii_case(r));
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
        // No later row is smaller than the smallest of this one. Most words end here after three letters; without it, the
        // variables of a usual environment would cost as much as all our flags.
        if row.iter().all(|changes| *changes > 2) {
            return false;
        }
    }
    row[right.len()] <= 2
}

/// An absolute path in a variable; the XDG rules tell us to ignore a relative one.
fn absolute(name: &str) -> Option<PathBuf> {
    env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

fn config_home() -> Option<PathBuf> {
    absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")))
}

/// A file of the machine. A debug build looks for it below a folder that a test names, so that no test sees what the
/// machine of its tester has; in what people install there is no such variable.
fn machines(path: &str) -> PathBuf {
    #[cfg(debug_assertions)]
    if let Some(root) = absolute("SYNCGUARD_TEST_ROOT") {
        return root.join(path.trim_start_matches('/'));
    }
    PathBuf::from(path)
}

const ROOTS_STATE: &str = "/var/lib";
const ROOTS_STORE: &str = "/var/lib/syncguard/locks.db";

/// The embedded store of this user.
fn default_store() -> Result<Backend, Failure> {
    let directory = if let Some(state) = absolute("XDG_STATE_HOME") {
        state
    } else if rustix::process::geteuid().is_root() {
        machines(ROOTS_STATE)
    } else if let Some(home) = absolute("HOME") {
        home.join(".local/state")
    } else {
        return Err(Failure::config("no backend is given, and without HOME there is no place for the local store")
            .hint("set SYNCGUARD_URL, for example to sqlite:/var/lib/jobs/locks.db, in a folder of this user"));
    };
    let path = directory.join("syncguard/locks.db");
    let Some(text) = path.to_str() else {
        return Err(Failure::config(format!("the path {} is not valid UTF-8", show(&path))).hint("set SYNCGUARD_URL"));
    };
    chosen(format!("sqlite:{}", percent(text)), Source::Default(path.clone()))
}

// What a URL would read as its own syntax.
fn percent(path: &str) -> String {
    path.replace('%', "%25").replace('?', "%3F").replace('#', "%23")
}

fn make_parent(path: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::DirBuilderExt;
    let Some(parent) = path.parent() else { return Ok(()) };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(|error| {
        Failure::config(format!("cannot make the directory {}: {error}", show(parent)))
            .hint("set SYNCGUARD_URL to a backend elsewhere, for example sqlite:/var/lib/jobs/locks.db, in a folder of this user")
    })
}

fn show(path: &Path) -> String {
    escape(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_variable_is_refused_and_a_strangers_is_not() {
        let check = |name: &str| refuse_misspelt_variables([OsString::from(name)].into_iter());
        for name in ["SYNCGUARD_URI", "SYNCGUARD_ULR", "SYNCGARD_URL", "SYNCGUARD_REQIRE", "syncguard_url"] {
            assert!(check(name).is_err(), "{name}");
        }
        for name in [
            "SYNCGUARD_URL",
            "SYNCGUARD_KEY",
            "SYNCGUARD_FENCE",
            "SYNCGUARD_LOCK_ID_HASH",
            "SYNCGUARD_VERSION",
            "SYNCGUARD_PORT",
            "SYNCGUARD_SERVICE_HOST",
            "SYNCGUARD_TEST_REDIS_URL",
            "PATH",
        ] {
            assert!(check(name).is_ok(), "{name}");
        }
    }
}
