-- The specification's script, word for word: what ours is measured against.
-- Acquire Script Signature:
-- KEYS[1] = lockKey (e.g., "syncguard:resource:123")
-- KEYS[2] = lockIdKey (e.g., "syncguard:id:abc123xyz")
-- KEYS[3] = fenceKey (e.g., "syncguard:fence:resource:123")
-- ARGV[1] = lockId
-- ARGV[2] = ttlMs
-- ARGV[3] = toleranceMs
-- ARGV[4] = storageKey (full lockKey post-truncation, for index storage per ADR-013)
-- ARGV[5] = userKey (original normalized key, for lockData)
--
-- @returns {1, fence, expiresAtMs} on success, 0 on contention

local lockKey = KEYS[1]
local lockIdKey = KEYS[2]
local fenceKey = KEYS[3]
local lockId = ARGV[1]
local ttlMs = tonumber(ARGV[2])
local toleranceMs = tonumber(ARGV[3])
local storageKey = ARGV[4]  -- Full lockKey for index (ADR-013)
local userKey = ARGV[5]     -- Original key for lockData

-- 1. Get server time and check existing lock expiration (using canonical time calculation)
local time = redis.call('TIME')
local nowMs = time[1] * 1000 + math.floor(time[2] / 1000) -- See calculateRedisServerTimeMs()
local existingData = redis.call('GET', lockKey)
if existingData then
  local data = cjson.decode(existingData)
  if data.expiresAtMs > (nowMs - toleranceMs) then -- See isLive() predicate
    return 0  -- Still locked (locked)
  end
  -- Clean up expired lockId index
  if data.lockId then
    redis.call('DEL', lockIdKey)
  end
end

-- 2. Generate monotonic fencing token (always)
-- Format immediately as 15-digit string for guaranteed Lua precision safety
local fence = string.format("%015d", redis.call('INCR', fenceKey))
-- Backend MUST parse returned fence and throw LockError("Internal") if fence > FENCE_THRESHOLDS.MAX
-- Backend MUST log warnings via logFenceWarning() when fence > FENCE_THRESHOLDS.WARN
-- See common/constants.ts for canonical threshold values

-- 3. Atomically set both keys with identical TTL
local expiresAtMs = nowMs + ttlMs
local lockData = cjson.encode({
  lockId=lockId,
  expiresAtMs=expiresAtMs,
  acquiredAtMs=nowMs,
  key=userKey,  -- Store original user key in lockData for diagnostics
  fence=fence   -- fence is string to avoid precision loss
})
redis.call('SET', lockKey, lockData, 'PX', ttlMs)
redis.call('SET', lockIdKey, storageKey, 'PX', ttlMs)  -- ADR-013: Store full lockKey for reverse lookup
return {1, fence, expiresAtMs}  -- Success with fence token and authoritative expiresAtMs
