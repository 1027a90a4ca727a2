-- Takes the lock if it is free or dead. Everything is checked before the first write, because Redis rolls nothing back.
--
-- KEYS 1 lock  2 index of the new id  3 counter  4 index of the dead holder, where known
-- ARGV 1 how long the names live in ms: ttl + tolerance  2 the stored value up to its expiry  3 and from its key to its fence
--      4 '1': the fence never falls below the clock  5 the dead holder's id, where known
-- Answers the value it stored when the lock is ours now; its acquiredAtMs is the time of the answer,
--         {the stored value, now} when it was ours already, or {fence, expiresAtMs, now} if another program wrote it,
--         minus the ms until it can be taken over when another owner holds it,
--         {the dead holder's id}: come again with its index key, so that no key is touched undeclared
--
-- Numbers become text by `..` with 14 digits, enough for times until the year 5138; a fence has 15 and gets its own format.
local stored = redis.pcall('GET', KEYS[1])
local time = redis.pcall('TIME')
if time.err then return redis.error_reply('SYNCGUARDREFUSED ' .. time.err) end
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if stored then
  if type(stored) == 'table' then return redis.error_reply('SYNCGUARDREFUSED ' .. stored.err) end
  --#include read
  local id, expires, data = read(stored)
  if not expires then return redis.error_reply('SYNCGUARDFOREIGN the value is not a lock') end
  if expires > now - TOLERANCE_MS then
    if type(id) ~= 'string' then return redis.error_reply('SYNCGUARDFOREIGN the value is not a lock') end
    if id ~= string.match(ARGV[2], '"lockId":"([%w_-]+)"') then return now - expires - TOLERANCE_MS end
    if not data then return {stored, now} end
    local fence = tonumber(data.fence)
    if not fence then return redis.error_reply('SYNCGUARDFOREIGN the value is not a lock') end
    return {fence, expires, now}
  end
  if type(id) == 'string' and id ~= ARGV[5] then return {id} end
end

local counter = redis.pcall('GET', KEYS[3])
local fence = 1
if counter then
  if type(counter) == 'table' then
    if not string.find(counter.err, '^WRONGTYPE') then return redis.error_reply('SYNCGUARDREFUSED ' .. counter.err) end
    counter = ''
  end
  -- INCR takes no leading zeros; it would refuse with a word that also stands for a missing right.
  local plain = #counter <= 15 and string.find(counter, '^%d+$') and not string.find(counter, '^0%d')
  fence = plain and counter + 1
  if not fence or fence > 900000000000000 then return redis.error_reply('SYNCGUARDCOUNTER the counter is outside its range') end
end
local written
if ARGV[4] == '1' and fence < now then
  written = redis.pcall('INCRBY', KEYS[3], now - fence + 1)
  fence = now
else
  written = redis.pcall('INCR', KEYS[3])
end
if type(written) == 'table' then return redis.error_reply('SYNCGUARDREFUSED ' .. written.err) end
if KEYS[4] then redis.call('DEL', KEYS[4]) end
local value = ARGV[2] .. now + ARGV[1] - TOLERANCE_MS .. ',"acquiredAtMs":' .. now .. ARGV[3] .. string.format('%015.0f"}', fence)
-- The index first: if the second write is refused, an index without a lock is harmless, the reverse is not.
written = redis.pcall('PSETEX', KEYS[2], ARGV[1], KEYS[1])
if written.err then return redis.error_reply('SYNCGUARDREFUSED ' .. written.err) end
written = redis.pcall('PSETEX', KEYS[1], ARGV[1], value)
if written.err then return redis.error_reply('SYNCGUARDREFUSED ' .. written.err) end
return value
