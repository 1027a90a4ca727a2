-- Removes a lock that was found alive in this transaction. ?1 storage key, ?2 lock id. Answers: rows changed.
DELETE FROM syncguard_locks WHERE key = ?1 AND lock_id = ?2
