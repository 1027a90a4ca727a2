-- The tables of a fresh file. Arguments: none. Answers: none.
--
-- Columns as in the Postgres layout, plus `label`. STRICT keeps a foreign writer from storing text where a number
-- must be; WITHOUT ROWID saves one B-tree per lock.
CREATE TABLE syncguard_locks (
    key            TEXT    NOT NULL PRIMARY KEY,
    lock_id        TEXT    NOT NULL,
    expires_at_ms  INTEGER NOT NULL,
    acquired_at_ms INTEGER NOT NULL,
    fence          TEXT    NOT NULL,
    user_key       TEXT    NOT NULL,
    label          TEXT
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX idx_syncguard_locks_lock_id ON syncguard_locks (lock_id);
CREATE INDEX idx_syncguard_locks_expires ON syncguard_locks (expires_at_ms);

-- Outlives every lock: nothing of ours deletes or lowers a counter, and the triggers keep a careless hand from it.
CREATE TABLE syncguard_fence_counters (
    fence_key TEXT    NOT NULL PRIMARY KEY,
    fence     INTEGER NOT NULL DEFAULT 0,
    key_debug TEXT
) STRICT, WITHOUT ROWID;

CREATE TRIGGER syncguard_fence_only_rises BEFORE UPDATE OF fence ON syncguard_fence_counters
WHEN NEW.fence <= OLD.fence
BEGIN
    SELECT RAISE(ABORT, 'a fence counter only rises');
END;

CREATE TRIGGER syncguard_fence_stays BEFORE DELETE ON syncguard_fence_counters
BEGIN
    SELECT RAISE(ABORT, 'a fence counter is never deleted');
END;
