-- Whether a live lock is on a key, and whether one lies there that has been dead for longer than the cleanup guard.
--
-- $1 storage key. At most one row: live (NULL when the stored expiry is), removable.
SELECT expires_at_ms > now_ms - 1000 AS live,
       expires_at_ms < now_ms - 2000 AS removable
FROM {locks}, (SELECT floor(date_part('epoch', clock_timestamp()) * 1000)::bigint AS now_ms) AS clock
WHERE key = $1
