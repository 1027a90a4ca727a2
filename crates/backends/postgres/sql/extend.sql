-- Replaces the lease of an id by now + ttl if it is alive.
--
-- $1 lock id, $2 ttl in ms. One row: again (somebody else is at this key, come again; nothing was done), found (rows with this
-- id), expires_at_ms (NULL when nothing was extended), asked (whether somebody asked the holder to let go). As in acquire.sql
-- nothing here waits for another transaction.
--
-- The advisory lock of the key keeps out an acquire that does not lock the row, as the TypeScript original's. The statement's
-- snapshot may be older than that lock, but what FOR UPDATE finds is not: it follows the row to its newest version and
-- compares the id again.
WITH gate AS MATERIALIZED (
    SELECT key, pg_try_advisory_xact_lock(hashtext(key)) AS entered FROM {locks} WHERE lock_id = $1
), locked AS MATERIALIZED (
    SELECT stored.*
    FROM gate
    CROSS JOIN LATERAL (SELECT key, expires_at_ms FROM {locks} AS l
                        WHERE l.key = gate.key AND l.lock_id = $1 AND gate.entered
                        FOR UPDATE SKIP LOCKED) AS stored
), seen AS MATERIALIZED (
    SELECT key, expires_at_ms, floor(date_part('epoch', clock_timestamp()) * 1000)::bigint AS now_ms FROM locked
), kept AS (
    UPDATE {locks} AS l
    SET expires_at_ms = seen.now_ms + $2
        -- What was written for another lock id is a former holder's.
        , holder = CASE WHEN l.holder->>'lockId' = $1 THEN l.holder -- if holder
                        ELSE jsonb_build_object('lockId', $1::text) END -- if holder
                   || jsonb_build_object('ttlMs', $2::bigint) -- if holder
    FROM seen
    WHERE l.key = seen.key
      AND l.lock_id = $1
      AND seen.expires_at_ms > seen.now_ms - 1000
      -- Two rows with one id mean that the unique index is missing: nothing is touched.
      AND (SELECT count(*) FROM locked) = 1
    RETURNING l.expires_at_ms
        , l.holder->'asked' = 'true' AS asked -- if holder
)
SELECT (SELECT count(*) FROM locked) <> (SELECT count(*) FROM gate) AS again,
       (SELECT count(*) FROM locked) AS found,
       (SELECT asked FROM kept) AS asked, -- if holder
       NULL::boolean AS asked, -- unless holder
       (SELECT expires_at_ms FROM kept) AS expires_at_ms,
       set_config('statement_timeout', '0', true)
