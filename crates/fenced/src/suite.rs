//! Does a store of marks keep its promise?
//!
//! The cases are written once; [`fenced_suite!`](crate::fenced_suite) makes one test of each. They ask through
//! [`HighWater`] alone, so that what passes here is what the guards rely on.

#![allow(clippy::unwrap_used, reason = "a case fails by panicking")]

use futures_util::future::join_all;
use syncguard_core::{Fence, Key};

use crate::{HighWater, StaleFence};

/// How the suite gets at a store under test.
///
/// One harness stands for one empty store; the suite makes a new one for each case.
pub trait Harness: Send + Sync {
    /// The store under test.
    type Marks: HighWater;

    /// Opens the store. Called several times: all that are opened must see the same marks. A store that forgets when it
    /// is closed hands out the same one each time.
    fn open(&self) -> impl Future<Output = Self::Marks> + Send;
}

/// Makes one test for each case, in a module of the given name. The second argument makes a fresh [`Harness`] and may
/// await.
///
/// ```no_run
/// use std::sync::Arc;
/// use syncguard_fenced::{MemoryMarks, suite::Harness};
///
/// #[derive(Default)]
/// struct Mine(Arc<MemoryMarks>); // your own store in its place
///
/// impl Harness for Mine {
///     type Marks = Arc<MemoryMarks>;
///     async fn open(&self) -> Arc<MemoryMarks> {
///         self.0.clone()
///     }
/// }
///
/// syncguard_fenced::fenced_suite!(mine, Mine::default());
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! fenced_suite {
    ($name:ident, $harness:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::__fenced_cases!(__fenced_tests { $harness });
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __fenced_cases {
    ($then:ident $with:tt) => {
        $crate::$then! { $with
            the_first_fence_is_accepted_and_remembered,
            the_same_fence_is_accepted_again,
            a_lower_fence_is_refused_with_both_numbers,
            a_refused_fence_changes_nothing,
            a_refused_fence_is_refused_again,
            fences_are_compared_as_numbers,
            the_last_fence_is_understood,
            each_key_has_its_own_mark,
            keys_of_any_form_are_kept_apart,
            another_client_sees_the_mark,
            of_many_at_once_the_highest_remains,
            what_was_accepted_before_is_never_undercut,
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __fenced_tests {
    ($with:tt $($case:ident,)*) => { $($crate::__fenced_test!($with $case);)* };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __fenced_test {
    ({ $harness:expr } $case:ident) => {
        #[test]
        fn $case() {
            $crate::suite::run(async {
                let harness = $harness;
                $crate::suite::$case(&harness).await;
            });
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __fenced_names {
    ({} $($case:ident,)*) => { &[$(stringify!($case)),*] };
}

/// The names of all cases.
pub const CASES: &[&str] = crate::__fenced_cases!(__fenced_names {});

#[doc(hidden)]
#[macro_export]
macro_rules! __fenced_named {
    ({ $name:expr, $harness:expr } $($case:ident,)*) => {
        match $name {
            $(stringify!($case) => $crate::suite::$case($harness).await,)*
            unknown => panic!("no case is called {unknown}"),
        }
    };
}

/// Runs the one case of this name, for bisecting by hand and for proving impostors.
pub async fn run_named<H: Harness>(name: &str, harness: &H) {
    crate::__fenced_cases!(__fenced_named { name, harness });
}

/// Runs one case on a runtime of its own. [`fenced_suite!`](crate::fenced_suite) calls this.
pub fn run(case: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("the runtime of a case starts");
    runtime.block_on(case);
}

fn key(name: &str) -> Key {
    Key::new(name).expect("a key")
}

fn fence(number: u64) -> Fence {
    Fence::new(number).expect("a fence")
}

async fn refused<M: HighWater>(marks: &M, key: &Key, offered: Fence) -> StaleFence {
    let error = marks.advance(key, offered).await.expect_err("a lower fence was accepted");
    error.stale().unwrap_or_else(|| panic!("a lower fence was not called stale: {error}"))
}

/// A store that has seen nothing accepts any fence.
pub async fn the_first_fence_is_accepted_and_remembered<H: Harness>(harness: &H) {
    let marks = harness.open().await;
    assert_eq!(marks.highest(&key("k")).await.unwrap(), None);

    marks.advance(&key("k"), fence(41)).await.unwrap();

    assert_eq!(marks.highest(&key("k")).await.unwrap(), Some(fence(41)));
}

/// A holder writes more than once.
pub async fn the_same_fence_is_accepted_again<H: Harness>(harness: &H) {
    let marks = harness.open().await;
    for _ in 0..3 {
        marks.advance(&key("k"), fence(41)).await.unwrap();
    }
    assert_eq!(marks.highest(&key("k")).await.unwrap(), Some(fence(41)));
}

/// The refusal says what was offered and what was seen.
pub async fn a_lower_fence_is_refused_with_both_numbers<H: Harness>(harness: &H) {
    let marks = harness.open().await;
    marks.advance(&key("k"), fence(42)).await.unwrap();

    let stale = refused(&marks, &key("k"), fence(41)).await;

    assert_eq!(stale, StaleFence { offered: fence(41), seen: fence(42) });
}

/// A refusal leaves the mark where it is.
pub async fn a_refused_fence_changes_nothing<H: Harness>(harness: &H) {
    let marks = harness.open().await;
    marks.advance(&key("k"), fence(42)).await.unwrap();
    refused(&marks, &key("k"), fence(1)).await;

    assert_eq!(marks.highest(&key("k")).await.unwrap(), Some(fence(42)));
    marks.advance(&key("k"), fence(42)).await.unwrap();
}

/// A stale holder that insists stays refused.
pub async fn a_refused_fence_is_refused_again<H: Harness>(harness: &H) {
    let marks = harness.open().await;
    marks.advance(&key("k"), fence(42)).await.unwrap();
    for _ in 0..3 {
        assert_eq!(refused(&marks, &key("k"), fence(41)).await.seen, fence(42));
    }
}

/// Nine is below ten, whatever text says.
pub async fn fences_are_compared_as_numbers<H: Harness>(harness: &H) {
    let marks = harness.open().await;
    for number in [9, 10, 99, 100, 99_999, 100_000] {
        marks.advance(&key("k"), fence(number)).await.unwrap();
    }
    refused(&marks, &key("k"), fence(99_999)).await;
}

/// No number in the path is narrower than a fence.
pub async fn the_last_fence_is_understood<H: Harness>(harness: &H) {
    let marks = harness.open().await;
    for number in [u64::from(u32::MAX), u64::from(u32::MAX) + 1, Fence::MAX.get() - 1, Fence::MAX.get()] {
        marks.advance(&key("k"), fence(number)).await.unwrap();
    }
    let stale = refused(&marks, &key("k"), fence(Fence::MAX.get() - 1)).await;
    assert_eq!(stale.seen, Fence::MAX);
}

/// The mark of one key says nothing about another.
pub async fn each_key_has_its_own_mark<H: Harness>(harness: &H) {
    let marks = harness.open().await;
    marks.advance(&key("a"), fence(42)).await.unwrap();
    marks.advance(&key("b"), fence(7)).await.unwrap();

    assert_eq!(refused(&marks, &key("a"), fence(41)).await.seen, fence(42));
    assert_eq!(refused(&marks, &key("b"), fence(6)).await.seen, fence(7));
}

/// Keys differ in case, in spaces, in signs that mean something to a storage, and by their last byte.
pub async fn keys_of_any_form_are_kept_apart<H: Harness>(harness: &H) {
    let long = "x".repeat(Key::MAX_BYTES - 1);
    let names = [
        "k",
        "K",
        " k",
        "k ",
        "k:",
        ":k",
        "{k}",
        "{",
        "}",
        "a}b",
        "{}a",
        "k%",
        "k_",
        "k/..",
        "../k",
        "k'",
        "k\"",
        "k\\",
        "k\n",
        "\u{e9}",
        "e",
        "\u{1f600}",
        "null",
        "0",
        "%7B",
    ];
    let keys: Vec<Key> =
        names.iter().map(|name| key(name)).chain([key(&format!("{long}a")), key(&format!("{long}b"))]).collect();
    let marks = harness.open().await;
    for (number, key) in (100..).zip(&keys) {
        assert_eq!(marks.highest(key).await.unwrap(), None, "{key:?} shares a mark");
        marks.advance(key, fence(number)).await.unwrap();
    }
    for (number, key) in (100..).zip(&keys) {
        assert_eq!(marks.highest(key).await.unwrap(), Some(fence(number)), "{key:?} shares a mark");
    }
}

/// What one client was told, all others know.
pub async fn another_client_sees_the_mark<H: Harness>(harness: &H) {
    let (first, second) = (harness.open().await, harness.open().await);
    first.advance(&key("k"), fence(42)).await.unwrap();

    assert_eq!(refused(&second, &key("k"), fence(41)).await.seen, fence(42));
    second.advance(&key("k"), fence(43)).await.unwrap();
    drop(second);
    assert_eq!(refused(&first, &key("k"), fence(42)).await.seen, fence(43));
    drop(first);

    let third = harness.open().await;
    assert_eq!(third.highest(&key("k")).await.unwrap(), Some(fence(43)));
}

/// 64 calls at once, the highest in their middle: whoever compares first and stores later leaves a lower mark, in
/// whatever order the calls are carried out.
pub async fn of_many_at_once_the_highest_remains<H: Harness>(harness: &H) {
    let marks = harness.open().await;
    let key = key("k");
    for round in 0..4_u64 {
        let highest = 1_000 * (round + 1);
        let offers = (0..64_u64).map(|number| fence(highest - number.abs_diff(32)));
        let calls = offers.map(async |offer| marks.advance(&key, offer).await.map(|()| offer));

        let answers = join_all(calls).await;

        let accepted = answers.into_iter().filter_map(Result::ok).max();
        assert_eq!(accepted, Some(fence(highest)), "the highest was refused");
        assert_eq!(marks.highest(&key).await.unwrap(), accepted, "the mark is below a fence that was accepted");
    }
}

/// A call that starts after a higher fence was accepted is refused, whatever else is under way.
pub async fn what_was_accepted_before_is_never_undercut<H: Harness>(harness: &H) {
    let marks = harness.open().await;
    let key = key("k");
    let floor = std::sync::atomic::AtomicU64::new(0);
    let order = std::sync::atomic::Ordering::SeqCst;
    let writers = (0..64_u64).map(async |writer| {
        for step in 0..8_u64 {
            let offer = 1 + step * 16 + (writer * 37 + step * 11) % 64;
            let before = floor.load(order);
            if marks.advance(&key, fence(offer)).await.is_ok() {
                assert!(offer >= before, "{offer} was accepted after {before}");
                floor.fetch_max(offer, order);
            }
            tokio::task::yield_now().await;
        }
    });
    join_all(writers).await;
    assert_eq!(marks.highest(&key).await.unwrap().map(Fence::get), Some(floor.load(order)));
}
