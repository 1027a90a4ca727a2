-- Put where acquire says `--#include line`: only on the paths of a process that waits.
--
-- Puts the process (ARGV 6, eight characters) into the line (KEYS 4): 'front', where it was told that it is its turn, or 'end', where
-- it stays if it stands there already. 'out' takes it out. A release tells the first in line. The line is no part of any lock: it
-- holds at most 256 processes, ends by itself, and whatever goes wrong with it costs time and nothing else; so nothing here can
-- fail an acquire.
local function line(place)
  local names = run('GET', KEYS[4]) or ''
  if type(names) == 'table' then return end
  local at = string.find(names, ARGV[6], 1, true)
  if place == 'out' and not at or place == 'end' and (at or #names >= 2048) then return end
  if at then names = string.sub(names, 1, at - 1) .. string.sub(names, at + 8) end
  if place == 'front' then names = ARGV[6] .. names elseif place == 'end' then names = names .. ARGV[6] end
  if names == '' then run('DEL', KEYS[4]) else run('PSETEX', KEYS[4], 30000, names) end
end
