//! How does a script wait for somebody else's lock to end, without taking it?
//!
//! By looking again and again, seldom: whoever needs to be woken takes the lock.

use std::time::Duration;

use serde::Serialize;
use syncguard::{Clock, SystemClock};

use crate::args::WaitArgs;
use crate::config::Backend;
use crate::exit::{self, Failure, Stage};
use crate::holder::Holder;
use crate::messages::{self, Asking};
use crate::output::Output;
use crate::signals::Signals;
use crate::taking;
use crate::values::Wait;

/// Between two looks, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

#[derive(Serialize)]
struct Free {
    ok: bool,
}

pub(crate) async fn wait(args: WaitArgs, backend: &Backend, output: Output) -> Result<u8, Failure> {
    until_free(args, backend, output).await.map_err(|failure| failure.on(backend))
}

async fn until_free(args: WaitArgs, backend: &Backend, output: Output) -> Result<u8, Failure> {
    let mut signals = Signals::install()
        .map_err(|error| Failure::new(exit::INTERNAL, "internal", format!("cannot block signals: {error}")))?;
    let locker = syncguard::Locker::new(taking::open(backend, args.wait, &mut signals, output).await?);
    let started = SystemClock.boot();
    let mut pause = PAUSE.0;
    loop {
        let holder = match locker.inspect(args.key.as_str()).await {
            Ok(Some(info)) => Some(Holder::new(info)),
            Ok(None) => {
                if output.json {
                    output.object(&Free { ok: true });
                }
                return Ok(exit::OK);
            }
            // Not knowing is not knowing that it is free.
            Err(error) if error.is_transient() => None,
            Err(error) => return Err(Failure::from_lock(&error, Stage::Operating)),
        };
        if args.wait.less(started) == Wait::AtMost(Duration::ZERO) {
            let waited = SystemClock.boot().since(started);
            return Err(messages::locked(&args.key, holder.as_ref(), Some(waited), Asking::Wait));
        }
        let left = match args.wait.less(started) {
            Wait::AtMost(left) => left.min(pause),
            Wait::Forever => pause,
        };
        tokio::select! {
            biased;
            signal = signals.next_stopping() => return Err(taking::interrupted(signal)),
            () = tokio::time::sleep(left) => {}
        }
        pause = (pause * 2).min(PAUSE.1);
    }
}
