//! Is a disk full when it is said to be, and does a power cut lose what nobody wrote through?

use std::fs;

use syncguard_testkit::Disk;

fn skip() {
    println!("SKIPPED: mounting a disk takes root");
    assert!(std::env::var_os("SYNCGUARD_REQUIRE_SERVERS").is_none(), "run this as root");
}

#[test]
fn a_full_disk_takes_nothing_until_it_is_emptied() {
    let Some(disk) = Disk::in_memory(4).expect("a folder for the disk") else { return skip() };
    let file = disk.path().join("file");

    disk.fill().expect("it can be filled");
    let refused = fs::write(&file, "something");
    disk.empty().expect("it can be emptied");

    assert!(refused.is_err());
    fs::write(&file, "something").expect("there is room again");
}

/// Writes one file through and one not, cuts the power and tells what is left of both.
fn cut(disk: &mut Disk) -> (String, String) {
    let (synced, unsynced) = (disk.path().join("synced"), disk.path().join("unsynced"));
    fs::write(&synced, "content").expect("there is room");
    disk.sync().expect("it can be written through");
    fs::write(&unsynced, "content").expect("there is room");
    disk.cut_power().expect("it comes back");
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    (read(&synced), read(&unsynced))
}

#[test]
fn a_power_cut_keeps_what_was_written_through_and_nothing_else() {
    for _ in 0..5 {
        let Some(mut disk) = Disk::image(16).expect("a folder for the disk") else { return skip() };
        let (synced, unsynced) = cut(&mut disk);
        assert_eq!(synced, "content");
        if unsynced != "content" {
            return;
        }
        // The system wrote it back in its own time; another cut will be quicker.
    }
    panic!("five cuts lost nothing");
}
