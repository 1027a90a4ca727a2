-- Put before every script that reads a lock. Redis runs the whole as one atomic step.
--
-- `read(value)` answers id, expiresAtMs and, for a value that another program wrote, the decoded object.
-- nil as expiresAtMs means: this is not a lock, and must never be taken for a free one.
local function read(value)
  -- Written by these scripts: cheaper to match than to decode, and anchored at both ends.
  local id, expires = string.match(value, '^{"lockId":"([%w_-]+)","expiresAtMs":(%d+),"acquiredAtMs":%d+,"key":".*","fence":"%d+"}$')
  if id then return id, tonumber(expires) end
  if #value > 65536 then return nil end
  local ok, data = pcall(cjson.decode, value)
  if not ok or type(data) ~= 'table' then return nil end
  expires = data.expiresAtMs
  if type(expires) ~= 'number' or expires ~= expires or expires > 9007199254740991 then return nil end
  return data.lockId, expires, data
end

-- What a refused call is answered with. The calls here cannot be malformed, so a bare ERR can only mean that the user
-- lacks the right; Redis has no code word of its own for that inside a script.
local function refused(answer)
  if string.find(answer.err, '^ERR') then return redis.error_reply('NOPERM the user lacks a right that the script needs') end
  return answer
end

local function foreign()
  return redis.error_reply('SYNCGUARDFOREIGN the value at the lock key is not a lock')
end

