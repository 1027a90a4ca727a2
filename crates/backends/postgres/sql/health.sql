-- What an operator should know about the server.
--
-- $1 lock table, $2 fence table, as quoted names. One row.
SELECT current_setting('server_version') AS version,
       pg_is_in_recovery() AS in_recovery,
       current_setting('default_transaction_read_only') = 'on' AS read_only,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('fsync') = 'on' AS fsync,
       current_setting('full_page_writes') = 'on' AS full_page_writes,
       current_setting('synchronous_standby_names') <> '' AS synchronous_standbys,
       has_table_privilege(to_regclass($1), 'SELECT') AND has_table_privilege(to_regclass($1), 'INSERT')
           AND has_table_privilege(to_regclass($1), 'UPDATE') AND has_table_privilege(to_regclass($1), 'DELETE') AS lock_rights,
       has_table_privilege(to_regclass($2), 'SELECT') AND has_table_privilege(to_regclass($2), 'INSERT')
           AND has_column_privilege(to_regclass($2), 'fence', 'UPDATE') AS fence_rights,
       has_table_privilege(to_regclass($2), 'DELETE') AS may_delete_counters,
       (SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass($2)) AS counters,
       (SELECT n_live_tup FROM pg_stat_user_tables WHERE relid = to_regclass($1)) AS locks_alive,
       (SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = to_regclass($1)) AS locks_dead,
       (SELECT max(extract(epoch FROM clock_timestamp() - xact_start))::bigint FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_xmin IS NOT NULL) AS oldest_snapshot_s,
       -- In transactions: the only age that a role sees of other roles' sessions.
       (SELECT max(age(backend_xmin))::bigint FROM pg_stat_activity
         WHERE (datname = current_database() OR datname IS NULL) AND pid <> pg_backend_pid()) AS oldest_snapshot_xids,
       (SELECT max(GREATEST(age(xmin), age(catalog_xmin)))::bigint FROM pg_replication_slots) AS oldest_slot_xids,
       (SELECT max(extract(epoch FROM clock_timestamp() - prepared))::bigint FROM pg_prepared_xacts
         WHERE database = current_database()) AS oldest_prepared_s,
       current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint AS server_limit,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS server_connections,
       -- Minus one is without limit.
       (SELECT NULLIF(rolconnlimit, -1)::bigint FROM pg_roles WHERE rolname = session_user) AS role_limit,
       (SELECT count(*) FROM pg_stat_activity WHERE usename = session_user) AS role_connections,
       (SELECT s.version FROM pg_stat_ssl s WHERE s.pid = pg_backend_pid() AND s.ssl) AS tls,
       inet_server_addr() IS NULL AS unix_socket,
       floor(date_part('epoch', clock_timestamp()) * 1000)::bigint AS now_ms
