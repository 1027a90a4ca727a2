-- What the schema lacks.
--
-- $1 lock table, $2 fence table, as quoted names. One row of flags, false or NULL where something is missing.
--
-- Indexes are recognised by what they do, not by their name. to_regclass needs no right on the table.
SELECT to_regclass($1) IS NOT NULL AS locks,
       to_regclass($2) IS NOT NULL AS fences,
       EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
               WHERE i.indrelid = to_regclass($1) AND i.indisunique AND i.indisvalid AND i.indnkeyatts = 1
                 AND i.indpred IS NULL AND a.attname = 'lock_id') AS unique_lock_id,
       EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
               WHERE i.indrelid = to_regclass($1) AND i.indisvalid AND a.attname = 'expires_at_ms') AS expires_index,
       EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
               WHERE i.indrelid = to_regclass($1) AND i.indisunique AND i.indnkeyatts = 1 AND a.attname = 'key') AS unique_key,
       EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
               WHERE i.indrelid = to_regclass($2) AND i.indisunique AND i.indnkeyatts = 1 AND a.attname = 'fence_key') AS unique_fence_key,
       (SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass($1) AND NOT attisdropped
          AND (attname, atttypid) IN (('key', 'text'::regtype), ('lock_id', 'text'::regtype),
                                      ('expires_at_ms', 'int8'::regtype), ('acquired_at_ms', 'int8'::regtype),
                                      ('fence', 'text'::regtype), ('user_key', 'text'::regtype))) = 6 AS lock_columns,
       (SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass($2) AND NOT attisdropped
          AND (attname, atttypid) IN (('fence_key', 'text'::regtype), ('fence', 'int8'::regtype))) = 2 AS fence_columns,
       EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass($2) AND NOT attisdropped
                 AND attname = 'key_debug' AND atttypid = 'text'::regtype) AS key_debug,
       EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass($1) AND NOT attisdropped
                 AND attname = 'holder' AND atttypid = 'jsonb'::regtype) AS holder,
       -- Whoever owns a table, or the function of a trigger on it, has code of his run as whoever writes there. Trusted are we,
       -- roles that we are a member of, superusers (who are members of all, which says nothing), and who could replace the
       -- tables anyway: the owners of the database and of the schema.
       (SELECT format('%s %s', what, r.rolname)
        FROM (SELECT format('the table %s belongs to', oid::regclass), relowner, relnamespace
              FROM pg_class WHERE oid IN (to_regclass($1), to_regclass($2))
              UNION ALL
              SELECT format('the trigger %I on the table %s runs a function of', tgname, c.oid::regclass), proowner, relnamespace
              FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid JOIN pg_proc p ON p.oid = tgfoid
              WHERE tgrelid IN (to_regclass($1), to_regclass($2)) AND NOT tgisinternal) AS found (what, owner, schema)
        JOIN pg_roles r ON r.oid = owner
        JOIN pg_namespace n ON n.oid = schema
        JOIN pg_roles us ON us.rolname = current_user
        WHERE NOT (r.rolsuper OR r.oid = us.oid OR (NOT us.rolsuper AND pg_has_role(r.oid, 'MEMBER'))
                   OR pg_has_role(r.oid, nspowner, 'MEMBER')
                   OR r.oid = (SELECT datdba FROM pg_database WHERE datname = current_database()))
        LIMIT 1) AS stranger
