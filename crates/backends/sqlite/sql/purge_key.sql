-- Removes one key's lock if it has been dead for longer than the guard. ?1 newest expiry to remove, ?2 storage key.
-- Answers: rows changed.
DELETE FROM syncguard_locks WHERE expires_at_ms < ?1 AND key = ?2
