-- Which rights this user lacks, found out without any effect.
--
-- KEYS  items index live log ids meta
-- ARGV  the channels' prefix
--
-- Answers the names of the commands that are denied; '~' stands for keys, '&' for channels.
-- A server before 7.0 cannot be asked, so there each command is called in a form that changes
-- nothing.  What a script may not call (subscribe) cannot be tried there.
local items, index, live, log, ids, meta = unpack(KEYS)
local channel = ARGV[1] .. '?'
local ask = redis.acl_check_cmd
local lacking, found = {}, {}

local function lacks(what)
  if not found[what] then
    found[what] = true
    lacking[#lacking + 1] = what
  end
end

local function denial(reply)
  local text = type(reply) == 'table' and reply.err or ''
  if not (string.find(text, "executing the script can't", 1, true)
      or string.find(text, 'ACL failure', 1, true) or string.find(text, 'NOPERM', 1, true)) then
    return false
  end
  if string.find(text, 'channel', 1, true) then
    return '&'
  end
  return string.find(text, 'key', 1, true) and '~' or true
end

local function try(command, ...)
  local allowed
  if ask then
    allowed = ask(command, ...)
  else
    allowed = not denial(redis.pcall(command, ...))
  end
  if not allowed then
    lacks(command)
  end
end

-- Of these two it matters whether the command is denied or its key or channel.
for _, each in ipairs({{'publish', channel, ''}, {'xadd', meta .. '?', 'NOMKSTREAM', '*', '', ''}}) do
  local denied = denial(redis.pcall(unpack(each)))
  if denied then
    lacks(denied == true and each[1] or denied)
  end
end
try('time')
try('ping')
try('hget', meta, '')
try('hmget', meta, '')
try('hset', meta, '', '', '')  -- a field without a value: an error, if it is allowed
try('hdel', meta, '')
try('hexists', ids, '')
try('hlen', items)
try('zadd', index, 'XX', '0', '')
try('zrem', live, '')
try('zrangebylex', index, '(a', '(a', 'LIMIT', '0', '1')
try('zrangebyscore', live, '(0', '(0', 'LIMIT', '0', '1')
try('xrange', log, '0-1', '0-1')
try('xrevrange', log, '0-1', '0-1')
try('xlen', log)
try('xtrim', log, 'MINID', '0')
if ask then
  try('info')
  try('eval', '', '0')
  try('evalsha', '', '0')
  try('unsubscribe', channel)
  if not found['&'] then
    try('subscribe', channel)
  end
end
return lacking
