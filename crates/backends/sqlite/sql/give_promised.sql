-- Gives a fence that was promised. ?1 fence key, ?2 fence. Answers: rows changed.
UPDATE syncguard_fence_counters SET given = ?2 WHERE fence_key = ?1
