-- Protects {table} from writes without a current fence of {key}. {verb}: INSERT, UPDATE or DELETE.
-- A connection that knows no fences has no function syncguard_fence, so its writes fail as well.
CREATE TRIGGER IF NOT EXISTS {trigger} BEFORE {verb} ON {table}
BEGIN
    SELECT RAISE(ABORT, 'syncguard: no fence is declared for this table') WHERE syncguard_fence({key}) IS NULL;
    SELECT RAISE(ABORT, 'syncguard: the declared fence is stale')
     WHERE syncguard_fence({key}) < (SELECT fence FROM syncguard_marks WHERE key = {key});
    INSERT INTO syncguard_marks (key, fence)
        SELECT {key}, syncguard_fence({key})
         WHERE NOT EXISTS (SELECT 1 FROM syncguard_marks WHERE key = {key} AND fence >= syncguard_fence({key}))
        ON CONFLICT (key) DO UPDATE SET fence = excluded.fence;
END
