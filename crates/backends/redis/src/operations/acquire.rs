//! How is a lock taken, and given out only when enough replicas have it?

use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Cmd;
use syncguard_core::{AcquireOutcome, AcquireRequest, ErrorCode, LockError, LockId, Result};
use tokio::time::Instant;

use super::{Operations, life, value_head};
use crate::builder::WaitReplicas;
use crate::error::CallError;
use crate::names::KeyNames;
use crate::reply::{self, AcquireReply};
use crate::router::Router;
use crate::script;
use crate::turns::GRACE;

/// How often it looks whether the other one has come.
const STEP: Duration = Duration::from_millis(1);

impl Operations {
    pub(crate) async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        let names = self.names.of(request.key)?;
        if !self.names.accepts(request.lock_id, names.tag) {
            return Err(LockError::invalid("this lock id was not made for this key")
                .with_hint("on a cluster the id carries the slot: make it with `new_lock_id`"));
        }
        let router = self.careful.as_ref().map_or(&*self.router, |(router, _)| router);
        let waiters = self.waiters(&names.lock);
        let outcome = self.run(router, request, &names, waiters).await?;
        match outcome {
            AcquireOutcome::Acquired(_) => {
                if let Some((router, wait)) = &self.careful {
                    self.replicate(router, *wait, request, &names).await?;
                }
                self.own_locks.remember(request.lock_id, &names.lock, request.ttl);
            }
            // Somebody holds it by now.
            AcquireOutcome::Contended(_) => self.turns.is_over(&names.lock),
        }
        Ok(outcome)
    }

    /// `waiters`: how many tasks of this process wait to hear of this lock's release.
    async fn run(
        &self,
        router: &Router,
        request: AcquireRequest<'_>,
        names: &KeyNames,
        waiters: usize,
    ) -> Result<AcquireOutcome> {
        let index = self.names.index(request.lock_id);
        let life_ms = life(request.ttl);
        let tells = self.publish.load(Ordering::Relaxed);
        let (head, tail) = (value_head(request.lock_id), value_tail(request, tells));
        let one_server = router.is_one_server();
        let waits = waiters > 0;
        let place = if self.turns.take_ours(&names.lock) { "front" } else { "end" };
        let then = match waiters {
            // The one that waits may be another task. Once it does not, a single server finds that nobody listens.
            1 if one_server => None,
            1 => Some("out"),
            _ => waits.then_some("end"),
        };
        let mut dead: Option<(String, Option<String>)> = None;
        let until = Instant::now() + GRACE;
        let mut rounds = 0;
        // Each round removes one dead holder; a second one can only appear if others acquire in between.
        while rounds < 4 {
            // It joins the line, and asks again in a moment: "somebody holds it" would be a lie as long as nobody has come.
            let stands_back = self.turns.is_theirs(&names.lock) && Instant::now() < until;
            let (dead_id, dead_index) = match &dead {
                Some((id, dead_index)) => (Some(id.as_str()), dead_index.as_deref()),
                None => (None, None),
            };
            let line = (waits || dead_index.is_some()).then(|| self.names.line(&names.lock, request.lock_id));
            let me = waits.then_some(&*self.listener_name);
            let keys = [Some(&*names.lock), Some(&*index), Some(&*names.counter), line.as_deref(), dead_index];
            let floor = self.fence_floor.then_some("1");
            let args = [
                Some(&*life_ms),
                Some(&*head),
                Some(&*tail),
                floor,
                dead_id,
                me,
                waits.then_some(place),
                then,
                stands_back.then_some("1"),
            ];
            let (keys, args) = (Words::new(keys), Words::new(args));
            let answer = router.script(&script::ACQUIRE, keys.get(), args.get(), self.bound(request.ttl)).await;
            match reply::acquire(&answer.map_err(CallError::into_lock_error)?, &head)? {
                AcquireReply::Decided(outcome) => return Ok(outcome),
                AcquireReply::NotYet if stands_back => tokio::time::sleep(STEP).await,
                AcquireReply::NotYet => return Err(reply::unexpected()),
                AcquireReply::Dead(id) => {
                    rounds += 1;
                    let dead_index = LockId::parse(&id).ok().map(|id| self.names.index(&id));
                    dead = Some((id, dead_index));
                }
            }
        }
        Err(LockError::new(ErrorCode::ServiceUnavailable, "the lock changed hands too often to be taken over"))
    }

    /// Waits until enough replicas have the lock; gives it back otherwise.
    async fn replicate(
        &self,
        router: &Router,
        wait: WaitReplicas,
        request: AcquireRequest<'_>,
        names: &KeyNames,
    ) -> Result<()> {
        let mut command = Cmd::new();
        command.arg("WAIT").arg(wait.count).arg(u64::try_from(wait.timeout.as_millis()).unwrap_or(u64::MAX));
        let answer = router.command(&command, &names.lock, self.timeout).await;
        let reached = match answer {
            Ok(redis::Value::Int(reached)) => Ok(u32::try_from(reached).unwrap_or(0)),
            Ok(_) => Ok(0),
            Err(error) => Err(error.into_lock_error()),
        };
        if reached.as_ref().is_ok_and(|reached| *reached >= wait.count) {
            return Ok(());
        }
        let given_back = self.give_back(request, names).await;
        let error = reached.map_or_else(|error| error, |reached| too_few_replicas(reached, wait.count, given_back));
        // The lock was stored. Unless it is known to be gone again, this id may own it: whatever the error itself says.
        Err(if given_back { error } else { error.ambiguous() })
    }

    /// Whether the server said that the lock is free again.
    async fn give_back(&self, request: AcquireRequest<'_>, names: &KeyNames) -> bool {
        let index = self.names.index(request.lock_id);
        let keys = [names.lock.as_str(), &index, &self.names.line(&names.lock, request.lock_id)];
        let answer = self.router.script(&script::RELEASE, &keys, &[request.lock_id.as_str()], self.timeout).await;
        answer.is_ok_and(|answer| reply::release(&answer).is_ok_and(|reply| reply.outcome().is_released()))
    }
}

/// Words by place, of which those at the end may be absent: they are not sent.
struct Words<'a, const N: usize> {
    words: [&'a str; N],
    sent: usize,
}

impl<'a, const N: usize> Words<'a, N> {
    fn new(words: [Option<&'a str>; N]) -> Self {
        let sent = words.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        Self { words: words.map(Option::unwrap_or_default), sent }
    }

    fn get(&self) -> &[&'a str] {
        &self.words[..self.sent]
    }
}

fn too_few_replicas(reached: u32, wanted: u32, given_back: bool) -> LockError {
    let then = if given_back { "it was given back" } else { "giving it back failed too, so it may be held" };
    let message = format!("only {reached} of {wanted} replicas acknowledged the lock in time; {then}");
    LockError::new(ErrorCode::ServiceUnavailable, message)
        .with_hint("look at `INFO replication`, or raise `wait_timeout`")
}

/// The stored JSON from its key to its fence. Clients that do not know the fields in between keep them or leave them out.
/// A holder that will not tell of its release says so: waiters then keep to their schedule.
fn value_tail(request: AcquireRequest<'_>, tells: bool) -> String {
    let (key, ttl) = (json(request.key.as_str()), request.ttl.as_millis().to_string());
    let silent = if tells { "" } else { r#","silent":true"# };
    match request.label {
        None => [r#","key":"#, &key, r#","ttlMs":"#, &ttl, silent, r#","fence":""#].concat(),
        Some(label) => {
            let label = json(label.as_str());
            [r#","key":"#, &key, r#","ttlMs":"#, &ttl, r#","label":"#, &label, silent, r#","fence":""#].concat()
        }
    }
}

/// A text as JSON writes it.
fn json(text: &str) -> String {
    if text.bytes().any(|byte| byte < b' ' || byte == b'"' || byte == b'\\') {
        return serde_json::Value::from(text).to_string();
    }
    ["\"", text, "\""].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_written_as_json_writes_it() {
        for text in ["", "plain key", "a\"b", "a\\b", "a\nb", "\u{1}", "\u{7f}é\u{2028}😀"] {
            assert_eq!(json(text), serde_json::Value::from(text).to_string(), "{text:?}");
        }
    }
}
