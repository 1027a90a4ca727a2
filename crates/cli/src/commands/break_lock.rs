//! How does an operator free a lock whose holder will not?
//!
//! By looking, comparing the fence with the one that was meant, and releasing by the id that was looked at. An id belongs to
//! one acquisition and so to one fence, and a look reads both at once: whatever happens between the look and the release,
//! the lock that goes is the one with that fence, or none. Counters are not touched. The polite way is to ask.

use std::io::{BufRead, IsTerminal, Write};

use serde::Serialize;
use syncguard::{AskOutcome, Fence, HashId, Key, LockBackend, LockInfo, Locker, Lookup, ReleaseOutcome};

use crate::args::BreakArgs;
use crate::config::Backend;
use crate::exit::{self, Failure, Stage};
use crate::holder::{self, Holder};
use crate::output::{Output, escape, human, typed};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Broken {
    ok: bool,
    action: &'static str,
    key_hash: HashId,
    lock_id_hash: HashId,
    fence: Fence,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
}

impl Broken {
    fn new(action: &'static str, info: &LockInfo) -> Self {
        Self {
            ok: true,
            action,
            key_hash: info.key_hash(),
            lock_id_hash: info.lock_id_hash(),
            fence: info.fence,
            label: info.label().map(|label| label.as_str().to_owned()),
        }
    }
}

pub(crate) async fn break_lock(args: &BreakArgs, backend: &Backend, output: Output) -> Result<u8, Failure> {
    if args.fence.is_none() && !args.ask && !can_answer(output) {
        return Err(Failure::usage("which holder is meant must be said where there is no terminal to ask on")
            .hint("--fence N, as `syncguard status KEY` shows it, and --yes"));
    }
    let locker = super::open(backend).await?;
    let info = look(&locker, &args.key, args.fence).await?;
    if args.ask {
        return ask(&locker, &args.key, &info, output).await;
    }
    confirm(&args.key, &info, args.yes, output)?;
    release(&locker, &args.key, &info).await?;
    if output.json {
        output.object(&Broken::new("broken", &info));
    } else if !output.quiet {
        let name = escape(args.key.as_str());
        output.data(&format!("broke {name}: fence {} is stale, and the lock is free", info.fence));
    }
    Ok(exit::OK)
}

/// The lock of a key, if it is the one that is meant.
async fn look(locker: &Locker, key: &Key, meant: Option<Fence>) -> Result<LockInfo, Failure> {
    let found = locker.backend().lookup(Lookup::Key(key)).await;
    let found = found.map_err(|error| Failure::from_lock(&error, Stage::Operating))?;
    let name = escape(key.as_str());
    let info =
        found.ok_or_else(|| Failure::new(exit::NO, "free", format!("{name} is free: there is nothing to break")))?;
    match meant {
        Some(meant) if meant != info.fence => {
            let message = format!("{name} has fence {} now, not {meant}: nothing was broken", info.fence);
            let mut failure = Failure::new(exit::NO, "fence", message);
            failure.details = holder::describe(&Holder::new(info));
            Err(failure.hint(format!(
                "another holder has it since you looked; look again: syncguard status {}",
                typed(key.as_str())
            )))
        }
        _ => Ok(info),
    }
}

/// Releases what was looked at: by its id, so that a holder that came later is not hit.
async fn release(locker: &Locker, key: &Key, info: &LockInfo) -> Result<(), Failure> {
    let released = locker.backend().release(info.reveal().lock_id).await;
    match released.map_err(|error| Failure::from_lock(&error, Stage::Operating))? {
        ReleaseOutcome::Released => Ok(()),
        ReleaseOutcome::Absent(_) => {
            let message =
                format!("nothing was broken: fence {} of {} ended by itself", info.fence, escape(key.as_str()));
            Err(Failure::new(exit::NO, "free", message))
        }
    }
}

fn can_answer(output: Output) -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal() && !output.json
}

/// Says what will happen, and makes sure that it is wanted.
fn confirm(key: &Key, info: &LockInfo, yes: bool, output: Output) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !can_answer(output) {
        return Err(Failure::usage("--yes is needed where there is no terminal to ask on")
            .hint("add --yes if the lock is really to be broken, or ask the holder first: --ask"));
    }
    output.stderr(&consequences(key, info));
    let mut stderr = std::io::stderr();
    let _ = write!(stderr, "break it? [y/N] ").and_then(|()| stderr.flush());
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    match read {
        Ok(_) if matches!(answer.trim(), "y" | "Y" | "yes") => Ok(()),
        _ => Err(Failure::new(exit::NO, "declined", "nothing was broken")),
    }
}

fn consequences(key: &Key, info: &LockInfo) -> String {
    let lines = holder::describe(&Holder::new(info.clone())).join("\n  ");
    let notices = match renewal_interval(info) {
        Some(interval) => format!("notices at its next renewal, within {interval} if it renews, and should stop then"),
        None => "notices at its next renewal, if it renews, and should stop then".to_owned(),
    };
    format!(
        "{name} is locked\n  {lines}\nif it is broken:\n  \
         - {who} loses it; it {notices}\n  \
         - whoever waits gets it at once, while the old holder may still be at work\n  \
         - the next fence is higher than {fence}: whoever checks fences is safe, all others may overlap\n\
         the polite way: syncguard break {typed} --ask",
        name = escape(key.as_str()),
        who = holder::who(info),
        fence = info.fence,
        typed = typed(key.as_str()),
    )
}

/// Our clients renew at each third of the lease.
fn renewal_interval(info: &LockInfo) -> Option<String> {
    info.ttl().map(|ttl| human((ttl.duration() / 3).max(std::time::Duration::from_secs(1))))
}

async fn ask(locker: &Locker, key: &Key, info: &LockInfo, output: Output) -> Result<u8, Failure> {
    let asked = super::inspector(locker)?.ask(info.reveal().lock_id).await;
    match asked.map_err(|error| Failure::from_lock(&error, Stage::Operating))? {
        AskOutcome::Asked => {}
        AskOutcome::Absent => {
            let message = format!("{} is free: there is nobody to ask", escape(key.as_str()));
            return Err(Failure::new(exit::NO, "free", message));
        }
    }
    if output.json {
        output.object(&Broken::new("asked", info));
    } else if !output.quiet {
        let when = renewal_interval(info).map_or(String::new(), |interval| format!(", within {interval},"));
        let name = escape(key.as_str());
        output.data(&format!(
            "asked {} for {name}: it hears of it with its next renewal{when} if it renews",
            holder::who(info)
        ));
    }
    Ok(exit::OK)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use syncguard::Guard;

    use super::*;

    const ROUNDS: usize = 500;

    async fn hold(locker: &Locker, key: &Key) -> Guard {
        locker.lock(key).ttl(Duration::from_secs(30)).acquire().await.unwrap()
    }

    /// An operator who means one fence, while its holder renews, and lets go in favour of another.
    async fn race(url: &str) {
        let locker = Locker::new(syncguard::open(url).await.unwrap());
        let key = Key::new(format!("race-{}", std::process::id())).unwrap();
        let (mut broken, mut refused) = (0, 0);
        for round in 0..ROUNDS {
            let first = hold(&locker, &key).await;
            let meant = first.fence();
            let operator = async {
                let info = look(&locker, &key, Some(meant)).await?;
                // What a person needs to read and answer; the holders go on meanwhile.
                for _ in 0..round % 4 {
                    tokio::task::yield_now().await;
                }
                release(&locker, &key, &info).await
            };
            let holders = async {
                let renewed = first.extend(Duration::from_secs(30)).await.unwrap().is_extended();
                let released = first.release().await.unwrap().is_released();
                let second = hold(&locker, &key).await;
                (renewed, released, second)
            };
            let (verdict, (_, released, second)) = tokio::join!(operator, holders);

            assert!(second.fence() > meant, "the counter goes on");
            assert!(
                second.extend(Duration::from_secs(30)).await.unwrap().is_extended(),
                "round {round}: the wrong lock"
            );
            match verdict {
                Ok(()) => {
                    broken += 1;
                    assert!(!released, "round {round}: one lock was released twice");
                }
                Err(failure) => {
                    refused += 1;
                    assert_eq!(failure.code, exit::NO, "{failure:?}");
                    assert!(released, "round {round}: nobody released the first lock");
                }
            }
            assert!(second.release().await.unwrap().is_released());
        }
        assert_eq!(broken + refused, ROUNDS);
        println!("{broken} broken, {refused} came too late");
    }

    #[tokio::test]
    async fn a_break_that_races_with_renewals_never_hits_another_fence_in_memory() {
        race("memory:").await;
    }

    #[cfg(feature = "redis")]
    #[tokio::test]
    async fn a_break_that_races_with_renewals_never_hits_another_fence_on_redis() {
        race(&format!("{}?prefix=break-race-{}", syncguard_testkit::redis_url(), std::process::id())).await;
    }

    #[cfg(feature = "postgres")]
    #[tokio::test]
    async fn a_break_that_races_with_renewals_never_hits_another_fence_on_postgres() {
        race(&syncguard_testkit::fresh_postgres_database()).await;
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn a_break_that_races_with_renewals_never_hits_another_fence_on_sqlite() {
        let folder = tempfile::tempdir().unwrap();
        race(&format!("sqlite:{}?synchronous=normal", folder.path().join("locks.db").display())).await;
    }

    #[test]
    fn an_operator_is_told_who_loses_what() {
        let text = consequences(&Key::new("deploy:prod").unwrap(), &holder::tests::holder(Some("ci@runner-7")).info);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "deploy:prod is locked");
        assert!(lines[4].contains("ci@runner-7 loses it") && lines[4].contains("within 10s"), "{text}");
        assert!(text.contains("the next fence is higher than 000000000000041"), "{text}");
    }
}
