-- Commits, one after the other: each checks everything, then writes everything, at one revision.
--
-- KEYS  items index live log ids meta refused, all with one hash tag
-- ARGV  latest bound room, then for each commit: id flags entry hash, five counts,
--       checks (kind key argument), puts (key value ttl), deletes, reads, signals
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
-- A function costs a fraction of that whenever the script runs, so few things are one.
local items, index, live, log, ids, meta, refused = unpack(KEYS)
local call, byte, match, sub, find = redis.call, string.byte, string.match, string.sub, string.find
local latest, bound, room = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] ~= ''
local bell = sub(meta, 1, -5) .. 'bell:'
local FIRST, HEAD = 4, 9 -- where the first commit begins; the words of a commit before its lists

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
local revision = now
if last and tonumber(last) >= now then
  now = tonumber(last)
  revision = now + 1
end
local stamped = text(revision)

-- What all commits of this script share: the first revision that one of them wrote (the last one is
-- in last), the length of the log, what Redis let them do, and refused ids that are to be forgotten.
local born, length, tried, forgotten = nil, 0, {}, nil

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
local BRACE, TAIL = 123, 512
local function marks(item)
  if byte(item) ~= BRACE then
    return match(item, '^(%d+) (%d+) %d+ (%S* %S*) ')
  end
  local pattern = '"stamp":"(%d+) (%d+) (%S* %S*)"}$'
  local revision, created, mark = match(sub(item, -TAIL), pattern)
  if not revision then
    revision, created, mark = match(item, pattern)
  end
  return revision, created, mark
end
local function payload(item)
  if byte(item) ~= BRACE then
    return sub(item, match(item, '^%d+ %d+ %d+ %S* %S* ()'))
  end
  local head = match(item, '^(.*),"stamp":"[^"]*"}$') or '{'
  return head .. '}'
end

local LONGEST = 4096 -- bytes of values that are published, at most

-- Call a command with a whole list, in portions that fit on Lua's stack.
local PORTION = 1000
local function all(command, key, list)
  for i = 1, #list, PORTION do
    call(command, key, unpack(list, i, math.min(i + PORTION - 1, #list)))
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
  local asked, wanted, seen = {}, {}, {} -- keys for the answer to a no; keys to read; the items
  local function want(key)
    if seen[key] == nil then
      if sub(key, 1, 4) == 'log/' then
        seen[key] = standing(sub(key, 5))
      else
        seen[key] = false
        wanted[#wanted + 1] = key
      end
    end
  end
  for i = checking, putting - 1, 3 do
    asked[#asked + 1] = ARGV[i + 1]
    want(ARGV[i + 1])
  end
  for i = putting, deleting - 1, 3 do
    want(ARGV[i])
  end
  for i = reading, signalling - 1 do
    asked[#asked + 1] = ARGV[i]
    want(ARGV[i])
  end
  for i = 1, #wanted, PORTION do
    local found = call('HMGET', items, unpack(wanted, i, math.min(i + PORTION - 1, #wanted)))
    for j, item in ipairs(found) do -- no item is false, not nil
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
      holds = holds and payload(item) == ARGV[i + 2]
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
    for i, key in ipairs(asked) do
      answer[i + 3] = short(seen[key], longest)
    end
    return answer
  end

  local touched, stored, new, lives, staying = {}, {}, {}, {}, {}
  for i = putting, deleting - 1, 3 do
    local key, value, ttl = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    local old = seen[key]
    local created, stamp = stamped, id .. ' ' .. hash
    if old then
      local _, first, mark = marks(old)
      created = first
      if quiet then
        stamp = mark
      end
    else
      new[#new + 1] = 0
      new[#new + 1] = key
      if quiet then
        stamp = ' '
      end
    end
    local expires = '0'
    if ttl ~= '0' then
      expires = text(revision + ttl)
      lives[#lives + 1] = expires
      lives[#lives + 1] = key
    elseif sub(key, 1, 5) == 'live/' then
      staying[#staying + 1] = key
    end
    local item
    if sub(key, 1, 6) == 'tasks/' and ttl == '0' and match(value, '^{.*}$') then
      local comma = value == '{}' and '' or ','
      local last = '"stamp":"' .. stamped .. ' ' .. created .. ' ' .. stamp .. '"}'
      item = sub(value, 1, -2) .. comma .. last
    else
      item = stamped .. ' ' .. created .. ' ' .. expires .. ' ' .. stamp .. ' ' .. value
    end
    stored[#stored + 1] = key
    stored[#stored + 1] = item
    seen[key] = item
    touched[#touched + 1] = '+' .. key
  end

  -- From here on it writes: first what may be refused, as far as no earlier commit has tried it.
  if not tried.write then
    if room then
      call('HDEL', meta, '')
    end
    call('HSET', meta, 'rev', stamped)
    tried.write = stamped
  end
  last = stamped
  if not quiet and not tried.record then
    call('PUBLISH', bell .. '?', '')
    length = call('XLEN', log)
    if length + #ARGV / HEAD - bound >= 64 then -- as many entries as there may be
      call('XRANGE', log, '-', '-')
      call('XTRIM', log, 'MINID', '0')
      call('HDEL', meta, '')
    end
    tried.record = true
  end
  if deletes > 0 and not tried.delete then
    call('HDEL', meta, '')
    call('ZREM', live, '')
    tried.delete, tried.stay = true, true
  end
  if #staying > 0 and not tried.stay then
    call('ZREM', live, '')
    tried.stay = true
  end
  if (#new > 0 or #lives > 0) and not tried.add then
    call('ZADD', index, 'XX', 0, '')
    tried.add = true
  end
  if deletes > 0 and not quiet and not tried.entry then
    call('XADD', meta .. '?', 'NOMKSTREAM', '*', '', '')
    tried.entry = true
  end

  local function put_items()
    all('HSET', items, stored)
    all('ZADD', index, new)
    all('ZADD', live, lives)
    all('ZREM', live, staying)
  end

  if deletes > 0 then -- which of them were there is in the entry, so that comes last
    put_items()
    for i = deleting, reading - 1 do
      local key = ARGV[i]
      if call('HDEL', items, key) == 1 then
        call('ZREM', index, key)
        if sub(key, 1, 5) == 'live/' then
          call('ZREM', live, key)
        else
          touched[#touched + 1] = '-' .. key
        end
      end
      seen[key] = false
    end
  end
  if not quiet then
    for i = signalling, signalling + signals - 1 do
      touched[#touched + 1] = '!' .. ARGV[i]
    end
    -- Who watches a key listens on its channel, on that of one of its folders, or on the root's,
    -- which brings everything and the entry too.  New messages come with what the commit wrote.
    local bells, order, everything, carriers, along = {}, {}, '', {}, nil
    for _, what in ipairs(touched) do
      local told = #what .. ':' .. what
      local scope, slash, folder = sub(what, 2), 1, sub(what, 1, 8)
      local carries = folder == '+unread/' or folder == '+topics/'
      everything = everything .. told
      if carries and not along then
        along = ''
        for i = putting, deleting - 1, 3 do
          local key, value = ARGV[i], ARGV[i + 1]
          if #along + #value > LONGEST then
            along = ''
            break
          end
          if ARGV[i + 2] == '0' then
            local item = #key .. ':' .. key .. value
            along = along .. #item + 1 .. ':"' .. item
          end
        end
      end
      while scope do
        local before = bells[scope]
        if before then
          bells[scope] = before .. told
        else
          bells[scope] = told
          order[#order + 1] = scope
        end
        slash = find(what, '/', slash + 1, true)
        scope = slash and slash < #what and sub(what, 2, slash)
        if scope and carries then
          carriers[scope] = along
        end
      end
    end
    call('XADD', log, stamped .. '-0', 'i', id, 'e', entry, 'h', hash, 't', everything)
    call('HSET', ids, id, stamped)
    length = length + 1
    if deletes == 0 then
      put_items()
    end
    local before = stamped .. ' ' .. (recorded or '0') .. ' '
    recorded = stamped -- told last: what is told has been written
    for _, scope in ipairs(order) do
      call('PUBLISH', bell .. scope, before .. bells[scope] .. (carriers[scope] or ''))
    end
    local own = #id + 1 .. ':=' .. id .. #entry + 1 .. ':"' .. entry
    call('PUBLISH', bell, before .. own .. everything)
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
  local checks, puts = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
  local deletes, reads = tonumber(ARGV[at + 6]), tonumber(ARGV[at + 7])
  local signals = tonumber(ARGV[at + 8])
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
  if last == stamped then
    now = revision
    revision = now + 1
    stamped = text(revision)
  end
end

if born then
  local facts = {'rev', last}
  if recorded ~= state[2] then
    facts[3], facts[4] = 'recorded', recorded
  end
  if format ~= '2' then -- whoever knows only the first one must not read it
    facts[#facts + 1], facts[#facts + 2] = 'format', '2'
  end
  if not format then
    facts[#facts + 1], facts[#facts + 2] = 'born', born
  end
  if #facts > 2 or last ~= tried.write then
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
