-- The migration: everything that PostgreSQL needs to refuse a stale writer. Safe to run again.
--
-- SQLSTATE SG001: the fence is stale; the detail is the highest fence seen.
-- SQLSTATE SG002: a protected table is written without a fence, or with the fence of another key.
-- SQLSTATE SG003: sessions of a stale holder are in the way, and this role may not end them; the detail names them.
-- SQLSTATE SG004: the table of marks belongs to a stranger, or a trigger on it calls a function of one.
--
-- A refusal is an error on purpose: it aborts the transaction, so that not even a caller who ignores it can commit.

-- The highest fence that was accepted for each key. Never delete a row: with it goes the memory of who was here.
CREATE TABLE IF NOT EXISTS syncguard_marks (
    key   text COLLATE "C" PRIMARY KEY,
    fence bigint NOT NULL CHECK (fence BETWEEN 1 AND 900000000000000)
);

-- Whoever owns the table, or the function of a trigger on it, has code of his run as everybody who brings a fence. Trusted are
-- we, roles that we are a member of, superusers, and the owners of the database and of the schema. A function of a stranger
-- needs no look: replacing it fails.
DO $$
DECLARE
    stranger text;
BEGIN
    SELECT r.rolname INTO stranger
    FROM (SELECT relowner, relnamespace FROM pg_class WHERE oid = 'syncguard_marks'::regclass::oid
          UNION ALL
          SELECT proowner, relnamespace FROM pg_trigger JOIN pg_class c ON c.oid = tgrelid JOIN pg_proc p ON p.oid = tgfoid
          WHERE tgrelid = 'syncguard_marks'::regclass::oid AND NOT tgisinternal) AS found (owner, schema)
    JOIN pg_roles r ON r.oid = owner
    JOIN pg_namespace n ON n.oid = schema
    JOIN pg_roles us ON us.rolname = current_user
    WHERE NOT (r.rolsuper OR r.oid = us.oid OR (NOT us.rolsuper AND pg_has_role(r.oid, 'MEMBER'))
               OR pg_has_role(r.oid, nspowner, 'MEMBER')
               OR r.oid = (SELECT datdba FROM pg_database WHERE datname = current_database()))
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'SG004', MESSAGE = 'syncguard_marks is in the hands of a stranger', DETAIL = stranger;
    END IF;
END
$$;

-- Who writes under which fence must be known to a successor that ends stale sessions, and to nobody else. So each
-- transaction holds two shared advisory locks, which block nobody: one of its key (64 bits of hash), and one of its fence
-- (50 bits) beside 13 bits of the key's hash.
CREATE OR REPLACE FUNCTION syncguard_key_label(checked_key text) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT
    RETURN hashtextextended(checked_key, 7296);

CREATE OR REPLACE FUNCTION syncguard_fence_label(checked_key text, offered bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE STRICT
    RETURN (1::bigint << 63) | ((hashtextextended(checked_key, 7297) & 8191) << 50) | offered;

-- The sessions with a transaction under a fence of this key, the one that asks among them.
CREATE OR REPLACE FUNCTION syncguard_sessions(checked_key text) RETURNS TABLE (pid integer, fence bigint)
LANGUAGE sql AS $$
    SELECT held.pid, max(held.label & ((1::bigint << 50) - 1))
                     FILTER (WHERE held.label >> 50 = syncguard_fence_label(checked_key, 0) >> 50)
      FROM (SELECT locks.pid, (locks.classid::bigint << 32) | locks.objid::bigint AS label
              FROM pg_locks AS locks
              JOIN pg_database AS here ON here.oid = locks.database AND here.datname = current_database()
             WHERE locks.locktype = 'advisory' AND locks.objsubid = 1) AS held
     GROUP BY held.pid
    HAVING bool_or(held.label = syncguard_key_label(checked_key))
$$;

-- Accepts a fence inside the caller's transaction.
--
-- The row is locked until the transaction ends, whether or not it changes. So whoever was accepted has committed before
-- a later one compares. An equal fence, which is what nearly all writes bring, shares that lock with other transactions
-- of its holder, and writes no new version of the row. A plain look decides which lock to ask for: two that share it and
-- then both want more would wait for each other.
CREATE OR REPLACE FUNCTION syncguard_check(checked_key text, offered bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    seen bigint;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(syncguard_key_label(checked_key)),
            pg_advisory_xact_lock_shared(syncguard_fence_label(checked_key, offered));
    SELECT fence INTO seen FROM syncguard_marks WHERE key = checked_key;
    IF NOT FOUND THEN
        -- Waits for somebody who brings the first fence at the same moment.
        INSERT INTO syncguard_marks (key, fence) VALUES (checked_key, offered) ON CONFLICT (key) DO NOTHING;
        IF FOUND THEN
            RETURN;
        END IF;
        seen := 0;
    END IF;
    IF seen < offered THEN
        SELECT fence INTO STRICT seen FROM syncguard_marks WHERE key = checked_key FOR NO KEY UPDATE;
        IF seen < offered THEN
            UPDATE syncguard_marks SET fence = offered WHERE key = checked_key;
            RETURN;
        END IF;
    ELSIF seen = offered THEN
        -- A newer holder may have come in between; then this waits for it, or fails where the snapshot is older.
        SELECT fence INTO STRICT seen FROM syncguard_marks WHERE key = checked_key FOR SHARE;
    END IF;
    IF seen > offered THEN
        RAISE EXCEPTION USING ERRCODE = 'SG001', MESSAGE = 'the fence is stale', DETAIL = seen::text;
    END IF;
END
$$;

-- The same, and declares the fence for tables under syncguard_require_fence until the transaction ends.
CREATE OR REPLACE FUNCTION syncguard_begin(checked_key text, offered bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM syncguard_check(checked_key, offered);
    PERFORM set_config('syncguard.fence', offered::text, true), set_config('syncguard.key', checked_key, true);
END
$$;

-- Accepts a fence, and does not wait for older holders: sessions with a transaction under a lower fence of this key are
-- ended, and returned. Sessions of the same holder, of a newer one and of everybody else are left alone; what they hold is
-- waited for, until the time is over.
CREATE OR REPLACE FUNCTION syncguard_take_over(checked_key text, offered bigint, patience interval DEFAULT '5 s')
RETURNS TABLE (pid integer, role text, application text, fence bigint) LANGUAGE plpgsql
SET lock_timeout = '20ms' AS $$
DECLARE
    deadline timestamptz := clock_timestamp() + patience;
    ended integer[] := '{}';
    denied text[];
BEGIN
    LOOP
        BEGIN
            PERFORM syncguard_check(checked_key, offered);
            RETURN;
        EXCEPTION WHEN lock_not_available THEN
            PERFORM pg_stat_clear_snapshot();
        END;
        denied := '{}';
        FOR pid, role, application, fence IN
            SELECT stale.pid, activity.usename, activity.application_name, stale.fence
              FROM syncguard_sessions(checked_key) AS stale JOIN pg_stat_activity AS activity USING (pid)
             WHERE stale.fence < offered AND stale.pid <> pg_backend_pid() AND stale.pid <> ALL (ended)
        LOOP
            BEGIN
                IF pg_terminate_backend(pid) THEN
                    ended := ended || pid;
                    RETURN NEXT;
                END IF;
            EXCEPTION WHEN insufficient_privilege THEN
                denied := denied || format('pid %s of role %s (%s), fence %s', pid, role, application, fence);
            END;
        END LOOP;
        IF denied <> '{}' THEN
            RAISE EXCEPTION USING ERRCODE = 'SG003', DETAIL = array_to_string(denied, '; '),
                MESSAGE = 'sessions of a stale holder are in the way, and this role may not end them',
                HINT = format('GRANT pg_signal_backend TO %I, or connect as the role of those sessions', current_user);
        END IF;
        IF clock_timestamp() > deadline THEN
            RAISE lock_not_available USING MESSAGE = 'the mark of the fence is still in use',
                DETAIL = (SELECT string_agg(format('pid %s, fence %s', other.pid, other.fence), '; ')
                            FROM syncguard_sessions(checked_key) AS other WHERE other.pid <> pg_backend_pid());
        END IF;
    END LOOP;
END
$$;

-- Makes every write to a table ask for its fence, by a trigger. See syncguard_protect.
--
-- Where it fires for each row, the first row of a transaction asks and leaves the answer for the others.
CREATE OR REPLACE FUNCTION syncguard_require_fence() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    -- Empty is what remains in a session of a setting that was local to an earlier transaction.
    declared text := nullif(current_setting('syncguard.fence', true), '');
    declared_key text := nullif(current_setting('syncguard.key', true), '');
BEGIN
    IF declared IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'SG002', MESSAGE = 'this table is protected and no fence is declared',
            HINT = 'begin the transaction with SET LOCAL syncguard.fence = …, or run the program by: '
                   'syncguard run --fence-postgres';
    END IF;
    IF declared_key <> TG_ARGV[0] THEN
        RAISE EXCEPTION USING ERRCODE = 'SG002', MESSAGE = 'the declared fence belongs to another key';
    END IF;
    PERFORM syncguard_check(TG_ARGV[0], declared::bigint), set_config('syncguard.accepted', TG_ARGV[0] || '=' || declared, true);
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    RETURN NEW;
END
$$;

-- Protects a table even from code that knows nothing of fences: SELECT syncguard_protect('ledger', 'the key');
--
-- From then on each writing transaction needs SET LOCAL syncguard.fence = 42, or a session that was started with
-- options=-c syncguard.fence=42. A statement that names a partition does not fire the triggers of the parent, so each
-- partition has its own; partitions that are made later inherit the one for rows.
CREATE OR REPLACE FUNCTION syncguard_protect(protected regclass, protected_key text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    part regclass;
BEGIN
    FOR part IN
        WITH RECURSIVE parts (relation) AS (
            SELECT protected::oid
             UNION SELECT inhrelid FROM pg_inherits JOIN parts ON inhparent = relation)
        SELECT relation::regclass FROM parts
    LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER syncguard_fence BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s '
                       'FOR EACH STATEMENT EXECUTE FUNCTION syncguard_require_fence(%L)', part, protected_key);
    END LOOP;
    IF (SELECT relkind FROM pg_class WHERE oid = protected) = 'p' THEN
        EXECUTE format('CREATE OR REPLACE TRIGGER syncguard_fence_rows BEFORE INSERT OR UPDATE OR DELETE ON %s '
                       'FOR EACH ROW WHEN (coalesce(current_setting(''syncguard.accepted'', true) <> '
                       '%L || ''='' || current_setting(''syncguard.fence'', true), true)) '
                       'EXECUTE FUNCTION syncguard_require_fence(%L)', protected, protected_key, protected_key);
    END IF;
END
$$;

-- The functions find each other and the table whatever the search path of the session is: pg_restore has none.
DO $$
DECLARE
    name regprocedure;
BEGIN
    FOREACH name IN ARRAY ARRAY['syncguard_sessions(text)', 'syncguard_check(text, bigint)',
                                'syncguard_begin(text, bigint)', 'syncguard_take_over(text, bigint, interval)',
                                'syncguard_require_fence()', 'syncguard_protect(regclass, text)']::regprocedure[]
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', name, current_schema());
    END LOOP;
END
$$;
