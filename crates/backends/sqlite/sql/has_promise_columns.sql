-- Whether the table has the columns of `promise_columns.sql`. Arguments: none. Answers: one row, 0 or 1.
SELECT count(*) = 3 FROM pragma_table_info('syncguard_fence_counters') WHERE name IN ('given', 'promised', 'boot')
