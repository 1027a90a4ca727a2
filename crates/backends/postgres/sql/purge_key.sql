-- Removes the lock of one key if it has been dead for longer than the cleanup guard. Never a counter.
--
-- $1 storage key. One row: removed.
WITH dead AS MATERIALIZED (
    SELECT key
    FROM {locks}
    WHERE key = $1
      AND expires_at_ms < (SELECT floor(date_part('epoch', clock_timestamp()) * 1000)::bigint - 2000)
    FOR UPDATE SKIP LOCKED
), removed AS (
    DELETE FROM {locks} AS l
    USING dead
    WHERE l.key = dead.key
    RETURNING 1
)
SELECT count(*) AS removed FROM removed
