-- Put where a script says `--#include read`: only on the paths that meet a value which is not plainly the caller's own, because
-- looking closely takes longer than all else.
--
-- `read(value)` answers the decoded lock. nil means: this is not a lock, and must never be taken for a free one. `Stored::parse` in
-- reply.rs takes and refuses the same values; a test of `inputs.rs` and a fuzz target compare the two.
local function read(value)
  if #value > 65536 then return nil end
  -- cjson also takes what is no JSON: NaN, 0x10, 01, a number without end, a line end inside of a text.
  local fine, depth = true, 0
  local bare = string.gsub(string.gsub(value, '\\.', '_'), '"[^"]*"', function(text)
    if string.find(text, '[%z\1-\31]') then fine = false end
    return ' '
  end)
  for token in string.gmatch(bare, '[^%s,:%[%]{}]+') do
    if token ~= 'true' and token ~= 'false' and token ~= 'null' then
      local whole, part, power = string.match(token, '^%-?(%d+)(%.?%d*)([eE]?[+%-]?%d*)$')
      if not whole or string.find(whole, '^0%d') then return nil end
      if part ~= '' and not string.find(part, '%d') or power ~= '' and not string.find(power, '^[eE][+%-]?%d+$') then return nil end
      if math.abs(tonumber(token)) == math.huge then return nil end
    end
  end
  for bracket in string.gmatch(bare, '[%[%]{}]') do
    depth = depth + ((bracket == '[' or bracket == '{') and 1 or -1)
    if depth > 127 then return nil end
  end
  local ok, data = pcall(cjson.decode, value)
  if not ok or not fine or type(data) ~= 'table' then return nil end
  local expires = data.expiresAtMs
  if type(expires) ~= 'number' or expires % 1 ~= 0 or math.abs(expires) > 9007199254740991 then return nil end
  return data
end
