-- Replace the mark of the store, if it still is the one that the caller knows.
--
-- KEYS  items index live log ids meta
-- ARGV  state and move of the known mark ('' for none), the new mark ('' for none), a revision, how
--       the channels of this store begin, as a pattern
--
-- The mark stands in the place of the format, which every commit reads.  Revisions go on above the
-- given one; expiry follows the clock, which must not be far behind it.
-- Only an empty store begins to be filled: all else would pass for a part of the copy.
-- A watch of a moved store ends: each one gets a payload that is no change, and looks.
-- Answers {1}; {0} if there is another mark, or content; {2, now} if the clock is too far behind.
local index, log, meta = KEYS[2], KEYS[4], KEYS[6]
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
local new = ARGV[3] ~= '' and cjson.decode(ARGV[3]).state or ''
if new == 'filling' and state == '' and (call('XLEN', log) > 0
    or #call('ZRANGEBYLEX', index, '-', '(live/', 'LIMIT', 0, 1) > 0
    or #call('ZRANGEBYLEX', index, '[live0', '+', 'LIMIT', 0, 1) > 0) then
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
if new == 'moved' then
  -- A user may not be allowed to list channels: then the watches find it with their next look.
  local channels = redis.pcall('PUBSUB', 'CHANNELS', ARGV[5] .. '*')
  for _, channel in ipairs(channels.err and {} or channels) do
    call('PUBLISH', channel, '0 0 ')
  end
end
return {1}
