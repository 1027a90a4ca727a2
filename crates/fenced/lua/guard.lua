-- Lets the rest of the script run only under a current fence.
--
-- KEYS[1]  the mark; in the slot of the data
-- KEYS[n]  the caller's keys
-- ARGV[1]  the offered fence, 15 digits
-- ARGV[n]  the caller's arguments
-- answers  {0, seen} when refused, {1, what the caller's script returns} otherwise
--
-- 15 digits fit into a Lua number without loss. The mark is remembered before the caller's part: if that fails halfway,
-- what it wrote stays, and must not be written over by an older holder.
local mark = redis.call('GET', KEYS[1])
local seen, offered = tonumber(mark or '0'), tonumber(ARGV[1])
if not seen then
    return redis.error_reply('SGDAMAGED the mark is no fence')
end
if seen > offered then
    return {0, mark}
end
if seen < offered then
    redis.call('SET', KEYS[1], ARGV[1])
end
