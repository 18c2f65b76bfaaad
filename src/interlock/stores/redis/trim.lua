-- Forget the oldest entries of the log, up to a revision and a number, and none so young that a
-- request which it keeps out may still arrive.
--
-- KEYS  items index live log ids meta
-- ARGV  revision, how many, how old they must be
local items, index, live, log, ids, meta = unpack(KEYS)
local call = redis.call
if string.byte(call('HGET', meta, 'format') or '2') == 123 then -- a marked store does not change
  return 0
end
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
now = math.max(now, tonumber(call('HGET', meta, 'rev') or '0'))

local gone, highest = {}, nil
for _, each in ipairs(call('XRANGE', log, '-', ARGV[1], 'COUNT', ARGV[2])) do
  local made = tonumber(string.match(each[1], '^%d+'))
  if made > now - tonumber(ARGV[3]) then
    break
  end
  gone[#gone + 1] = each[2][2]
  highest = made
end
if highest then
  -- Without one of these rights nothing is done.
  call('HSET', meta, 'trimmed', call('HGET', meta, 'trimmed') or '0')
  call('XTRIM', log, 'MINID', '0')
  call('HDEL', ids, unpack(gone))
  call('XTRIM', log, 'MINID', string.format('%.0f', highest + 1))
  call('HSET', meta, 'trimmed', string.format('%.0f', highest))
end
return #gone
