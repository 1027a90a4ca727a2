-- Replaces the lease of a lock that was found alive in this transaction.
-- ?1 storage key, ?2 lock id, ?3 expires at. Answers: rows changed.
-- The plus keeps SQLite from finding the row by the index of lock ids, which may be damaged.
UPDATE syncguard_locks SET expires_at_ms = ?3 WHERE key = ?1 AND +lock_id = ?2
