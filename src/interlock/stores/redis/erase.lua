-- Delete what a move loaded, some at a time.
--
-- KEYS  items index live log ids meta
-- ARGV  the move, how many
--
-- Answers how many, or the format if another move, or none, fills this store.
local items, index, live, log, ids, meta = unpack(KEYS)
local call = redis.call

local format = call('HGET', meta, 'format')
local found, mark = pcall(cjson.decode, format or '')
if not found or type(mark) ~= 'table' or mark.state ~= 'filling' or mark.move ~= ARGV[1] then
  return format or ''
end
local keys = call('ZRANGEBYLEX', index, '-', '+', 'LIMIT', 0, ARGV[2])
if #keys > 0 then
  call('HDEL', items, unpack(keys))
  call('ZREM', live, unpack(keys))
  call('ZREM', index, unpack(keys))
  return #keys
end
local rows = call('XRANGE', log, '-', '+', 'COUNT', ARGV[2])
local gone = {}
for i, row in ipairs(rows) do
  gone[i] = row[2][2]
end
if #gone > 0 then
  call('XTRIM', log, 'MINID', string.format('%.0f', tonumber(string.match(rows[#rows][1], '^%d+')) + 1))
  call('HDEL', ids, unpack(gone))
end
return #gone
