"""Time of a training step, forward + backward + update, for every method, all on the
same synthetic batches.

`plain` is the same method with whole matrices, torch.multinomial, gather and dense
Adam, as the paper's authors write it. The items' distribution follows Gowalla's: a
batch of 2048 holds about 1,900 distinct items.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import torch

from common import interleaved, long_tailed, new_parser, report, rounded, seconds
from plain_trainer import PlainTrainer
from streamer.model.batch import Batch, Rows, StreamState
from streamer.model.losses import METHODS
from streamer.model.occurrence import Occurrence
from streamer.model.optim import Adam
from streamer.model.popularity import ExactPopularity, HashPopularity
from streamer.model.settings import id_towers
from streamer.model.trainer import Trainer

PLAIN = ("ssl-pop", "bir", "xir")
TURN_STEPS = 3
TURN_S = 0.15
"""A turn of a method is this many steps in a row, as in training: the first finds the
caches full of another method's data. It ends earlier if it takes long, where that makes
no difference."""
WARM_UP_ROUNDS = 2
BATCHES = 8
PAPER: dict[str, Any] = {"cache_weight": 0.2, "cache_correction": "popularity"}
Step = Callable[[Rows, Rows], object]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print what was found."""
    parser = new_parser(__doc__)
    add = parser.add_argument
    add("--batch-size", type=int, default=2048, help="Events of a micro-batch.")
    add("--cache-size", type=int, default=2048, help="Items in the cache.")
    add("--dim", type=int, default=32, help="Size of the embeddings.")
    add("--items", type=int, default=40_988, help="Items in the table.")
    add("--users", type=int, default=29_858, help="Users in the table.")
    many = "Items of the large table; 0 leaves it out."
    add("--many-items", type=int, default=10_000_000, help=many)
    add("--threads", type=int, help="Threads of torch, which decides by default.")
    add("--rounds", type=int, default=10, help="By turns; each method's best counts.")
    report(measure, parser, arguments)


def measure(options: Namespace) -> dict[str, Any]:
    """Milliseconds of the best step of each method, `plain_ms` of the authors' way, and
    what they are to each other.
    """
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    methods = [name for name in METHODS if name != "full-softmax"]
    stream = _Stream(options, options.items)
    turns = {}
    for name in methods:
        turns[name] = stream.turn(_fast(name, options, stream))
    for name in PLAIN:
        turns[f"plain {name}"] = stream.turn(_plain(name, options, stream).step)
    turns["row-adam ssl-pop"] = stream.turn(_plain_with_row_adam(options, stream))
    if options.many_items:
        many = _Stream(options, options.many_items)
        turns["xir many"] = many.turn(_fast("xir", options, many))

    steps = interleaved(turns, options.rounds, WARM_UP_ROUNDS)
    ms = {name: 1e3 * min(taken) for name, taken in steps.items()}
    ratios = {
        "plain_xir_over_xir": ms["plain xir"] / ms["xir"],
        "plain_bir_over_bir": ms["plain bir"] / ms["bir"],
        "xir_over_plain_ssl_pop": ms["xir"] / ms["plain ssl-pop"],
        "xir_over_plain_ssl_pop_with_row_adam": ms["xir"] / ms["row-adam ssl-pop"],
    }
    many_items_ms = {}
    if options.many_items:
        ratios["xir_10m_items_over_41k"] = ms["xir many"] / ms["xir"]
        many_items_ms["xir"] = ms["xir many"]
    return {
        "ms": rounded({name: ms[name] for name in methods}, 3),
        "many_items_ms": rounded(many_items_ms, 3),
        "plain_ms": rounded({name: ms[f"plain {name}"] for name in PLAIN}, 3),
        "ratios": rounded(ratios, 3),
        "options": vars(options) | {"threads": torch.get_num_threads()},
    }


class _Stream:
    """Batches that are made once and used in turn."""

    def __init__(self, options: Namespace, items: int) -> None:
        rng = np.random.default_rng(0)
        size = options.batch_size
        shuffled = rng.permutation(items)  # popular items stand anywhere in the table
        self.items = items
        self.counts = np.ones(items)
        self.batches: list[tuple[Rows, Rows]] = []
        for _ in range(BATCHES):
            rows = shuffled[long_tailed(rng, items, size, 0.6)]
            self.batches.append((rng.integers(0, options.users, size), rows))
            np.add.at(self.counts, rows, 1)

    def turn(self, step: Step) -> Callable[[], list[float]]:
        """Some steps in a row; returns the seconds of each."""
        batches = cycle(self.batches)

        def take_steps() -> list[float]:
            taken: list[float] = []
            while len(taken) < TURN_STEPS and sum(taken) < TURN_S:
                taken.append(seconds(step, *next(batches)))
            return taken

        return take_steps


def _fast(method: str, options: Namespace, stream: _Stream) -> Step:
    settings = id_towers(method=method, dim=options.dim, optimizer="adam", **PAPER)
    trainer = Trainer(settings, torch.device("cpu"))
    trainer.model.grow(options.users, stream.items)
    exact = ExactPopularity()
    occurrence = Occurrence()
    for counts in (exact, occurrence):
        counts.add(np.arange(stream.items), stream.counts)
    popularity = HashPopularity() if trainer.method.popularity == "hash" else exact
    cache_size = options.cache_size if method == "xir" else 0
    rng = np.random.default_rng(1)

    def step(users: Rows, items: Rows) -> object:
        popularity.observe(items)
        cache = occurrence.draw(cache_size, rng, stream.items)
        result = trainer.step(Batch(users, items), StreamState(popularity, cache))
        occurrence.add(*result.occurrence())
        return result

    return step


def _plain(method: str, options: Namespace, stream: _Stream) -> PlainTrainer:
    shares = stream.counts / stream.counts.sum()
    log_pop = torch.from_numpy(np.log(shares).astype(np.float32))
    sizes = (options.users, stream.items, options.dim)
    return PlainTrainer(method, sizes, log_pop, options.cache_size)


def _plain_with_row_adam(options: Namespace, stream: _Stream) -> Step:
    """Plain SSL-Pop whose update touches the batch's rows only: the same update as the
    fast step's.
    """
    plain = _plain("ssl-pop", options, stream)
    settings = id_towers(method="ssl-pop", dim=options.dim, optimizer="adam")
    model = Trainer(settings, torch.device("cpu")).model
    model.grow(options.users, stream.items)
    adam = Adam()

    def step(users: Rows, items: Rows) -> object:
        updates = []
        vectors = []
        for name, batch_rows in (("user.id", users), ("item.id", items)):
            unique, places = np.unique(batch_rows, return_inverse=True)
            table = model.tables[name]
            rows = torch.from_numpy(unique)
            weight = table.weight.index_select(0, rows).requires_grad_()
            updates.append((table, rows, weight))
            vectors.append(weight[torch.from_numpy(places)])  # [B, d]

        loss = plain.loss(*vectors, torch.from_numpy(items))
        loss.backward()
        for table, rows, weight in updates:
            adam.apply(table, rows, weight.grad, 0.01)
        return loss

    return step


if __name__ == "__main__":
    main()
