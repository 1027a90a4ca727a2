-- Removes locks that have been dead for longer than the guard. ?1 newest expiry to remove, ?2 how many at most.
-- Answers: rows changed.
DELETE FROM syncguard_locks
WHERE key IN (SELECT key FROM syncguard_locks WHERE expires_at_ms < ?1 LIMIT ?2)
