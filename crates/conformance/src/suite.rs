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

#[doc(hidden)]
#[macro_export]
macro_rules! __run_named {
    ({ $name:expr, $time:ident, $start:expr } $($group:ident :: $case:ident,)*) => {
        match $name {
            $(stringify!($case) => $crate::run($crate::Time::$time, $name, async { $start }, async |harness| {
                $crate::cases::$group::$case(harness).await;
            }),)*
            unknown => panic!("no case is called {unknown}"),
        }
    };
}

/// Runs the one case of this name, for bisecting by hand and for proving impostors.
///
/// ```
/// # use syncguard_conformance::MemoryHarness;
/// syncguard_conformance::run_named!("the_first_fence_is_one", MemoryHarness::start(), paused);
/// ```
#[macro_export]
macro_rules! run_named {
    ($name:expr, $start:expr) => {
        $crate::__for_each_case!(__run_named { $name, Real, $start })
    };
    ($name:expr, $start:expr, paused) => {
        $crate::__for_each_case!(__run_named { $name, Paused, $start })
    };
}

/// The names of all cases, in the order of the suite.
pub const CASES: &[&str] = crate::__for_each_case!(__names {});

#[doc(hidden)]
#[macro_export]
macro_rules! __for_each_case {
    ($then:ident $with:tt) => {
        $crate::$then! { $with
            keys::the_composed_and_decomposed_forms_of_a_key_are_one_lock,
            keys::compatibility_forms_are_two_locks,
            keys::upper_and_lower_case_are_two_locks,
            keys::white_space_is_part_of_a_key,
            keys::a_key_of_512_bytes_is_a_lock,
            keys::a_key_of_512_bytes_of_wide_characters_is_a_lock,
            keys::long_keys_that_differ_at_the_end_are_two_locks,
            keys::a_long_key_and_its_hash_are_two_locks,
            keys::control_characters_are_part_of_a_key,
            keys::emoji_are_part_of_a_key,
            keys::invisible_characters_make_a_key_another,
            keys::noncharacters_are_part_of_a_key,
            keys::slashes_are_part_of_a_key,
            keys::dots_are_a_key,
            keys::double_underscores_are_part_of_a_key,
            keys::a_key_in_the_form_of_an_index_is_a_lock_or_refused,
            keys::a_key_in_the_form_of_a_counter_is_a_lock_or_refused,
            keys::sql_metacharacters_are_literal,
            keys::glob_metacharacters_are_literal,
            keys::braces_are_part_of_a_key,
            keys::a_key_that_looks_like_a_value_is_a_lock,
            keys::colons_are_part_of_a_key,
            keys::a_key_and_its_beginning_are_two_locks,
            keys::two_namespaces_never_see_each_other,
            keys::malformed_lock_ids_are_refused,
            keys::the_lock_ids_of_a_backend_are_valid_and_differ,
            keys::an_id_with_other_spare_bits_is_a_stranger,
            keys::a_lease_of_366_days_keeps_every_millisecond,
            inputs::an_empty_key_is_refused_before_any_io,
            inputs::a_key_of_513_bytes_is_refused_before_any_io,
            inputs::a_key_with_nul_is_refused_before_any_io,
            inputs::a_huge_key_is_refused_in_few_words,
            inputs::a_bad_ttl_is_refused_before_any_io,
            inputs::a_bad_extension_is_refused_and_the_lock_stays,
            inputs::bad_settings_are_refused_before_any_io,
            inputs::extreme_retry_settings_do_not_overflow,
            fences::the_first_fence_is_one,
            fences::fences_rise_strictly_over_many_cycles,
            fences::a_contended_acquire_consumes_no_fence,
            fences::fences_rise_over_expiry_and_takeover,
            fences::fences_rise_over_cleanup,
            fences::fences_rise_over_another_set_up,
            fences::fences_rise_over_a_restart,
            fences::fences_rise_from_client_to_client,
            fences::no_fence_is_given_twice_under_load,
            fences::extend_and_release_move_no_counter,
            fences::a_fence_is_the_same_everywhere_it_is_seen,
            fences::the_text_order_of_fences_is_their_order,
            fences::a_counter_at_its_limit_refuses_and_leaves_no_lock,
            fences::a_counter_past_its_limit_refuses_and_leaves_no_lock,
            fences::a_counter_above_the_warning_still_grants,
            fences::the_stored_counter_is_the_last_fence,
            fences::only_acquire_makes_a_counter,
            exclusion::one_of_many_acquirers_of_an_absent_key_wins,
            exclusion::one_of_many_acquirers_of_a_released_key_wins,
            exclusion::one_of_many_acquirers_of_an_expired_key_wins,
            exclusion::acquirers_of_different_keys_all_win,
            exclusion::many_requests_of_one_id_are_one_acquisition,
            exclusion::a_lease_granted_in_a_crowd_is_whole,
            exclusion::a_release_and_an_acquire_at_once_leave_at_most_one_holder,
            exclusion::an_extend_never_brings_back_a_released_lock,
            exclusion::no_two_holders_at_once_over_many_contended_cycles,
            exclusion::an_extend_and_an_acquire_at_the_end_never_both_succeed,
            liveness::a_lock_is_held_until_its_lease_ends,
            liveness::a_lock_is_live_within_the_tolerance,
            liveness::an_owner_may_extend_within_the_tolerance,
            liveness::an_owner_may_release_within_the_tolerance,
            liveness::a_lock_is_free_after_the_tolerance,
            liveness::a_dead_lock_cannot_be_extended,
            liveness::a_dead_lock_cannot_be_released,
            liveness::extend_replaces_the_lease,
            liveness::extend_may_shorten_the_lease,
            liveness::a_lease_that_is_extended_outlives_its_first_end,
            liveness::extend_changes_only_the_expiry,
            liveness::the_expiry_comes_from_the_backends_clock,
            liveness::a_lease_of_one_millisecond_ends,
            liveness::leases_of_different_keys_end_for_themselves,
            liveness::a_contended_answer_tells_the_wait_truly,
            liveness::is_locked_follows_the_predicate_through_the_end,
            ownership::a_released_lock_can_be_taken_at_once,
            ownership::releasing_twice_is_absent_the_second_time,
            ownership::a_stranger_can_neither_release_nor_extend,
            ownership::an_owner_may_extend_and_release_from_another_client,
            ownership::an_old_owner_cannot_touch_the_lock_after_a_takeover,
            ownership::an_unknown_id_is_absent_everywhere,
            ownership::owners_of_different_keys_do_not_meet,
            ownership::acquiring_again_with_the_same_id_owns_up,
            ownership::a_lease_that_is_owned_up_to_tells_its_age,
            ownership::a_released_id_that_acquires_again_gets_a_new_fence,
            ownership::a_dead_id_that_acquires_again_gets_a_new_fence,
            ownership::lookups_by_key_and_by_id_agree,
            ownership::lookups_are_read_only,
            ownership::a_lookup_of_what_is_not_held_is_none,
            ownership::an_info_shows_no_raw_name,
            ownership::a_label_is_kept_as_it_is_or_left_out,
            waking::a_release_by_another_client_wakes_a_waiter,
            waking::a_release_by_the_same_client_wakes_a_waiter,
            waking::a_waiter_that_left_does_not_take_the_hint_with_it,
            waking::waiting_for_a_key_does_not_lock_it,
            cancel::dropping_acquire_at_every_poll_leaves_no_lock_beyond_its_lease,
            cancel::an_acquire_dropped_at_any_poll_can_be_asked_again,
            cancel::a_release_dropped_at_any_poll_can_be_asked_again,
            cancel::an_extend_dropped_at_any_poll_leaves_the_lock_with_its_owner,
            cancel::looks_dropped_at_any_poll_leave_the_client_in_step,
            cancel::a_crowd_of_dropped_calls_leaves_the_client_usable,
            client::a_contended_try_is_none,
            client::a_waiter_gets_a_lock_that_is_released,
            client::a_waiter_gets_a_lock_whose_holder_died,
            client::many_waiters_each_get_their_turn,
            client::a_sleeping_waiter_is_woken_by_a_release,
            client::the_timeout_is_a_wall_while_the_lock_is_held,
            client::the_timeout_is_a_wall_while_the_backend_hangs,
            client::a_silent_backend_is_not_told_as_a_holder,
            client::a_timeout_of_zero_is_one_attempt,
            client::max_retries_counts_retries,
            client::a_retry_delay_of_zero_retries,
            client::the_delays_follow_the_formulas,
            client::the_last_attempt_is_made_at_the_deadline,
            client::transient_errors_are_retried,
            client::permanent_errors_are_not_retried,
            client::a_backend_that_stays_away_is_told_as_such,
            client::a_cancel_ends_a_retry_sleep_at_once,
            client::a_cancel_ends_a_call_in_flight_and_leaves_no_lock,
            client::a_cancelled_token_asks_nobody,
            client::dropping_acquire_midway_leaves_no_lock,
            client::dropping_acquire_at_every_poll_leaves_no_lock_after_draining,
            client::a_waiter_owns_up_to_a_lost_reply,
            client::a_lost_reply_to_a_single_try_is_cleaned_up,
            client::a_grant_that_arrives_too_late_is_no_guard,
            guard::a_guard_shows_what_is_stored,
            guard::a_second_release_of_a_guard_asks_nobody,
            guard::a_failed_release_may_be_tried_again,
            guard::dropping_a_guard_releases,
            guard::a_dropped_guard_releases_through_a_short_outage,
            guard::dropping_a_guard_on_a_bare_thread_releases,
            guard::dropping_a_guard_without_its_runtime_leaves_it_to_the_lease,
            guard::a_guard_dropped_by_a_panic_releases,
            guard::a_leaked_lock_stays_with_its_id,
            guard::extending_a_guard_moves_its_deadline,
            guard::a_guard_stops_believing_before_its_lease_ends,
            guard::a_guard_whose_lock_was_taken_away_is_lost,
            guard::a_lock_that_is_kept_alive_outlives_its_lease,
            guard::renewal_survives_two_failures_inside_the_lease,
            guard::renewal_survives_a_lost_reply,
            guard::a_guard_knows_that_it_is_lost_when_the_server_is_gone,
            guard::a_late_renewal_does_not_revive_a_guard,
            guard::renewal_ends_with_the_guard,
            guard::a_release_during_a_renewal_leaves_no_lock,
            guard::the_longest_hold_ends_a_lock,
            guard::a_guard_warns_before_its_end,
            guard::a_wrong_wall_clock_changes_nothing,
            guard::a_guard_notices_that_the_machine_slept,
            work::work_runs_under_its_lock,
            work::the_error_of_work_comes_back_and_the_lock_is_released,
            work::a_failed_release_does_not_hide_the_result,
            work::a_panicking_hook_harms_nothing,
            work::work_that_panics_releases,
            work::work_that_is_dropped_releases,
            work::a_cancel_during_the_work_still_releases,
            work::work_that_outlives_its_lease_is_stopped,
            work::work_may_choose_to_go_on_when_its_lock_is_lost,
            work::work_that_is_kept_alive_outlives_its_lease,
            work::work_is_stopped_before_the_lease_ends_when_the_server_is_gone,
            work::work_never_begins_without_the_lock,
            several::several_keys_are_taken_together,
            several::several_keys_are_taken_all_or_none,
            several::several_keys_in_any_order_do_not_deadlock,
            several::leaders_follow_one_another_in_rising_terms,
            several::an_election_shows_its_leader,
            failure::a_value_that_is_no_lock_is_never_free,
            failure::an_empty_value_is_never_free,
            failure::a_lock_without_an_expiry_is_never_free,
            failure::a_lock_whose_expiry_is_text_is_never_free,
            failure::a_live_lock_without_an_owner_is_never_free,
            failure::errors_show_no_raw_name,
            failure::an_acquire_whose_reply_was_lost_is_owned_up_to,
            failure::an_acquire_whose_reply_was_lost_can_be_given_up,
            failure::an_extend_whose_reply_was_lost_can_be_repeated,
            failure::a_release_whose_reply_was_lost_can_be_repeated,
            failure::a_health_report_answers_and_harms_nothing,
            failure::the_capabilities_are_true,
            telemetry::every_operation_is_told_once,
            telemetry::the_operations_of_a_guard_are_told,
            telemetry::failures_are_told_with_their_code,
            telemetry::the_reasons_are_told,
            telemetry::the_end_of_a_lease_is_told,
            telemetry::events_show_no_raw_name_unless_asked,
            telemetry::names_are_told_only_where_the_predicate_says_so,
            telemetry::names_that_look_like_secrets_are_never_told,
            telemetry::a_panicking_sink_harms_nothing,
            telemetry::a_sink_that_blocks_holds_nothing_up,
            cleanup::purging_an_empty_storage_removes_nothing,
            cleanup::purging_removes_the_dead_once_and_spares_the_living,
            cleanup::purging_spares_what_died_a_moment_ago,
            cleanup::purging_leaves_the_counter_alone,
            cleanup::purging_stays_in_its_namespace,
            cleanup::looking_does_not_clean_up_by_default,
            cleanup::cleaning_while_looking_spares_the_living,
            cleanup::cleaning_while_looking_removes_the_dead_and_no_counter,
            inspect::a_listing_shows_what_is_held_by_the_beginning_of_its_key,
            inspect::a_listing_and_a_count_pass_over_what_is_over,
            inspect::a_listing_passes_over_what_is_no_lock,
            inspect::inspecting_changes_nothing,
            inspect::a_label_is_shown_and_not_with_the_next_holder,
            inspect::a_holder_hears_with_its_next_renewal_that_it_was_asked,
            inspect::a_release_that_is_waited_for_hints_at_a_change,
            inspect::a_watch_tells_who_came_and_who_left,
        }
    };
}
