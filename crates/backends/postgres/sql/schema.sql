-- The tables of SyncGuard. Every statement may be run again.
--
-- A counter is never deleted: the next fence would repeat an old one.
CREATE TABLE IF NOT EXISTS {locks} (
    key TEXT PRIMARY KEY,
    lock_id TEXT NOT NULL,
    expires_at_ms BIGINT NOT NULL,
    acquired_at_ms BIGINT NOT NULL,
    fence TEXT NOT NULL,
    user_key TEXT NOT NULL,
    holder JSONB
);

-- What operators read: the holder's label, the length of its lease, whether it was asked to let go. Beside the lock id
-- that it belongs to, so that a client that does not know the column leaves no wrong name behind.
ALTER TABLE {locks} ADD COLUMN IF NOT EXISTS holder JSONB;

CREATE UNIQUE INDEX IF NOT EXISTS {lock_id_index} ON {locks} (lock_id);

CREATE INDEX IF NOT EXISTS {expires_index} ON {locks} (expires_at_ms);

-- Room in every page keeps the updates of a busy counter inside it (HOT), away from the index.
CREATE TABLE IF NOT EXISTS {fences} (
    fence_key TEXT PRIMARY KEY,
    fence BIGINT NOT NULL DEFAULT 0,
    key_debug TEXT
) WITH (fillfactor = 80);
