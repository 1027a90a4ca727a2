-- How many locks are live, and how many counters are kept. ?1 newest expiry that is dead. Answers: one row.
SELECT (SELECT count(*) FROM syncguard_locks WHERE expires_at_ms > ?1), (SELECT count(*) FROM syncguard_fence_counters)
