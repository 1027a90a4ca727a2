-- Takes the key's advisory lock inside a transaction of the caller.
--
-- $1 storage key, $2 lock_timeout (text, ms). One row: isolation, own_lock_timeout, own_statement_timeout (as they were).
--
-- The list is evaluated from left to right: the caller's own limits are read before ours are set.
SELECT current_setting('transaction_isolation') AS isolation,
       current_setting('lock_timeout') AS own_lock_timeout,
       current_setting('statement_timeout') AS own_statement_timeout,
       set_config('lock_timeout', $2, true),
       set_config('synchronous_commit',
                  CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true),
       CASE WHEN current_setting('transaction_isolation') = 'read committed' THEN pg_advisory_xact_lock(hashtext($1)) END
