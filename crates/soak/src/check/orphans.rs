//! Was a lock left behind that nobody owns? (P8)

use super::Violation;
use crate::time::{MILLI, Nanos};
use crate::{TOLERANCE_MS, TTL_MS};

/// A try to take a key after everybody has left.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The key.
    pub key: String,
    /// When the last process was gone.
    pub left: Nanos,
    /// When the try began.
    pub tried: Nanos,
    /// Whether somebody else holds it still.
    pub contended: bool,
}

/// Every lock that outlived its lease and the tolerance although nobody was there to renew it.
pub fn orphans(probes: &[Probe]) -> Vec<Violation> {
    let bound = (TTL_MS + TOLERANCE_MS) * MILLI;
    probes
        .iter()
        .filter(|probe| probe.contended && probe.tried >= probe.left + bound)
        .map(|probe| {
            let late = (probe.tried - probe.left) / MILLI;
            Violation::new("no orphans", format!("{}: still held {late} ms after everybody left", probe.key))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_outlives_everybody_is_caught_and_one_within_its_lease_is_not() {
        let probe =
            |seconds: u64, contended| Probe { key: "k".to_owned(), left: 0, tried: seconds * 1_000 * MILLI, contended };
        assert_eq!(orphans(&[probe(1, true), probe(60, false)]), []);
        assert_eq!(orphans(&[probe(60, true)]).len(), 1);
    }
}
