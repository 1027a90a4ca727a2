-- The lock stored under a key, alive or not. ?1 storage key. Answers: at most one row.
--
-- What was written for people counts only beside the lock id that it was written for (see holder_columns.sql).
SELECT key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key,
       CASE WHEN (holder_id IS NULL OR holder_id = lock_id) AND octet_length(label) <= 200 THEN label END AS label,
       CASE WHEN holder_id = lock_id THEN ttl_ms END AS ttl_ms,
       holder_id = lock_id AND asked = 1 AS asked
FROM syncguard_locks
WHERE key = ?1
