-- Takes the lock if it is free, with the next fence.
--
-- $1 storage key, $2 fence key, $3 lock id, $4 ttl in ms, $5 user key, $6 whether fences are floored by the clock,
-- $7 the holder's label or NULL
--
-- One row: present, ours, free, stored_expires_at_ms, stored_fence, sound, now_ms, fence, expires_at_ms; alone: passed.
-- fence is NULL when the lock was not free, or when it was and the counter is outside its limits: nothing is written then.
--
-- Runs under the key's advisory lock, so no other acquire of this key is between its look and its write. Extend and
-- release of clients that follow the specification to the letter do not take that lock: hence the row lock.
--
-- Lines for `alone` are sent on connections of our own, where this statement is the whole transaction and takes the
-- advisory lock itself. Its snapshot is older than that lock, so it must not wait for it: passed is false when somebody
-- else is at this key, and the caller comes again with a gate before the statement. Who came and went between snapshot
-- and lock left a row that the upsert judges as it is now. If that refuses, the statement divides by zero (SQLSTATE
-- 22012), which takes back what it wrote, the count too, and the caller comes again in the same way.
WITH glimpse AS MATERIALIZED (
    -- A look without a lock: answering "held" writes nothing, and so needs no flush at commit.
    SELECT true AS present, lock_id, expires_at_ms, fence,
           floor(date_part('epoch', clock_timestamp()) * 1000)::bigint AS now_ms
    FROM {locks}
    WHERE key = $1
), gate AS MATERIALIZED ( -- if alone
    -- Who only hears that the lock is held is in nobody's way.
    SELECT pg_try_advisory_xact_lock(hashtext($1)) AS passed -- if alone
    WHERE NOT EXISTS (SELECT FROM glimpse WHERE expires_at_ms > now_ms - 1000) -- if alone
), locked AS MATERIALIZED (
    -- Only a lock that looked dead. Waits for an extend or a release in progress and then sees what it left behind.
    SELECT expires_at_ms
    FROM {locks}
    WHERE key = $1 AND (SELECT expires_at_ms <= now_ms - 1000 FROM glimpse)
      AND (SELECT passed FROM gate) -- if alone
    FOR UPDATE
), after_wait AS MATERIALIZED (
    -- The clock is read here, once both joins have their rows, so after the wait.
    SELECT floor(date_part('epoch', clock_timestamp()) * 1000)::bigint AS now_ms,
           glimpse.present,
           glimpse.lock_id,
           glimpse.fence,
           glimpse.expires_at_ms <= glimpse.now_ms - 1000 AS looked_dead,
           COALESCE(locked.expires_at_ms, glimpse.expires_at_ms) AS expires_at_ms
    FROM (VALUES (1)) AS one (row)
    LEFT JOIN glimpse ON true
    LEFT JOIN locked ON true
), seen AS MATERIALIZED (
    -- A NULL expiry makes this NULL, which is not free.
    SELECT *, (present IS NULL OR (looked_dead AND expires_at_ms <= now_ms - 1000))
              AND (SELECT passed FROM gate) -- if alone
              AS free
    FROM after_wait
), counter AS (
    -- key_debug is for people. It is written once, so that a role needs no right to change it.
    INSERT INTO {fences} AS c (fence_key, fence
        , key_debug -- if key_debug
    )
    SELECT $2, CASE WHEN $6 THEN now_ms ELSE 1 END
        , $5 -- if key_debug
    FROM seen
    WHERE free
    ON CONFLICT (fence_key) DO UPDATE
        SET fence = GREATEST(c.fence + 1, EXCLUDED.fence)
        WHERE c.fence BETWEEN 0 AND 899999999999999
    RETURNING c.fence
), taken AS (
    INSERT INTO {locks} AS l (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key
        , holder -- if holder
    )
    SELECT $1, $3, seen.now_ms + $4, seen.now_ms, lpad(counter.fence::text, 15, '0'), $5
        , jsonb_strip_nulls(jsonb_build_object('lockId', $3::text, 'label', $7::text, 'ttlMs', $4::bigint)) -- if holder
    FROM seen, counter
    ON CONFLICT (key) DO UPDATE
        SET lock_id = EXCLUDED.lock_id, expires_at_ms = EXCLUDED.expires_at_ms,
            acquired_at_ms = EXCLUDED.acquired_at_ms, fence = EXCLUDED.fence, user_key = EXCLUDED.user_key
            , holder = EXCLUDED.holder -- if holder
        -- Under the gate this can only be false if somebody inserts without the advisory lock. A live lock is not
        -- overwritten even then.
        WHERE l.expires_at_ms <= EXCLUDED.acquired_at_ms - 1000
    RETURNING l.expires_at_ms
)
SELECT present,
       lock_id = $3 AS ours,
       free,
       expires_at_ms AS stored_expires_at_ms,
       fence AS stored_fence,
       -- Whether a client of ours wrote what holds the lock. Another holder's id itself stays on the server.
       CASE WHEN NOT free THEN lock_id ~ '^[A-Za-z0-9_-]{22}$' AND fence ~ '^[0-9]{15}$' END AS sound,
       (SELECT passed FROM gate) AS passed, -- if alone
       now_ms / CASE -- if alone
           WHEN EXISTS (SELECT FROM counter) AND NOT EXISTS (SELECT FROM taken) THEN 0 -- if alone
           -- A wait for the row after the clock was read would have eaten up a part of the lease.
           WHEN floor(date_part('epoch', clock_timestamp()) * 1000)::bigint > now_ms + 1000 THEN 0 -- if alone
           ELSE 1 -- if alone
       END AS now_ms, -- if alone
       now_ms, -- unless alone
       (SELECT fence FROM counter) AS fence,
       (SELECT expires_at_ms FROM taken) AS expires_at_ms,
       -- A timeout during COMMIT would give up waiting for a synchronous standby and report success all the same.
       set_config('statement_timeout', '0', true)
FROM seen
