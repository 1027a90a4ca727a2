-- Replaces the lease of an id by now + ttl if it is alive.
--
-- $1 lock id, $2 ttl in ms. One row: found (rows with this id), expires_at_ms (NULL when nothing was extended).
WITH locked AS MATERIALIZED (
    SELECT key, expires_at_ms FROM {locks} WHERE lock_id = $1 FOR UPDATE
), seen AS MATERIALIZED (
    SELECT key, expires_at_ms, floor(date_part('epoch', clock_timestamp()) * 1000)::bigint AS now_ms FROM locked
), kept AS (
    UPDATE {locks} AS l
    SET expires_at_ms = seen.now_ms + $2
    FROM seen
    WHERE l.key = seen.key
      AND l.lock_id = $1
      AND seen.expires_at_ms > seen.now_ms - 1000
      -- Two rows with one id mean that the unique index is missing: nothing is touched.
      AND (SELECT count(*) FROM locked) = 1
      -- Already ours since the gate. If the row came to be after the gate, it may not be: then the lock was absent there.
      AND pg_try_advisory_xact_lock(hashtext(l.key))
    RETURNING l.expires_at_ms
)
SELECT (SELECT count(*) FROM locked) AS found,
       (SELECT expires_at_ms FROM kept) AS expires_at_ms,
       set_config('statement_timeout', '0', true)
