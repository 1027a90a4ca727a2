-- Replaces the lease of a lock that was found alive in this transaction.
-- ?1 storage key, ?2 lock id, ?3 expires at, ?4 length of the lease in ms. Answers: rows changed.
-- What was written for another lock id is a former holder's. The plus keeps SQLite from finding the row by the index of
-- lock ids, which may be damaged.
UPDATE syncguard_locks
SET expires_at_ms = ?3,
    label = CASE WHEN holder_id IS NULL OR holder_id = lock_id THEN label END,
    ttl_ms = ?4,
    asked = CASE WHEN holder_id = lock_id THEN asked END,
    holder_id = lock_id
WHERE key = ?1 AND +lock_id = ?2
