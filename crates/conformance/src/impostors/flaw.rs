//! In which ways can a backend be wrong, and which case must notice?

/// What is wrong with an impostor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Flaw {
    /// A dead holder keeps its lock.
    NeverExpires,
    /// Every lease has the same length.
    IgnoresTtl,
    /// Leases end without the tolerance.
    NoTolerance,
    /// `is_locked` alone forgets the tolerance.
    NoToleranceInIsLocked,
    /// The check and the grant are two steps.
    ChecksThenActs,
    /// Extend looks whether the lock is alive and renews a moment later, whoever has it then.
    GrantsTwiceAtTheEnd,
    /// Extend renews what is over.
    ExtendsTheDead,
    /// Extend makes a lock that is not there.
    ExtendCreates,
    /// Extend adds to the lease instead of replacing it.
    ExtendAdds,
    /// Extend never shortens.
    ExtendNeverShortens,
    /// Extend takes a new fence.
    ExtendTakesAFence,
    /// A fence is given again.
    ReusesAFence,
    /// The counter starts again after a release.
    ResetsTheFenceOnRelease,
    /// Cleaning up removes the counter too.
    CleanupRemovesTheCounter,
    /// Cleaning up removes what died a moment ago.
    CleanupWithoutGuard,
    /// Cleaning up removes what is alive.
    CleanupRemovesTheLiving,
    /// Looking cleans up although nobody switched it on.
    AlwaysCleansUp,
    /// A contended acquire takes a fence.
    ContentionTakesAFence,
    /// Fences go on past their limit.
    NoFenceLimit,
    /// A refused fence leaves its lock behind.
    LimitLeavesALock,
    /// Release frees whatever lock there is.
    ReleasesAStrangersLock,
    /// Extend renews whatever lock there is.
    ExtendsForAStranger,
    /// A second release says that it released.
    ReleasesTwice,
    /// The same id is contended by itself.
    NotIdempotent,
    /// The same id takes another fence.
    AcquiresTwice,
    /// The same id renews its lease by asking again.
    OwningUpExtends,
    /// The same id is told that its lease has just begun.
    OwnsUpAsIfNew,
    /// Lookup shows what is over.
    LookupShowsTheDead,
    /// Lookup renews.
    LookupExtends,
    /// Keys are trimmed.
    TrimsKeys,
    /// Keys are folded to lower case.
    FoldsCase,
    /// Keys are cut.
    CutsLongKeys,
    /// Namespaces share their locks.
    SharesNamespaces,
    /// Namespaces share the locks whose names are too long to be stored as they are.
    HashesWithoutTheNamespace,
    /// A lock is stored where the counter of another one is.
    CountersAmongKeys,
    /// A value that is no lock counts as free.
    TakesForeignForFree,
    /// Errors show the key.
    LeaksRawNames,
    /// Waiters are promised a hint that never comes.
    ForgetsItsWaiters,
    /// A contended answer tells too long a wait.
    LiesAboutTheWait,
    /// Setting up again starts every counter anew.
    SetUpForgets,
    /// A call that is dropped midway leaves the client locked up.
    DiesWhenDropped,
    /// A listing shows what is over.
    ListsTheDead,
    /// A listing loses a lock between two pages.
    SkipsBetweenPages,
    /// Who takes a dead lock over is shown with its label.
    KeepsAFormerLabel,
    /// A holder that was asked to let go does not hear of it.
    TellsNobodyThatItWasAsked,
    /// A counter that cannot be read counts as 0.
    TakesADamagedCounterForZero,
    /// A lost reply is told as if the storage had not acted.
    IsNeverAmbiguous,
    /// A call to a silent storage waits without end.
    HangsWithTheStorage,
    /// Cleaning up removes what it saw a moment ago, whatever is there now.
    CleansUpWhatItSaw,
    /// Whoever takes over or releases leaves the index of the id behind.
    LeaksIndexes,
    /// Extend reads the clock, and waits for the storage afterwards.
    ReadsTheClockTooEarly,
    /// A subscription is through before releases are heard.
    ConfirmsTooEarly,
    /// The client's clock decides although the storage's is declared.
    AsksTheClientsClock,
    /// Release frees every lock of an id.
    FreesAllLocksOfAnId,
}

impl Flaw {
    /// Every flaw with the case that must catch it.
    pub const ALL: &'static [(Self, &'static str)] = &[
        (Self::NeverExpires, "a_lock_is_free_after_the_tolerance"),
        (Self::IgnoresTtl, "the_expiry_comes_from_the_backends_clock"),
        (Self::NoTolerance, "a_lock_is_live_within_the_tolerance"),
        (Self::NoToleranceInIsLocked, "is_locked_follows_the_predicate_through_the_end"),
        (Self::ChecksThenActs, "one_of_many_acquirers_of_an_absent_key_wins"),
        (Self::GrantsTwiceAtTheEnd, "an_extend_and_an_acquire_at_the_end_never_both_succeed"),
        (Self::ExtendsTheDead, "a_dead_lock_cannot_be_extended"),
        (Self::ExtendCreates, "an_unknown_id_is_absent_everywhere"),
        (Self::ExtendAdds, "extend_replaces_the_lease"),
        (Self::ExtendNeverShortens, "extend_may_shorten_the_lease"),
        (Self::ExtendTakesAFence, "extend_and_release_move_no_counter"),
        (Self::ReusesAFence, "fences_rise_strictly_over_many_cycles"),
        (Self::ResetsTheFenceOnRelease, "fences_rise_from_client_to_client"),
        (Self::CleanupRemovesTheCounter, "fences_rise_over_cleanup"),
        (Self::CleanupWithoutGuard, "purging_spares_what_died_a_moment_ago"),
        (Self::CleanupRemovesTheLiving, "purging_removes_the_dead_once_and_spares_the_living"),
        (Self::AlwaysCleansUp, "looking_does_not_clean_up_by_default"),
        (Self::ContentionTakesAFence, "a_contended_acquire_consumes_no_fence"),
        (Self::NoFenceLimit, "a_counter_past_its_limit_refuses_and_leaves_no_lock"),
        (Self::LimitLeavesALock, "a_counter_at_its_limit_refuses_and_leaves_no_lock"),
        (Self::ReleasesAStrangersLock, "a_stranger_can_neither_release_nor_extend"),
        (Self::ExtendsForAStranger, "a_stranger_can_neither_release_nor_extend"),
        (Self::ReleasesTwice, "releasing_twice_is_absent_the_second_time"),
        (Self::NotIdempotent, "an_acquire_whose_reply_was_lost_is_owned_up_to"),
        (Self::AcquiresTwice, "many_requests_of_one_id_are_one_acquisition"),
        (Self::OwningUpExtends, "acquiring_again_with_the_same_id_owns_up"),
        (Self::OwnsUpAsIfNew, "a_lease_that_is_owned_up_to_tells_its_age"),
        (Self::LookupShowsTheDead, "a_lookup_of_what_is_not_held_is_none"),
        (Self::LookupExtends, "lookups_are_read_only"),
        (Self::TrimsKeys, "white_space_is_part_of_a_key"),
        (Self::FoldsCase, "upper_and_lower_case_are_two_locks"),
        (Self::CutsLongKeys, "long_keys_that_differ_at_the_end_are_two_locks"),
        (Self::SharesNamespaces, "two_namespaces_never_see_each_other"),
        (Self::HashesWithoutTheNamespace, "two_namespaces_never_see_each_other"),
        (Self::CountersAmongKeys, "a_key_in_the_form_of_a_counter_is_a_lock_or_refused"),
        (Self::TakesForeignForFree, "a_value_that_is_no_lock_is_never_free"),
        (Self::LeaksRawNames, "errors_show_no_raw_name"),
        (Self::ForgetsItsWaiters, "a_release_by_another_client_wakes_a_waiter"),
        (Self::LiesAboutTheWait, "a_contended_answer_tells_the_wait_truly"),
        (Self::SetUpForgets, "fences_rise_over_another_set_up"),
        (Self::DiesWhenDropped, "a_crowd_of_dropped_calls_leaves_the_client_usable"),
        (Self::ListsTheDead, "a_listing_and_a_count_pass_over_what_is_over"),
        (Self::SkipsBetweenPages, "a_listing_shows_what_is_held_by_the_beginning_of_its_key"),
        (Self::KeepsAFormerLabel, "a_label_is_shown_and_not_with_the_next_holder"),
        (Self::TellsNobodyThatItWasAsked, "a_holder_hears_with_its_next_renewal_that_it_was_asked"),
        (Self::TakesADamagedCounterForZero, "a_damaged_counter_gives_no_fence"),
        (Self::IsNeverAmbiguous, "a_write_whose_reply_the_storage_lost_is_ambiguous"),
        (Self::HangsWithTheStorage, "a_silent_storage_is_told_in_bounded_time"),
        (Self::CleansUpWhatItSaw, "a_purge_beside_takeovers_removes_no_living_lock"),
        (Self::LeaksIndexes, "no_entry_is_left_of_locks_that_are_over"),
        (Self::ReadsTheClockTooEarly, "an_extend_that_was_held_up_renews_no_dead_lock"),
        (Self::ConfirmsTooEarly, "every_release_right_after_a_subscription_is_heard"),
        (Self::AsksTheClientsClock, "a_client_with_a_wrong_clock_gets_no_second_lock"),
        (Self::FreesAllLocksOfAnId, "one_call_frees_one_lock_of_an_id"),
    ];
}
