-- Bounds every wait of this transaction.
--
-- $1 lock_timeout in ms (text), $2 statement_timeout in ms (text). The answer is not read.
SELECT set_config('lock_timeout', $1, true),
       set_config('statement_timeout', $2, true),
       set_config('idle_in_transaction_session_timeout', $2, true),
       set_config('enable_seqscan', 'off', true),
       set_config('synchronous_commit',
                  CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true)
