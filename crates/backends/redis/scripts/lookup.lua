-- Reads the lock of an id: index, value and time of one moment. Writes nothing.
--
-- KEYS 1 lock  2 index of the id
-- Answers {value, seconds, microseconds}, or nil when the index does not lead here
local index = redis.call('GET', KEYS[2])
if index ~= KEYS[1] then return nil end
local time = redis.call('TIME')
return {redis.call('GET', KEYS[1]), time[1], time[2]}
