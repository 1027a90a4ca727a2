-- Frees the lock of an id and tells the waiters.
--
-- KEYS 1 lock  2 index of the id  3 line of waiting processes, where there may be one
-- ARGV 1 the stored value up to its expiry: {"lockId":"…","expiresAtMs":  2 the message for waiters; none: tell nobody
-- Answers 1 when freed, -3 when freed but publishing is not permitted,
--         0 when another owner holds the lock, -1 when there is none, -2 when its lease was over
local run, KEYS, ARGV = redis.pcall, KEYS, ARGV
local found = run('MGET', KEYS[1], KEYS[2])
if found.err then return redis.error_reply('SYNCGUARDREFUSED ' .. found.err) end
local stored = found[1]
if found[2] ~= KEYS[1] then return -1 end
if not stored then
  -- MGET hides a value of another type.
  stored = run('GET', KEYS[1])
  if type(stored) == 'table' then return redis.error_reply('SYNCGUARDREFUSED ' .. stored.err) end
  return -1
end
-- Times have 13 digits until the year 2286. Whatever looks otherwise is read with care.
local head, ends, expires = #ARGV[1]
if string.sub(stored, 1, head) == ARGV[1] and string.byte(stored, head + 14) == 44 then
  ends = string.sub(stored, head + 1, head + 10)
else
  --#include read
  local id
  id, expires = read(stored)
  if not expires then return redis.error_reply('SYNCGUARDFOREIGN the value is not a lock') end
  if id ~= string.match(ARGV[1], '"lockId":"([%w_-]+)"') then return 0 end
end
local time = run('TIME')
if time.err then return redis.error_reply('SYNCGUARDREFUSED ' .. time.err) end
local freed = run('DEL', KEYS[1], KEYS[2])
if type(freed) == 'table' then return redis.error_reply('SYNCGUARDREFUSED ' .. freed.err) end
-- A lease that ends in this second or later is not over, and texts of as many digits compare as their numbers do, which would
-- have to be made first.
if not ends or ends < time[1] then
  expires = expires or tonumber(string.sub(stored, head + 1, head + 13)) or 0
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  if expires <= now - TOLERANCE_MS then return -2 end
end
if not ARGV[2] then return 1 end
local message = ARGV[2]
local line = KEYS[3] and run('GET', KEYS[3])
if type(line) == 'string' and #line >= 8 then
  -- The first in line has the first turn.
  message = string.sub(line, 1, 8)
  if #line > 8 then run('PSETEX', KEYS[3], 30000, string.sub(line, 9)) else run('DEL', KEYS[3]) end
  -- Of a few, everybody hears whose turn it is. Waking many costs more than all else: of those only the first is told, and the next
  -- three, in case it does nothing. At times everybody is, for the sake of older programs, which stand in no line.
  if #line > 32 then
    for place = 0, 3 do
      local name = string.sub(line, place * 8 + 1, place * 8 + 8)
      if type(run('PUBLISH', KEYS[1] .. '\0' .. name, place)) == 'table' then return -3 end
    end
    if time[2] % 8 > 0 then return 1 end
    message = '-'
  end
end
local told = run('PUBLISH', KEYS[1], message)
if type(told) == 'table' then return -3 end
return 1
