-- Takes those of several locks that are free, each with its next fence.
--
-- Arrays, one element per lock and all keys different: $1 storage keys, $2 fence keys, $3 lock ids, $4 ttls in ms, $5 user
-- keys, $6 labels or NULLs. $7 whether fences are floored by the clock.
--
-- One row per lock: place (from 1), passed (false: not decided, come again alone), and what acquire.sql answers. If somebody
-- came and went between the snapshot and an advisory lock, the statement divides by zero, which takes back all of it.
--
-- Nothing here waits for another transaction, so nobody's key keeps the others waiting, and no order of keys can make a
-- deadlock: what somebody else has locked is left to a statement of its own. The looks at single rows are LATERAL because
-- a join would be planned for the size that the table has today.
WITH asked AS MATERIALIZED (
    SELECT key, fence_key, lock_id, ttl_ms, user_key, label, place
    FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[])
         WITH ORDINALITY AS one (key, fence_key, lock_id, ttl_ms, user_key, label, place)
), glimpse AS MATERIALIZED (
    SELECT asked.*, stored.key IS NOT NULL AS present, stored.lock_id AS stored_lock_id, stored.expires_at_ms,
           stored.fence AS stored_fence, floor(date_part('epoch', clock_timestamp()) * 1000)::bigint AS seen_at_ms
    FROM asked
    LEFT JOIN LATERAL (SELECT key, lock_id, expires_at_ms, fence FROM {locks} WHERE key = asked.key LIMIT 1) AS stored
           ON true
), gate AS MATERIALIZED (
    SELECT *, CASE WHEN NOT present OR expires_at_ms <= seen_at_ms - 1000
                   THEN pg_try_advisory_xact_lock(hashtext(key)) END AS entered
    FROM glimpse
), after_gate AS MATERIALIZED (
    -- A dead lock that is not locked here is being extended, released or removed by somebody.
    SELECT gate.*, dead.expires_at_ms AS locked_expires_at_ms,
           CASE WHEN entered THEN NOT present OR dead.expires_at_ms IS NOT NULL ELSE entered END AS passed,
           floor(date_part('epoch', clock_timestamp()) * 1000)::bigint AS now_ms
    FROM gate
    LEFT JOIN LATERAL (SELECT expires_at_ms FROM {locks}
                       WHERE key = gate.key AND gate.present AND gate.entered
                       FOR UPDATE SKIP LOCKED) AS dead ON true
), seen AS MATERIALIZED (
    -- A NULL expiry makes this NULL, which is not free.
    SELECT *, CASE WHEN passed THEN NOT present OR locked_expires_at_ms <= now_ms - 1000
                   WHEN present AND expires_at_ms IS NULL THEN NULL
                   ELSE false END AS free
    FROM after_gate
), counter AS (
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
        WHERE l.expires_at_ms <= EXCLUDED.acquired_at_ms - 1000
    RETURNING l.key, l.expires_at_ms
)
SELECT seen.place,
       seen.passed,
       seen.present,
       seen.stored_lock_id = seen.lock_id AS ours,
       seen.free,
       COALESCE(seen.locked_expires_at_ms, seen.expires_at_ms) AS stored_expires_at_ms,
       seen.stored_fence,
       CASE WHEN NOT seen.free
            THEN seen.stored_lock_id ~ '^[A-Za-z0-9_-]{22}$' AND seen.stored_fence ~ '^[0-9]{15}$' END AS sound,
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
