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

local function foreign()
  return redis.error_reply('SYNCGUARDFOREIGN the value at the lock key is not a lock')
end

