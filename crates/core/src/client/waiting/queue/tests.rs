#![allow(clippy::unwrap_used)]

use std::pin::pin;
use std::task::{Context, Waker};

use super::*;

const AT_ONCE: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(5);

struct Crowd {
    queue: Queue,
    bells: Vec<Arc<Notify>>,
    start: Instant,
}

impl Crowd {
    fn of(waiters: u64) -> Self {
        let mut queue = Queue::default();
        let bells = (0..waiters).map(|number| queue.join(number)).collect();
        Self { queue, bells, start: Instant::now() }
    }

    fn at(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    /// The first asks and is told that somebody holds the lock for a minute.
    fn asked_at(&mut self, millis: u64) {
        let now = self.at(millis);
        self.queue.contended(now, Some(Duration::from_secs(60)));
    }

    fn retry(&mut self, number: u64, millis: u64) -> bool {
        let now = self.at(millis);
        self.queue.retry(number, now, LONG, false)
    }

    fn is_rung(&self, number: usize) -> bool {
        pin!(self.bells[number].notified()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }
}

#[test]
fn the_first_asks_and_its_answer_stands_for_the_others() {
    let mut crowd = Crowd::of(3);
    crowd.asked_at(0);

    assert!(crowd.retry(0, 50), "the schedule of the first is kept");
    assert!(!crowd.retry(1, 50) && !crowd.retry(2, 99));
    assert!(crowd.queue.turn(0).is_first && crowd.queue.turn(0).free_at.is_some());
    assert_eq!(crowd.queue.turn(1), Turn { is_first: false, look: false, free_at: None });
}

#[test]
fn an_answer_that_is_older_than_a_waiters_own_pause_does_not_stand_for_it() {
    let mut crowd = Crowd::of(2);
    crowd.asked_at(0);
    let now = crowd.at(20);

    assert!(!crowd.queue.retry(1, now, Duration::from_millis(10), false));

    assert!(crowd.is_rung(0), "it is the first that asks, in its stead");
    assert!(crowd.queue.turn(0).look && !crowd.queue.turn(0).look, "once");
}

#[test]
fn a_request_under_way_is_waited_for() {
    let mut crowd = Crowd::of(2);
    let now = crowd.at(0);
    crowd.queue.ask(now);

    assert!(!crowd.retry(1, 900));
    assert!(!crowd.is_rung(0));
    assert!(!crowd.retry(1, 1_100));
    assert!(crowd.is_rung(0), "it takes too long");
}

#[test]
fn a_first_that_does_not_move_is_passed_over_and_keeps_its_place() {
    let mut crowd = Crowd::of(3);
    assert!(!crowd.retry(2, 0) && crowd.is_rung(0));
    assert!(!crowd.retry(2, 900), "it is given time");

    assert!(crowd.retry(2, 1_001), "who found it asks itself");

    assert!(crowd.is_rung(1));
    assert!(crowd.queue.turn(1).is_first);
    assert!(crowd.queue.turn(0).is_first, "it came first");
    assert!(!crowd.queue.turn(1).is_first);
}

#[test]
fn whoever_has_the_lock_makes_room_for_the_next_who_need_not_look() {
    let mut crowd = Crowd::of(3);
    let now = crowd.at(0);
    crowd.queue.call(now, true);

    crowd.queue.acquired(0, now, Duration::from_secs(31));

    assert!(crowd.is_rung(1) && !crowd.is_rung(2));
    let turn = Turn { is_first: true, look: false, free_at: Some(crowd.at(31_000)) };
    assert_eq!(crowd.queue.turn(1), turn);
}

#[test]
fn a_look_that_the_first_did_not_take_is_left_to_the_next() {
    let mut crowd = Crowd::of(2);
    let now = crowd.at(0);
    crowd.queue.call(now, true);

    crowd.queue.remove(0, now);

    assert!(crowd.is_rung(1) && crowd.queue.turn(1).look);
}

#[test]
fn at_the_end_of_its_time_a_waiter_asks_unless_somebody_just_has() {
    let mut crowd = Crowd::of(2);
    crowd.asked_at(0);
    let (soon, late) = (crowd.at(50), crowd.at(150));

    assert!(!crowd.queue.retry(1, soon, LONG, true));
    assert!(crowd.queue.retry(1, late, LONG, true));
    assert!(!crowd.is_rung(0));

    crowd.queue.failed(late);
    assert!(crowd.queue.retry(1, late, AT_ONCE, true), "to learn why the storage does not answer");
    crowd.queue.asking = LAST_WORDS;
    assert!(!crowd.queue.retry(1, late, AT_ONCE, true), "but not all of ten thousand at once");
}

#[test]
fn a_hint_that_led_to_no_answer_is_followed_by_a_few_and_not_by_all() {
    let mut crowd = Crowd::of(10);
    let now = crowd.at(0);

    let mut asked = 0;
    loop {
        let first = crowd.queue.first().unwrap();
        asked += 1;
        crowd.queue.failed(now);
        crowd.queue.step_back(first, now);
        if crowd.queue.first() == Some(first) {
            break;
        }
    }

    assert_eq!(asked, 1 + FOLLOWERS);
}

#[test]
fn who_came_first_stands_first_when_it_joins_late() {
    let queues = Queues::default();
    let key = Key::new("k").unwrap();
    let mut early = Place::new(&queues, &key);
    let late = Place::new(&queues, &key);
    assert!(early.bell.is_none() && late.turn().is_first, "who is alone needs no queue");

    early.contended(Contention::new());

    assert!(early.turn().is_first && !late.turn().is_first);
    drop((early, late));
    assert!(queues.keys().is_empty());
    assert!(queues.wanted.iter().all(|wanted| wanted.load(Ordering::Relaxed) == 0));
}

#[test]
fn a_waiter_that_leaves_while_it_asks_lets_the_next_look() {
    let queues = Queues::default();
    let key = Key::new("k").unwrap();
    let mut first = Place::new(&queues, &key);
    first.contended(Contention::new());
    let second = Place::new(&queues, &key);
    assert!(!second.turn().is_first);

    first.ask();
    drop(first);

    assert_eq!(queues.keys()[&key].asking, 0);
    let turn = second.turn();
    assert!(turn.is_first && turn.look);
}
