-- Marks the lock of an id as asked for. Its holder hears of it with its next renewal; nothing else changes.
--
-- KEYS 1 lock  2 index of the id
-- ARGV 1 the id
-- Answers 1 when it is marked, or 0, -1, -2 as release does
local found = redis.pcall('MGET', KEYS[1], KEYS[2])
if found.err then return redis.error_reply('SYNCGUARDREFUSED ' .. found.err) end
local stored = found[1]
if not stored or found[2] ~= KEYS[1] then return -1 end
--#include read
local data = read(stored)
if not data then return redis.error_reply('SYNCGUARDFOREIGN the value is not a lock') end
if data.lockId ~= ARGV[1] then return 0 end
local time = redis.pcall('TIME')
if time.err then return redis.error_reply('SYNCGUARDREFUSED ' .. time.err) end
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if data.expiresAtMs <= now - TOLERANCE_MS then return -2 end
if data.asked == true then return 1 end
-- As text: what other programs keep in the value stays as they wrote it, and so does its expiry in Redis.
local marked = string.gsub(stored, '}%s*$', ',"asked":true}')
local written = redis.pcall('SET', KEYS[1], marked, 'KEEPTTL')
if written.err then return redis.error_reply('SYNCGUARDREFUSED ' .. written.err) end
return 1
