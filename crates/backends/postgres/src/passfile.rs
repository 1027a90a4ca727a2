//! Where does the password come from if nobody gave one?
//!
//! From libpq's password file: `PGPASSFILE` or `~/.pgpass`, lines of `host:port:database:user:password`, where `*` fits
//! anything and a backslash takes the next character as it is. As in libpq, a file that others can read is not used.

use std::path::{Path, PathBuf};

use tokio_postgres::Config;
use tokio_postgres::config::Host;

use crate::hosts;

/// The password of each host of a configuration that has none of its own.
pub(crate) fn passwords(config: &Config, servers: &[(Host, u16)], file: Option<&Path>) -> Vec<Option<String>> {
    if config.get_password().is_some() {
        return Vec::new();
    }
    let Some(text) = file.map(Path::to_owned).or_else(default_file).and_then(|file| read(&file)) else {
        return Vec::new();
    };
    let user = config.get_user().map(str::to_owned).or_else(|| std::env::var("USER").ok()).unwrap_or_default();
    let database = config.get_dbname().unwrap_or(&user);
    let password_of = |(host, port): &(Host, u16)| find(&text, [hosts::name(host), &port.to_string(), database, &user]);
    servers.iter().map(password_of).collect()
}

fn default_file() -> Option<PathBuf> {
    std::env::var_os("PGPASSFILE")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".pgpass")))
}

fn read(file: &Path) -> Option<String> {
    let metadata = std::fs::metadata(file).ok()?;
    #[cfg(unix)]
    if std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o077 != 0 {
        tracing::warn!(target: "syncguard", "the password file is readable by others and is not used; chmod 600 it");
        return None;
    }
    metadata.is_file().then(|| std::fs::read_to_string(file).ok()).flatten()
}

fn find(text: &str, wanted: [&str; 4]) -> Option<String> {
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = fields(line);
        let [host, port, database, user, password] = <[String; 5]>::try_from(fields).ok()?;
        let fits = [host, port, database, user].iter().zip(wanted).all(|(field, value)| field == "*" || field == value);
        fits.then_some(password)
    })
}

/// Five fields; colons in the password need no backslash.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        let last = fields.len() - 1;
        match character {
            '\\' => fields[last].extend(characters.next()),
            ':' if fields.len() < 5 => fields.push(String::new()),
            other => fields[last].push(other),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_fits_gives_the_password() {
        let text = "# comment\nother:5432:db:me:no\nhost:5432:db:me:se\\:cr:et\n*:*:*:*:any";
        assert_eq!(find(text, ["host", "5432", "db", "me"]).as_deref(), Some("se:cr:et"));
        assert_eq!(find(text, ["host", "5433", "db", "me"]).as_deref(), Some("any"));
        assert_eq!(find("host:5432:db:me", ["host", "5432", "db", "me"]), None);
    }
}
