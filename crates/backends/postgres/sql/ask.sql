-- Marks the live lock of an id as asked for. Its holder reads the mark with the answer to its next extend.
--
-- $1 lock id. One row: asked (false when there is no live lock with this id).
WITH locked AS MATERIALIZED (
    SELECT key, expires_at_ms FROM {locks} WHERE lock_id = $1 FOR UPDATE
), seen AS MATERIALIZED (
    SELECT *, floor(date_part('epoch', clock_timestamp()) * 1000)::bigint AS now_ms FROM locked
), marked AS (
    UPDATE {locks} AS l
    -- What was written for another lock id is a former holder's.
    SET holder = CASE WHEN l.holder->>'lockId' = $1 THEN l.holder ELSE jsonb_build_object('lockId', $1::text) END
                 || jsonb_build_object('asked', true)
    FROM seen
    WHERE l.key = seen.key
      AND l.lock_id = $1
      AND seen.expires_at_ms > seen.now_ms - 1000
    RETURNING 1
)
SELECT count(*) > 0 AS asked FROM marked
