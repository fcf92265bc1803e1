"""Every key in Redis with its type, and the two Lua scripts.

All keys of a model have the hash tag `{<namespace>:<model>}`, so that a Redis Cluster
keeps them on one node, and several models share a server. `K` stands for it here:

| key         | type   | holds                                                                        |
|-------------|--------|------------------------------------------------------------------------------|
| K:tops      | hash   | entry -> its version, `<a>-<b>`; and `format`                                |
| K:<entry>   | stream | changes of an entry, the first since 0-0; the id is the version `to`.        |
|             |        | since: version; hashes: 8 bytes an item; values: 4 (counts, cache) or 8      |
|             |        | (drawn) bytes an item                                                        |
| K:ids       | hash   | name of an item (8 bytes) -> its id                                          |
| K:trainers  | hash   | process of a trainer -> time of its last exchange (s), the number of that    |
|             |        | exchange, and the counts that it adds to                                     |

An entry is `counts:...`, `drawn:...` or `cache` (`cache_store/change.py`). The draws of
a trainer that has not sent any for `KEEP_DRAWN_S` expire.
`{<namespace>}:models` (a set, under a tag of its own) holds the names of all models.
All numbers are little-endian; offsets stay below 2^53, which Lua's numbers hold.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FORMAT = 4
FORMAT_FIELD = "format"
KEEP_DRAWN_S = 7 * 86_400
"""How long the draws of a trainer are kept that does not run any more."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one model; a namespace is that of all models that belong together.

    A `ValueError` says that a name is empty or has braces, which mean something to
    Redis; or that the namespace has a colon: then two models could have the same keys.

    Examples:
        >>> Keys("clicks").tops
        '{streamer:clicks}:tops'
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

    @property
    def tag(self) -> str:
        """What all keys of the model begin with."""
        return f"{{{self.namespace}:{self.model}}}"

    @property
    def models(self) -> str:
        """The set of all models of the namespace."""
        return f"{{{self.namespace}}}:models"

    @property
    def tops(self) -> str:
        return f"{self.tag}:tops"

    @property
    def ids(self) -> str:
        return f"{self.tag}:ids"

    @property
    def trainers(self) -> str:
        return f"{self.tag}:trainers"

    def changes(self, entry: str) -> str:
        return f"{self.tag}:{entry}"

    @property
    def pattern(self) -> str:
        """Matches all keys of the model."""
        return re.sub(r"([*?\[\]\\])", r"\\\1", self.tag) + ":*"


NAME = """
-- Keep the ids of names, unless the name has another id already.
-- KEYS: ids.  ARGV: name, id, name, id ...
-- Returns the names that have another id.
local refused = {}
for i = 1, #ARGV, 2 do
  if redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1]) == 0
      and redis.call('HGET', KEYS[1], ARGV[i]) ~= ARGV[i + 1] then
    refused[#refused + 1] = ARGV[i]
  end
end
return refused
"""

EXCHANGE = """
-- Compare and set: take in each change that is newer than its entry and begins no later
-- than that ends. One since 0-0 takes the place of all before it.
-- KEYS: tops, trainers, the stream of each change.
-- ARGV: process, number of the exchange, number of the last one that was answered,
--       counts that the process adds to, milliseconds to keep draws;
--       of each change: entry, since, to, hashes, values.
-- Returns the number of the exchange before, and the version of every entry. If that
-- number is too small, something was lost: nothing is taken in.
local function number(version)
  local a, b = version:match('^(%d+)-(%d+)$')
  return tonumber(a), tonumber(b)
end
local function is_less(one, other)
  local a, b = number(one)
  local c, d = number(other)
  return a < c or (a == c and b < d)
end
local tops, trainers, process = KEYS[1], KEYS[2], ARGV[1]
local heartbeat = redis.call('HGET', trainers, process) or '0 0'
local before = tonumber(heartbeat:match('^%S+ (%d+)'))
local has_lost = before < tonumber(ARGV[3])
local now = redis.call('TIME')
redis.call('HSET', trainers, process,
  table.concat({now[1], has_lost and 0 or ARGV[2], ARGV[4]}, ' '))
for k = 3, has_lost and 2 or #KEYS do
  local stream = KEYS[k]
  local first = 6 + 5 * (k - 3)
  local entry, since, to, hashes, values = unpack(ARGV, first, first + 4)
  if redis.call('EXISTS', stream) == 0 then redis.call('HDEL', tops, entry) end
  local top = redis.call('HGET', tops, entry) or '0-0'
  local replaces = since == '0-0' and not is_less(to, top)
  if replaces or (is_less(top, to) and not is_less(top, since)) then
    if replaces then redis.call('DEL', stream) end
    redis.call('XADD', stream, to, 'since', since, 'hashes', hashes, 'values', values)
    redis.call('HSET', tops, entry, to)
    if entry:find('^drawn:') then redis.call('PEXPIRE', stream, ARGV[5]) end
  end
end
return {before, redis.call('HGETALL', tops)}
"""
