-- Frees the lock of an id and gives the turn to the first in line.
--
-- KEYS 1 lock  2 index of the id  3 line of waiting processes
-- ARGV 1 the id  2 whom to tell: 'first' of the line, 'all', where other servers have listeners, too; none: nobody
-- Answers 1 when freed, the process whose turn it is when freed and told, -3 when freed but publishing is not permitted,
--         0 when another owner holds the lock, -1 when there is none, -2 when its lease was over
local run, KEYS, ARGV = redis.pcall, KEYS, ARGV
--#include own
local freed = run('DEL', KEYS[1], KEYS[2])
if type(freed) == 'table' then return redis.error_reply('SYNCGUARDREFUSED ' .. freed.err) end
if data.expiresAtMs <= now - TOLERANCE_MS then return -2 end
if not ARGV[2] then return 1 end
local line, first = found[3] or '', ''
if #line >= 8 then
  if ARGV[2] == 'all' then
    first, line = string.sub(line, 1, 8), string.sub(line, 9)
  else
    -- Names that nobody listens by any more cost no turn and leave. The first that is left is told, and leaves: if it finds the lock
    -- taken, it comes back to the front. The next three are told as well, in case it does nothing. Waking all costs more than all else.
    local at, place, told = 1, 0, ''
    while at <= #line and place < 4 do
      local name = string.sub(line, at, at + 7)
      local channel = KEYS[1] .. '\0' .. name
      local heard = run('PUBSUB', 'NUMSUB', channel)
      if heard.err or heard[2] > 0 then
        if type(run('PUBLISH', channel, place)) == 'table' then return -3 end
        if place == 0 then first = name else told = told .. name end
        place = place + 1
      end
      at = at + 8
    end
    line = told .. string.sub(line, at)
  end
  if line == '' then run('DEL', KEYS[3]) else run('PSETEX', KEYS[3], 30000, line) end
  if first ~= '' and ARGV[2] ~= 'all' then return first end
end
if type(run('PUBLISH', KEYS[1], first)) == 'table' then return -3 end
if first ~= '' then return first end
return 1
