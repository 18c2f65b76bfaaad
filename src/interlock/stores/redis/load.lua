-- Write items and entries as they are in another store, while a move fills this one.
--
-- KEYS  items index live log ids meta
-- ARGV  the move, then five for each: an item has its key, its ttl, and the stored form, which for a
--       liveness key is in two parts with the time between them; an entry has its key, 'log',
--       its revision, its bytes and its hash
--
-- Answers 1, or the format if another move, or none, fills this store.
local items, index, live, log, ids, meta = unpack(KEYS)
local call, sub = redis.call, string.sub

local format = call('HGET', meta, 'format')
local found, mark = pcall(cjson.decode, format or '')
if not found or type(mark) ~= 'table' or mark.state ~= 'filling' or mark.move ~= ARGV[1] then
  return format or ''
end
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
now = math.max(now, tonumber(call('HGET', meta, 'rev') or '0'))

local written = 0
for i = 2, #ARGV, 5 do
  local key, ttl, one, two, three = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  if ttl == 'log' then
    local id = sub(key, 5)
    if call('HEXISTS', ids, id) == 0 then
      if written == 0 and call('XLEN', log) == 0 then
        redis.pcall('DEL', log) -- an emptied stream accepts no lower revision
      end
      call('XADD', log, one .. '-0', 'i', id, 'e', two, 'h', three, 't', '')
      call('HSET', ids, id, one)
      call('HSET', meta, 'recorded', one)
      written = written + 1
    end
  else
    local item = one
    if ttl ~= '0' then
      local expires = string.format('%.0f', now + tonumber(ttl))
      item = one .. expires .. two
      call('ZADD', live, expires, key)
    end
    call('HSET', items, key, item)
    call('ZADD', index, 0, key)
  end
end
return 1
