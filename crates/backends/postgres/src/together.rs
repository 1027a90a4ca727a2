//! How do operations go together?
//!
//! An operation that finds fewer statements under way than the [pace](crate::pace) allows goes at once and alone, and
//! pays one look at a mutex for it. Others wait. Whenever a statement ends, the first of them asks for everybody who
//! waits by then. It does so in a task of its own, so that a caller who leaves takes nobody along.
//!
//! A statement that got stuck (behind somebody's lock, or because its caller does not poll it any more) is not counted
//! after [`STUCK`], so it delays the others by that at most, and once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use syncguard_core::Result;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::error;
use crate::pace::{Pace, STUCK};

/// More would keep the first of them waiting for no gain: the cost of a statement is spread thin enough.
const MOST_AT_ONCE: usize = 64;

/// What is asked, and what is answered. No answer: not decided, come again alone.
pub(crate) struct Together<Q, A>(Arc<Mutex<State<Q, A>>>);

struct State<Q, A> {
    pace: Pace,
    /// Since when each statement is under way, by its number.
    under_way: BTreeMap<u64, Instant>,
    /// In the order of their coming.
    waiting: BTreeMap<u64, Asked<Q, A>>,
    next: u64,
}

/// An operation that waits to be asked by somebody.
pub(crate) struct Asked<Q, A> {
    pub(crate) question: Q,
    reply: oneshot::Sender<Turn<Q, A>>,
}

enum Turn<Q, A> {
    /// Ask for everybody who waits.
    Lead(Place<Q, A>, Q),
    Answered(Result<Option<A>>),
}

/// What an operation is to do.
pub(crate) enum Entered<Q, A> {
    /// Ask by itself.
    Alone(Place<Q, A>),
    /// Ask for all of them; the answer comes to each, this one included.
    Lead(Place<Q, A>, Vec<Asked<Q, A>>, Answer<Q, A>),
    /// Somebody asked for it.
    Answered(Option<A>),
}

impl<Q, A> Together<Q, A> {
    pub(crate) fn new(most: usize) -> Self {
        let (under_way, waiting) = (BTreeMap::new(), BTreeMap::new());
        Self(Arc::new(Mutex::new(State { pace: Pace::new(most), under_way, waiting, next: 0 })))
    }

    /// Goes at once if it may, and otherwise waits until it is asked for or may ask, by `deadline`.
    pub(crate) async fn enter(&self, question: impl FnOnce() -> Q, deadline: Instant) -> Result<Entered<Q, A>> {
        let (number, receiver) = {
            let mut state = lock(&self.0);
            if state.has_room() {
                let place = self.place(&mut state);
                drop(state);
                return Ok(self.go(place, question, deadline));
            }
            let number = state.number();
            let (reply, receiver) = oneshot::channel();
            state.waiting.insert(number, Asked { question: question(), reply });
            (number, receiver)
        };
        let mut waiting = Waiting { state: &self.0, number };
        let (place, question) = match self.turn(&mut waiting, receiver, deadline).await? {
            Turn::Lead(place, question) => (place, question),
            Turn::Answered(answer) => return answer.map(Entered::Answered),
        };
        Ok(self.go(place, || question, deadline))
    }

    /// Asks, for everybody who waits too.
    fn go(&self, place: Place<Q, A>, question: impl FnOnce() -> Q, deadline: Instant) -> Entered<Q, A> {
        let mut company = self.gather();
        if company.is_empty() {
            return Entered::Alone(place);
        }
        let (reply, receiver) = oneshot::channel();
        company.push(Asked { question: question(), reply });
        Entered::Lead(place, company, Answer { receiver, deadline })
    }

    async fn turn(
        &self,
        waiting: &mut Waiting<'_, Q, A>,
        mut receiver: oneshot::Receiver<Turn<Q, A>>,
        deadline: Instant,
    ) -> Result<Turn<Q, A>> {
        loop {
            let look = deadline.min(Instant::now() + STUCK);
            tokio::select! {
                biased;
                turn = &mut receiver => return turn.map_err(|_| error::no_answer()),
                () = sleep_until(look) => {}
            }
            if Instant::now() >= deadline {
                // Whoever still waits has not been asked for.
                return Err(if waiting.leave().is_some() { error::all_busy() } else { error::no_answer() });
            }
            let mut state = lock(&self.0);
            if state.has_room()
                && let Some(asked) = state.waiting.remove(&waiting.number)
            {
                return Ok(Turn::Lead(self.place(&mut state), asked.question));
            }
        }
    }

    /// Everybody who waits and still wants to know.
    fn gather(&self) -> Vec<Asked<Q, A>> {
        let mut state = lock(&self.0);
        let mut company = Vec::new();
        while company.len() + 1 < MOST_AT_ONCE
            && let Some((_, asked)) = state.waiting.pop_first()
        {
            if asked.is_wanted() {
                company.push(asked);
            }
        }
        company
    }

    fn place(&self, state: &mut State<Q, A>) -> Place<Q, A> {
        let number = state.number();
        state.under_way.insert(number, Instant::now());
        Place { state: self.0.clone(), number }
    }
}

impl<Q, A> State<Q, A> {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn has_room(&self) -> bool {
        // The length first: it decides nearly always, and asks no clock.
        let limit = self.pace.limit();
        self.under_way.len() < limit || self.under_way.values().filter(|since| since.elapsed() < STUCK).count() < limit
    }
}

impl<Q, A> Asked<Q, A> {
    /// Whether its caller is still there.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.reply.is_closed()
    }

    pub(crate) fn answer(self, answer: Result<Option<A>>) {
        // Who left does not want to know.
        drop(self.reply.send(Turn::Answered(answer)));
    }
}

/// The answer to who asks for all, which comes the same way as to the others.
pub(crate) struct Answer<Q, A> {
    receiver: oneshot::Receiver<Turn<Q, A>>,
    deadline: Instant,
}

impl<Q, A> Answer<Q, A> {
    pub(crate) async fn wait(self) -> Result<Option<A>> {
        match tokio::time::timeout_at(self.deadline, self.receiver).await {
            Ok(Ok(Turn::Answered(answer))) => answer,
            // The task ended with its runtime, or no answer came: the server may have acted.
            _ => Err(error::no_answer()),
        }
    }
}

/// An operation in the queue. Leaves it when dropped.
struct Waiting<'a, Q, A> {
    state: &'a Mutex<State<Q, A>>,
    number: u64,
}

impl<Q, A> Waiting<'_, Q, A> {
    fn leave(&mut self) -> Option<Asked<Q, A>> {
        lock(self.state).waiting.remove(&self.number)
    }
}

impl<Q, A> Drop for Waiting<'_, Q, A> {
    fn drop(&mut self) {
        drop(self.leave());
    }
}

/// The right to have one statement under way. Goes to the next who waits when dropped.
pub(crate) struct Place<Q, A> {
    state: Arc<Mutex<State<Q, A>>>,
    number: u64,
}

impl<Q, A> Place<Q, A> {
    /// The statement is over, and took so long for so many operations.
    pub(crate) fn finished(self, took: Duration, operations: usize) {
        lock(&self.state).pace.note(took, operations);
    }
}

impl<Q, A> Drop for Place<Q, A> {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        state.under_way.remove(&self.number);
        if !state.has_room() {
            return;
        }
        let Some((_, Asked { question, reply })) = state.waiting.pop_first() else { return };
        let number = state.number();
        state.under_way.insert(number, Instant::now());
        drop(state);
        // Who left meanwhile gives the place back, which leads here again.
        drop(reply.send(Turn::Lead(Place { state: self.state.clone(), number }, question)));
    }
}

// Every change under this lock is one step, so a panic leaves nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use syncguard_core::ErrorCode;

    use super::*;

    type Letters = Together<char, char>;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    async fn alone(together: &Letters) -> Place<char, char> {
        match together.enter(|| '-', soon()).await.unwrap() {
            Entered::Alone(place) => place,
            _ => panic!("nothing is under way"),
        }
    }

    /// Asks for a letter and writes down what came of it: whoever leads answers all with their capital letters.
    fn ask(together: &Arc<Letters>, letter: char) -> tokio::task::JoinHandle<(usize, Result<Option<char>>)> {
        let together = together.clone();
        tokio::spawn(async move {
            match together.enter(|| letter, soon()).await {
                Err(error) => (0, Err(error)),
                Ok(Entered::Alone(_)) => (1, Ok(Some(letter.to_ascii_uppercase()))),
                Ok(Entered::Answered(answer)) => (0, Ok(answer)),
                Ok(Entered::Lead(place, all, answer)) => {
                    let number = all.len();
                    for asked in all {
                        let upper = asked.question.to_ascii_uppercase();
                        asked.answer(Ok(Some(upper)));
                    }
                    place.finished(Duration::from_micros(1), number);
                    (number, answer.wait().await)
                }
            }
        })
    }

    /// Lets every task run until it waits.
    async fn settle() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_is_taken_along_by_the_first_and_each_gets_its_own_answer() {
        let together = Arc::new(Letters::new(1));
        let place = alone(&together).await;
        let asking: Vec<_> = ['a', 'b', 'c'].map(|letter| ask(&together, letter)).into();
        settle().await;
        drop(place);
        let mut answers = Vec::new();
        for asked in asking {
            let (number, answer) = asked.await.unwrap();
            answers.push((number, answer.unwrap().unwrap()));
        }
        assert_eq!(answers, [(3, 'A'), (0, 'B'), (0, 'C')]);
        drop(alone(&together).await);
    }

    #[tokio::test(start_paused = true)]
    async fn who_leaves_is_passed_over_even_when_it_was_to_lead() {
        let together = Arc::new(Letters::new(1));
        let place = alone(&together).await;
        let asking: Vec<_> = ['a', 'b', 'c'].map(|letter| ask(&together, letter)).into();
        settle().await;
        // The place reaches the first in the moment in which it is about to leave.
        drop(place);
        asking[0].abort();
        settle().await;
        let mut asking = asking.into_iter();
        assert!(asking.next().unwrap().await.unwrap_err().is_cancelled());
        assert_eq!(asking.next().unwrap().await.unwrap().0, 2);
        assert_eq!(asking.next().unwrap().await.unwrap().1.unwrap(), Some('C'));
        assert!(lock(&together.0).waiting.is_empty() && lock(&together.0).under_way.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_statement_that_is_stuck_is_waited_for_once() {
        let together = Arc::new(Letters::new(1));
        let _stuck = alone(&together).await;
        let started = Instant::now();
        assert_eq!(ask(&together, 'a').await.unwrap().1.unwrap(), Some('A'));
        assert!(started.elapsed() >= STUCK && started.elapsed() < 2 * STUCK);
        let started = Instant::now();
        assert_eq!(ask(&together, 'b').await.unwrap().1.unwrap(), Some('B'));
        assert!(started.elapsed().is_zero());
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_never_asked_for_knows_that_nothing_was_sent() {
        let together = Arc::new(Letters::new(1));
        let place = alone(&together).await;
        let deadline = Instant::now() + Duration::from_millis(50);
        let error = together.enter(|| 'a', deadline).await.err().unwrap();
        assert!(error.code() == ErrorCode::RateLimited && !error.is_ambiguous());
        assert!(lock(&together.0).waiting.is_empty());
        drop(place);
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_asked_for_and_hears_nothing_cannot_know() {
        let together = Arc::new(Letters::new(1));
        let place = alone(&together).await;
        let asking: Vec<_> = ['a', 'b'].map(|letter| ask(&together, letter)).into();
        settle().await;
        // Whoever asks for them ends before it answers, as with its runtime.
        drop(together.gather());
        for asked in asking {
            let error = asked.await.unwrap().1.unwrap_err();
            assert!(error.is_ambiguous());
        }
        drop(place);
    }
}
