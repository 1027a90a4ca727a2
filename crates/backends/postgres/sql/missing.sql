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
                 AND attname = 'holder' AND atttypid = 'jsonb'::regtype) AS holder
