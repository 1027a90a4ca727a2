//! Does `fence check` keep the rule?

use crate::support::Lab;

const OLDER: &str = "000000000000041";
const NEWER: &str = "000000000000042";

#[test]
fn a_lower_fence_is_refused_with_79_and_an_equal_one_is_not() {
    let lab = Lab::new();
    let folder = lab.path("marks/deep");
    let check = |key: &str, fence: &str| {
        lab.say(["fence", "check", folder.to_str().unwrap(), "--resource", key, "--fence", fence])
    };

    assert_eq!(check("ledger", OLDER).code, Some(0));
    for _ in 0..2 {
        let accepted = check("ledger", NEWER);
        assert_eq!((accepted.code, accepted.stdout.as_str(), accepted.stderr.as_str()), (Some(0), "", ""));
    }
    let refused = check("ledger", OLDER);

    assert_eq!(refused.code, Some(79));
    assert!(refused.stderr.contains("fence 000000000000041 is stale: 000000000000042 was here before"), "{refused:?}");
    assert_eq!(check("other", OLDER).code, Some(0));
    assert_eq!(check("ledger", "42").code, Some(64));
}

#[test]
fn marks_may_be_in_a_database_that_a_url_names() {
    let lab = Lab::new();
    let urls = [
        format!("sqlite:{}", lab.path("marks.db").display()),
        syncguard_testkit::fresh_postgres_database(),
        syncguard_testkit::redis_url(),
    ];
    for url in urls {
        let key = format!("ledger of {}", std::process::id());
        let check = |fence: &str| lab.say(["fence", "check", &url, "--resource", &key, "--fence", fence]);

        assert_eq!(check(OLDER).code, Some(0));
        assert_eq!(check(NEWER).code, Some(0));
        let refused = check(OLDER);

        assert_eq!(refused.code, Some(79), "{refused:?}");
        assert!(refused.stderr.contains("is stale"), "{refused:?}");
    }
}

#[test]
fn the_url_of_the_marks_may_be_in_a_file() {
    let lab = Lab::new();
    let file = lab.path("marks-url");
    std::fs::write(&file, format!("sqlite:{}\n", lab.path("marks.db").display())).unwrap();
    let check = ["fence", "check", "--resource", "ledger", "--fence", NEWER];
    assert_eq!(lab.say([&check[..], &["--url-file", file.to_str().unwrap()]].concat()).code, Some(0));
    assert!(lab.path("marks.db").exists());
    let nowhere = lab.say(check);
    assert_eq!(nowhere.code, Some(64), "{nowhere:?}");
    let shown = lab.say([&check[..], &["redis://:CANARY@127.0.0.1:1/"]].concat());
    assert!(shown.stderr.contains("(ps)") && !shown.stderr.contains("CANARY"), "{shown:?}");
}

#[test]
fn an_unfit_place_for_marks_is_an_error_that_shows_no_password() {
    let lab = Lab::new();
    for (url, code) in [("firestore://project", 78), ("redis://:CANARY@127.0.0.1:1/", 69)] {
        let refused = lab.say(["fence", "check", url, "--resource", "ledger", "--fence", NEWER]);
        assert_eq!(refused.code, Some(code), "{refused:?}");
        assert!(!refused.stderr.contains("CANARY"), "{refused:?}");
    }
}

#[test]
fn damaged_marks_accept_nobody_and_say_what_to_do() {
    let lab = Lab::new();
    let (folder, file) = (lab.path("marks"), lab.path("marks.db"));
    let url = format!("sqlite:{}", file.display());
    let check = |marks: &str| lab.say(["fence", "check", marks, "--resource", "ledger", "--fence", NEWER]);
    assert_eq!(check(folder.to_str().unwrap()).code, Some(0));
    for entry in std::fs::read_dir(&folder).unwrap() {
        std::fs::write(entry.unwrap().path(), "no fence at all").unwrap();
    }
    std::fs::write(&file, "no database at all, and long enough to have been one. ".repeat(40)).unwrap();

    for marks in [folder.to_str().unwrap(), &url] {
        let refused = check(marks);
        assert_eq!(refused.code, Some(70), "{refused:?}");
        assert!(refused.stderr.contains("hint: restore "), "{refused:?}");
        assert!(refused.stderr.contains("the highest fence that was ever accepted"), "{refused:?}");
    }
}
