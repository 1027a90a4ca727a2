-- The lock on a key, alive or not.
--
-- $1 storage key. At most one row: user_key, lock_id, fence, acquired_at_ms, expires_at_ms, label, ttl_ms (text),
-- asked, now_ms. What was written for people counts only beside the lock id it was written for.
SELECT user_key, lock_id, fence, acquired_at_ms, expires_at_ms,
       CASE WHEN holder->>'lockId' = lock_id THEN holder->>'label' END AS label, -- if holder
       CASE WHEN holder->>'lockId' = lock_id THEN holder->>'ttlMs' END AS ttl_ms, -- if holder
       CASE WHEN holder->>'lockId' = lock_id THEN holder->'asked' = 'true' END AS asked, -- if holder
       NULL::text AS label, NULL::text AS ttl_ms, NULL::boolean AS asked, -- unless holder
       floor(date_part('epoch', clock_timestamp()) * 1000)::bigint AS now_ms
FROM {locks}
WHERE key = $1
