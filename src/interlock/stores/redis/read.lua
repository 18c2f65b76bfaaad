-- One moment of the store: the last revision, the clock, and whatever was asked for.
--
-- KEYS  items index live log ids meta
-- ARGV  any number of: k key | r from to limit | l after before limit last; before them s longest
--       if values that have more bytes are left out
--
-- Answers {revision, now, one answer for each}: an item or false for a key, pairs of key and item
-- for a range, fours of id, txn, entry and hash for the log.
local items, index, live, log, ids, meta = unpack(KEYS)
local call, byte, match, sub = redis.call, string.byte, string.match, string.sub
local CHUNK = 500
local longest = nil

local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local last = tonumber(call('HGET', meta, 'rev') or '0')
now = math.max(now, last)

local function alive(item)
  if not item then
    return false
  end
  if byte(item) == 123 then -- plain JSON: the stamp is its last member, and it never expires
    return true
  end
  local expires = match(item, '^%d+ %d+ (%d+)')
  return expires == '0' or tonumber(expires) > now
end

-- An item whose value is longer than the caller wants: its size, and its stamp without the value.
local function short(item)
  if not item or not longest or #item <= longest then
    return item
  end
  local head = match(item, '^%d+ %d+ %d+ %S* %S* ')
  local size = head and #item - #head
  if not head then -- plain JSON: the stamp is its last member
    local stamp, numbers, by = match(sub(item, -512), '(,?"stamp":"(%d+ %d+) (%S* %S*)"})$')
    if not stamp then
      return item
    end
    head, size = numbers .. ' 0 ' .. by .. ' ', #item - #stamp + 1
  end
  return size > longest and '~' .. size .. ' ' .. head or item
end

local function one(key)
  if sub(key, 1, 4) == 'log/' then
    local at = call('HGET', ids, sub(key, 5))
    local found = at and call('XRANGE', log, at .. '-0', at .. '-0')[1]
    if not found then
      return false
    end
    local fields = found[2]
    return at .. ' ' .. at .. ' 0 ' .. fields[2] .. ' ' .. fields[6] .. ' ' .. fields[4]
  end
  local item = call('HGET', items, key)
  return alive(item) and short(item)
end

-- Long values are loaded one by one, so that the server holds no more than one of them twice.
local function some(keys)
  if not longest then
    return call('HMGET', items, unpack(keys))
  end
  local found = {}
  for i, key in ipairs(keys) do
    local item = call('HGET', items, key)
    found[i] = alive(item) and short(item)
  end
  return found
end

-- (Its ends are made by the caller: Lua compares strings by the server's locale.)
local function range(from, to, limit)
  local found = {}
  while #found < 2 * limit do
    local wanted = math.min(CHUNK, limit - #found / 2)
    local keys = call('ZRANGEBYLEX', index, from, to, 'LIMIT', 0, wanted)
    if #keys == 0 then
      break
    end
    for i, item in ipairs(some(keys)) do
      if longest and item or alive(item) then
        found[#found + 1] = keys[i]
        found[#found + 1] = item
      end
    end
    if #keys < wanted then
      break
    end
    from = '(' .. keys[#keys]
  end
  return found
end

local function entries(after, before, limit, newest)
  local rows
  local from = '(' .. after .. '-0'
  local to = before == '0' and '+' or '(' .. before .. '-0'
  if newest then
    rows = call('XREVRANGE', log, to, from, 'COUNT', limit)
  else
    rows = call('XRANGE', log, from, to, 'COUNT', limit)
  end
  local found = {}
  for i = 1, #rows do
    local row = rows[newest and #rows + 1 - i or i]
    local fields = row[2]
    found[#found + 1] = row[1]
    found[#found + 1] = fields[2]
    found[#found + 1] = fields[4]
    found[#found + 1] = fields[6]
  end
  return found
end

local answer = {last, now}
local at = 1
while at <= #ARGV do
  local kind = ARGV[at]
  if kind == 's' then
    longest = tonumber(ARGV[at + 1])
    at = at + 2
  elseif kind == 'k' then
    answer[#answer + 1] = one(ARGV[at + 1])
    at = at + 2
  elseif kind == 'r' then
    answer[#answer + 1] = range(ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3]))
    at = at + 4
  else
    answer[#answer + 1] = entries(ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4] == '1')
    at = at + 5
  end
end
return answer
