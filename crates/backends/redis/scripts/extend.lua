-- Replaces the lease of an id by now + ttl. Never creates a lock.
--
-- KEYS 1 lock  2 index of the id
-- ARGV 1 lock id  2 ttl in ms
-- Answers the new expiresAtMs, or 0, -1, -2 as release does
local found = redis.pcall('MGET', KEYS[1], KEYS[2])
if found.err then return refused(found) end
local stored = found[1]
if found[2] ~= KEYS[1] then return -1 end
if not stored then
  -- MGET hides a value of another type.
  stored = redis.pcall('GET', KEYS[1])
  if type(stored) == 'table' then return refused(stored) end
  return -1
end
local id, expires, data = read(stored)
if not expires then return foreign() end
if id ~= ARGV[1] then return 0 end
local time = redis.pcall('TIME')
if time.err then return refused(time) end
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if expires <= now - 1000 then
  redis.call('DEL', KEYS[1], KEYS[2])
  return -2
end
expires = now + ARGV[2]
local value
if data then
  data.expiresAtMs = expires
  value = cjson.encode(data)
else
  local head, tail = string.match(stored, '^({"lockId":"[%w_-]+","expiresAtMs":)%d+(.*)$')
  value = head .. string.format('%.0f', expires) .. tail
end
local written = redis.pcall('PSETEX', KEYS[2], ARGV[2] + 1000, KEYS[1])
if written.err then return refused(written) end
written = redis.pcall('PSETEX', KEYS[1], ARGV[2] + 1000, value)
if written.err then return refused(written) end
return expires
