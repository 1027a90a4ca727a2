-- The lock stored with a lock id, alive or not. ?1 lock id. Answers: at most one row.
--
-- The index only names the key; every column is the row's own, so that a damaged index cannot pass one lock off as another.
SELECT key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key, label
FROM syncguard_locks
WHERE key = (SELECT key FROM syncguard_locks WHERE lock_id = ?1)
