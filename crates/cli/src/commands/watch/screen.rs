//! How is a terminal drawn on without waiting for it?
//!
//! A thread draws the newest picture that there is; pictures that it had no time for are forgotten. Whatever ends the program,
//! the terminal gets back what it was.

use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anstream::{AutoStream, ColorChoice};
use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::terminal::{
    Clear, ClearType, DisableLineWrap, EnableLineWrap, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode,
};
use crossterm::{execute, queue};

use crate::output::Output;

/// How long a terminal that does not take anything may hold up the end.
const PATIENCE: Duration = Duration::from_millis(500);

pub(super) struct Screen {
    newest: Arc<Newest>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread that draws looks at.
#[derive(Default)]
struct Newest {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The newest picture that was not drawn yet.
    picture: Option<Vec<String>>,
    is_over: bool,
    has_ended: bool,
}

impl Newest {
    // Whole values are stored under it, so a panic leaves nothing half done.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Columns and lines of the terminal.
pub(super) fn size() -> (usize, usize) {
    let (columns, lines) = crossterm::terminal::size().unwrap_or((80, 24));
    (usize::from(columns.max(20)), usize::from(lines.max(6)))
}

impl Screen {
    pub(super) fn open(output: Output) -> std::io::Result<Self> {
        let color = match output.color {
            ColorChoice::Auto => AutoStream::choice(&std::io::stdout()),
            chosen => chosen,
        };
        enable_raw_mode()?;
        let newest = Arc::new(Newest::default());
        let shared = Arc::clone(&newest);
        let thread = std::thread::spawn(move || {
            let _ = draw_until_the_end(&shared, color != ColorChoice::Never);
            shared.lock().has_ended = true;
            shared.changed.notify_all();
        });
        Ok(Self { newest, thread: Some(thread) })
    }

    /// Shows a picture as soon as the terminal takes it.
    pub(super) fn show(&self, picture: &[String]) {
        self.newest.lock().picture = Some(picture.to_vec());
        self.newest.changed.notify_all();
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut state = self.newest.lock();
        state.is_over = true;
        self.newest.changed.notify_all();
        let waiting = self.newest.changed.wait_timeout_while(state, PATIENCE, |state| !state.has_ended);
        let has_ended = waiting.map_or(true, |(state, _)| state.has_ended);
        if let Some(thread) = self.thread.take().filter(|_| has_ended) {
            let _ = thread.join();
        }
        // The kernel's part of it works also where the terminal takes nothing.
        let _ = disable_raw_mode();
    }
}

/// Draws picture after picture, and leaves the terminal as it was.
fn draw_until_the_end(newest: &Newest, in_color: bool) -> std::io::Result<()> {
    let mut terminal = std::io::stdout();
    execute!(terminal, EnterAlternateScreen, Hide, DisableLineWrap)?;
    let drawn = draw_all(newest, &mut terminal, in_color);
    execute!(terminal, EnableLineWrap, Show, LeaveAlternateScreen)?;
    drawn
}

fn draw_all(newest: &Newest, terminal: &mut impl Write, in_color: bool) -> std::io::Result<()> {
    loop {
        let mut state = newest.lock();
        while state.picture.is_none() && !state.is_over {
            state = newest.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let (picture, is_over) = (state.picture.take(), state.is_over);
        drop(state);
        if is_over {
            return Ok(());
        }
        if let Some(picture) = picture {
            draw(terminal, &picture, in_color)?;
        }
    }
}

// Line by line over the old picture, which has as many lines: what does not change does not flicker.
fn draw(terminal: &mut impl Write, picture: &[String], in_color: bool) -> std::io::Result<()> {
    let mut frame = Vec::new();
    for (line, text) in (0_u16..).zip(picture) {
        // Cleared first: behind a text that ends in the last column the cursor stays on it, and clearing would take it away.
        queue!(frame, MoveTo(0, line), Clear(ClearType::UntilNewLine))?;
        if in_color {
            frame.extend_from_slice(text.as_bytes());
        } else {
            frame.extend_from_slice(anstream::adapter::strip_str(text).to_string().as_bytes());
        }
    }
    terminal.write_all(&frame)?;
    terminal.flush()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_covers_the_one_before() {
        let mut bytes = Vec::new();
        draw(&mut bytes, &["\x1b[1mone\x1b[0m".to_owned(), "two".to_owned()], false).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text, "\x1b[1;1H\x1b[Kone\x1b[2;1H\x1b[Ktwo");
    }
}
