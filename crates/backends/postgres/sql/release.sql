-- Frees those of one or several locks that are alive, and tells waiters if there are any.
--
-- $1 lock id, or an array of different ones (lines for `many`). One row per id: place (from 1), again (somebody else is at this
-- row, come again; nothing was done), found (rows with this id), released. As in acquire.sql nothing here waits for another
-- transaction.
--
-- NOTIFY serialises the commits of a whole database, so it is sent only when somebody waits: a waiting process holds a shared
-- advisory lock on (1397184331, hash of table and key), and an exclusive try that fails says so. The try is kept until
-- commit, so that whoever registers meanwhile waits for the commit and then finds the lock free.
WITH locked AS MATERIALIZED (
    SELECT asked.lock_id, asked.place, stored.tableoid, stored.key, stored.user_key, stored.expires_at_ms
    FROM (SELECT $1::text, 1::bigint) -- unless many
    FROM unnest($1::text[]) WITH ORDINALITY -- if many
         AS asked (lock_id, place)
    LEFT JOIN LATERAL (SELECT tableoid, key, user_key, expires_at_ms FROM {locks} AS l WHERE l.lock_id = asked.lock_id
                       FOR UPDATE SKIP LOCKED) AS stored ON true
), seen AS MATERIALIZED (
    -- Two rows with one id mean that the unique index is missing: they are not touched.
    SELECT *,
           (SELECT count(key) FROM locked) AS found, -- unless many
           count(key) OVER (PARTITION BY place) AS found, -- if many
           expires_at_ms > floor(date_part('epoch', clock_timestamp()) * 1000)::bigint - 1000 AS live
    FROM locked
), gone AS (
    DELETE FROM {locks} AS l
    USING seen WHERE l.key = seen.key AND seen.live AND seen.found = 1 -- unless many
    WHERE l.key = ANY (ARRAY(SELECT key FROM seen WHERE live AND found = 1)) -- if many
    RETURNING l.key
)
SELECT seen.place,
       seen.found,
       gone.key IS NOT NULL AS released,
       -- LIMIT, because the planner would read the whole table for EXISTS.
       CASE WHEN seen.key IS NULL THEN (SELECT true FROM {locks} AS l WHERE l.lock_id = seen.lock_id LIMIT 1)
            ELSE seen.live AND seen.found = 1 AND gone.key IS NULL END AS again,
       CASE
           WHEN gone.key IS NULL THEN NULL
           WHEN pg_try_advisory_xact_lock(1397184331, hashtext(seen.tableoid || ':' || seen.key)) THEN NULL
           ELSE pg_notify('syncguard_wake_' || seen.tableoid,
                          left(encode(sha256(convert_to(seen.user_key, 'UTF8')), 'hex'), 24))::text
       END,
       set_config('statement_timeout', '0', true)
FROM seen
LEFT JOIN gone ON gone.key = seen.key
