//! Which cases are there?
//!
//! One list. [`suite!`](crate::suite) turns it into tests and [`CASES`] into names, so the two cannot differ.

/// Makes one test for each case, in a module of the given name: `NAME::GROUP::CASE`.
///
/// One storage may be reached in several ways (TLS, a pooler, a cluster): run all cases in one of them, and in the others the groups
/// that can differ there, by a filter of names.
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
    ($with:tt $($group:ident { $($case:ident,)* })*) => {
        $(mod $group {
            #[allow(unused_imports)]
            use super::*;
            $($crate::__test!($with $group $case);)*
        })*
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
    ({} $($group:ident { $($case:ident,)* })*) => {
        &[$($(stringify!($case),)*)*]
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __run_named {
    ({ $name:expr, $time:ident, $start:expr } $($group:ident { $($case:ident,)* })*) => {
        match $name {
            $($(stringify!($case) => $crate::run($crate::Time::$time, $name, async { $start }, async |harness| {
                $crate::cases::$group::$case(harness).await;
            }),)*)*
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
            keys {
                the_composed_and_decomposed_forms_of_a_key_are_one_lock,
                compatibility_forms_are_two_locks,
                upper_and_lower_case_are_two_locks,
                white_space_is_part_of_a_key,
                a_key_of_512_bytes_is_a_lock,
                a_key_of_512_bytes_of_wide_characters_is_a_lock,
                long_keys_that_differ_at_the_end_are_two_locks,
                a_long_key_and_its_hash_are_two_locks,
                control_characters_are_part_of_a_key,
                emoji_are_part_of_a_key,
                invisible_characters_make_a_key_another,
                noncharacters_are_part_of_a_key,
                slashes_are_part_of_a_key,
                dots_are_a_key,
                double_underscores_are_part_of_a_key,
                a_key_in_the_form_of_an_index_is_a_lock_or_refused,
                a_key_in_the_form_of_a_counter_is_a_lock_or_refused,
                sql_metacharacters_are_literal,
                glob_metacharacters_are_literal,
                braces_are_part_of_a_key,
                a_key_that_looks_like_a_value_is_a_lock,
                colons_are_part_of_a_key,
                a_key_and_its_beginning_are_two_locks,
                two_namespaces_never_see_each_other,
                malformed_lock_ids_are_refused,
                the_lock_ids_of_a_backend_are_valid_and_differ,
                an_id_with_other_spare_bits_is_a_stranger,
                a_lease_of_366_days_keeps_every_millisecond,
            }
            inputs {
                an_empty_key_is_refused_before_any_io,
                a_key_of_513_bytes_is_refused_before_any_io,
                a_key_with_nul_is_refused_before_any_io,
                a_huge_key_is_refused_in_few_words,
                a_bad_ttl_is_refused_before_any_io,
                a_bad_extension_is_refused_and_the_lock_stays,
                bad_settings_are_refused_before_any_io,
                extreme_retry_settings_do_not_overflow,
            }
            fences {
                the_first_fence_is_one,
                fences_rise_strictly_over_many_cycles,
                a_contended_acquire_consumes_no_fence,
                fences_rise_over_expiry_and_takeover,
                fences_rise_over_cleanup,
                fences_rise_over_another_set_up,
                fences_rise_over_a_restart,
                fences_rise_from_client_to_client,
                no_fence_is_given_twice_under_load,
                extend_and_release_move_no_counter,
                a_fence_is_the_same_everywhere_it_is_seen,
                the_text_order_of_fences_is_their_order,
                a_counter_at_its_limit_refuses_and_leaves_no_lock,
                a_counter_past_its_limit_refuses_and_leaves_no_lock,
                a_counter_above_the_warning_still_grants,
                the_stored_counter_is_the_last_fence,
                only_acquire_makes_a_counter,
            }
            exclusion {
                one_of_many_acquirers_of_an_absent_key_wins,
                one_of_many_acquirers_of_a_released_key_wins,
                one_of_many_acquirers_of_an_expired_key_wins,
                acquirers_of_different_keys_all_win,
                many_requests_of_one_id_are_one_acquisition,
                a_dead_id_and_another_that_ask_at_once_are_never_both_granted,
                one_id_twice_at_once_over_a_dead_lock_is_one_acquisition,
                a_lease_granted_in_a_crowd_is_whole,
                a_release_and_an_acquire_at_once_leave_at_most_one_holder,
                an_extend_never_brings_back_a_released_lock,
                no_two_holders_at_once_over_many_contended_cycles,
                an_extend_and_an_acquire_at_the_end_never_both_succeed,
            }
            liveness {
                a_lock_is_held_until_its_lease_ends,
                a_lock_is_live_within_the_tolerance,
                an_owner_may_extend_within_the_tolerance,
                an_owner_may_release_within_the_tolerance,
                a_lock_is_free_after_the_tolerance,
                a_dead_lock_cannot_be_extended,
                a_dead_lock_cannot_be_released,
                extend_replaces_the_lease,
                extend_may_shorten_the_lease,
                a_lease_that_is_extended_outlives_its_first_end,
                extend_changes_only_the_expiry,
                the_expiry_comes_from_the_backends_clock,
                a_lease_of_one_millisecond_ends,
                leases_of_different_keys_end_for_themselves,
                a_contended_answer_tells_the_wait_truly,
                is_locked_follows_the_predicate_through_the_end,
            }
            ownership {
                a_released_lock_can_be_taken_at_once,
                releasing_twice_is_absent_the_second_time,
                a_stranger_can_neither_release_nor_extend,
                an_owner_may_extend_and_release_from_another_client,
                an_old_owner_cannot_touch_the_lock_after_a_takeover,
                an_unknown_id_is_absent_everywhere,
                owners_of_different_keys_do_not_meet,
                acquiring_again_with_the_same_id_owns_up,
                a_lease_that_is_owned_up_to_tells_its_age,
                a_released_id_that_acquires_again_gets_a_new_fence,
                a_dead_id_that_acquires_again_gets_a_new_fence,
                lookups_by_key_and_by_id_agree,
                lookups_are_read_only,
                a_lookup_of_what_is_not_held_is_none,
                an_info_shows_no_raw_name,
                a_label_is_kept_as_it_is_or_left_out,
            }
            waking {
                a_release_by_another_client_wakes_a_waiter,
                a_release_by_the_same_client_wakes_a_waiter,
                a_waiter_that_left_does_not_take_the_hint_with_it,
                waiting_for_a_key_does_not_lock_it,
            }
            cancel {
                dropping_acquire_at_every_poll_leaves_no_lock_beyond_its_lease,
                an_acquire_dropped_at_any_poll_can_be_asked_again,
                a_release_dropped_at_any_poll_can_be_asked_again,
                an_extend_dropped_at_any_poll_leaves_the_lock_with_its_owner,
                looks_dropped_at_any_poll_leave_the_client_in_step,
                a_crowd_of_dropped_calls_leaves_the_client_usable,
            }
            client {
                a_contended_try_is_none,
                a_waiter_gets_a_lock_that_is_released,
                a_waiter_gets_a_lock_whose_holder_died,
                many_waiters_each_get_their_turn,
                a_sleeping_waiter_is_woken_by_a_release,
                the_timeout_is_a_wall_while_the_lock_is_held,
                the_timeout_is_a_wall_while_the_backend_hangs,
                a_silent_backend_is_not_told_as_a_holder,
                a_timeout_of_zero_is_one_attempt,
                max_retries_counts_retries,
                a_retry_delay_of_zero_retries,
                the_delays_follow_the_formulas,
                the_last_attempt_is_made_at_the_deadline,
                transient_errors_are_retried,
                permanent_errors_are_not_retried,
                a_backend_that_stays_away_is_told_as_such,
                a_cancel_ends_a_retry_sleep_at_once,
                a_cancel_ends_a_call_in_flight_and_leaves_no_lock,
                a_cancelled_token_asks_nobody,
                dropping_acquire_midway_leaves_no_lock,
                dropping_acquire_at_every_poll_leaves_no_lock_after_draining,
                a_waiter_owns_up_to_a_lost_reply,
                a_lost_reply_to_a_single_try_is_cleaned_up,
                a_grant_that_arrives_too_late_is_no_guard,
            }
            guard {
                a_guard_shows_what_is_stored,
                a_second_release_of_a_guard_asks_nobody,
                a_failed_release_may_be_tried_again,
                dropping_a_guard_releases,
                a_dropped_guard_releases_through_a_short_outage,
                dropping_a_guard_on_a_bare_thread_releases,
                dropping_a_guard_without_its_runtime_leaves_it_to_the_lease,
                a_guard_dropped_by_a_panic_releases,
                a_leaked_lock_stays_with_its_id,
                extending_a_guard_moves_its_deadline,
                a_guard_stops_believing_before_its_lease_ends,
                a_guard_whose_lock_was_taken_away_is_lost,
                a_lock_that_is_kept_alive_outlives_its_lease,
                renewal_survives_two_failures_inside_the_lease,
                renewal_survives_a_lost_reply,
                a_guard_knows_that_it_is_lost_when_the_server_is_gone,
                a_late_renewal_does_not_revive_a_guard,
                renewal_ends_with_the_guard,
                a_release_during_a_renewal_leaves_no_lock,
                the_longest_hold_ends_a_lock,
                a_guard_warns_before_its_end,
                a_wrong_wall_clock_changes_nothing,
                a_guard_notices_that_the_machine_slept,
            }
            work {
                work_runs_under_its_lock,
                the_error_of_work_comes_back_and_the_lock_is_released,
                a_failed_release_does_not_hide_the_result,
                a_panicking_hook_harms_nothing,
                work_that_panics_releases,
                work_that_is_dropped_releases,
                a_cancel_during_the_work_still_releases,
                work_that_outlives_its_lease_is_stopped,
                work_may_choose_to_go_on_when_its_lock_is_lost,
                work_that_is_kept_alive_outlives_its_lease,
                work_is_stopped_before_the_lease_ends_when_the_server_is_gone,
                work_never_begins_without_the_lock,
            }
            several {
                several_keys_are_taken_together,
                several_keys_are_taken_all_or_none,
                several_keys_in_any_order_do_not_deadlock,
                leaders_follow_one_another_in_rising_terms,
                an_election_shows_its_leader,
            }
            failure {
                a_value_that_is_no_lock_is_never_free,
                an_empty_value_is_never_free,
                a_lock_without_an_expiry_is_never_free,
                a_lock_whose_expiry_is_text_is_never_free,
                a_live_lock_without_an_owner_is_never_free,
                errors_show_no_raw_name,
                an_acquire_whose_reply_was_lost_is_owned_up_to,
                an_acquire_whose_reply_was_lost_can_be_given_up,
                an_extend_whose_reply_was_lost_can_be_repeated,
                a_release_whose_reply_was_lost_can_be_repeated,
                a_health_report_answers_and_harms_nothing,
                the_capabilities_are_true,
            }
            storage {
                a_damaged_counter_gives_no_fence,
                a_write_whose_reply_the_storage_lost_is_ambiguous,
                a_silent_storage_is_told_in_bounded_time,
                a_purge_beside_takeovers_removes_no_living_lock,
                no_entry_is_left_of_locks_that_are_over,
                an_extend_that_was_held_up_renews_no_dead_lock,
                every_release_right_after_a_subscription_is_heard,
                a_client_with_a_wrong_clock_gets_no_second_lock,
                one_call_frees_one_lock_of_an_id,
            }
            telemetry {
                every_operation_is_told_once,
                the_operations_of_a_guard_are_told,
                failures_are_told_with_their_code,
                the_reasons_are_told,
                the_end_of_a_lease_is_told,
                events_show_no_raw_name_unless_asked,
                names_are_told_only_where_the_predicate_says_so,
                names_that_look_like_secrets_are_never_told,
                a_panicking_sink_harms_nothing,
                a_sink_that_blocks_holds_nothing_up,
            }
            cleanup {
                purging_an_empty_storage_removes_nothing,
                purging_removes_the_dead_once_and_spares_the_living,
                purging_spares_what_died_a_moment_ago,
                purging_leaves_the_counter_alone,
                purging_stays_in_its_namespace,
                looking_does_not_clean_up_by_default,
                cleaning_while_looking_spares_the_living,
                cleaning_while_looking_removes_the_dead_and_no_counter,
            }
            inspect {
                a_listing_shows_what_is_held_by_the_beginning_of_its_key,
                a_listing_and_a_count_pass_over_what_is_over,
                a_listing_passes_over_what_is_no_lock,
                inspecting_changes_nothing,
                a_label_is_shown_and_not_with_the_next_holder,
                a_holder_hears_with_its_next_renewal_that_it_was_asked,
                a_release_that_is_waited_for_hints_at_a_change,
                a_watch_tells_who_came_and_who_left,
            }
        }
    };
}
