"""Bytes of memory that a user and an item take, by part, of a long-tailed stream with
the defaults of `streamer run`.

Three of four users and half of the items come with their first event; the others come
again in proportion to the events that they had. `rss_over_parts` is what the process
grew by over the sum of all parts.
"""

from __future__ import annotations

import gc
import os
import resource
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common import new_parser, report, rounded
from streamer.ingest.batcher import MicroBatch
from streamer.learner import OnlineLearner
from streamer.model.batch import Rows
from streamer.model.jit import njit_allocating
from streamer.model.settings import LearnerSettings
from streamer.settings import PipelineSettings

WARM_UP_EVENTS = 2_048
NO_LIMIT = 1 << 40


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print what was found."""
    parser = new_parser(__doc__)
    add = parser.add_argument
    add("--events", type=int, default=300_000, help="Events of the stream.")
    add("--new-users", type=float, default=0.75, help="Share of events of new users.")
    add("--new-items", type=float, default=0.48, help="Share of events of new items.")
    add(
        "--optimizer",
        default=LearnerSettings.optimizer,
        help="Optimizer of the embedding tables.",
    )
    report(measure, parser, arguments)


def measure(options: Namespace) -> dict[str, Any]:
    """Bytes per user and item on top, then by part; what the whole process took beside
    it.
    """
    rng = np.random.default_rng(0)
    users = _stream(rng, options.events, options.new_users)
    items = _stream(rng, options.events, options.new_items)
    # The first learner loads compiled loops.
    _learn(_learner(options), users[:WARM_UP_EVENTS], items[:WARM_UP_EVENTS])
    learner = _learner(options)
    gc.collect()
    before = rss_bytes()
    _learn(learner, users, items)
    gc.collect()
    grown = rss_bytes() - before

    memory = learner.state.memory()
    user_parts = _each(memory["users"], len(learner.state.users))
    item_parts = _each(memory["items"] | memory["pairs"], len(learner.state.items))
    parts_bytes = sum(sum(sizes.values()) for sizes in memory.values())
    return {
        "bytes_per_user": round(sum(user_parts.values()), 1),
        "bytes_per_item": round(sum(item_parts.values()), 1),
        "users": len(learner.state.users),
        "items": len(learner.state.items),
        "by_part": {"user": rounded(user_parts, 1), "item": rounded(item_parts, 1)},
        "fixed_bytes": memory["hash"]["slots"],
        "parts_bytes": parts_bytes,
        "rss_over_parts": round(grown / parts_bytes, 3),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "options": vars(options),
    }


def _each(sizes: dict[str, int], count: int) -> dict[str, float]:
    return {name: size / count for name, size in sizes.items()}


def _learner(options: Namespace) -> OnlineLearner:
    return OnlineLearner(
        max_users=NO_LIMIT,
        max_items=NO_LIMIT,
        optimizer=options.optimizer,
        device="cpu",
    )


def _learn(learner: OnlineLearner, users: Rows, items: Rows) -> None:
    size = PipelineSettings.batch_size
    for start in range(0, len(users), size):
        user_ids = [f"u{n:09}" for n in users[start : start + size].tolist()]
        item_ids = [f"i{n:09}" for n in items[start : start + size].tolist()]
        times_s = [float(start + k) for k in range(len(user_ids))]
        learner.learn_batch(MicroBatch(user_ids, item_ids, times_s))


def rss_bytes() -> int:
    """Memory of this process that is in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _stream(rng: np.random.Generator, events: int, new: float) -> Rows:
    """[events] who or what comes: somebody new, or that of an earlier event."""
    is_new = rng.random(events) < new
    earlier = (rng.random(events) * np.arange(events)).astype(np.int64)
    return _copied(is_new, earlier)


@njit_allocating
def _copied(new: NDArray[np.bool_], earlier: Rows) -> Rows:
    found = np.arange(len(new))
    for k in range(1, len(new)):
        if not new[k]:
            found[k] = found[earlier[k]]
    return found


if __name__ == "__main__":
    main()
