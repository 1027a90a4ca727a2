-- Who is at the other end, and the settings of a connection that is ours alone.
--
-- {announced_pid} the process id of the server's greeting, {lock_timeout} and {statement_timeout} in ms. One row: process id,
-- in recovery, read-only, the schemas of {locks}, of {fences}, and of what is made anew, how many settings were made.
--
-- Nothing is set where a pooler stands in between (the process ids differ): the settings would stay behind on a
-- connection that others use. Where they are set, a statement needs no transaction around it to be bounded, to see what is
-- committed when it starts, and to commit synchronously. Where the tables are is found by the search path that the session came
-- with, and then nothing is looked for in a schema in which others may make functions and operators that fit better than the
-- built-in ones: they would run as us. This question is asked before that, so it calls nothing that could be outdone.
SELECT pg_catalog.pg_backend_pid(),
       pg_catalog.pg_is_in_recovery(),
       pg_catalog.current_setting('transaction_read_only') = 'on',
       (SELECT n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE c.oid = pg_catalog.to_regclass('{locks}'::text)::oid),
       (SELECT n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE c.oid = pg_catalog.to_regclass('{fences}'::text)::oid),
       pg_catalog.current_schema(),
       (SELECT pg_catalog.count(pg_catalog.set_config(name, value, false))
        FROM (VALUES ('search_path', 'pg_catalog, pg_temp'),
                     ('lock_timeout', '{lock_timeout}'),
                     ('statement_timeout', '{statement_timeout}'),
                     ('default_transaction_isolation', 'read committed'),
                     ('enable_seqscan', 'off'),
                     -- Every statement finds its rows by an index whatever the values are, and the planner would plan
                     -- those that take arrays anew each time, which takes longer than to run them.
                     ('plan_cache_mode', 'force_generic_plan'),
                     -- Where an index is missing the planner's figures are so high that it would compile for seconds.
                     ('jit', 'off'),
                     -- A server that commits asynchronously would give a fence twice after a crash. What is stronger
                     -- than on stays.
                     ('synchronous_commit',
                      CASE pg_catalog.current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END)
             ) AS setting (name, value)
        WHERE pg_catalog.pg_backend_pid() = {announced_pid})
