-- Takes the lock if it is free or dead. Redis rolls nothing back: the count comes first, refuses before it changes anything, and is
-- taken back when it is outside its range.
--
-- KEYS 1 lock  2 index of the new id  3 counter  4 line of waiting processes, where this one waits  5 index of the dead holder,
--      where known
-- ARGV 1 how long the names live in ms: ttl + tolerance  2 the stored value up to its expiry  3 and from its key to its fence
--      4 '1': the fence never falls below the clock  5 the dead holder's id, where known  6 this process, where it waits
--      7 where it stands when the lock is taken: 'front', 'end'  8 and when it got it: 'end', 'out', '': as before
--      9 '1': a free lock is left to the process whose turn it is
-- Answers the value it stored when the lock is ours now; its acquiredAtMs is the time of the answer,
--         {fence, expiresAtMs, now} when it was ours already,
--         minus the ms until it can be taken over when another owner holds it, {the same} when that one tells nobody of its release,
--         {the dead holder's id}: come again with its index key, so that no key is touched undeclared,
--         {}: it is free, and left to another
--
-- Making text of numbers is a good part of the cost, and `%d` the cheapest way (joining a number costs twice as much, a text half);
-- but it is a long of the server's machine, which may have 32 bits. So times are put together from seconds and milliseconds, and a
-- large fence has a form of its own.
local run, KEYS, ARGV = redis.pcall, KEYS, ARGV
local stored = run('GET', KEYS[1])
local time = run('TIME')
if time.err then return redis.error_reply('SYNCGUARDREFUSED ' .. time.err) end
local seconds, millis = time[1], time[2] / 1000
millis = millis - millis % 1
local now = seconds * 1000 + millis
if stored then
  if type(stored) == 'table' then return redis.error_reply('SYNCGUARDREFUSED ' .. stored.err) end
  --#include read
  local data = read(stored)
  if not data then return redis.error_reply('SYNCGUARDFOREIGN the value is not a lock') end
  local id, expires = data.lockId, data.expiresAtMs
  if expires > now - TOLERANCE_MS then
    if type(id) ~= 'string' then return redis.error_reply('SYNCGUARDFOREIGN the value is not a lock') end
    if id ~= string.match(ARGV[2], '"lockId":"([%w_-]+)"') then
      if ARGV[6] and ARGV[6] ~= '' then
        --#include line
        line(ARGV[7])
      end
      local free = now - expires - TOLERANCE_MS
      -- Other programs, which know no ttlMs, do not tell, and ours say so where they do not.
      if data.silent == true or not data.ttlMs then return {free} end
      return free
    end
    local fence = tonumber(data.fence)
    if not fence then return redis.error_reply('SYNCGUARDFOREIGN the value is not a lock') end
    return {fence, expires, now}
  end
  if type(id) == 'string' and id ~= ARGV[5] then return {id} end
end
if ARGV[9] then
  -- It has just told another process that it is its turn.
  if ARGV[6] ~= '' then
    --#include line
    line(ARGV[7])
  end
  return {}
end

local fence = run('INCR', KEYS[3])
if type(fence) == 'table' then
  -- ERR is said of a counter that is no number and of a missing right alike: the counter itself tells which. INCR takes no
  -- leading zeros.
  local counter = run('GET', KEYS[3])
  local plain = type(counter) ~= 'string' or string.find(counter, '^%d+$') and not string.find(counter, '^0%d') and #counter <= 15
  if string.find(fence.err, '^WRONGTYPE') or string.find(fence.err, '^ERR') and not plain then
    return redis.error_reply('SYNCGUARDCOUNTER the counter is outside its range')
  end
  return redis.error_reply('SYNCGUARDREFUSED ' .. fence.err)
end
if fence < 1 or fence > 900000000000000 then
  run('DECR', KEYS[3])
  return redis.error_reply('SYNCGUARDCOUNTER the counter is outside its range')
end
if ARGV[4] == '1' and fence < now then
  local raised = run('INCRBY', KEYS[3], string.format('%.0f', now - fence))
  if type(raised) == 'table' then return redis.error_reply('SYNCGUARDREFUSED ' .. raised.err) end
  fence = now
end
if KEYS[5] then redis.call('DEL', KEYS[5]) end
local ends = now + ARGV[1] - TOLERANCE_MS
local rest = ends % 1000
local format = string.format
local count = fence > 2147483647 and '%015.0f"}' or '%015d"}'
local value = ARGV[2] .. format('%d%03d,"acquiredAtMs":', (ends - rest) / 1000, rest) .. seconds .. format('%03d', millis)
  .. ARGV[3] .. format(count, fence)
-- The index first: if the second write is refused, an index without a lock is harmless, the reverse is not.
local written = run('PSETEX', KEYS[2], ARGV[1], KEYS[1])
if written.err then return redis.error_reply('SYNCGUARDREFUSED ' .. written.err) end
written = run('PSETEX', KEYS[1], ARGV[1], value)
if written.err then return redis.error_reply('SYNCGUARDREFUSED ' .. written.err) end
if ARGV[8] and ARGV[8] ~= '' then
  --#include line
  line(ARGV[8])
end
return value
