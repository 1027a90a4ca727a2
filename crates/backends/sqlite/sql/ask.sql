-- Marks a lock that was found alive in this transaction as asked for. ?1 storage key, ?2 lock id. Answers: rows changed.
-- What was written for another lock id is a former holder's. The plus keeps SQLite from finding the row by the index of
-- lock ids, which may be damaged.
UPDATE syncguard_locks
SET label = CASE WHEN holder_id IS NULL OR holder_id = lock_id THEN label END,
    ttl_ms = CASE WHEN holder_id = lock_id THEN ttl_ms END,
    asked = 1,
    holder_id = lock_id
WHERE key = ?1 AND +lock_id = ?2
