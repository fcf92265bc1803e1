"""Lua that runs inside Redis: each is one atomic operation of `streamer.cache_store.server.Server`, or of `StoreAdmin`.

Every script is given all keys that it touches, and all of them have one hash tag. Offsets and numbers stay below 2^53,
which Lua's numbers hold exactly.
"""

ASSIGN = """
-- KEYS: meta, rows, items.  ARGV: generation, id ...
-- Returns the row of each id, or {-1} if it is another generation.
if redis.call('HGET', KEYS[1], 'generation') ~= ARGV[1] then return {-1} end
local found = {}
local size = redis.call('LLEN', KEYS[3])
local names = redis.call('HGET', KEYS[1], 'names')
for k = 2, #ARGV do
    local row = redis.call('HGET', KEYS[2], ARGV[k])
    if not row then
        row = size
        size = size + 1
        redis.call('RPUSH', KEYS[3], ARGV[k])
        redis.call('HSET', KEYS[2], ARGV[k], row)
        names = redis.sha1hex(names .. ARGV[k])
    end
    found[k - 1] = tonumber(row)
end
redis.call('HSET', KEYS[1], 'names', names)
return found
"""

IDS = """
-- KEYS: meta, items.  ARGV: generation, first row, last row.
-- Returns the ids of these rows, as far as they are there, or -1 if it is another generation.
if redis.call('HGET', KEYS[1], 'generation') ~= ARGV[1] then return -1 end
return redis.call('LRANGE', KEYS[2], ARGV[2], ARGV[3])
"""

CLAIM = """
-- KEYS: meta, epochs, next, owners.
-- ARGV: generation, trainer, then partition, known epoch, end (-1: not known), 1 if it was given to us now or 0 ...
-- Returns epoch, next (-1: none) and 1 if it is ours of each partition, or {-1} if it is another generation.
if redis.call('HGET', KEYS[1], 'generation') ~= ARGV[1] then return {-1} end
local found, time = {}, redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
for k = 3, #ARGV, 4 do
    local partition, known, last = ARGV[k], tonumber(ARGV[k + 1]), tonumber(ARGV[k + 2])
    local epoch = tonumber(redis.call('HGET', KEYS[2], partition) or '0')
    local following = tonumber(redis.call('HGET', KEYS[3], partition) or '-1')
    local anew = ARGV[k + 3] == '1'
    local ours = anew or epoch <= known or redis.call('HGET', KEYS[4], partition) == ARGV[2]
    if ours then
        epoch = math.max(epoch, known) + 1
        if anew then epoch = math.max(epoch, now) end
        redis.call('HSET', KEYS[2], partition, epoch)
        redis.call('HSET', KEYS[4], partition, ARGV[2])
        if last >= 0 and following > last then
            redis.call('HDEL', KEYS[3], partition)
            following = -1
        end
    end
    found[#found + 1] = epoch
    found[#found + 1] = following
    found[#found + 1] = ours and 1 or 0
end
return found
"""

PUSH = """
-- KEYS: meta, log, next, epochs, cache, items.
-- ARGV: generation, chain, entry, cache ('': none), longest log, rows there must be,
--       where the pusher stands: id of its entry ('': not told), its chain, items it knows, their fingerprint, chain of
--       its cache, entries wanted;
--       then partition, epoch, start, stop ...
-- Returns {outcome, length of the log, more ...}: more is the partition for 'fenced', partition and next for 'overlap',
-- and for 'added' {number, id, items, names, entries before this one, cache ('': none newer), its chain}.
local meta = redis.call('HMGET', KEYS[1], 'generation', 'chain', 'names', 'cache')
if not meta[1] then return {'empty', 0} end
local items = redis.call('LLEN', KEYS[6])
if meta[1] ~= ARGV[1] or items < tonumber(ARGV[6]) then return {'elsewhere', 0} end
local told, entries = ARGV[7] ~= '', {}
if told then
    local known, names = tonumber(ARGV[9]), ARGV[10]
    if items < known or items - known > 1000 then return {'astray', 0} end
    for _, id in ipairs(redis.call('LRANGE', KEYS[6], known, -1)) do names = redis.sha1hex(names .. id) end
    entries = redis.call('XRANGE', KEYS[2], '(' .. ARGV[7], '+', 'COUNT', ARGV[12])
    local before = entries[1] and entries[1][2][4] or meta[2]
    if names ~= meta[3] or before ~= ARGV[8] then return {'astray', 0} end
end
local spans, known, overlap = (#ARGV - 12) / 4, 0, false
local nexts = {'overlap', 0}
for k = 13, #ARGV, 4 do
    local partition = ARGV[k]
    if tonumber(redis.call('HGET', KEYS[4], partition) or '0') > tonumber(ARGV[k + 1]) then
        return {'fenced', 0, partition}
    end
    local following = tonumber(redis.call('HGET', KEYS[3], partition) or '-1')
    if tonumber(ARGV[k + 3]) <= following then known = known + 1 end
    if tonumber(ARGV[k + 2]) < following then overlap = true end
    nexts[#nexts + 1] = partition
    nexts[#nexts + 1] = string.format('%.0f', math.max(following, 0))
end
local length = redis.call('XLEN', KEYS[2])
if spans > 0 and known == spans then return {'known', length} end
if overlap then return nexts end
if length >= tonumber(ARGV[5]) then return {'full', length} end
local number = redis.call('HINCRBY', KEYS[1], 'number', 1)
local id = redis.call('XADD', KEYS[2], '*', 'n', number, 'b', meta[2], 'c', ARGV[2], 'd', ARGV[3])
redis.call('HSET', KEYS[1], 'chain', ARGV[2])
for k = 13, #ARGV, 4 do redis.call('HSET', KEYS[3], ARGV[k], ARGV[k + 3]) end
local cache, newest = '', meta[4] or ''
if ARGV[4] ~= '' then
    redis.call('SET', KEYS[5], ARGV[4])
    redis.call('HSET', KEYS[1], 'cache', ARGV[2])
    newest = ARGV[2]
elseif told and newest ~= ARGV[11] then
    cache = redis.call('GET', KEYS[5]) or ''
end
if not told then return {'added', length + 1} end
return {'added', length + 1, number, id, items, meta[3], entries, cache, newest}
"""

PULL = """
-- KEYS: meta, log, items, cache.  ARGV: generation, id after which to read, how many, chain of the cache we have.
-- Returns {generation, number, chain, items, length, names, entries, cache ('': none newer), its chain}, {} if empty.
local meta = redis.call('HMGET', KEYS[1], 'generation', 'number', 'chain', 'cache', 'names')
if not meta[1] then return {} end
local entries, cache = {}, ''
if meta[1] == ARGV[1] and tonumber(ARGV[3]) > 0 then
    entries = redis.call('XRANGE', KEYS[2], '(' .. ARGV[2], '+', 'COUNT', ARGV[3])
end
if meta[4] and meta[4] ~= ARGV[4] then cache = redis.call('GET', KEYS[4]) or '' end
local items, length = redis.call('LLEN', KEYS[3]), redis.call('XLEN', KEYS[2])
return {meta[1], tonumber(meta[2]), meta[3], items, length, meta[5], entries, cache, meta[4] or ''}
"""

SAVE_SNAPSHOT = """
-- KEYS: meta, log, snapshot, lease.  ARGV: generation, number, id, snapshot, trainer, chain.
-- Returns 1, or 0 if this entry is not in the log or it is another generation.
local entry = redis.call('XRANGE', KEYS[2], ARGV[3], ARGV[3])[1]
local ours = redis.call('GET', KEYS[4]) == ARGV[5]
if redis.call('HGET', KEYS[1], 'generation') ~= ARGV[1] or not entry or entry[2][6] ~= ARGV[6] then
    if ours then redis.call('DEL', KEYS[4]) end
    return 0
end
redis.call('SET', KEYS[3], ARGV[4])
redis.call('HSET', KEYS[1], 'snapshot', ARGV[2], 'snapshot_id', ARGV[3])
redis.call('XTRIM', KEYS[2], 'MINID', ARGV[3])
redis.call('XDEL', KEYS[2], ARGV[3])
if ours then redis.call('DEL', KEYS[4]) end
return 1
"""

SEED = """
-- KEYS: meta, log, snapshot, items, rows, next, epochs, cache, new items, new rows, owners.
-- ARGV: generation, snapshot, origin generation ('': none), origin number, instead of, seconds for seeding again,
--       format, how many new items, their fingerprint, how many partitions in next, events, then partition, next ...,
--       then partition, epoch ...
-- Returns 1, 0 if there is a state that is not to be replaced, or -1 if the new items are not all there.
local meta = redis.call('HMGET', KEYS[1], 'generation', 'origin', 'origin_number', 'seeded', 'origin_events')
local now = tonumber(redis.call('TIME')[1])
local may = not meta[1] or meta[1] == ARGV[5]
if not may and ARGV[3] ~= '' and now - tonumber(meta[4] or '0') <= tonumber(ARGV[6]) then
    may = meta[2] == '' or (meta[2] == ARGV[3] and tonumber(meta[3]) < tonumber(ARGV[4]))
    may = may or tonumber(meta[5] or '0') < tonumber(ARGV[11])
end
if not may then return 0 end
local items = tonumber(ARGV[8])
if redis.call('LLEN', KEYS[9]) ~= items or redis.call('HLEN', KEYS[10]) ~= items then return -1 end
for k = 1, 8 do redis.call('DEL', KEYS[k]) end
redis.call('DEL', KEYS[11])
if redis.call('EXISTS', KEYS[9]) == 1 then
    redis.call('RENAME', KEYS[9], KEYS[4])
    redis.call('RENAME', KEYS[10], KEYS[5])
    redis.call('PERSIST', KEYS[4])
    redis.call('PERSIST', KEYS[5])
end
redis.call('SET', KEYS[3], ARGV[2])
local first = 12 + 2 * tonumber(ARGV[10])
for k = 12, first - 1, 2 do redis.call('HSET', KEYS[6], ARGV[k], ARGV[k + 1]) end
for k = first, #ARGV, 2 do redis.call('HSET', KEYS[7], ARGV[k], ARGV[k + 1]) end
redis.call('HSET', KEYS[1], 'format', ARGV[7], 'generation', ARGV[1], 'number', 0, 'chain', ARGV[1],
    'snapshot', 0, 'snapshot_id', '0-0', 'names', ARGV[9], 'origin', ARGV[3], 'origin_number', ARGV[4],
    'origin_events', ARGV[11], 'seeded', now)
return 1
"""

BEAT = """
-- KEYS: trainers.  ARGV: trainer, what it says of itself, seconds after which others are forgotten.
local now = tonumber(redis.call('TIME')[1])
local all = redis.call('HGETALL', KEYS[1])
for k = 1, #all, 2 do
    if now - tonumber(string.match(all[k + 1], '^%d+') or '0') > tonumber(ARGV[3]) then
        redis.call('HDEL', KEYS[1], all[k])
    end
end
redis.call('HSET', KEYS[1], ARGV[1], now .. ' ' .. ARGV[2])
return 1
"""

LOOK = """
-- KEYS: meta, log, snapshot, items, next, epochs, owners, cache, rows, trainers.
-- ARGV: 1 to get snapshot and cache too.
-- Returns {meta, next, epochs, owners, trainers, items, length of the log, seconds, snapshot, cache}; hashes as name,
-- value ...; without a generation it returns {how many of these keys there are, but for trainers}.
if redis.call('HEXISTS', KEYS[1], 'generation') == 0 then
    local there = 0
    for k = 1, 9 do there = there + redis.call('EXISTS', KEYS[k]) end
    return {there}
end
local found = {redis.call('HGETALL', KEYS[1])}
for k = 5, 7 do found[k - 3] = redis.call('HGETALL', KEYS[k]) end
found[5] = redis.call('HGETALL', KEYS[10])
found[6], found[7] = redis.call('LLEN', KEYS[4]), redis.call('XLEN', KEYS[2])
found[8], found[9], found[10] = redis.call('TIME')[1], '', ''
if ARGV[1] == '1' then
    found[9], found[10] = redis.call('GET', KEYS[3]) or '', redis.call('GET', KEYS[8]) or ''
end
return found
"""

SEEN = """
-- KEYS: trainers.
-- Returns seconds, then name, value ... of the hash.
local found = redis.call('HGETALL', KEYS[1])
table.insert(found, 1, redis.call('TIME')[1])
return found
"""

PUT_CACHE = """
-- KEYS: meta, cache.  ARGV: generation, cache.
-- Returns 1, or 0 if it is another generation or has a cache already.
if redis.call('HGET', KEYS[1], 'generation') ~= ARGV[1] then return 0 end
if redis.call('HEXISTS', KEYS[1], 'cache') == 1 then return 0 end
redis.call('SET', KEYS[2], ARGV[2])
redis.call('HSET', KEYS[1], 'cache', ARGV[1])
return 1
"""
