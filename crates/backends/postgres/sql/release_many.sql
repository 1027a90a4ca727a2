-- Frees those of several locks that are alive, and tells waiters if there are any.
--
-- $1 lock ids, all different. One row per id: place (from 1), again (not decided, come again alone), and what release.sql
-- answers.
--
-- As in acquire_many.sql nothing here waits: a row that somebody else has locked is left to a statement of its own.
WITH asked AS MATERIALIZED (
    SELECT lock_id, place FROM unnest($1::text[]) WITH ORDINALITY AS one (lock_id, place)
), locked AS MATERIALIZED (
    SELECT asked.place, stored.*
    FROM asked
    CROSS JOIN LATERAL (SELECT tableoid, key, user_key, expires_at_ms FROM {locks} WHERE lock_id = asked.lock_id
                        FOR UPDATE SKIP LOCKED) AS stored
), seen AS MATERIALIZED (
    SELECT *, count(*) OVER (PARTITION BY place) AS found,
           expires_at_ms > floor(date_part('epoch', clock_timestamp()) * 1000)::bigint - 1000 AS live
    FROM locked
), gone AS (
    -- Two rows with one id mean that the unique index is missing: they are not touched.
    DELETE FROM {locks}
    WHERE key = ANY (ARRAY(SELECT key FROM seen WHERE live AND found = 1)) AND lock_id = ANY ($1)
    RETURNING key
)
SELECT asked.place,
       COALESCE(seen.found, 0) AS found,
       gone.key IS NOT NULL AS released,
       -- LIMIT, because the planner would read the whole table for EXISTS.
       CASE WHEN seen.key IS NULL THEN (SELECT true FROM {locks} WHERE lock_id = asked.lock_id LIMIT 1)
            ELSE seen.live AND seen.found = 1 AND gone.key IS NULL END AS again,
       CASE
           WHEN gone.key IS NULL THEN NULL
           WHEN pg_try_advisory_xact_lock(1397184331, hashtext(seen.tableoid || ':' || seen.key)) THEN NULL
           ELSE pg_notify('syncguard_wake_' || seen.tableoid,
                          left(encode(sha256(convert_to(seen.user_key, 'UTF8')), 'hex'), 24))::text
       END,
       set_config('statement_timeout', '0', true)
FROM asked
LEFT JOIN seen USING (place)
LEFT JOIN gone ON gone.key = seen.key
