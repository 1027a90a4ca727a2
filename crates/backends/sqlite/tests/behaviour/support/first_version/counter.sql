-- A key's fence counter. ?1 fence key. Answers: at most one row.
SELECT fence FROM syncguard_fence_counters WHERE fence_key = ?1
