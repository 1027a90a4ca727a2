-- Removes a lock that has been dead for longer than the guard. Never a counter: no counter is among its keys.
--
-- KEYS 1 lock  2 index of the dead holder
-- ARGV 1 the dead holder's id  2 how long it must have been dead, in ms
-- Answers 1 when removed, 0 when it changed, lives, or is no lock
local stored = redis.call('GET', KEYS[1])
if not stored then return 0 end
--#include read
local data = read(stored)
if not data or data.lockId ~= ARGV[1] then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now - data.expiresAtMs <= tonumber(ARGV[2]) then return 0 end
redis.call('DEL', KEYS[1], KEYS[2])
return 1
