-- Takes those of one or several locks that are free, each with its next fence.
--
-- One value each, or arrays with one element per lock (lines for `many`), all keys different: $1 storage key, $2 fence key,
-- $3 lock id, $4 ttl in ms, $5 user key, $6 the holder's label or NULL. $7 whether fences are floored by the clock.
--
-- One row per lock: place (from 1), passed (false: somebody else is at this key, come again; nothing was done), ours, free,
-- stored_expires_at_ms, stored_fence, sound, now_ms, fence, expires_at_ms. fence is NULL when the lock was not free, or when it
-- was and the counter is outside its limits: nothing is written then.
--
-- Rule: what is told of a stored lock comes from one row as a whole, the youngest that was read (`stored`).
-- Rule: nothing here waits for another transaction, so nobody's key keeps anybody else waiting, and no order of keys can make
-- a deadlock. Whoever is at the key's advisory lock, its row or its counter is left there.
--
-- The snapshot is older than the advisory lock. Who came and went in between left a row that the upsert judges as it is
-- now; if that refuses, the statement divides by zero (SQLSTATE 22012), which takes back all of it, the counts too. The
-- looks at single rows are LATERAL because a join would be planned for the size that the table has today.
WITH glimpse AS MATERIALIZED (
    -- A look without a lock: answering "held" writes nothing, and so needs no flush at commit.
    SELECT asked.*, found.stored, floor(date_part('epoch', clock_timestamp()) * 1000)::bigint AS seen_at_ms
    FROM (SELECT $1::text, $2::text, $3::text, $4::bigint, $5::text, $6::text, 1::bigint) -- unless many
    FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[]) WITH ORDINALITY -- if many
         AS asked (key, fence_key, lock_id, ttl_ms, user_key, label, place)
    LEFT JOIN LATERAL (SELECT l AS stored FROM {locks} AS l WHERE l.key = asked.key LIMIT 1) AS found ON true
), gate AS MATERIALIZED (
    -- Who only hears that the lock is held is in nobody's way. The number is the TypeScript original's, so both exclude
    -- each other.
    SELECT *, CASE WHEN (stored).key IS NULL OR (stored).expires_at_ms <= seen_at_ms - 1000
                   THEN pg_try_advisory_xact_lock(hashtext(key)) END AS entered
    FROM glimpse
), youngest AS MATERIALIZED (
    -- Extend and release of clients that follow the specification to the letter do not take the advisory lock: hence the
    -- row lock. The clock is read after every lock.
    SELECT gate.place, gate.key, gate.fence_key, gate.lock_id, gate.ttl_ms, gate.user_key, gate.label,
           COALESCE(dead.stored, gate.stored) AS stored,
           CASE WHEN gate.entered
                THEN ((gate.stored).key IS NULL OR (dead.stored).key IS NOT NULL)
                     -- By the key: a whole row IS NOT NULL only if none of its columns is, and older programs leave the holder out.
                     AND (counter.fence IS NOT NULL
                          -- LIMIT, because the planner would read the whole table for EXISTS.
                          OR (SELECT true FROM {fences} AS c WHERE c.fence_key = gate.fence_key LIMIT 1) IS NULL)
                ELSE gate.entered END AS passed,
           floor(date_part('epoch', clock_timestamp()) * 1000)::bigint AS now_ms
    FROM gate
    LEFT JOIN LATERAL (SELECT l AS stored FROM {locks} AS l
                       WHERE l.key = gate.key AND gate.entered AND (gate.stored).key IS NOT NULL
                       FOR UPDATE SKIP LOCKED) AS dead ON true
    LEFT JOIN LATERAL (SELECT c.fence FROM {fences} AS c
                       WHERE c.fence_key = gate.fence_key AND gate.entered
                       FOR UPDATE SKIP LOCKED) AS counter ON true
), seen AS MATERIALIZED (
    -- A NULL expiry makes this NULL, which is not free.
    SELECT *, CASE WHEN passed THEN (stored).key IS NULL OR (stored).expires_at_ms <= now_ms - 1000
                   WHEN (stored).key IS NULL OR (stored).expires_at_ms IS NOT NULL THEN false END AS free
    FROM youngest
), counter AS (
    -- key_debug is for people. It is written once, so that a role needs no right to change it.
    INSERT INTO {fences} AS c (fence_key, fence
        , key_debug -- if key_debug
    )
    SELECT fence_key, CASE WHEN $7 THEN now_ms ELSE 1 END
        , user_key -- if key_debug
    FROM seen
    WHERE free
    ON CONFLICT (fence_key) DO UPDATE
        SET fence = GREATEST(c.fence + 1, EXCLUDED.fence)
        WHERE c.fence BETWEEN 0 AND 899999999999999
    RETURNING c.fence_key, c.fence
), taken AS (
    INSERT INTO {locks} AS l (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key
        , holder -- if holder
    )
    SELECT key, lock_id, now_ms + ttl_ms, now_ms, lpad(counter.fence::text, 15, '0'), user_key
        , jsonb_strip_nulls(jsonb_build_object('lockId', lock_id, 'label', label, 'ttlMs', ttl_ms)) -- if holder
    FROM seen JOIN counter USING (fence_key)
    ON CONFLICT (key) DO UPDATE
        SET lock_id = EXCLUDED.lock_id, expires_at_ms = EXCLUDED.expires_at_ms,
            acquired_at_ms = EXCLUDED.acquired_at_ms, fence = EXCLUDED.fence, user_key = EXCLUDED.user_key
            , holder = EXCLUDED.holder -- if holder
        -- A live lock is not overwritten.
        WHERE l.expires_at_ms <= EXCLUDED.acquired_at_ms - 1000
    RETURNING l.key, l.expires_at_ms
)
SELECT seen.place,
       seen.passed,
       (seen.stored).lock_id = seen.lock_id AS ours,
       seen.free,
       (seen.stored).expires_at_ms AS stored_expires_at_ms,
       (seen.stored).fence AS stored_fence,
       -- Whether a client of ours wrote what holds the lock. Another holder's id itself stays on the server.
       CASE WHEN NOT seen.free
            THEN (seen.stored).lock_id ~ '^[A-Za-z0-9_-]{22}$' AND (seen.stored).fence ~ '^[0-9]{15}$' END AS sound,
       seen.now_ms / CASE
           WHEN counter.fence IS NOT NULL AND taken.key IS NULL THEN 0
           -- A wait after the clock was read would have eaten up a part of the lease.
           WHEN floor(date_part('epoch', clock_timestamp()) * 1000)::bigint > seen.now_ms + 1000 THEN 0
           ELSE 1
       END AS now_ms,
       counter.fence,
       taken.expires_at_ms,
       -- A timeout during COMMIT would give up waiting for a synchronous standby and report success all the same.
       set_config('statement_timeout', '0', true)
FROM seen
LEFT JOIN counter USING (fence_key)
LEFT JOIN taken ON taken.key = seen.key
