-- Counters of keys that were locked before. ARGV: the first number, the one after the last. Answers the last.
for number = tonumber(ARGV[1]), tonumber(ARGV[2]) - 1 do
    redis.call('SETNX', string.format('many:fence:many:job:%012d', number), '1')
end
return ARGV[2]
