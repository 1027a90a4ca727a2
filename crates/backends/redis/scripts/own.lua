-- Put where a script says `--#include own`: the lock (`data`) that lies under KEYS 1, if it and its index (KEYS 2) are those of the id
-- (ARGV 1), with what lies under all keys (`found`) and the time (`now`). Otherwise the script ends here with its answer.
local found = run('MGET', unpack(KEYS))
if found.err then return redis.error_reply('SYNCGUARDREFUSED ' .. found.err) end
local stored = found[1]
if found[2] ~= KEYS[1] then return -1 end
if not stored then
  -- MGET hides a value of another type.
  stored = run('GET', KEYS[1])
  if type(stored) == 'table' then return redis.error_reply('SYNCGUARDREFUSED ' .. stored.err) end
  return -1
end
local ok, data = false
if #stored <= 65536 then ok, data = pcall(cjson.decode, stored) end
if not ok or type(data) ~= 'table' or data.lockId ~= ARGV[1] or type(data.expiresAtMs) ~= 'number' then
  --#include read
  if read(stored) then return 0 end
  return redis.error_reply('SYNCGUARDFOREIGN the value is not a lock')
end
local time = run('TIME')
if time.err then return redis.error_reply('SYNCGUARDREFUSED ' .. time.err) end
local now = time[1] * 1000 + math.floor(time[2] / 1000)
