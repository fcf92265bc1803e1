"""Every key in Redis, its type and its owner.

All keys of a model have the hash tag `{<namespace>:<model>}`, so that a Redis Cluster keeps them on one node, and
several models share a server. `K` stands for it here:

| key        | type   | holds                                                             | written by                |
|------------|--------|-------------------------------------------------------------------|---------------------------|
| K:meta     | hash   | format, generation, number and chain of the newest entry,         | seed, assign, push,       |
|            |        | number and id of the snapshot, chain of the cache, fingerprint of | save_snapshot, put_cache  |
|            |        | the items, origin and its events, when it was seeded              |                           |
| K:log      | stream | additions: n number, b chain before, c chain, d packed entry      | push, save_snapshot       |
| K:snapshot | string | counts and occurrence of all items up to an entry, packed         | seed, save_snapshot       |
| K:items    | list   | item ids by row                                                   | assign, seed              |
| K:rows     | hash   | item id -> row                                                    | assign, seed              |
| K:next     | hash   | partition -> offset up to which its contributions are in the log  | push, claim, seed         |
| K:epochs   | hash   | partition -> epoch: rises whenever it is claimed, and is no less  | claim, seed               |
|            |        | than the server's time (ms) when it was given to its owner        |                           |
| K:owners   | hash   | partition -> trainer that claimed it last                         | claim                     |
| K:cache    | string | the newest cache: item rows, packed                               | push, put_cache           |
| K:trainers | hash   | trainer -> when it was last there (s), and its partitions         | beat, leave               |
| K:lease    | string | the trainer that writes a snapshot now; expires                   | may_snapshot              |
| K:new:*    | list,  | items and rows of a generation that is about to begin; expire     | seed                      |
|            | hash   |                                                                   |                           |

`{<namespace>}:models` (a set, under a tag of its own) holds the names of all models. Trainers seed, and so does
`streamer store import`, which also puts a cache in; `streamer store reset` removes all of it.
"""

from __future__ import annotations

from dataclasses import dataclass

TYPES = {
    "meta": "hash",
    "log": "stream",
    "snapshot": "string",
    "items": "list",
    "rows": "hash",
    "next": "hash",
    "epochs": "hash",
    "owners": "hash",
    "cache": "string",
    "trainers": "hash",
    "lease": "string",
}
"""The type of each key."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one model.

    Args:
        model: its name.
        namespace: of all models that belong together. It has no colon, so that no two models have the same keys.

    Raises:
        ValueError: a name is empty or has braces, which mean something to Redis; or the namespace has a colon.

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
            raise ValueError(f"namespace is {self.namespace!r}: give a name without colons; a model may have them")

    def __getattr__(self, name: str) -> str:
        if name not in TYPES:
            raise AttributeError(name)
        return f"{self.tag}:{name}"

    @property
    def tag(self) -> str:
        """What all keys begin with."""
        return f"{{{self.namespace}:{self.model}}}"

    @property
    def models(self) -> str:
        """The key of the names of all models."""
        return f"{{{self.namespace}}}:models"

    def new(self, name: str, generation: str) -> str:
        """A key of a generation that is about to begin."""
        return f"{self.tag}:new:{generation}:{name}"

    def all(self) -> list[str]:
        """Every key that stays."""
        return [getattr(self, name) for name in TYPES]

    def types(self) -> dict[str, str]:
        """The type of every key that stays, and of the names of all models."""
        return {getattr(self, name): kind for name, kind in TYPES.items()} | {self.models: "set"}
