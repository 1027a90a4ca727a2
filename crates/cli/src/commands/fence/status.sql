-- What `fence status` shows of a database: one row each, told apart by its kind.
--
-- table:   name, key                       of each protected table
-- mark:    key, fence                      of each key
-- session: key, fence, pid, who, state, blocks (the process ids that wait for it)
--
-- A table whose trigger was switched off is not protected, and not shown. Partitions are shown as their parent.
WITH protected AS (
    SELECT pg_class.oid::regclass::text AS name,
           convert_from(substring(tgargs FOR length(tgargs) - 1), getdatabaseencoding()) AS key
      FROM pg_trigger
      JOIN pg_class ON pg_class.oid = tgrelid AND NOT relispartition
      JOIN pg_proc ON pg_proc.oid = tgfoid AND proname = 'syncguard_require_fence'
     WHERE tgenabled <> 'D'
     GROUP BY 1, 2),
keys AS (
    -- The first fence of a key is in no row before its transaction ends.
    SELECT key FROM syncguard_marks UNION SELECT key FROM protected)
SELECT 'table' AS kind, name, key, NULL::bigint AS fence, NULL::integer AS pid, NULL AS who, NULL AS state,
       NULL::integer[] AS blocks
  FROM protected
UNION ALL
SELECT 'mark', NULL, key, fence, NULL, NULL, NULL, NULL FROM syncguard_marks
UNION ALL
SELECT 'session', NULL, keys.key, sessions.fence, sessions.pid,
       concat_ws(' ', activity.usename, '(' || nullif(activity.application_name, '') || ')'), activity.state,
       ARRAY(SELECT waiting.pid FROM pg_locks AS waiting
              WHERE NOT waiting.granted AND sessions.pid = ANY (pg_blocking_pids(waiting.pid)))
  FROM keys, syncguard_sessions(keys.key) AS sessions
  LEFT JOIN pg_stat_activity AS activity USING (pid)
 ORDER BY 1 DESC, 2, 3, 4, 5
