-- Replaces the lease of a lock that was found alive in this transaction.
-- ?1 storage key, ?2 lock id, ?3 expires at. Answers: rows changed.
UPDATE syncguard_locks SET expires_at_ms = ?3 WHERE key = ?1 AND lock_id = ?2
