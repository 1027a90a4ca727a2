-- Remembers a fence. ?1: key, ?2: fence. The caller has compared in the same transaction.
INSERT INTO syncguard_marks (key, fence) VALUES (?1, ?2)
ON CONFLICT (key) DO UPDATE SET fence = excluded.fence
