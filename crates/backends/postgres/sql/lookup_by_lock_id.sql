-- The lock of an id, alive or not.
--
-- $1 lock id. At most one row: user_key, lock_id, fence, acquired_at_ms, expires_at_ms, now_ms.
SELECT user_key, lock_id, fence, acquired_at_ms, expires_at_ms,
       floor(date_part('epoch', clock_timestamp()) * 1000)::bigint AS now_ms
FROM {locks}
WHERE lock_id = $1
