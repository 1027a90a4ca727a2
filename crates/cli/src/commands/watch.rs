//! What happens to the locks while I look?
//!
//! The library's watch says what changed; here it becomes a table on a terminal ([`screen`], [`view`]), or a line or an object
//! for each change ([`events`]). Nothing that reads us, a slow terminal or a full pipe, holds up the watching: what cannot be
//! shown is replaced by something newer, or left out and counted. A backend that is away is waited for.

mod events;
mod screen;
mod view;

use std::io::IsTerminal;

use crossterm::event::{KeyCode, KeyModifiers};
use rustix::process::Signal;
use syncguard::{LockError, RedactedUrl, Watch};
use tokio::sync::mpsc;

use crate::args::WatchArgs;
use crate::config::Backend;
use crate::exit::{self, Failure};
use crate::messages;
use crate::output::{Output, escape};
use crate::signals::{self, Signals};
use events::{Heard, Stream};
use screen::Screen;
use view::View;

pub(crate) async fn watch(args: &WatchArgs, backend: &Backend, output: Output) -> Result<u8, Failure> {
    let mut signals = Signals::install()
        .map_err(|error| Failure::new(exit::INTERNAL, "internal", format!("cannot block signals: {error}")))?;
    let locker = super::open(backend).await?;
    let watch = super::inspector(&locker)?.watch(&args.prefix);
    let is_dumb = std::env::var_os("TERM").is_none_or(|name| name == "dumb");
    if output.json || is_dumb || !std::io::stdout().is_terminal() {
        return stream(args, watch, &mut signals, output).await;
    }
    let view = View::new(&args.prefix, RedactedUrl::new(&backend.url).to_string(), args.sort, args.raw);
    table(view, watch, &mut signals, output).await
}

/// One line or one object for each change.
async fn stream(args: &WatchArgs, mut watch: Watch, signals: &mut Signals, output: Output) -> Result<u8, Failure> {
    let mut stream = Stream::start(args.raw, output);
    let mut outage = Outage::default();
    loop {
        let looked = tokio::select! {
            looked = watch.next() => looked,
            signal = signals.next_stopping() => {
                stream.finish().await;
                return Err(stopped(signal));
            }
            () = stream.closed() => return Ok(exit::OK),
        };
        match looked {
            Ok(transitions) => {
                outage.end(output);
                for transition in &transitions {
                    if stream.tell(transition) == Heard::Never {
                        return Ok(exit::OK);
                    }
                }
            }
            Err(error) => outage.begin(&error, output)?,
        }
    }
}

/// A backend that does not answer: said once, and once more when it does.
#[derive(Default)]
struct Outage {
    is_on: bool,
    /// Whether the backend has ever answered: what fails from the start will not get better by waiting.
    was_off: bool,
}

impl Outage {
    fn begin(&mut self, error: &LockError, output: Output) -> Result<(), Failure> {
        if !self.was_off && !error.is_transient() {
            return Err(Failure::from_lock(error, exit::Stage::Operating));
        }
        if !std::mem::replace(&mut self.is_on, true) {
            output
                .warn_if_heard(&format!("the backend does not answer: {}; still watching", escape(&error.to_string())));
        }
        Ok(())
    }

    fn end(&mut self, output: Output) {
        self.was_off = true;
        if std::mem::take(&mut self.is_on) {
            output.note_if_heard("the backend answers again");
        }
    }
}

/// A table that is redrawn.
async fn table(mut view: View, mut watch: Watch, signals: &mut Signals, output: Output) -> Result<u8, Failure> {
    let mut keys = keys();
    let screen = Screen::open(output)
        .map_err(|error| Failure::new(exit::INTERNAL, "internal", format!("cannot use the terminal: {error}")))?;
    let mut has_answered = false;
    loop {
        screen.show(&view.frame(screen::size()));
        tokio::select! {
            looked = watch.next() => match looked {
                Ok(transitions) => {
                    has_answered = true;
                    view.take_in(&transitions, watch.locks());
                }
                Err(error) if has_answered || error.is_transient() => view.miss(&error),
                Err(error) => return Err(Failure::from_lock(&error, exit::Stage::Operating)),
            },
            key = keys.recv() => match key {
                Some(Key::Quit) | None => return Ok(exit::OK),
                Some(Key::Sort) => view.sort_differently(),
                Some(Key::Raw) => view.toggle_raw(),
            },
            arrived = signals.next() => {
                if signals::is_stopping(arrived.signal) {
                    return Err(stopped(arrived.signal));
                }
            }
        }
    }
}

fn stopped(signal: Signal) -> Failure {
    let message = format!("stopped by {}", messages::signal_name(signal));
    let mut failure = Failure::new(exit::from_signal(signal.as_raw()), "interrupted", message).dying_from(signal);
    // Somebody who ends a watch knows that it ends.
    failure.silent = true;
    failure
}

/// What somebody pressed.
enum Key {
    Quit,
    Sort,
    Raw,
}

/// The keys of the terminal. Their thread ends with the process: nothing can interrupt its wait.
fn keys() -> mpsc::Receiver<Key> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        while let Ok(event) = crossterm::event::read() {
            let Some(key) = event.as_key_press_event() else { continue };
            let key = match (key.code, key.modifiers.contains(KeyModifiers::CONTROL)) {
                (KeyCode::Char('q') | KeyCode::Esc, false) | (KeyCode::Char('c' | 'd'), true) => Key::Quit,
                (KeyCode::Char('s'), false) => Key::Sort,
                (KeyCode::Char('r'), false) => Key::Raw,
                _ => continue,
            };
            if sender.blocking_send(key).is_err() {
                return;
            }
        }
    });
    receiver
}
