-- The lock stored under a key, alive or not. ?1 storage key. Answers: at most one row.
SELECT key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key, label
FROM syncguard_locks
WHERE key = ?1
