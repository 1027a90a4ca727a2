//! One power cut of each storage, and the controls that show that a cut is a real one. SQLite has more beside its code.

use std::path::PathBuf;

use syncguard_soak::power::{Cut, Powered, cut_power};

fn cut(powered: Powered, seed: u64) -> Option<Cut> {
    let folder = tempfile::tempdir().unwrap();
    let program = PathBuf::from(env!("CARGO_BIN_EXE_syncguard-soak"));
    let cut = cut_power(powered, program, folder.path(), seed).unwrap();
    match cut {
        Some(cut) => println!("{powered:?}: {cut:?}"),
        None => {
            println!("SKIPPED {powered:?}: mounting a disk takes root");
            assert!(std::env::var_os("SYNCGUARD_REQUIRE_SERVERS").is_none(), "run this as root");
        }
    }
    cut
}

#[test]
fn a_power_cut_repeats_no_fence_of_redis_and_without_syncing_it_would() {
    let Some(synced) = cut(Powered::Redis, 1) else { return };
    assert_eq!(synced.lost, 0, "{synced:?}");
    // Not every cut loses something: the system writes back in its own time too.
    let lost = (0..10).any(|seed| cut(Powered::UnsyncedRedis, seed).unwrap().lost > 0);
    assert!(lost, "the control lost nothing in ten cuts: the test proves nothing");
}

#[test]
fn a_power_cut_repeats_no_fence_of_sqlite_and_without_the_boot_it_would() {
    let Some(promised) = cut(Powered::Sqlite, 3) else { return };
    assert_eq!(promised.lost, 0, "{promised:?}");
    let lost = (0..10).any(|seed| cut(Powered::SqliteWithoutBoot, seed).unwrap().lost > 0);
    assert!(lost, "the control lost nothing in ten cuts: the test proves nothing");
}

#[test]
fn a_power_cut_repeats_no_fence_of_postgres() {
    let Some(synced) = cut(Powered::Postgres, 2) else { return };
    assert_eq!(synced.lost, 0, "{synced:?}");
}
