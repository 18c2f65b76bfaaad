-- What a watch missed: the touched keys in its scopes, after a revision, from the log itself.
--
-- KEYS  items index live log ids meta
-- ARGV  after, how many entries to look at, scopes (only '' for everything, with the entries)
--
-- Answers {0, position, done, pairs of revision and tokens...}, or {1, revision, done} when what came
-- after this revision is not all there: trimmed, or lost with an earlier life of the server.
-- An error with the mark, if there is nothing and the store was moved.
local log, meta = KEYS[4], KEYS[6]
local after, limit = tonumber(ARGV[1]), tonumber(ARGV[2])
local find, match, sub = string.find, string.match, string.sub

local rev, trimmed, born, loaded, format =
  unpack(redis.call('HMGET', meta, 'rev', 'trimmed', 'born', 'loaded', 'format'))
rev, trimmed, born = tonumber(rev or '0'), tonumber(trimmed or '0'), tonumber(born or '0')
local moved = string.byte(format or '2') == 123 and cjson.decode(format).state == 'moved'
if after < trimmed or after < tonumber(loaded or '0') or after > rev or (after > 0 and after < born) then
  return {1, rev, moved and 0 or 1}
end

local wanted, all = {}, ARGV[3] == ''
for i = 3, #ARGV do
  wanted[ARGV[i]] = true
end
local function covers(key)
  if wanted[key] then
    return true
  end
  local slash = find(key, '/', 1, true)
  while slash do
    if wanted[sub(key, 1, slash)] then
      return true
    end
    slash = find(key, '/', slash + 1, true)
  end
  return false
end

local function told(fields)
  local touched = fields[8]
  if all then
    local id, entry = '=' .. fields[2], '"' .. fields[4]
    return #id .. ':' .. id .. #entry .. ':' .. entry .. touched
  end
  local kept, at = {}, 1
  while at <= #touched do
    local size, from = match(touched, '^(%d+):()', at)
    local to = from + size - 1
    if covers(sub(touched, from + 1, to)) then
      kept[#kept + 1] = sub(touched, at, to)
    end
    at = to + 1
  end
  return table.concat(kept)
end

local rows = redis.call('XRANGE', log, '(' .. ARGV[1] .. '-0', '+', 'COUNT', limit)
if moved and #rows == 0 then
  return redis.error_reply('MARKED ' .. format) -- nothing comes after this
end
local done = #rows < limit
local answer = {0, rev, moved and 0 or 1}
for _, row in ipairs(rows) do
  local tokens = told(row[2])
  local revision = tonumber(match(row[1], '^%d+'))
  if tokens ~= '' then
    answer[#answer + 1] = revision
    answer[#answer + 1] = tokens
  end
  if not done then
    answer[2], answer[3] = revision, 0
  end
end
return answer
