//! The table of the machine: who may ask, and when, line by line.
#![allow(clippy::unwrap_used)]

use std::pin::pin;
use std::task::{Context, Waker};

use super::*;
use crate::retry::{Backoff, Jitter};

const MINUTE: Contention = Contention::free_in(Duration::from_secs(60));

/// A room of waiters that have come and not yet moved. Waiter 0 came first.
struct Crowd {
    room: Room,
    waiters: Vec<Waiter>,
    bells: Vec<Arc<Notify>>,
    start: Instant,
}

impl Crowd {
    fn of(waiters: u64) -> Self {
        Self::with(waiters, &RetryPolicy { max_retries: None, timeout: None, ..RetryPolicy::default() })
    }

    fn with(waiters: u64, policy: &RetryPolicy) -> Self {
        let policy = RetryPolicy { jitter: Jitter::None, ..policy.clone() };
        let (mut room, start) = (Room::default(), Instant::now());
        let waiters: Vec<_> = (0..waiters).map(|number| Waiter::new(number, policy.clone(), start, start)).collect();
        let bells = waiters.iter().map(|waiter| room.enter(waiter)).collect();
        Self { room, waiters, bells, start }
    }

    fn at(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    fn on(&mut self, waiter: usize, event: Event, millis: u64) -> Step {
        let now = self.at(millis);
        self.room.on(&mut self.waiters[waiter], event, now, 0.0)
    }

    fn moves(&mut self, waiter: usize, millis: u64) -> Step {
        self.on(waiter, Event::Moved, millis)
    }

    /// The first asks at 0, and is told that somebody holds the lock for a minute. The others have moved once.
    fn settled(waiters: u64) -> Self {
        let mut crowd = Self::of(waiters);
        assert_eq!(crowd.moves(0, 0), Step::Ask);
        for waiter in 1..crowd.waiters.len() {
            assert_eq!(crowd.moves(waiter, 0), Step::Sleep(crowd.at(100)), "a request is under way");
        }
        assert_eq!(crowd.on(0, Event::Contended(MINUTE), 1), Step::Listen(crowd.at(101)));
        crowd
    }

    fn is_rung(&self, number: usize) -> bool {
        pin!(self.bells[number].notified()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }
}

#[test]
fn the_first_asks_by_its_schedule_and_its_answer_stands_for_the_others() {
    let mut crowd = Crowd::settled(3);

    assert_eq!(crowd.moves(1, 100), Step::Sleep(crowd.at(300)));
    assert_eq!(crowd.moves(0, 101), Step::Ask);
    assert_eq!(crowd.on(0, Event::Contended(MINUTE), 102), Step::Listen(crowd.at(302)));
    assert_eq!(crowd.moves(2, 110), Step::Sleep(crowd.at(310)));
    assert!(!crowd.is_rung(0));
}

#[test]
fn a_waiter_that_finds_the_answer_too_old_calls_the_first_which_looks_once() {
    let mut crowd = Crowd::settled(2);

    assert_eq!(crowd.moves(1, 250), Step::Sleep(crowd.at(450)));

    assert!(crowd.is_rung(0));
    assert_eq!(crowd.moves(0, 90), Step::Ask, "before its schedule");
    assert!(matches!(crowd.on(0, Event::Contended(MINUTE), 91), Step::Listen(_)));
    assert!(matches!(crowd.moves(0, 92), Step::Listen(_)), "once");
}

#[test]
fn a_request_under_way_is_waited_for_but_not_for_ever() {
    let mut crowd = Crowd::of(2);
    assert_eq!(crowd.moves(0, 0), Step::Ask);

    assert!(matches!(crowd.moves(1, 900), Step::Sleep(_)));
    assert!(!crowd.is_rung(0));
    assert!(matches!(crowd.moves(1, 1_100), Step::Sleep(_)));
    assert!(crowd.is_rung(0), "it takes too long");
}

#[test]
fn a_first_that_does_not_move_is_passed_over_and_keeps_its_place() {
    let mut crowd = Crowd::of(3);
    assert_eq!(crowd.moves(2, 0), Step::Sleep(crowd.at(100)));
    assert!(crowd.is_rung(0));
    assert_eq!(crowd.moves(2, 900), Step::Sleep(crowd.at(1_100)), "it is given time");

    assert_eq!(crowd.moves(2, 1_100), Step::Ask, "who found it asks itself");

    assert!(crowd.is_rung(1));
    assert!(matches!(crowd.on(2, Event::Contended(MINUTE), 1_101), Step::Sleep(_)));
    assert_eq!(crowd.moves(1, 1_101), Step::Ask, "the next looks");
    assert_eq!(crowd.room.first(), Some(1));
    let _ = crowd.moves(0, 1_102);
    assert_eq!(crowd.room.first(), Some(0), "it came first");
}

#[test]
fn a_hint_leads_the_first_to_ask_at_once_and_does_not_move_its_schedule() {
    let mut crowd = Crowd::settled(2);

    assert_eq!(crowd.on(0, Event::MayBeFree, 10), Step::Ask);

    assert_eq!(crowd.on(0, Event::Contended(MINUTE), 11), Step::Listen(crowd.at(101)));
}

#[test]
fn what_another_one_hears_is_left_to_the_first() {
    let mut crowd = Crowd::settled(2);

    let step = crowd.on(1, Event::Subscribed { hears: true, look: true }, 10);

    assert_eq!(step, Step::Sleep(crowd.at(100)));
    assert!(crowd.is_rung(0));
    assert_eq!(crowd.moves(0, 11), Step::Ask);
}

#[test]
fn whoever_has_the_lock_makes_room_for_the_next_who_need_not_look() {
    let mut crowd = Crowd::settled(3);
    assert_eq!(crowd.on(0, Event::MayBeFree, 10), Step::Ask);

    let now = crowd.at(11);
    crowd.room.acquired(&mut crowd.waiters[0], Ttl::DEFAULT, now);

    assert!(crowd.is_rung(1) && !crowd.is_rung(2));
    assert_eq!(crowd.moves(1, 12), Step::Listen(crowd.at(100)));
    assert_eq!(crowd.room.free_at(), Some(crowd.at(31_011)));
}

#[test]
fn a_waiter_that_leaves_while_it_asks_lets_the_next_look() {
    let mut crowd = Crowd::settled(2);
    assert_eq!(crowd.on(0, Event::MayBeFree, 10), Step::Ask);

    let now = crowd.at(11);
    assert!(!crowd.room.leave(&mut crowd.waiters[0], now), "somebody here follows the hint");

    assert_eq!(crowd.room.asking, 0);
    assert!(crowd.is_rung(1));
    assert_eq!(crowd.moves(1, 12), Step::Ask);
    let now = crowd.at(13);
    assert!(crowd.room.leave(&mut crowd.waiters[1], now), "nobody is left here, so the hint is passed on");
    assert!(crowd.room.is_empty());
}

#[test]
fn the_end_of_a_lease_is_looked_for_once_and_before_the_schedule() {
    let mut crowd =
        Crowd::with(1, &RetryPolicy { retry_delay: Duration::from_secs(9), timeout: None, ..RetryPolicy::default() });
    assert_eq!(crowd.moves(0, 0), Step::Ask);

    let held = Event::Contended(Contention::free_in(Duration::from_millis(500)));
    assert_eq!(crowd.on(0, held, 0), Step::Listen(crowd.at(501)));

    assert_eq!(crowd.moves(0, 501), Step::Ask);
    assert_eq!(crowd.on(0, Event::Contended(Contention::new()), 502), Step::Listen(crowd.at(9_000)));
}

#[test]
fn a_backend_that_says_free_in_nothing_is_asked_seldom() {
    let mut crowd = Crowd::of(1);
    let (mut now, mut asked, mut step) = (0, 0, crowd.moves(0, 0));
    while now < 3_000 {
        step = match step {
            Step::Ask => {
                asked += 1;
                crowd.on(0, Event::Contended(Contention::free_in(Duration::ZERO)), now)
            }
            Step::Listen(until) => {
                now = u64::try_from((until - crowd.start).as_millis()).unwrap();
                crowd.moves(0, now)
            }
            step => panic!("{step:?}"),
        };
    }
    assert!((5..=14).contains(&asked), "asked {asked} times in 3 s");
}

#[test]
fn whoever_will_hear_of_the_release_asks_once_a_second() {
    let announced = Event::Contended(MINUTE.announcing_release());
    let fixed = RetryPolicy { backoff: Backoff::Fixed, max_retries: None, timeout: None, ..RetryPolicy::default() };
    let mut crowd = Crowd::with(2, &fixed);
    assert_eq!(crowd.moves(0, 0), Step::Ask);
    let _ = crowd.moves(1, 0);
    let _ = crowd.on(0, announced, 1);
    for waiter in 0..2 {
        let _ = crowd.on(waiter, Event::Subscribed { hears: true, look: false }, 2);
    }

    let mut asked = Vec::new();
    for at in 10..2_500 {
        let waiter = usize::from(at % 2 == 0);
        if crowd.moves(waiter, at) == Step::Ask {
            asked.push(at);
            let _ = crowd.on(waiter, announced, at);
        }
    }

    assert!(matches!(asked[..], [1_001..1_200, 2_001..2_400]), "{asked:?}");
}

#[test]
fn a_hint_that_led_to_no_answer_is_followed_by_a_few_and_not_by_all() {
    let mut crowd = Crowd::settled(10);
    assert_eq!(crowd.on(0, Event::MayBeFree, 10), Step::Ask);
    let (mut asked, mut waiter) = (1, 0);
    while crowd.on(waiter, Event::Failed, 11) == Step::Sleep(crowd.waiters[waiter].due) {
        waiter += 1;
        if !crowd.is_rung(waiter) {
            break;
        }
        assert_eq!(crowd.moves(waiter, 11), Step::Ask);
        asked += 1;
    }
    assert_eq!(asked, 1 + FOLLOWERS);
}

#[test]
fn at_the_end_of_its_time_a_waiter_asks_unless_somebody_just_has() {
    let budget = RetryPolicy { timeout: Some(Duration::from_millis(300)), ..RetryPolicy::default() };
    let mut crowd = Crowd::with(2, &budget);
    assert_eq!(crowd.moves(0, 0), Step::Ask);
    let _ = crowd.moves(1, 0);
    let _ = crowd.on(0, Event::Contended(MINUTE), 1);
    assert_eq!(crowd.moves(1, 100), Step::Sleep(crowd.at(300)), "a sleep ends at the wall");

    assert_eq!(crowd.moves(1, 300), Step::Ask);

    assert_eq!(crowd.on(1, Event::Contended(MINUTE), 301), Step::GiveUp);
}

#[test]
fn only_some_ask_at_the_end_of_their_time_while_the_storage_fails() {
    let budget = RetryPolicy { timeout: Some(Duration::from_millis(300)), ..RetryPolicy::default() };
    let mut crowd = Crowd::with(100, &budget);
    for waiter in 0..100 {
        let _ = crowd.moves(waiter, 0);
    }
    let _ = crowd.on(0, Event::Failed, 1);
    let _ = crowd.moves(1, 100);

    let ends: Vec<Step> = (2..100)
        .map(|waiter| {
            let _ = crowd.moves(waiter, 250);
            crowd.moves(waiter, 300)
        })
        .collect();

    let asking = ends.iter().filter(|step| **step == Step::Ask).count();
    assert!((1..=LAST_ASKERS).contains(&asking), "{asking}");
    assert!(ends.iter().all(|step| matches!(step, Step::Ask | Step::GiveUp)));
    assert!(!crowd.room.sees_a_holder(crowd.at(300)));
}

#[test]
fn whoever_retries_without_a_pause_still_ends() {
    let eager = RetryPolicy { retry_delay: Duration::ZERO, ..RetryPolicy::default() };
    let mut crowd = Crowd::with(1, &eager);
    let mut step = crowd.moves(0, 0);
    for _ in 0..RetryPolicy::DEFAULT_MAX_RETRIES {
        assert_eq!(step, Step::Ask);
        let wait = crowd.on(0, Event::Contended(Contention::new()), 0);
        assert!(matches!(wait, Step::Ask | Step::Listen(_)), "{wait:?}");
        step = if wait == Step::Ask { wait } else { crowd.moves(0, 0) };
    }
    assert_eq!(step, Step::Ask);
    assert_eq!(crowd.on(0, Event::Contended(Contention::new()), 0), Step::GiveUp);
}
