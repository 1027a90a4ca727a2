-- Replaces the lease of an id by now + ttl. Never creates a lock.
--
-- KEYS 1 lock  2 index of the id
-- ARGV 1 the id  2 how long the names live in ms: ttl + tolerance
-- Answers the new expiresAtMs, {it, 1} when somebody asked for the lock, or 0, -1, -2 as release does
local run, KEYS, ARGV = redis.pcall, KEYS, ARGV
--#include own
if data.expiresAtMs <= now - TOLERANCE_MS then
  redis.call('DEL', KEYS[1], KEYS[2])
  return -2
end
data.ttlMs = ARGV[2] - TOLERANCE_MS
data.expiresAtMs = now + data.ttlMs
stored = cjson.encode(data)
local written = run('PSETEX', KEYS[2], ARGV[2], KEYS[1])
if written.err then return redis.error_reply('SYNCGUARDREFUSED ' .. written.err) end
written = run('PSETEX', KEYS[1], ARGV[2], stored)
if written.err then return redis.error_reply('SYNCGUARDREFUSED ' .. written.err) end
if data.asked == true then return {data.expiresAtMs, 1} end
return data.expiresAtMs
