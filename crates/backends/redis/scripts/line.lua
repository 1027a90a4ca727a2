-- Put where acquire says `--#include line`: only on the paths of a process that waits.
--
-- Puts the process (ARGV 6, eight characters) at the end of the line (KEYS 4) while it waits, and takes it out when it does not any
-- more. A release tells the first in line. The line is no part of any lock: it holds at most 256 processes, ends by itself, and
-- whatever goes wrong with it costs time and nothing else; so nothing here can fail an acquire.
local function line(waits)
  local names = run('GET', KEYS[4]) or ''
  if type(names) == 'table' then return end
  local at = string.find(names, ARGV[6], 1, true)
  if waits and not at and #names < 2048 then
    run('PSETEX', KEYS[4], 30000, names .. ARGV[6])
  elseif at and not waits then
    names = string.sub(names, 1, at - 1) .. string.sub(names, at + 8)
    if names == '' then run('DEL', KEYS[4]) else run('PSETEX', KEYS[4], 30000, names) end
  end
end
