-- The migration: everything that PostgreSQL needs to refuse a stale writer. Safe to run again.
--
-- SQLSTATE SG001: the fence is stale; the detail is the highest fence seen.
-- SQLSTATE SG002: a protected table is written without a fence, or with the fence of another key.
--
-- A refusal is an error on purpose: it aborts the transaction, so that not even a caller who ignores it can commit.

-- The highest fence that was accepted for each key. Never delete a row: with it goes the memory of who was here.
CREATE TABLE IF NOT EXISTS syncguard_marks (
    key   text COLLATE "C" PRIMARY KEY,
    fence bigint NOT NULL CHECK (fence BETWEEN 1 AND 900000000000000)
);

-- Accepts a fence inside the caller's transaction.
--
-- The row is locked until the transaction ends, whether or not it changes. So whoever was accepted has committed before
-- a later one compares. An equal fence is what nearly all writes bring: it costs one statement and no new version of the
-- row. (INSERT … ON CONFLICT alone would do, too; but it needs a second statement to tell an equal fence from a stale
-- one, and takes several times as long.)
CREATE OR REPLACE FUNCTION syncguard_check(checked_key text, offered bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    seen bigint;
BEGIN
    SELECT fence INTO seen FROM syncguard_marks WHERE key = checked_key FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        -- Waits for somebody who brings the first fence at the same moment.
        INSERT INTO syncguard_marks (key, fence) VALUES (checked_key, offered) ON CONFLICT (key) DO NOTHING;
        IF FOUND THEN
            RETURN;
        END IF;
        SELECT fence INTO STRICT seen FROM syncguard_marks WHERE key = checked_key FOR NO KEY UPDATE;
    END IF;
    IF seen > offered THEN
        RAISE EXCEPTION USING ERRCODE = 'SG001', MESSAGE = 'the fence is stale', DETAIL = seen::text;
    END IF;
    IF seen < offered THEN
        UPDATE syncguard_marks SET fence = offered WHERE key = checked_key;
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

-- Protects a table even from code that forgets to check. Its argument is the key:
--
--     CREATE TRIGGER ledger_fence BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON ledger
--         FOR EACH STATEMENT EXECUTE FUNCTION syncguard_require_fence('ledger');
--
-- From then on each writing transaction begins with: SET LOCAL syncguard.fence = 42;
CREATE OR REPLACE FUNCTION syncguard_require_fence() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    -- Empty is what remains in a session of a setting that was local to an earlier transaction.
    declared text := nullif(current_setting('syncguard.fence', true), '');
    declared_key text := nullif(current_setting('syncguard.key', true), '');
BEGIN
    IF declared IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'SG002', MESSAGE = 'this table is protected and no fence is declared',
            HINT = 'begin the transaction with SET LOCAL syncguard.fence = …';
    END IF;
    IF declared_key <> TG_ARGV[0] THEN
        RAISE EXCEPTION USING ERRCODE = 'SG002', MESSAGE = 'the declared fence belongs to another key';
    END IF;
    PERFORM syncguard_check(TG_ARGV[0], declared::bigint);
    RETURN NULL;
END
$$;
