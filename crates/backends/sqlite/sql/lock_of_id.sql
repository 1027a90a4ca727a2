-- The lock stored with a lock id, alive or not. ?1 lock id. Answers: at most one row.
SELECT key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key, label
FROM syncguard_locks
WHERE lock_id = ?1
