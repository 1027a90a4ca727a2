//! Which cases are there?
//!
//! One list. [`suite!`](crate::suite) turns it into tests and [`CASES`] into names, so the two cannot differ.

/// Makes one test for each case, in a module of the given name.
///
/// The second argument makes a fresh harness and may await; add `paused` for a backend on tokio's clock.
///
/// ```no_run
/// // tests/conformance.rs of your backend
/// # use syncguard_conformance::MemoryHarness;
/// syncguard_conformance::suite!(memory, MemoryHarness::start(), paused);
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! suite {
    ($target:ident, $start:expr) => {
        $crate::__suite!($target, Real, $start);
    };
    ($target:ident, $start:expr, paused) => {
        $crate::__suite!($target, Paused, $start);
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __suite {
    ($target:ident, $time:ident, $start:expr) => {
        mod $target {
            #[allow(unused_imports)]
            use super::*;
            $crate::__for_each_case!(__tests { $time, $start });
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __tests {
    ($with:tt $($group:ident :: $case:ident,)*) => {
        $($crate::__test!($with $group $case);)*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __test {
    ({ $time:ident, $start:expr } $group:ident $case:ident) => {
        #[test]
        fn $case() {
            $crate::run($crate::Time::$time, stringify!($case), async { $start }, async |harness| {
                $crate::cases::$group::$case(harness).await;
            });
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __names {
    ({} $($group:ident :: $case:ident,)*) => {
        &[$(stringify!($case)),*]
    };
}

/// The names of all cases, in the order of the suite.
pub const CASES: &[&str] = crate::__for_each_case!(__names {});

#[doc(hidden)]
#[macro_export]
macro_rules! __for_each_case {
    ($then:ident $with:tt) => {
        $crate::$then! { $with
            exclusion::one_of_many_acquirers_of_an_absent_key_wins,
            exclusion::one_of_many_acquirers_of_a_released_key_wins,
            exclusion::one_of_many_acquirers_of_an_expired_key_wins,
            fences::the_first_fence_is_one,
            fences::fences_rise_strictly_over_many_cycles,
            fences::a_contended_acquire_consumes_no_fence,
            fences::fences_rise_over_expiry_and_takeover,
            ownership::a_released_lock_can_be_taken_at_once,
            ownership::releasing_twice_is_absent_the_second_time,
            ownership::a_stranger_can_neither_release_nor_extend,
        }
    };
}
