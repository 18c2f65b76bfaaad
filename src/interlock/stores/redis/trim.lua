-- Forget the entries up to a revision, some at a time; answers how many went.
--
-- KEYS  items index live log ids meta
-- ARGV  revision, how many at most
local log, ids, meta = KEYS[4], KEYS[5], KEYS[6]
local upto = ARGV[1]
local rows = redis.call('XRANGE', log, '-', upto .. '-0', 'COUNT', ARGV[2])
if #rows > 0 then
  local gone = {}
  for i, row in ipairs(rows) do
    gone[i] = row[2][2]
  end
  local highest = string.match(rows[#rows][1], '^%d+')
  redis.call('HDEL', ids, unpack(gone))
  redis.call('XTRIM', log, 'MINID', string.format('%.0f', tonumber(highest) + 1))
  redis.call('HSET', meta, 'trimmed', highest)
end
return #rows
