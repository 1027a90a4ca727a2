-- Removes a lock that was found alive in this transaction. ?1 storage key, ?2 lock id. Answers: rows changed.
-- The plus keeps SQLite from finding the row by the index of lock ids, which may be damaged.
DELETE FROM syncguard_locks WHERE key = ?1 AND +lock_id = ?2
