//! In which of the slots of a Redis Cluster is a key, and who has which?

use super::resp::Reply;

/// The number of hash slots of every Redis Cluster.
pub const SLOTS: u16 = 16_384;

/// The slot of a key: its hash tag alone counts if it has one.
pub fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    let crc = hashed.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(
            crc ^ (u16::from(byte) << 8),
            |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
            },
        )
    });
    crc % SLOTS
}

pub(super) fn slots_of(index: usize, masters: usize) -> (usize, usize) {
    let slots = usize::from(SLOTS);
    (index * slots / masters, (index + 1) * slots / masters - 1)
}

/// First slot, last slot and master's port of each range in the answer of `CLUSTER SLOTS`, which is a list of
/// `[first, last, [host, port, id, …], replicas…]`.
pub(super) fn ranges(slots: &Reply) -> Vec<(u16, u16, u16)> {
    let Reply::Array(ranges) = slots else { return Vec::new() };
    let parse = |range: &Reply| {
        let Reply::Array(fields) = range else { return None };
        let [Reply::Integer(first), Reply::Integer(last), Reply::Array(master), ..] = fields.as_slice() else {
            return None;
        };
        let [_, Reply::Integer(port), ..] = master.as_slice() else { return None };
        let number = |value: &i64| u16::try_from(*value).ok();
        Some((number(first)?, number(last)?, number(port)?))
    };
    ranges.iter().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_redis_cluster_specification() {
        assert_eq!(slot_of("123456789"), 0x31C3);
        assert_eq!(slot_of("foo"), 12_182);
        assert_eq!(slot_of("a{foo}b"), slot_of("foo"));
        assert_ne!(slot_of("a{}b"), slot_of(""));
    }

    #[test]
    fn the_masters_share_all_slots_without_overlap() {
        assert_eq!(
            (0..3).map(|index| slots_of(index, 3)).collect::<Vec<_>>(),
            [(0, 5460), (5461, 10_921), (10_922, 16_383)]
        );
        assert_eq!(slots_of(0, 1), (0, 16_383));
    }
}
