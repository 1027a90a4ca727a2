//! Does `fence check` keep the rule?

#![allow(clippy::unwrap_used)]

mod support;

use support::Lab;

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
