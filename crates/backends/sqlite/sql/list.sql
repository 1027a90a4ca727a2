-- One step of a listing, in the order of keys, which no renewal changes: in the order of expiry a lock could pass by the
-- reader. ?1 where the keys begin, ?2 key where the step before ended (empty at the beginning), ?3 how many rows to look at.
-- Answers: rows as lock_of_key, dead locks among them. The plus leaves one range of the primary key to look at.
SELECT key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key,
       CASE WHEN (holder_id IS NULL OR holder_id = lock_id) AND octet_length(label) <= 200 THEN label END AS label,
       CASE WHEN holder_id = lock_id THEN ttl_ms END AS ttl_ms,
       holder_id = lock_id AND asked = 1 AS asked
FROM syncguard_locks
WHERE key >= max(?1, ?2) AND +key > ?2
ORDER BY key
LIMIT ?3
