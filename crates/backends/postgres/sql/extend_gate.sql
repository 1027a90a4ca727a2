-- Bounds every wait of this transaction and takes the advisory lock of the key that this id owns, if any.
--
-- $1 lock id, $2 lock_timeout in ms (text), $3 statement_timeout in ms (text). The answer is not read.
SELECT set_config('lock_timeout', $2, true),
       set_config('statement_timeout', $3, true),
       set_config('idle_in_transaction_session_timeout', $3, true),
       set_config('enable_seqscan', 'off', true),
       set_config('synchronous_commit',
                  CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true),
       (SELECT pg_advisory_xact_lock(hashtext(key)) FROM {locks} WHERE lock_id = $1)
