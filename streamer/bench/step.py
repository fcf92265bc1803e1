"""Time of a training step, by method, all on the same synthetic batches.

The items' distribution follows Gowalla's: a batch of 2048 holds about 1,900 distinct
items.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from itertools import cycle
from typing import Any

import numpy as np
import torch

from streamer.bench.base import interleaved, long_tailed, seconds
from streamer.bench.catalogue import StepBench
from streamer.bench.plain import PlainTrainer
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


def measure(bench: StepBench) -> dict[str, Any]:
    """Milliseconds of the best step of each method, `plain_ms` of the authors' way, and
    what they are to each other.
    """
    if bench.threads:
        torch.set_num_threads(bench.threads)
    torch.manual_seed(0)
    methods = [name for name in METHODS if name != "full-softmax"]
    stream = _Stream(bench, bench.items)
    turns = {name: stream.turn(_fast(name, bench, stream)) for name in methods}
    turns |= {
        f"plain {name}": stream.turn(_plain(name, bench, stream).step) for name in PLAIN
    }
    turns["row-adam ssl-pop"] = stream.turn(_plain_with_row_adam(bench, stream))
    if bench.many_items:
        many = _Stream(bench, bench.many_items)
        turns["xir many"] = many.turn(_fast("xir", bench, many))
    ms = {
        name: 1e3 * min(steps)
        for name, steps in interleaved(turns, bench.rounds, WARM_UP_ROUNDS).items()
    }
    ratios = {
        "plain_xir_over_xir": ms["plain xir"] / ms["xir"],
        "plain_bir_over_bir": ms["plain bir"] / ms["bir"],
        "xir_over_plain_ssl_pop": ms["xir"] / ms["plain ssl-pop"],
        "xir_over_plain_ssl_pop_with_row_adam": ms["xir"] / ms["row-adam ssl-pop"],
    }
    if bench.many_items:
        ratios["xir_10m_items_over_41k"] = ms["xir many"] / ms["xir"]
    return {
        "ms": {name: round(ms[name], 3) for name in methods},
        "many_items_ms": {"xir": round(ms["xir many"], 3)} if bench.many_items else {},
        "plain_ms": {name: round(ms[f"plain {name}"], 3) for name in PLAIN},
        "ratios": {name: round(ratio, 3) for name, ratio in ratios.items()},
        "options": asdict(bench) | {"threads": torch.get_num_threads()},
    }


class _Stream:
    """Batches that are made once and used in turn."""

    def __init__(self, bench: StepBench, items: int) -> None:
        rng = np.random.default_rng(0)
        self.items = items
        self.counts = np.ones(items)
        shuffled = rng.permutation(items)  # popular items stand anywhere in the table
        self.batches: list[tuple[Rows, Rows]] = []
        for _ in range(BATCHES):
            rows = shuffled[long_tailed(rng, items, bench.batch_size, 0.6)]
            self.batches.append((rng.integers(0, bench.users, bench.batch_size), rows))
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


def _fast(method: str, bench: StepBench, stream: _Stream) -> Step:
    trainer = Trainer(
        id_towers(method=method, dim=bench.dim, optimizer="adam", **PAPER),
        torch.device("cpu"),
    )
    trainer.model.grow(bench.users, stream.items)
    exact = ExactPopularity()
    occurrence = Occurrence()
    rng = np.random.default_rng(1)
    for counts in (exact, occurrence):
        counts.add(np.arange(stream.items), stream.counts)
    popularity = HashPopularity() if trainer.method.popularity == "hash" else exact

    def step(users: Rows, items: Rows) -> object:
        popularity.observe(items)
        cache = occurrence.draw(
            bench.cache_size if method == "xir" else 0, rng, stream.items
        )
        result = trainer.step(Batch(users, items), StreamState(popularity, cache))
        occurrence.add(*result.occurrence())
        return result

    return step


def _plain(method: str, bench: StepBench, stream: _Stream) -> PlainTrainer:
    log_pop = torch.from_numpy(
        np.log(stream.counts / stream.counts.sum()).astype(np.float32)
    )
    return PlainTrainer(
        method, bench.users, stream.items, bench.dim, log_pop, bench.cache_size
    )


def _plain_with_row_adam(bench: StepBench, stream: _Stream) -> Step:
    """Plain SSL-Pop whose update touches the batch's rows only: the same update as the
    fast step's.
    """
    plain = _plain("ssl-pop", bench, stream)
    fast = Trainer(
        id_towers(method="ssl-pop", dim=bench.dim, optimizer="adam"),
        torch.device("cpu"),
    )
    fast.model.grow(bench.users, stream.items)
    tables = (fast.model.tables["user.id"], fast.model.tables["item.id"])
    adam = Adam()

    def step(*batch: Rows) -> object:
        unique = [np.unique(rows, return_inverse=True) for rows in batch]
        rows, places = zip(
            *((torch.from_numpy(r), torch.from_numpy(p)) for r, p in unique),
            strict=True,
        )
        used = [
            table.weight.index_select(0, r).requires_grad_()
            for table, r in zip(tables, rows, strict=True)
        ]
        q, e = (
            weight[place] for weight, place in zip(used, places, strict=True)
        )  # [B, d]
        loss = plain.loss(q, e, torch.from_numpy(batch[1]))
        loss.backward()  # type: ignore[no-untyped-call]
        for table, r, weight in zip(tables, rows, used, strict=True):
            assert weight.grad is not None
            adam.apply(table, r, weight.grad, 0.01)
        return loss

    return step
