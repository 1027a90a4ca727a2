-- The lock stored with a lock id, alive or not. ?1 lock id. Answers: at most one row, as lock_of_key.
--
-- The index only names the key; every column is the row's own, so that a damaged index cannot pass one lock off as another.
SELECT key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key,
       CASE WHEN (holder_id IS NULL OR holder_id = lock_id) AND octet_length(label) <= 200 THEN label END AS label,
       CASE WHEN holder_id = lock_id THEN ttl_ms END AS ttl_ms,
       holder_id = lock_id AND asked = 1 AS asked
FROM syncguard_locks
WHERE key = (SELECT key FROM syncguard_locks WHERE lock_id = ?1)
