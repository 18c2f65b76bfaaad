-- Commits, one after the other: each checks everything, then writes everything, at one revision.
--
-- KEYS  items index live log ids meta refused, all with one hash tag
-- ARGV  latest bound room, then for each commit: id flags entry hash, five counts of two bytes
--       each, checks (kind key argument), puts (key value ttl), deletes, reads, signals
--
-- Answers {1, revision, items...}: the read keys; {0, now, entry, items...}: the checked keys, then
-- the read ones; or the error of that commit, which harms no other.  Several commits have a list of
-- these answers.
-- Times are microseconds.  Now is never behind the last revision, and a revision is never behind
-- the clock: what a clock that was turned back, or a rollback, would repeat cannot be repeated.
--
-- Redis does not undo what a script wrote before an error.  So everything that it may refuse is
-- tried before the first write that counts:
--   memory  Redis refuses the first write of a script, or none.  A script whose commits end
--           something ("room") begins with a deletion of nothing, which is never refused; in
--           every other one the first write is one that is refused when memory is full.
--   rights  each command that a commit needs is first called without effect, but for the one
--           that writes the entry if that is the first write that counts.  If one is refused,
--           nothing has changed but the revision, which may skip a number at any time.
--
-- A call of Redis from a script costs about a microsecond, so all items are read by one call, and
-- all that are put are written by one; what holds for all commits is read, tried and written once.
-- A function costs a fraction of that whenever the script runs, so few things are one.  Redis hashes
-- every byte of a string that Lua makes, and a table that grows is made again, so there are few.
local items, index, live, log, ids, meta, refused = unpack(KEYS)
local call, byte, match, sub, find = redis.call, string.byte, string.match, string.sub, string.find
local latest, bound, room = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] ~= ''
local bell = sub(meta, 1, -5) .. 'bell:'
local FIRST, HEAD = 4, 5 -- where the first commit begins; the words of a commit before its lists

local function text(number)
  return string.format('%.0f', number)
end

local clock, state = call('TIME'), call('HMGET', meta, 'rev', 'recorded', 'format')
local now, last, recorded, format = clock[1] * 1000000 + clock[2], state[1], state[2], state[3]
if format and format ~= '2' and format ~= '1' then
  if byte(format) == 123 then -- not a number but a mark: the store accepts no commits
    return redis.error_reply('MARKED ' .. format)
  end
  return redis.error_reply('NEWER ' .. format)
end
local revision, stamped = now, clock[1] .. sub('00000', #clock[2]) .. clock[2]
if last and tonumber(last) >= now then
  now = tonumber(last)
  revision = now + 1
  stamped = text(revision)
end

-- What all commits of this script share: the first revision that one of them wrote (the last one is
-- in last), the length of the log, and refused ids that are to be forgotten; then what Redis let
-- them do: write (the revision that was written first), record, delete, remove from live, add, and
-- write an entry.
local born, length, forgotten = nil, 0, nil
local may_write, may_record, may_delete, may_leave, may_add, may_enter

local function standing(txn)
  local at = call('HGET', ids, txn)
  if at == '0' then -- refused before: as good as a void
    return '0 0 0 ' .. txn .. '  {"verb":"void"}'
  end
  local found = at and call('XRANGE', log, at .. '-0', at .. '-0')[1]
  if not found then
    return false
  end
  local fields = found[2]
  return at .. ' ' .. at .. ' 0 ' .. txn .. ' ' .. fields[6] .. ' ' .. fields[4]
end

-- An item has its stamp in front: revision, created, expires, entry and hash.  One of a task is
-- plain JSON, for people to read: there the stamp is the last member, and nothing expires.
-- A plain search and a pattern that is anchored take a fraction of one that tries every place.
local BRACE, CLOSING, TAIL, STAMP = 123, 125, 512, '"stamp":"'
local function marks(item)
  if byte(item) ~= BRACE then
    return match(item, '^(%d+) (%d+) %d+ (%S* %S*) ')
  end
  local at = #item > TAIL and find(item, STAMP, -TAIL, true) or find(item, STAMP, 1, true)
  while at do
    local revision, created, mark = match(item, '^(%d+) (%d+) (%S* %S*)"}$', at + #STAMP)
    if revision then
      return revision, created, mark
    end
    at = find(item, STAMP, at + 1, true) -- a member of the value has that name, too
  end
end
local function has(item, value)
  if byte(item) ~= BRACE then
    return sub(item, match(item, '^%d+ %d+ %d+ %S* %S* ()')) == value
  end
  if byte(value, -1) ~= CLOSING then
    return false
  end
  local head = sub(value, 1, -2) .. (value == '{}' and STAMP or ',' .. STAMP)
  return sub(item, 1, #head) == head and find(item, '"', #head + 1, true) == #item - 1
end

local LONGEST = 4096 -- bytes of values that are published, at most

-- Call a command with a whole list, in portions that fit on Lua's stack.
local PORTION = 1000
local function all(command, key, list, size)
  for i = 1, size, PORTION do
    call(command, key, unpack(list, i, math.min(i + PORTION - 1, size)))
  end
end

-- An item whose value is longer than the caller wants: its size, and its stamp without the value.
local function short(item, longest)
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

local function commit(at, checks, puts, deletes, reads, signals)
  local id, flags, entry, hash = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local quiet, longest = false, nil
  if flags ~= '' then
    quiet = find(flags, 'quiet', 1, true) ~= nil
    longest = tonumber(match(flags, 'longest=(%d+)'))
  end
  local checking = at + HEAD
  local putting = checking + 3 * checks
  local deleting = putting + 3 * puts
  local reading = deleting + deletes
  local signalling = reading + reads

  -- What stands under each key: false if nothing, or if it lapsed.
  local wanted, most, seen = {false, false, false, false}, 0, {} -- keys to read; the items
  local function want(key)
    if seen[key] == nil then
      if sub(key, 1, 4) == 'log/' then
        seen[key] = standing(sub(key, 5))
      else
        seen[key] = false
        most = most + 1
        wanted[most] = key
      end
    end
  end
  for i = checking + 1, putting - 1, 3 do
    want(ARGV[i])
  end
  for i = putting, deleting - 1, 3 do
    want(ARGV[i])
  end
  for i = reading, signalling - 1 do
    want(ARGV[i])
  end
  for i = 1, most, PORTION do
    local found = call('HMGET', items, unpack(wanted, i, math.min(i + PORTION - 1, most)))
    for j = 1, #found do
      local item = found[j] -- no item is false, not nil
      if item and byte(item) ~= BRACE then
        local expires = match(item, '^%d+ %d+ (%d+)')
        if expires ~= '0' and tonumber(expires) <= now then
          item = false
        end
      end
      seen[wanted[i + j - 1]] = item
    end
  end

  local fresh = quiet or call('HEXISTS', ids, id) == 0
  local holds = fresh
  local never = quiet -- whether it can never hold again
  for i = checking, putting - 1, 3 do
    local kind, key = ARGV[i], ARGV[i + 1]
    local item = seen[key]
    if kind == 'absent' then
      holds = holds and not item
    elseif not item then
      holds = false
      never = never or kind == 'at' or sub(key, 1, 5) == 'live/'
    elseif kind == 'at' then
      if marks(item) ~= ARGV[i + 2] then
        holds, never = false, true
      end
    elseif kind == 'has' then
      holds = holds and has(item, ARGV[i + 2])
    end
  end

  if not holds then
    -- What is delivered once more must not commit when the checks hold by then: its id is taken
    -- until it is too late for it.  That is kept in memory and by replicas: a no costs no disk.
    -- A server that refuses these writes (it is full) says no all the same.
    if fresh and not never then
      if not forgotten then
        forgotten = call('ZRANGEBYSCORE', refused, '-inf', '(' .. text(now), 'LIMIT', 0, 16)
      end
      redis.set_repl(redis.REPL_SLAVE)
      redis.pcall('ZADD', refused, ARGV[1], id)
      redis.pcall('HSET', ids, id, '0')
      redis.set_repl(redis.REPL_ALL)
    end
    local answer = {0, now, not fresh and standing(id)}
    for i = checking + 1, putting - 1, 3 do
      answer[#answer + 1] = short(seen[ARGV[i]], longest)
    end
    for i = reading, signalling - 1 do
      answer[#answer + 1] = short(seen[ARGV[i]], longest)
    end
    return answer
  end

  -- What stays of the puts, for who receives a message: its receiver need not read it.
  local function written()
    local along = ''
    for i = putting, deleting - 1, 3 do
      local key, value = ARGV[i], ARGV[i + 1]
      if #along + #value > LONGEST then
        return ''
      end
      if ARGV[i + 2] == '0' then
        local item = #key .. ':' .. key .. value
        along = along .. #item + 1 .. ':"' .. item
      end
    end
    return along
  end

  -- Who watches a key listens on its channel, on that of one of its folders, or on the root's, which
  -- brings everything and the entry too.  New messages come with what the commit wrote.
  local bells, scopes, many, everything = {}, {false, false, false, false}, 0, ''
  local carriers, along = {}, nil
  local before = stamped .. ' ' .. (recorded or '0') .. ' '
  local function tell(kind, key)
    local told = #key + 1 .. kind .. key
    local scope, slash, folder = key, 0, sub(key, 1, 7)
    local carries = kind == ':+' and (folder == 'unread/' or folder == 'topics/')
    if carries then
      along = along or written()
    end
    everything = everything .. told
    while scope do
      local earlier = bells[scope]
      if not earlier then
        many = many + 1
        scopes[many] = scope
      end
      bells[scope] = (earlier or before) .. told
      slash = find(key, '/', slash + 1, true)
      scope = slash and slash < #key and sub(key, 1, slash)
      if scope and carries then
        carriers[scope] = along
      end
    end
  end

  local stored, size = {false, false, false, false, false, false}, 0
  local new, added, lives, staying = {false, false, false, false}, 0, nil, nil
  local by = id .. ' ' .. hash
  for i = putting, deleting - 1, 3 do
    local key, value, ttl = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    local old = seen[key]
    local created, stamp = stamped, by
    if old then
      local _, first, mark = marks(old)
      created = first
      if quiet then
        stamp = mark
      end
    else
      new[added + 1], new[added + 2] = 0, key
      added = added + 2
      if quiet then
        stamp = ' '
      end
    end
    local item
    if ttl ~= '0' then
      local expires = text(revision + ttl)
      lives = lives or {}
      lives[#lives + 1] = expires
      lives[#lives + 1] = key
      item = stamped .. ' ' .. created .. ' ' .. expires .. ' ' .. stamp .. ' ' .. value
    elseif byte(value) == BRACE and byte(value, -1) == CLOSING and sub(key, 1, 6) == 'tasks/' then
      local comma = value == '{}' and '' or ','
      local head = sub(value, 1, -2)
      item = head .. comma .. STAMP .. stamped .. ' ' .. created .. ' ' .. stamp .. '"}'
    else
      if sub(key, 1, 5) == 'live/' then
        staying = staying or {}
        staying[#staying + 1] = key
      end
      item = stamped .. ' ' .. created .. ' 0 ' .. stamp .. ' ' .. value
    end
    stored[size + 1], stored[size + 2] = key, item
    size = size + 2
    seen[key] = item
    if not quiet then
      tell(':+', key)
    end
  end

  -- From here on it writes: first what may be refused, as far as no earlier commit has tried it.
  if not may_write then
    if room then
      call('HDEL', meta, '')
    end
    call('HSET', meta, 'rev', stamped)
    may_write = stamped
  end
  last = stamped
  if not quiet and not may_record then
    call('PUBLISH', bell .. '?', '')
    length = call('XLEN', log)
    if length + #ARGV / HEAD - bound >= 64 then -- as many entries as there may be
      call('XRANGE', log, '-', '-')
      call('XTRIM', log, 'MINID', '0')
      call('HDEL', meta, '')
    end
    may_record = true
  end
  if deletes > 0 and not may_delete then
    call('HDEL', meta, '')
    call('ZREM', live, '')
    may_delete, may_leave = true, true
  end
  if staying and not may_leave then
    call('ZREM', live, '')
    may_leave = true
  end
  if (added > 0 or lives) and not may_add then
    call('ZADD', index, 'XX', 0, '')
    may_add = true
  end
  if deletes > 0 and not quiet and not may_enter then
    call('XADD', meta .. '?', 'NOMKSTREAM', '*', '', '')
    may_enter = true
  end

  local function put_items()
    all('HSET', items, stored, size)
    all('ZADD', index, new, added)
    if lives then
      all('ZADD', live, lives, #lives)
    end
    if staying then
      all('ZREM', live, staying, #staying)
    end
  end

  if deletes > 0 then -- which of them were there is in the entry, so that comes last
    put_items()
    for i = deleting, reading - 1 do
      local key = ARGV[i]
      if call('HDEL', items, key) == 1 then
        call('ZREM', index, key)
        if sub(key, 1, 5) == 'live/' then
          call('ZREM', live, key)
        elseif not quiet then
          tell(':-', key)
        end
      end
      seen[key] = false
    end
  end
  if not quiet then
    for i = signalling, signalling + signals - 1 do
      tell(':!', ARGV[i])
    end
    call('XADD', log, stamped .. '-0', 'i', id, 'e', entry, 'h', hash, 't', everything)
    call('HSET', ids, id, stamped)
    length = length + 1
    if deletes == 0 then
      put_items()
    end
    recorded = stamped -- told last: what is told has been written
    for i = 1, many do
      call('PUBLISH', bell .. scopes[i], bells[scopes[i]] .. (carriers[scopes[i]] or ''))
    end
    local own = #id + 1 .. ':=' .. id .. #entry + 1 .. ':"'
    call('PUBLISH', bell, before .. own .. entry .. everything)
  elseif deletes == 0 then
    put_items()
  end

  born = born or stamped
  local answer = {1, revision}
  for i = reading, signalling - 1 do
    answer[#answer + 1] = seen[ARGV[i]]
  end
  return answer
end

local answers, at = {}, FIRST
while at <= #ARGV do
  local c, checks, p, puts, d, deletes, r, reads, s, signals = byte(ARGV[at + 4], 1, 10)
  checks, puts, deletes = c * 256 + checks, p * 256 + puts, d * 256 + deletes
  reads, signals = r * 256 + reads, s * 256 + signals
  if now > latest then
    answers[#answers + 1] = {err = 'LATE ' .. text(now)}
  else
    local done, answer = pcall(commit, at, checks, puts, deletes, reads, signals)
    if not done then -- as Redis words it: the code is inside where it begins with something else
      local said = type(answer) == 'table' and answer.err or tostring(answer)
      answer = {err = match(said, '^%u+ ') and said or 'ERR ' .. said}
    end
    answers[#answers + 1] = answer
  end
  at = at + HEAD + 3 * (checks + puts) + deletes + reads + signals
  if last == stamped and at <= #ARGV then
    now = revision
    revision = now + 1
    stamped = text(revision)
  end
end

if born then
  local facts = recorded == state[2] and {'rev', last} or {'rev', last, 'recorded', recorded}
  if format ~= '2' then -- whoever knows only the first one must not read it
    facts[#facts + 1], facts[#facts + 2] = 'format', '2'
  end
  if not format then
    facts[#facts + 1], facts[#facts + 2] = 'born', born
  end
  if #facts > 2 or last ~= may_write then
    call('HSET', meta, unpack(facts))
  end
end

-- Not before: a deletion is a write, after which a full server would refuse none of the others.
if forgotten and #forgotten > 0 then
  redis.set_repl(redis.REPL_SLAVE)
  redis.pcall('HDEL', ids, unpack(forgotten))
  redis.pcall('ZREM', refused, unpack(forgotten))
  redis.set_repl(redis.REPL_ALL)
end

-- Forget the oldest entries when there are too many, some at a time, and none so young that a
-- request which it keeps out may still arrive.
local excess = length - bound
if excess >= 64 then
  local gone, highest = {}, nil
  for _, each in ipairs(call('XRANGE', log, '-', '+', 'COUNT', math.min(excess, 128))) do
    local made = tonumber(match(each[1], '^%d+'))
    if made > now - 180000000 then
      break
    end
    gone[#gone + 1] = each[2][2]
    highest = made
  end
  if highest then
    call('HDEL', ids, unpack(gone))
    call('XTRIM', log, 'MINID', text(highest + 1))
    call('HSET', meta, 'trimmed', text(highest))
  end
end
return #answers > 1 and answers or answers[1]
