"""Time of a training step, by method."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from streamer.bench.plain import PlainTrainer
from streamer.model.batch import Batch, Rows, StreamState
from streamer.model.losses import METHODS
from streamer.model.occurrence import Occurrence
from streamer.model.optim import Adam
from streamer.model.popularity import ExactPopularity, HashPopularity
from streamer.model.settings import id_towers
from streamer.model.trainer import Trainer

PLAIN = ("ssl-pop", "bir", "xir")
SLOW = ("plain bir", "plain xir")
SLOW_ROUNDS = 5
"""So many rounds of what takes half a second a step."""
CONSECUTIVE = 3
"""Steps of one method in a row, as in training: the first finds the caches full of another method's data."""
BATCHES = 8
SAMPLING: dict[str, Any] = {"cache_weight": 0.2, "cache_correction": "popularity"}
"""As in the paper."""


@dataclass(frozen=True, slots=True)
class StepOptions:
    """What `streamer bench step` was asked."""

    batch_size: int = 2048
    cache_size: int = 2048
    dim: int = 32
    items: int = 40_988
    users: int = 29_858
    many_items: int = 10_000_000
    threads: int | None = None
    rounds: int = 10


class StepBench:
    """Every method on the same synthetic long-tailed batches, interleaved, best of several rounds.

    The items' distribution follows Gowalla's: a batch of 2048 holds about 1,900 distinct items.
    """

    def __init__(self, options: StepOptions) -> None:
        self.options = options
        if options.threads:
            torch.set_num_threads(options.threads)

    def run(self) -> dict[str, Any]:
        """Measure, and answer `ms`, `plain_ms`, `ratios` and the options."""
        torch.manual_seed(0)
        small = _Stream(self.options, self.options.items)
        steps: dict[str, Callable[[int], object]] = {}
        for name in METHODS:
            if name != "full-softmax":
                steps[name] = _fast(name, self.options, small)
        for name in PLAIN:
            steps[f"plain {name}"] = _plain(name, self.options, small)
        steps["row-adam ssl-pop"] = _plain_with_row_adam(self.options, small)
        if self.options.many_items:
            steps["xir many"] = _fast("xir", self.options, _Stream(self.options, self.options.many_items))
        return self._report(_best_of(steps, self.options.rounds))

    def _report(self, ms: dict[str, float]) -> dict[str, Any]:
        plain = {name: ms[f"plain {name}"] for name in PLAIN}
        ratios = {
            "plain_xir_over_xir": plain["xir"] / ms["xir"],
            "plain_bir_over_bir": plain["bir"] / ms["bir"],
            "xir_over_plain_ssl_pop": ms["xir"] / plain["ssl-pop"],
            "xir_over_plain_ssl_pop_with_row_adam": ms["xir"] / ms["row-adam ssl-pop"],
        }
        if "xir many" in ms:
            ratios["xir_10m_items_over_41k"] = ms["xir many"] / ms["xir"]
        return {
            "ms": {name: round(ms[name], 3) for name in METHODS if name in ms},
            "many_items_ms": {"xir": round(ms["xir many"], 3)} if "xir many" in ms else {},
            "plain_ms": {name: round(value, 3) for name, value in plain.items()},
            "ratios": {name: round(value, 3) for name, value in ratios.items()},
            "options": asdict(self.options) | {"threads": torch.get_num_threads()},
        }


class _Stream:
    """Batches that are made once and used in turn."""

    def __init__(self, options: StepOptions, items: int) -> None:
        rng = np.random.default_rng(0)
        weight = np.cumsum(1.0 / (np.arange(items) + 10.0) ** 0.6)
        self.items = items
        self.batches: list[tuple[Rows, Rows]] = []
        shuffled = rng.permutation(items)  # popular items stand anywhere in the table
        for _ in range(BATCHES):
            ranks = np.searchsorted(weight, rng.random(options.batch_size) * weight[-1])
            self.batches.append((rng.integers(0, options.users, options.batch_size), shuffled[ranks]))
        self.counts = np.ones(items)
        for _, rows in self.batches:
            np.add.at(self.counts, rows, 1)

    def batch(self, index: int) -> tuple[Rows, Rows]:
        return self.batches[index % len(self.batches)]


def _fast(method: str, options: StepOptions, stream: _Stream) -> Callable[[int], object]:
    trainer = Trainer(id_towers(method=method, dim=options.dim, optimizer="adam", **SAMPLING), torch.device("cpu"))
    trainer.model.grow(options.users, stream.items)
    exact, hashed = ExactPopularity(), HashPopularity()
    exact.add(np.arange(stream.items), stream.counts)
    popularity = hashed if trainer.method.popularity == "hash" else exact
    occurrence, rng = Occurrence(), np.random.default_rng(1)
    occurrence.add(np.arange(stream.items), stream.counts)

    def step(index: int) -> object:
        users, items = stream.batch(index)
        popularity.observe(items)
        cache = occurrence.draw(options.cache_size if method == "xir" else 0, rng, stream.items)
        result = trainer.step(Batch(users, items), StreamState(popularity, cache))
        occurrence.add(*result.occurrence())
        return result

    return step


def _plain_trainer(method: str, options: StepOptions, stream: _Stream) -> PlainTrainer:
    log_pop = torch.from_numpy(np.log(stream.counts / stream.counts.sum()).astype(np.float32))
    return PlainTrainer(method, options.users, stream.items, options.dim, log_pop, options.cache_size)


def _plain(method: str, options: StepOptions, stream: _Stream) -> Callable[[int], object]:
    trainer = _plain_trainer(method, options, stream)
    batches = [(torch.from_numpy(u), torch.from_numpy(i)) for u, i in stream.batches]
    return lambda index: trainer.step(*batches[index % BATCHES])


def _plain_with_row_adam(options: StepOptions, stream: _Stream) -> Callable[[int], object]:
    """Plain SSL-Pop whose update touches the batch's rows only: the same update as the fast step's."""
    trainer = _plain_trainer("ssl-pop", options, stream)
    fast = Trainer(id_towers(method="ssl-pop", dim=options.dim, optimizer="adam"), torch.device("cpu"))
    fast.model.grow(options.users, stream.items)
    users_table, items_table = fast.model.tables["user.id"], fast.model.tables["item.id"]
    adam = Adam()

    def step(index: int) -> object:
        users, items = stream.batch(index)
        user_rows, user_place = np.unique(users, return_inverse=True)
        item_rows, item_place = np.unique(items, return_inverse=True)
        u = users_table.weight.index_select(0, torch.from_numpy(user_rows)).requires_grad_()
        v = items_table.weight.index_select(0, torch.from_numpy(item_rows)).requires_grad_()
        q, e = u[torch.from_numpy(user_place)], v[torch.from_numpy(item_place)]
        loss = trainer.loss(q, e, torch.from_numpy(items))
        loss.backward()  # type: ignore[no-untyped-call]
        assert u.grad is not None
        assert v.grad is not None
        adam.apply(users_table, torch.from_numpy(user_rows), u.grad, 0.01)
        adam.apply(items_table, torch.from_numpy(item_rows), v.grad, 0.01)
        return loss

    return step


def _best_of(steps: dict[str, Callable[[int], object]], rounds: int) -> dict[str, float]:
    """Milliseconds of each step: the best of all rounds, after two that are not counted."""
    best = dict.fromkeys(steps, float("inf"))
    for k in range(rounds + 2):
        for name, step in steps.items():
            if name in SLOW and k >= SLOW_ROUNDS + 2:
                continue
            for repeat in range(1 if name in SLOW else CONSECUTIVE):
                start = time.perf_counter()
                step(k * CONSECUTIVE + repeat)
                if k >= 2:
                    best[name] = min(best[name], 1e3 * (time.perf_counter() - start))
    return best


def table(result: dict[str, Any]) -> str:
    """The result for a person."""
    options = result["options"]
    lines = [
        f"training step, forward + backward + update: B = {options['batch_size']}, C = {options['cache_size']}, "
        f"d = {options['dim']}, N = {options['items']:,}, {options['threads']} threads",
        "",
        f"{'method':10} {'ms':>9} {'plain ms':>10}",
    ]
    for name, ms in result["ms"].items():
        plain = result["plain_ms"].get(name)
        lines.append(f"{name:10} {ms:9.2f} {plain if plain is not None else '':>10}")
    lines.append("")
    lines += [f"{name:38} {value:8.2f}" for name, value in result["ratios"].items()]
    return "\n".join(lines)
