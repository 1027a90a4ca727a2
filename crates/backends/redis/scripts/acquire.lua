-- Takes the lock if it is free or dead. Everything is checked before the first write, because Redis rolls nothing back.
--
-- KEYS 1 lock  2 index of the new id  3 counter  4 index of the dead holder, where known
-- ARGV 1 lock id  2 ttl in ms  3 the value as a format of (expires, acquired, fence)
--      4 '1': the fence never falls below the clock  5 the dead holder's id, where known
-- Answers {fence, expiresAtMs} when the lock is ours (also when it was already),
--         minus the ms until it can be taken over when another owner holds it,
--         the dead holder's id as text: come again with its index key, so that no key is touched undeclared
local stored = redis.pcall('GET', KEYS[1])
local time = redis.pcall('TIME')
if time.err then return refused(time) end
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if stored then
  if type(stored) == 'table' then return refused(stored) end
  local id, expires, data = read(stored)
  if not expires then return foreign() end
  if expires > now - 1000 then
    if type(id) ~= 'string' then return foreign() end
    if id ~= ARGV[1] then return now - expires - 1000 end
    local fence = tonumber(data and data.fence or string.match(stored, '"fence":"(%d+)"}$'))
    if not fence then return foreign() end
    return {fence, expires}
  end
  if type(id) == 'string' and id ~= ARGV[5] then return id end
end

local counter = redis.pcall('GET', KEYS[3])
local fence = 1
if counter then
  if type(counter) == 'table' then
    if not string.find(counter.err, '^WRONGTYPE') then return refused(counter) end
    counter = ''
  end
  fence = #counter <= 15 and string.find(counter, '^%d+$') and tonumber(counter) + 1
  if not fence or fence > 900000000000000 then
    return redis.error_reply('SYNCGUARDCOUNTER the fence counter is outside its range')
  end
end
local expires = now + ARGV[2]
local written
if ARGV[4] == '1' and fence < now then
  written = redis.pcall('INCRBY', KEYS[3], now - fence + 1)
  fence = now
else
  written = redis.pcall('INCR', KEYS[3])
end
if type(written) == 'table' then return refused(written) end
if KEYS[4] then redis.call('DEL', KEYS[4]) end
-- The index first: if the second write is refused, an index without a lock is harmless, the reverse is not.
written = redis.pcall('PSETEX', KEYS[2], ARGV[2] + 1000, KEYS[1])
if written.err then return refused(written) end
written = redis.pcall('PSETEX', KEYS[1], ARGV[2] + 1000, string.format(ARGV[3], expires, now, fence))
if written.err then return refused(written) end
return {fence, expires}
