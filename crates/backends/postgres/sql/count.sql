-- How many locks are live, and how many counters are kept.
--
-- No parameters. One row: locks, counters. Beyond a million counters the server's own estimate: counting ten million
-- takes seconds.
SELECT (SELECT count(*)
        FROM {locks}
        WHERE expires_at_ms > (SELECT floor(date_part('epoch', clock_timestamp()) * 1000)::bigint - 1000)) AS locks,
       CASE
           WHEN (SELECT reltuples FROM pg_class WHERE oid = to_regclass('{fences}')) > 1000000
           THEN (SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass('{fences}'))
           ELSE (SELECT count(*) FROM {fences})
       END AS counters
