"""Every key in Redis with its type, and the Lua scripts that change several of them at
once.

All keys of a model have the hash tag `{<namespace>:<model>}`, so that a Redis Cluster
keeps them on one node, and several models share a server. `K` stands for it here:

| key        | type   | holds                                                             | written by                |
|------------|--------|-------------------------------------------------------------------|---------------------------|
| K:meta     | hash   | format, generation, number and chain of the newest entry,         | seed, assign, push,       |
|            |        | number and stream id of the snapshot, chain of the cache,         | save_snapshot, put_cache  |
|            |        | fingerprint of the item ids, origin and its events, when seeded,  |                           |
|            |        | generations that a better seed has replaced                       |                           |
| K:log      | stream | deltas: n number, b chain of the entry before, c chain, d packed  | push, save_snapshot       |
| K:snapshot | list   | counts and occurrence of all items up to an entry, packed, in     | seed, save_snapshot       |
|            |        | parts: Redis takes no string of more than 512 MB                  |                           |
| K:items    | list   | item ids by row, those of retired items too                       | assign, seed              |
| K:rows     | hash   | item id -> row; a retired item has none                           | assign, push, seed        |
| K:next     | hash   | partition -> offset up to which its contributions are in the log  | push, claim, seed         |
| K:epochs   | hash   | partition -> epoch: rises whenever it is claimed, and is no less  | claim, seed               |
|            |        | than the server's time (ms) when it was assigned to its owner     |                           |
| K:owners   | hash   | partition -> trainer that claimed it last                         | claim                     |
| K:cache    | string | the newest cache: item rows, packed                               | push, put_cache           |
| K:trainers | hash   | trainer -> time of its last heartbeat (s), and its partitions     | heartbeat, leave          |
| K:lease    | string | the trainer that writes a snapshot now; expires                   | may_snapshot              |
| K:paused   | string | the trainer that removes retired rows now, while nothing is added | pause, seed               |
|            |        | to the log; expires                                               |                           |
| K:new:*    | list,  | items and rows of a generation that is about to begin, and parts  | seed, save_snapshot       |
|            | hash   | of a snapshot that is being written; expire                       |                           |

`{<namespace>}:models` (a set, under a tag of its own) holds the names of all models.
Trainers seed; `streamer store reset` removes all of it.

A script gets all keys that it touches as KEYS. Offsets and numbers stay below 2^53,
which Lua's numbers hold exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

TYPES = {
    "meta": "hash",
    "log": "stream",
    "snapshot": "list",
    "items": "list",
    "rows": "hash",
    "next": "hash",
    "epochs": "hash",
    "owners": "hash",
    "cache": "string",
    "trainers": "hash",
    "lease": "string",
    "paused": "string",
}
"""The type of each key."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one model; a namespace is that of all models that belong together.

    A `ValueError` says that a name is empty or has braces, which mean something to
    Redis; or that the namespace has a
    colon: then two models could have the same keys.

    Examples:
        >>> Keys("clicks").log
        '{streamer:clicks}:log'
    """

    model: str
    namespace: str = "streamer"

    def __post_init__(self) -> None:
        for what, name in (("model", self.model), ("namespace", self.namespace)):
            if not name or set(name) & set("{}"):
                raise ValueError(f"{what} is {name!r}: give a name without braces")
        if ":" in self.namespace:
            raise ValueError(
                f"namespace is {self.namespace!r}: give a name without colons; a model may have them"
            )

    def __getattr__(self, name: str) -> str:
        if name not in TYPES:
            raise AttributeError(name)
        return f"{self.tag}:{name}"

    @property
    def tag(self) -> str:
        """The beginning of all keys."""
        return f"{{{self.namespace}:{self.model}}}"

    @property
    def models(self) -> str:
        """The key that holds the names of all models."""
        return f"{{{self.namespace}}}:models"

    def new(self, name: str, token: str) -> str:
        """A key under which something is written before it takes the place of what is
        there; the token is random.
        """
        return f"{self.tag}:new:{token}:{name}"

    def all(self) -> list[str]:
        """Every key that stays."""
        return [getattr(self, name) for name in TYPES]

    def types(self) -> dict[str, str]:
        """The type of every key that stays, and of the names of all models."""
        return {getattr(self, name): kind for name, kind in TYPES.items()} | {
            self.models: "set"
        }


# Scripts --------------------------------------------------------------------------------------------------------------

ASSIGN = """
-- KEYS: meta, rows, items.  ARGV: generation, id ...
-- Returns the row of each id, or {-1} if the generation is another one.
if redis.call('HGET', KEYS[1], 'generation') ~= ARGV[1] then return {-1} end
local found = {}
local size = redis.call('LLEN', KEYS[3])
local fingerprint = redis.call('HGET', KEYS[1], 'fingerprint')
for k = 2, #ARGV do
    local row = redis.call('HGET', KEYS[2], ARGV[k])
    if not row then
        row = size
        size = size + 1
        redis.call('RPUSH', KEYS[3], ARGV[k])
        redis.call('HSET', KEYS[2], ARGV[k], row)
        fingerprint = redis.sha1hex(fingerprint .. ARGV[k])
    end
    found[k - 1] = tonumber(row)
end
redis.call('HSET', KEYS[1], 'fingerprint', fingerprint)
return found
"""

IDS = """
-- KEYS: meta, items.  ARGV: generation, first row, last row.
-- Returns the ids of these rows, as far as they are there, or -1 if the generation is another one.
if redis.call('HGET', KEYS[1], 'generation') ~= ARGV[1] then return -1 end
return redis.call('LRANGE', KEYS[2], ARGV[2], ARGV[3])
"""

CLAIM = """
-- KEYS: meta, epochs, next, owners.
-- ARGV: generation, trainer, then partition, last known epoch, end (-1: not known), 1 if it was assigned now or 0 ...
-- Returns epoch, next (-1: none) and 1 if it is the trainer's now of each partition, or {-1} if the generation is
-- another one.
if redis.call('HGET', KEYS[1], 'generation') ~= ARGV[1] then return {-1} end
local found, time = {}, redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
for k = 3, #ARGV, 4 do
    local partition, known, last = ARGV[k], tonumber(ARGV[k + 1]), tonumber(ARGV[k + 2])
    local epoch = tonumber(redis.call('HGET', KEYS[2], partition) or '0')
    local following = tonumber(redis.call('HGET', KEYS[3], partition) or '-1')
    local assigned = ARGV[k + 3] == '1'
    local ours = assigned or epoch <= known or redis.call('HGET', KEYS[4], partition) == ARGV[2]
    if ours then
        epoch = math.max(epoch, known) + 1
        if assigned then epoch = math.max(epoch, now) end
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
-- KEYS: meta, log, next, epochs, cache, items, rows, paused.
-- ARGV: generation, chain, entry, cache ('': none), longest log, rows there must be,
--       cursor of the trainer: stream id and chain of its last entry, number of its items, their fingerprint, chain of
--       its cache, entries that it takes;
--       number of ids that lose their row, then these, then partition, epoch, start, stop ...
-- Returns {outcome, length of the log, more ...}: more is the partition for 'fenced', partition and next for 'overlap',
-- and for 'added' {number, stream id, items, fingerprint, entries before this one, cache ('': none newer), its chain}.
local meta = redis.call('HMGET', KEYS[1], 'generation', 'chain', 'fingerprint', 'cache')
if not meta[1] then return {'empty', 0} end
local items = redis.call('LLEN', KEYS[6])
if meta[1] ~= ARGV[1] or items < tonumber(ARGV[6]) then return {'wrong generation', 0} end
local known, fingerprint = tonumber(ARGV[9]), ARGV[10]
if items < known or items - known > 1000 then return {'diverged', 0} end
for _, id in ipairs(redis.call('LRANGE', KEYS[6], known, -1)) do fingerprint = redis.sha1hex(fingerprint .. id) end
local entries = redis.call('XRANGE', KEYS[2], '(' .. ARGV[7], '+', 'COUNT', ARGV[12])
local before = entries[1] and entries[1][2][4] or meta[2]
local retired = tonumber(ARGV[13])
if fingerprint ~= meta[3] or before ~= ARGV[8] or (retired > 0 and entries[1]) then return {'diverged', 0} end
local first = 14 + retired
local spans, duplicates, overlap = (#ARGV - first + 1) / 4, 0, false
local nexts = {'overlap', 0}
for k = first, #ARGV, 4 do
    local partition = ARGV[k]
    if tonumber(redis.call('HGET', KEYS[4], partition) or '0') > tonumber(ARGV[k + 1]) then
        return {'fenced', 0, partition}
    end
    local following = tonumber(redis.call('HGET', KEYS[3], partition) or '-1')
    if tonumber(ARGV[k + 3]) <= following then duplicates = duplicates + 1 end
    if tonumber(ARGV[k + 2]) < following then overlap = true end
    nexts[#nexts + 1] = partition
    nexts[#nexts + 1] = string.format('%.0f', math.max(following, 0))
end
local length = redis.call('XLEN', KEYS[2])
if spans > 0 and duplicates == spans then return {'duplicate', length} end
if overlap then return nexts end
if length >= tonumber(ARGV[5]) or redis.call('EXISTS', KEYS[8]) == 1 then return {'log full', length} end
local number = redis.call('HINCRBY', KEYS[1], 'number', 1)
local id = redis.call('XADD', KEYS[2], '*', 'n', number, 'b', meta[2], 'c', ARGV[2], 'd', ARGV[3])
redis.call('HSET', KEYS[1], 'chain', ARGV[2])
for k = first, #ARGV, 4 do redis.call('HSET', KEYS[3], ARGV[k], ARGV[k + 3]) end
for k = 14, 13 + retired do redis.call('HDEL', KEYS[7], ARGV[k]) end
local cache, newest = '', meta[4] or ''
if ARGV[4] ~= '' then
    redis.call('SET', KEYS[5], ARGV[4])
    redis.call('HSET', KEYS[1], 'cache', ARGV[2])
    newest = ARGV[2]
elseif newest ~= ARGV[11] then
    cache = redis.call('GET', KEYS[5]) or ''
end
return {'added', length + 1, number, id, items, meta[3], entries, cache, newest}
"""

PULL = """
-- KEYS: meta, log, items, cache.
-- ARGV: generation, stream id after which to read, entries to read, chain of the cache that the trainer has.
-- Returns {generation, number, chain, items, length, fingerprint, entries, cache ('': none newer), its chain}, {} if
-- there is no state.
local meta = redis.call('HMGET', KEYS[1], 'generation', 'number', 'chain', 'cache', 'fingerprint')
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
-- KEYS: meta, log, snapshot, lease, new snapshot.  ARGV: generation, number, stream id, parts, trainer, chain.
-- Returns 1, or 0 if the log does not have this entry, the generation is another one, or parts are missing.
local entry = redis.call('XRANGE', KEYS[2], ARGV[3], ARGV[3])[1]
local ours = redis.call('GET', KEYS[4]) == ARGV[5]
local whole = redis.call('LLEN', KEYS[5]) == tonumber(ARGV[4])
if not whole or redis.call('HGET', KEYS[1], 'generation') ~= ARGV[1] or not entry or entry[2][6] ~= ARGV[6] then
    redis.call('UNLINK', KEYS[5])
    if ours then redis.call('UNLINK', KEYS[4]) end
    return 0
end
redis.call('UNLINK', KEYS[3])
redis.call('RENAME', KEYS[5], KEYS[3])
redis.call('PERSIST', KEYS[3])
redis.call('HSET', KEYS[1], 'snapshot', ARGV[2], 'snapshot_id', ARGV[3])
redis.call('XTRIM', KEYS[2], 'MINID', ARGV[3])
redis.call('XDEL', KEYS[2], ARGV[3])
if ours then redis.call('UNLINK', KEYS[4]) end
return 1
"""

SEED = """
-- KEYS: meta, log, snapshot, items, rows, next, cache, paused, epochs, owners, new items, new rows, new snapshot.
-- ARGV: generation, parts of the snapshot, origin generation ('': none), origin number, generation to replace, seconds
--       in which a state may be replaced by a later one, format, number of new items, their fingerprint, number of
--       partitions in next, events, chain that the newest entry of the generation to replace must have, whose epochs
--       and owners then stay ('': any), then partition, next ..., then partition, epoch ...
-- Returns 1, 0 if there is a state that is not to be replaced, or -1 if the new items or parts are not all there.
-- A state that grew out of a seed which a better one replaced does not come back, however many events it has: those
-- who contributed to it contribute again.
local meta = redis.call('HMGET', KEYS[1], 'generation', 'origin', 'origin_number', 'seeded', 'origin_events',
    'replaced', 'chain')
local now = tonumber(redis.call('TIME')[1])
local replaced = meta[6] or ''
local may = not meta[1] or meta[1] == ARGV[5]
local all = ARGV[12] == ''
if not all and not (meta[1] == ARGV[5] and meta[7] == ARGV[12]) then return 0 end
local outdated = ARGV[3] ~= '' and string.find(replaced, ARGV[3], 1, true)
if not may and not outdated and ARGV[3] ~= '' and now - tonumber(meta[4] or '0') <= tonumber(ARGV[6]) then
    may = meta[2] == '' or (meta[2] == ARGV[3] and tonumber(meta[3]) < tonumber(ARGV[4]))
    may = may or tonumber(meta[5] or '0') < tonumber(ARGV[11])
    replaced = replaced .. ' ' .. meta[1]
end
if not may then return 0 end
local items = tonumber(ARGV[8])
if redis.call('LLEN', KEYS[11]) ~= items or redis.call('HLEN', KEYS[12]) ~= items then return -1 end
if redis.call('LLEN', KEYS[13]) ~= tonumber(ARGV[2]) then return -1 end
for k = 1, all and 10 or 8 do redis.call('UNLINK', KEYS[k]) end
if redis.call('EXISTS', KEYS[11]) == 1 then
    redis.call('RENAME', KEYS[11], KEYS[4])
    redis.call('RENAME', KEYS[12], KEYS[5])
    redis.call('PERSIST', KEYS[4])
    redis.call('PERSIST', KEYS[5])
end
redis.call('RENAME', KEYS[13], KEYS[3])
redis.call('PERSIST', KEYS[3])
local first = 13 + 2 * tonumber(ARGV[10])
for k = 13, first - 1, 2 do redis.call('HSET', KEYS[6], ARGV[k], ARGV[k + 1]) end
for k = first, all and #ARGV or 0, 2 do redis.call('HSET', KEYS[9], ARGV[k], ARGV[k + 1]) end
redis.call('HSET', KEYS[1], 'format', ARGV[7], 'generation', ARGV[1], 'number', 0, 'chain', ARGV[1],
    'snapshot', 0, 'snapshot_id', '0-0', 'fingerprint', ARGV[9], 'origin', ARGV[3], 'origin_number', ARGV[4],
    'origin_events', ARGV[11], 'seeded', now, 'replaced', replaced)
return 1
"""

HEARTBEAT = """
-- KEYS: trainers.  ARGV: trainer, its partitions, seconds after which others are forgotten.
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

SUMMARY = """
-- KEYS: meta, log, snapshot, items, next, epochs, owners, cache, rows, trainers.
-- ARGV: 1 to get snapshot and cache too.
-- Returns {meta, next, epochs, owners, trainers, rows, length of the log, seconds, parts of the snapshot, cache,
-- items that are not retired};
-- hashes as name, value ...; without a generation it returns {number of these keys that exist, trainers left out}.
if redis.call('HEXISTS', KEYS[1], 'generation') == 0 then
    local there = 0
    for k = 1, 9 do there = there + redis.call('EXISTS', KEYS[k]) end
    return {there}
end
local found = {redis.call('HGETALL', KEYS[1])}
for k = 5, 7 do found[k - 3] = redis.call('HGETALL', KEYS[k]) end
found[5] = redis.call('HGETALL', KEYS[10])
found[6], found[7] = redis.call('LLEN', KEYS[4]), redis.call('XLEN', KEYS[2])
found[8], found[9], found[10] = redis.call('TIME')[1], {}, ''
if ARGV[1] == '1' then
    found[9], found[10] = redis.call('LRANGE', KEYS[3], 0, -1), redis.call('GET', KEYS[8]) or ''
end
found[11] = redis.call('HLEN', KEYS[9])
return found
"""
