-- Forget liveness keys that lapsed, up to a number; they read as absent already.
--
-- KEYS  items index live log ids meta
-- ARGV  how many
local items, index, live, log, ids, meta = unpack(KEYS)
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
now = math.max(now, tonumber(redis.call('HGET', meta, 'rev') or '0'))
local upto = string.format('%.0f', now)
local gone = redis.call('ZRANGEBYSCORE', live, '-inf', upto, 'LIMIT', 0, ARGV[1])
if #gone > 0 then
  redis.call('ZREM', live, '')  -- without this right nothing is done
  redis.call('HDEL', items, unpack(gone))
  redis.call('ZREM', index, unpack(gone))
  redis.call('ZREM', live, unpack(gone))
end
return #gone
