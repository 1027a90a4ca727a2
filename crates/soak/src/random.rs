//! Where does chance come from, so that a seed repeats it?

/// `SplitMix64`: small, and the same numbers on every machine. Not for secrets.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.bits() % (high - low + 1)
    }

    /// A number from `-reach` to `reach`.
    pub fn around_zero(&mut self, reach: u64) -> i64 {
        let reach = i64::try_from(reach).unwrap_or(0);
        i64::try_from(self.between(0, u64::try_from(2 * reach).unwrap_or(0))).unwrap_or(0) - reach
    }

    /// Whether a chance of one in `n` came true.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.bits().is_multiple_of(n)
    }

    /// One of the items.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let last = u64::try_from(items.len()).ok()?.checked_sub(1)?;
        usize::try_from(self.between(0, last)).ok().and_then(|index| items.get(index))
    }

    /// Puts the items in a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for index in (1..items.len()).rev() {
            let other = self.between(0, u64::try_from(index).unwrap_or(0));
            items.swap(index, usize::try_from(other).unwrap_or(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_numbers_and_a_shuffle_loses_nothing() {
        let (mut one, mut two) = (Random::new(7), Random::new(7));
        assert_eq!(one.bits(), two.bits());
        let mut items: Vec<u64> = (0..50).collect();
        one.shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
        assert!((0..1000).map(|_| one.between(3, 5)).all(|number| (3..=5).contains(&number)));
    }
}
