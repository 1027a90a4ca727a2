-- Stores a lock in the place of none or of a dead one.
-- ?1 storage key, ?2 lock id, ?3 expires at, ?4 acquired at, ?5 fence (15 digits), ?6 key, ?7 label. Answers: none.
INSERT INTO syncguard_locks (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key, label)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (key) DO UPDATE SET
    lock_id = excluded.lock_id,
    expires_at_ms = excluded.expires_at_ms,
    acquired_at_ms = excluded.acquired_at_ms,
    fence = excluded.fence,
    user_key = excluded.user_key,
    label = excluded.label
