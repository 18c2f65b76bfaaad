-- One moment of the store: the last revision, the clock, and whatever was asked for.
--
-- KEYS  items index live log ids meta
-- ARGV  any number of: k key | r from to limit | l after before limit last
--
-- Answers {revision, now, one answer for each}: an item or false for a key, pairs of key and item
-- for a range, fours of id, txn, entry and hash for the log.
local items, index, live, log, ids, meta = unpack(KEYS)
local call, byte, match, sub = redis.call, string.byte, string.match, string.sub
local CHUNK = 500

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
  return alive(item) and item
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
    for i, item in ipairs(call('HMGET', items, unpack(keys))) do
      if alive(item) then
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
  if kind == 'k' then
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
