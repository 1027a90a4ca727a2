-- Put where a script says `--#include read`: only on the paths that meet a value which is not plainly the caller's own, because
-- making a function costs the others time too.
--
-- `read(value)` answers id, expiresAtMs and, for a value that another program wrote, the decoded object.
-- nil as expiresAtMs means: this is not a lock, and must never be taken for a free one.
local function read(value)
  -- Written by these scripts: anchored at both ends, so that nothing else passes.
  local id, expires = string.match(value, '^{"lockId":"([%w_-]+)","expiresAtMs":(%d+),"acquiredAtMs":%d+,"key":".*"fence":"%d+"}$')
  if id then return id, tonumber(expires) end
  if #value > 65536 then return nil end
  -- cjson also takes numbers that are no JSON: NaN, Infinity, 0x10, 01. Other readers of this value do not, and what they call
  -- foreign must not be overwritten here. Without its texts, JSON has only these characters and the words true, false, null.
  local bare = string.gsub(string.gsub(value, '\\.', ''), '"[^"]*"', '""')
  if string.find(bare, '[^%d%s%.,:"{}%[%]eE+%-trufalsn]') or string.find(bare, 'na') then return nil end
  if string.find(bare, '[^%d%.eE+%-]%-?0%d') or #string.gsub(bare, '[^%[{]', '') > 100 then return nil end
  local ok, data = pcall(cjson.decode, value)
  if not ok or type(data) ~= 'table' then return nil end
  expires = data.expiresAtMs
  if type(expires) ~= 'number' or expires % 1 ~= 0 or math.abs(expires) > 9007199254740991 then return nil end
  return data.lockId, expires, data
end
