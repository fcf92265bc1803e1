"""Starts several `streamer run` at once, each a fork of a process that has everything loaded, and with a journal.

Reads one JSON object a line from standard input, and answers each with one line:

- `{"start": {"output": path, "arguments": [...], "journal": path}}`: the process's id;
- `{"ended": id}`: its return code, negative for the signal that killed it; null while it runs.

The journal says what a trainer has sent to others, one JSON object a line, written before it is sent:

- `{"first": true, "counts", "cache"}`: what it knows before its first step, by item id;
- `{"learned": {"spans", "items", "drawn"}}`: a micro-batch was learned, with items by their ids;
- `{"sent": chain, "parts": [{"spans", "items", "drawn"}, ...]}`: it is about to be sent, as the entry with this chain.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from run_zygote import child, warm_up

from streamer.cache_store.contribution import Contribution, Increments
from streamer.cache_store.exchange import Exchange
from streamer.cache_store.outbox import Waiting
from streamer.cache_store.server import Push
from streamer.cache_store.store import CacheStore
from streamer.learner import Learner


def keep_journal(path: str) -> None:
    """Have stores write down what is contributed to them, and what they send."""
    journal = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    contribute, packed, learn = CacheStore.contribute, Exchange._packed, Learner.learn_batch
    begun = False

    def note(what: dict[str, Any]) -> None:
        os.write(journal, json.dumps(what).encode() + b"\n")

    def noting_contribute(self: CacheStore, contribution: Contribution, ids: Sequence[str]) -> None:
        note({"learned": by_ids(contribution, ids)})
        contribute(self, contribution, ids)

    def noting_packed(self: Exchange, waiting: list[Waiting]) -> Push:
        push = packed(self, waiting)
        note({"sent": push.chain, "parts": [by_ids(w.contribution, self._state.row_map.own_ids) for w in waiting]})
        return push

    def noting_learn(self: Learner, *arguments: Any) -> Any:
        nonlocal begun
        if not begun:
            begun = True
            state = self.state
            every = np.arange(len(state.items))
            counts = by_id(Increments(every, state.item_counts.counts(every).astype(np.int64)), state.items.ids)
            note({"first": True, "counts": counts, "cache": [state.items.id_of(row) for row in state.cache]})
        return learn(self, *arguments)

    Learner.learn_batch = noting_learn  # type: ignore[method-assign]
    CacheStore.contribute = noting_contribute  # type: ignore[method-assign]
    Exchange._packed = noting_packed  # type: ignore[method-assign]


def by_ids(contribution: Contribution, ids: Sequence[str]) -> dict[str, Any]:
    """What a contribution says, by item id."""
    spans = sorted([span.partition, span.start, span.stop] for span in contribution.spans)
    return {"spans": spans, "items": by_id(contribution.item_counts, ids), "drawn": by_id(contribution.drawn, ids)}


def by_id(increments: Any, ids: Sequence[str]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for row, count in zip(increments.rows.tolist(), increments.counts.tolist(), strict=True):
        found[ids[row]] += count
    return dict(+found)


def start(job: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        keep_journal(job["journal"])
        child(job["output"], job["arguments"])
    return pid


def ended(pid: int, codes: dict[int, int]) -> int | None:
    """A process's return code, once it has ended."""
    if pid not in codes:
        done, status = os.waitpid(pid, os.WNOHANG)
        if not done:
            return None
        codes[pid] = os.waitstatus_to_exitcode(status)
    return codes[pid]


def serve() -> None:
    warm_up()
    from streamer.cache_store.redis import server as _redis  # noqa: F401

    codes: dict[int, int] = {}
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(start(job["start"]) if "start" in job else ended(job["ended"], codes)), flush=True)


if __name__ == "__main__":
    serve()
