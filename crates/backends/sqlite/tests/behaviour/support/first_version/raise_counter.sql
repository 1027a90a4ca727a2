-- Sets a key's fence counter to its next value. ?1 fence key, ?2 fence. Answers: none.
INSERT INTO syncguard_fence_counters (fence_key, fence) VALUES (?1, ?2)
ON CONFLICT (fence_key) DO UPDATE SET fence = excluded.fence
