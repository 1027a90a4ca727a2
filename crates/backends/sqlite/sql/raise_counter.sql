-- Promises fences of a key. ?1 fence key, ?2 the highest promised, ?3 the one given now, ?4 boot or null. Answers: none.
INSERT INTO syncguard_fence_counters (fence_key, fence, given, promised, boot) VALUES (?1, ?2, ?3, ?2, ?4)
ON CONFLICT (fence_key) DO UPDATE
SET fence = excluded.fence, given = excluded.given, promised = excluded.promised, boot = excluded.boot
