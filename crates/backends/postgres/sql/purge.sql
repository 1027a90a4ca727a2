-- Removes up to 1000 locks that have been dead for longer than the cleanup guard. Never a counter.
--
-- No parameters. One row: removed.
--
-- A row that somebody is taking over at this moment is locked, and skipped. The clock stands in a subquery because an
-- index cannot be searched for a value that may change from row to row.
WITH dead AS MATERIALIZED (
    SELECT key
    FROM {locks}
    WHERE expires_at_ms < (SELECT floor(date_part('epoch', clock_timestamp()) * 1000)::bigint - 2000)
    LIMIT 1000
    FOR UPDATE SKIP LOCKED
), removed AS (
    DELETE FROM {locks} AS l
    USING dead
    WHERE l.key = dead.key
    RETURNING 1
)
SELECT count(*) AS removed FROM removed
