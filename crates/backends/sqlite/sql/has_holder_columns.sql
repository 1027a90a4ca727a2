-- Whether the table has the columns of `holder_columns.sql`. Arguments: none. Answers: one row, 0 or 1.
SELECT count(*) = 3 FROM pragma_table_info('syncguard_locks') WHERE name IN ('holder_id', 'ttl_ms', 'asked')
