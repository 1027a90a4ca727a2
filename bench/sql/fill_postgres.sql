-- Counters of keys that were locked before. $1 the first number, $2 the one after the last. Answers: none.
INSERT INTO syncguard_fence_counters (fence_key, fence)
SELECT 'fence:job:' || lpad(number::text, 12, '0'), 1
FROM generate_series($1::bigint, $2::bigint - 1) AS number
ON CONFLICT DO NOTHING
