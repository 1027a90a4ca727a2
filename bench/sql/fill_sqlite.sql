-- Counters of keys that were locked before. ?1 the first number, ?2 the one after the last. Answers: none.
WITH RECURSIVE numbers (number) AS (
    VALUES (?1)
    UNION ALL
    SELECT number + 1 FROM numbers WHERE number + 1 < ?2
)
INSERT OR IGNORE INTO syncguard_fence_counters (fence_key, fence)
SELECT format('fence:job:%012d', number), 1 FROM numbers
