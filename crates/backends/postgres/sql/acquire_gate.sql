-- Bounds every wait of this transaction and takes the key's advisory lock.
--
-- $1 storage key, $2 lock_timeout in ms (text), $3 statement_timeout in ms (text). The answer is not read.
--
-- A statement of its own, because under READ COMMITTED the next statement gets a snapshot that is younger than this wait. Taking the
-- advisory lock inside the deciding statement would decide on what was true before the wait.
-- The number is the TypeScript original's, so both exclude each other. The list is evaluated from left to right: the
-- bounds hold for the wait at its end.
SELECT set_config('lock_timeout', $2, true),
       set_config('statement_timeout', $3, true),
       set_config('idle_in_transaction_session_timeout', $3, true),
       set_config('enable_seqscan', 'off', true),
       -- A server that commits asynchronously would give a fence twice after a crash. What is stronger than on stays.
       set_config('synchronous_commit',
                  CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true),
       pg_advisory_xact_lock(hashtext($1))
