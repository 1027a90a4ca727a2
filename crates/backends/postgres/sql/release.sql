-- Frees the lock of an id if it is alive, and tells waiters if there are any.
--
-- $1 lock id. One row: found (rows with this id), released.
--
-- NOTIFY serialises the commits of a whole database, so it is sent only when somebody waits: a waiting process holds a shared
-- advisory lock on (1397184331, hash of table and key), and an exclusive try that fails says so. The try is kept until
-- commit, so that whoever registers meanwhile waits for the commit and then finds the lock free.
WITH locked AS MATERIALIZED (
    SELECT tableoid, key, user_key, expires_at_ms FROM {locks} WHERE lock_id = $1 FOR UPDATE
), seen AS MATERIALIZED (
    SELECT *, floor(date_part('epoch', clock_timestamp()) * 1000)::bigint AS now_ms FROM locked
), gone AS (
    DELETE FROM {locks} AS l
    USING seen
    WHERE l.key = seen.key
      AND l.lock_id = $1
      AND seen.expires_at_ms > seen.now_ms - 1000
      -- Two rows with one id mean that the unique index is missing: nothing is touched.
      AND (SELECT count(*) FROM locked) = 1
    RETURNING seen.tableoid, seen.key, seen.user_key
)
SELECT (SELECT count(*) FROM locked) AS found,
       gone.key IS NOT NULL AS released,
       CASE
           WHEN gone.key IS NULL THEN NULL
           WHEN pg_try_advisory_xact_lock(1397184331, hashtext(gone.tableoid || ':' || gone.key)) THEN NULL
           ELSE pg_notify('syncguard_wake_' || gone.tableoid,
                          left(encode(sha256(convert_to(gone.user_key, 'UTF8')), 'hex'), 24))::text
       END,
       set_config('statement_timeout', '0', true)
FROM (VALUES (1)) AS one (row)
LEFT JOIN gone ON true
