-- Replaces the lease of an id by now + ttl. Never creates a lock.
--
-- KEYS 1 lock  2 index of the id
-- ARGV 1 the stored value up to its expiry: {"lockId":"…","expiresAtMs":  2 how long the names live in ms: ttl + tolerance
-- Answers the new expiresAtMs, {it, 1} when somebody asked for the lock, or 0, -1, -2 as release does
local found = redis.pcall('MGET', KEYS[1], KEYS[2])
if found.err then return redis.error_reply('SYNCGUARDREFUSED ' .. found.err) end
local stored = found[1]
if found[2] ~= KEYS[1] then return -1 end
if not stored then
  -- MGET hides a value of another type.
  stored = redis.pcall('GET', KEYS[1])
  if type(stored) == 'table' then return redis.error_reply('SYNCGUARDREFUSED ' .. stored.err) end
  return -1
end
local expires, rest, data
if string.find(stored, ARGV[1], 1, true) == 1 then expires, rest = string.match(stored, '^(%d+)(.*)$', #ARGV[1] + 1) end
expires = tonumber(expires)
if not expires then
  --#include read
  local id
  id, expires, data = read(stored)
  if not expires then return redis.error_reply('SYNCGUARDFOREIGN the value is not a lock') end
  if id ~= string.match(ARGV[1], '"lockId":"([%w_-]+)"') then return 0 end
end
local time = redis.pcall('TIME')
if time.err then return redis.error_reply('SYNCGUARDREFUSED ' .. time.err) end
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if expires <= now - TOLERANCE_MS then
  redis.call('DEL', KEYS[1], KEYS[2])
  return -2
end
local ttl = ARGV[2] - TOLERANCE_MS
local asked
expires = now + ttl
if rest then
  -- Inside a text the quotes would be escaped.
  asked = string.find(rest, '"asked":true', 1, true)
  local length, known = '"ttlMs":' .. ttl
  rest, known = string.gsub(rest, '"ttlMs":%d+', length, 1)
  if known == 0 then rest = string.gsub(rest, '}$', ',' .. length .. '}') end
  stored = ARGV[1] .. expires .. rest
else
  data = data or cjson.decode(stored)
  asked = data.asked == true
  data.expiresAtMs = expires
  data.ttlMs = ttl
  stored = cjson.encode(data)
end
local written = redis.pcall('PSETEX', KEYS[2], ARGV[2], KEYS[1])
if written.err then return redis.error_reply('SYNCGUARDREFUSED ' .. written.err) end
written = redis.pcall('PSETEX', KEYS[1], ARGV[2], stored)
if written.err then return redis.error_reply('SYNCGUARDREFUSED ' .. written.err) end
if asked then return {expires, 1} end
return expires
