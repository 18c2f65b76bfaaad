-- Replace the mark of the store, if it still is the one that the caller knows.
--
-- KEYS  items index live log ids meta
-- ARGV  state and move of the known mark ('' for none), the new mark ('' for none), a revision
--
-- The mark stands in the place of the format, which every commit reads.  Revisions go on above the
-- given one; expiry follows the clock, which must not be far behind it.
-- Answers {1}; {0} if there is another mark; {2, now} if the clock is too far behind.
local meta = KEYS[6]
local call = redis.call
local AHEAD = 60000000

local format, last = unpack(call('HMGET', meta, 'format', 'rev'))
local state, move = '', ''
if format and string.byte(format) == 123 then
  local found, mark = pcall(cjson.decode, format)
  state, move = found and mark.state or '?', found and mark.move or '?'
end
if state ~= ARGV[1] or move ~= ARGV[2] then
  return {0}
end
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
if tonumber(ARGV[4]) > now + AHEAD then
  return {2, now}
end
if tonumber(ARGV[4]) > tonumber(last or '0') then
  call('HSET', meta, 'rev', ARGV[4])
end
if ARGV[3] == '' and state == 'filling' then
  -- Of loaded entries it is not known which keys they touched.
  local rev = call('HGET', meta, 'rev') or '0'
  call('HSET', meta, 'loaded', rev, 'born', call('HGET', meta, 'born') or rev)
end
call('HSET', meta, 'format', ARGV[3] == '' and '2' or ARGV[3])
return {1}
