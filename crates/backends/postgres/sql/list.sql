-- One step of a listing of live locks, in the order of their keys.
--
-- $1 beginning of the keys, $2 key where the step before ended (empty at the beginning), $3 how many rows to look at.
-- One row at least: next_key (NULL at the end), now_ms, present (false: nothing but these two), the rest as lookup_by_key.
--
-- Bounded by the rows that are looked at, not by those that are found, so that a rare prefix makes no long statement.
-- The primary key is the order that no renewal changes: in the order of expiry a lock could pass by the reader.
WITH step AS MATERIALIZED (
    SELECT key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key
        , holder -- if holder
    FROM {locks}
    WHERE key > $2
    ORDER BY key
    LIMIT $3
), around AS MATERIALIZED (
    SELECT floor(date_part('epoch', clock_timestamp()) * 1000)::bigint AS now_ms,
           (SELECT CASE WHEN count(*) = $3 THEN max(key) END FROM step) AS next_key
)
SELECT around.next_key, around.now_ms, step.key IS NOT NULL AS present,
       CASE WHEN holder->>'lockId' = lock_id THEN holder->>'label' END AS label, -- if holder
       CASE WHEN holder->>'lockId' = lock_id THEN holder->>'ttlMs' END AS ttl_ms, -- if holder
       CASE WHEN holder->>'lockId' = lock_id THEN holder->'asked' = 'true' END AS asked, -- if holder
       NULL::text AS label, NULL::text AS ttl_ms, NULL::boolean AS asked, -- unless holder
       user_key, lock_id, fence, acquired_at_ms, expires_at_ms
FROM around
LEFT JOIN step ON expires_at_ms > now_ms - 1000 AND starts_with(user_key, $1)
