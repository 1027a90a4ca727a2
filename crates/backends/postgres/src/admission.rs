//! Who may ask the server now, and who together with whom?
//!
//! Acquires stand in one [`Line`], releases in another, and each runtime has lines of its own: a runtime that stops keeps
//! nobody else waiting. A caller only waits for its answer. What others need is held by a *carrier*, a task that runs by
//! itself: it takes a connection, takes from the line whoever may go by then, asks for all of them, answers each, and comes
//! again while anybody waits.
//!
//! * An operation that finds fewer statements under way than the [pace](crate::pace) allows goes at once, alone.
//! * One acquire statement and one release statement may always be under way, so that neither kind waits for the other.
//! * Who waits is shared out among the carriers that are about to ask: all in one statement would leave the server one processor.
//! * Two operations on one name are never under way together: the later one stays in line, in nobody's way.
//! * A batch may take as long as its most patient member; each caller leaves when its own time is over.
//! * A statement that hangs is not counted after [`STUCK`], so that it delays the others by that at most.
//! * Nobody waits at the server for somebody else's lock: who finds one there is told so, and enters again later.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use syncguard_core::Result;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::error;
use crate::pace::{Road, STUCK};

/// More would keep the first of them waiting for no gain: the cost of a statement is spread thin enough.
const MOST_TOGETHER: usize = 64;

/// What is asked of the server.
pub(crate) trait Question: Send + Sync + 'static {
    type Answer: Send;

    /// What no two may be asked for at once.
    fn name(&self) -> &str;
}

/// Operations of one kind on one runtime.
pub(crate) struct Line<Q: Question>(Mutex<State<Q>>);

struct State<Q: Question> {
    road: Arc<Road>,
    /// Statements of this kind at once at most, whatever the pace.
    most: usize,
    /// Since when each carrier's statement is under way, or it is on its way to one; and which of both.
    carriers: BTreeMap<u64, (Instant, bool)>,
    /// The names of those statements.
    busy: HashSet<String>,
    /// In the order of their coming.
    waiting: BTreeMap<u64, Member<Q>>,
    next: u64,
}

/// An operation in line or under way.
struct Member<Q: Question> {
    number: u64,
    question: Arc<Q>,
    deadline: Instant,
    /// Whether it failed in company, perhaps because of another, and is to be asked by itself.
    is_alone: bool,
    reply: oneshot::Sender<Result<Option<Q::Answer>>>,
}

impl<Q: Question> Line<Q> {
    pub(crate) fn new(most: usize, road: Arc<Road>) -> Arc<Self> {
        let (carriers, busy, waiting) = (BTreeMap::new(), HashSet::new(), BTreeMap::new());
        Arc::new(Self(Mutex::new(State { road, most, carriers, busy, waiting, next: 0 })))
    }

    /// Waits for the answer, by `deadline`; `carry` starts a carrier. No answer: come again later.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        question: Arc<Q>,
        deadline: Instant,
        carry: impl Fn(Carrier<Q>),
    ) -> Result<Option<Q::Answer>> {
        let (reply, mut receiver) = oneshot::channel();
        let number = {
            let mut state = self.state();
            let number = state.number();
            state.waiting.insert(number, Member { number, question, deadline, is_alone: false, reply });
            number
        };
        let waiting = Waiting { line: self, number };
        loop {
            if let Some(carrier) = self.carrier() {
                carry(carrier);
            }
            let look = deadline.min(Instant::now() + STUCK);
            tokio::select! {
                biased;
                answer = &mut receiver => return answer.unwrap_or_else(|_| Err(error::no_answer())),
                () = sleep_until(look) => {}
            }
            if Instant::now() >= deadline {
                // Whoever is still in line has not been asked for.
                return Err(if waiting.leave() { error::all_busy() } else { error::no_answer() });
            }
        }
    }

    /// A new carrier, if one more statement may be under way and somebody has a use for it.
    fn carrier(self: &Arc<Self>) -> Option<Carrier<Q>> {
        let mut state = self.state();
        if !state.has_room() || !state.anybody_may_go() {
            return None;
        }
        let number = state.number();
        state.carriers.insert(number, (Instant::now(), false));
        state.road.under_way.fetch_add(1, Ordering::Relaxed);
        Some(Carrier { line: self.clone(), number })
    }

    // Every change under this lock is one step, so a panic leaves nothing half done.
    fn state(&self) -> MutexGuard<'_, State<Q>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Q: Question> State<Q> {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Whether one more statement may be under way. One of each kind always may, so that neither waits for the other.
    fn has_room(&self) -> bool {
        let (own, all) = (self.carriers.len(), self.road.under_way.load(Ordering::Relaxed));
        if own >= self.most {
            return false;
        }
        let limit = self.road.pace().limit();
        // The numbers first: they decide nearly always, and ask no clock.
        own == 0 || all < limit || {
            let hanging = self.carriers.values().filter(|(since, _)| since.elapsed() >= STUCK).count();
            own == hanging || all.saturating_sub(hanging) < limit
        }
    }

    fn end(&mut self, carrier: u64) {
        if self.carriers.remove(&carrier).is_some() {
            self.road.under_way.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether it may go now, and anybody wants its answer.
    fn may_go(&self, member: &Member<Q>) -> bool {
        !member.reply.is_closed() && !self.busy.contains(member.question.name())
    }

    fn anybody_may_go(&self) -> bool {
        self.waiting.values().any(|member| self.may_go(member))
    }

    fn take(&mut self, most: usize) -> Vec<Member<Q>> {
        self.waiting.retain(|_, member| !member.reply.is_closed());
        let mut numbers = Vec::new();
        for member in self.waiting.values() {
            let is_alone = member.is_alone;
            if numbers.len() == most || is_alone && !numbers.is_empty() {
                break;
            }
            if self.busy.insert(member.question.name().to_owned()) {
                numbers.push(member.number);
                if is_alone {
                    break;
                }
            }
        }
        numbers.iter().filter_map(|number| self.waiting.remove(number)).collect()
    }
}

/// A caller in line. Leaves when dropped.
struct Waiting<'a, Q: Question> {
    line: &'a Line<Q>,
    number: u64,
}

impl<Q: Question> Waiting<'_, Q> {
    /// Whether it was still in line.
    fn leave(&self) -> bool {
        self.line.state().waiting.remove(&self.number).is_some()
    }
}

impl<Q: Question> Drop for Waiting<'_, Q> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The right to have one statement under way, until nobody is in line.
pub(crate) struct Carrier<Q: Question> {
    line: Arc<Line<Q>>,
    number: u64,
}

impl<Q: Question> Carrier<Q> {
    /// By when the most patient of those in line must have its answer. `None` when nobody may go: this carrier's work is
    /// done.
    pub(crate) fn next(&self) -> Option<Instant> {
        let mut state = self.line.state();
        if !state.anybody_may_go() {
            // Under the same lock as the look, so that whoever comes now finds room.
            state.end(self.number);
            return None;
        }
        state.carriers.insert(self.number, (Instant::now(), false));
        state.waiting.values().map(|member| member.deadline).max()
    }

    /// Everybody who may go now, or a fair share where others are about to take one too. None of them leaves the line for
    /// nothing: they are [answered](Load::answer) or put back.
    pub(crate) fn load(&self, together: bool) -> Load<Q> {
        let mut state = self.line.state();
        let sharers = state.carriers.values().filter(|(_, is_under_way)| !is_under_way).count().max(1);
        let share = state.waiting.len().div_ceil(sharers).min(MOST_TOGETHER);
        let members = state.take(if together { share } else { 1 });
        state.carriers.insert(self.number, (Instant::now(), true));
        let questions = members.iter().map(|member| member.question.clone()).collect();
        Load { line: self.line.clone(), questions, members }
    }
}

impl<Q: Question> Drop for Carrier<Q> {
    fn drop(&mut self) {
        self.line.state().end(self.number);
    }
}

/// Those who are asked for in one statement. Their names are free again when it is dropped.
pub(crate) struct Load<Q: Question> {
    line: Arc<Line<Q>>,
    pub(crate) questions: Vec<Arc<Q>>,
    members: Vec<Member<Q>>,
}

impl<Q: Question> Load<Q> {
    /// By when the most patient of them must have its answer.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.members.iter().map(|member| member.deadline).max()
    }

    /// Gives each its answer, in the order of the questions. No answer: somebody else is there, come again.
    pub(crate) fn answer(mut self, answers: impl IntoIterator<Item = Result<Option<Q::Answer>>>) {
        let members = std::mem::take(&mut self.members);
        // Free before the answers are out: who gets one often asks the next thing at once.
        drop(self);
        for (member, answer) in members.into_iter().zip(answers) {
            // Who left does not want to know.
            drop(member.reply.send(answer));
        }
    }

    /// Nothing was done for anybody: each comes again, by itself.
    pub(crate) fn put_back(mut self) {
        let mut state = self.line.state();
        for mut member in self.members.drain(..) {
            member.is_alone = true;
            state.waiting.insert(member.number, member);
        }
    }

    /// The statement took so long.
    pub(crate) fn note(&self, took: Duration) {
        let road = self.line.state().road.clone();
        road.pace().note(took, self.members.len());
    }
}

impl<Q: Question> Drop for Load<Q> {
    fn drop(&mut self) {
        let mut state = self.line.state();
        for question in &self.questions {
            state.busy.remove(question.name());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use syncguard_core::ErrorCode;
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
    use tokio::task::JoinHandle;

    use super::*;
    use crate::pace::Pace;

    /// Its first letter is its name; the answer is its length.
    struct Word(&'static str);

    impl Question for Word {
        type Answer = usize;

        fn name(&self) -> &str {
            &self.0[..1]
        }
    }

    type Asked = JoinHandle<Result<Option<usize>>>;

    /// A line of at most so many statements, and the carriers that it starts.
    struct Office(Arc<Line<Word>>, UnboundedSender<Carrier<Word>>);

    impl Office {
        fn open(most: usize) -> (Self, UnboundedReceiver<Carrier<Word>>) {
            let (start, started) = unbounded_channel();
            (Self(Line::new(most, Road::new(most)), start), started)
        }

        async fn ask(&self, word: &'static str) -> Asked {
            let (line, start) = (self.0.clone(), self.1.clone());
            let deadline = Instant::now() + Duration::from_secs(5);
            let asked = tokio::spawn(async move {
                line.ask(Arc::new(Word(word)), deadline, |carrier| drop(start.send(carrier))).await
            });
            tokio::task::yield_now().await;
            asked
        }
    }

    fn answer(load: Load<Word>) {
        let lengths: Vec<_> = load.questions.iter().map(|word| Ok(Some(word.0.len()))).collect();
        load.answer(lengths);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_goes_together_but_no_two_of_one_name() {
        let (office, mut started) = Office::open(1);
        let mut asked = Vec::new();
        for word in ["a", "bb", "ccc", "bbbb"] {
            asked.push(office.ask(word).await);
        }
        let carrier = started.try_recv().unwrap();
        assert!(started.try_recv().is_err(), "one statement at most");
        let load = carrier.load(true);
        assert_eq!(load.questions.iter().map(|word| word.0).collect::<Vec<_>>(), ["a", "bb", "ccc"]);
        assert!(carrier.next().is_none(), "the second b may not go beside the first");
        answer(load);
        asked.push(office.ask("d").await);
        answer(started.try_recv().unwrap().load(true));
        for (asked, length) in asked.into_iter().zip([1, 2, 3, 4, 1]) {
            assert_eq!(asked.await.unwrap().unwrap(), Some(length));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_failed_in_company_comes_again_alone_and_who_left_does_not() {
        let (office, mut started) = Office::open(1);
        let (a, b, c) = (office.ask("a").await, office.ask("b").await, office.ask("c").await);
        let carrier = started.try_recv().unwrap();
        carrier.load(true).put_back();
        b.abort();
        assert!(b.await.is_err());
        for asked in [a, c] {
            let load = carrier.load(true);
            assert_eq!(load.questions.len(), 1);
            answer(load);
            assert_eq!(asked.await.unwrap().unwrap(), Some(1));
        }
        assert!(carrier.next().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn whether_it_was_asked_for_decides_what_a_late_caller_knows() {
        let (office, mut started) = Office::open(1);
        let asked = office.ask("a").await;
        let load = started.try_recv().unwrap().load(true);
        let in_line = office.ask("aa").await;
        assert!(asked.await.unwrap().unwrap_err().is_ambiguous());
        let error = in_line.await.unwrap().unwrap_err();
        assert!(error.code() == ErrorCode::RateLimited && !error.is_ambiguous());
        drop(load);
        assert!(office.0.state().waiting.is_empty() && office.0.state().busy.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_statement_that_hangs_is_waited_for_once_and_the_most_hold_all_the_same() {
        let (office, mut started) = Office::open(2);
        *office.0.state().road.pace() = Pace::new(1);
        drop(office.ask("a").await);
        let first = started.try_recv().unwrap();
        let _first = first.load(true);
        drop(office.ask("b").await);
        assert!(started.try_recv().is_err());
        let second = started.recv().await.unwrap();
        let _second = second.load(true);
        drop(office.ask("c").await);
        tokio::time::sleep(STUCK * 3).await;
        assert!(started.try_recv().is_err(), "two hang, and two are the most");
        drop(first);
        assert!(started.recv().await.is_some());
    }
}
