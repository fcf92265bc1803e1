"""Optimizers, shapes and methods on a real stream, in one pass, test then train.

    python benchmarks/stream_defaults.py LOG.inter.gz [LOG.inter.gz ...] --trial NAME ...

Reads RecBole atomic files (tab-separated, typed header), orders them by time (equal times shuffled by a seed), prints
HR@10 over the second half of the stream: on all events, and on events new to their user with known items left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import time
from pathlib import Path

import numpy as np

from model.losses import SamplerSettings
from model.towers import TowerSettings
from model.trainer import TrainerSettings
from model.two_tower import ModelSettings
from streamer.batcher import MicroBatch
from streamer.learner import Learner, LearnerSettings
from streamer.prequential import Prequential


def read(path: Path, seed: int = 0) -> tuple[list[str], list[str]]:
    """Users and items in the order of the stream."""
    with gzip.open(path, "rt") as lines:
        names = [name.split(":")[0] for name in next(lines).rstrip("\n").split("\t")]
        rows = [line.rstrip("\n").split("\t") for line in lines]
    user, item, stamp = (names.index(n) for n in ("user_id", "item_id", "timestamp"))
    times = np.array([float(r[stamp]) for r in rows])
    order = np.lexsort((np.random.default_rng(seed).random(len(rows)), times))
    return [rows[k][user] for k in order], [rows[k][item] for k in order]


def shape(
    dim: int = 64, ids: bool = False, recent: int = 10, repeat: int = 30, prior: str = "learned"
) -> ModelSettings:
    """A model for streams."""
    return ModelSettings(
        user=TowerSettings(dim=dim, ids=ids),
        item=TowerSettings(dim=dim),
        recent_items=recent,
        repeat_ranks=repeat,
        prior=prior,  # type: ignore[arg-type]
    )


def settings(model: ModelSettings | None = None, cache: int = 512, **trainer: object) -> LearnerSettings:
    """Learner settings for one trial."""
    lam, by = trainer.pop("lam", 0.2), trainer.pop("by", "occurrence")
    base = {
        "method": "xir",
        "optimizer": "adagrad",
        "rate": 0.1,
        "dense_rate": 0.05,
        "sampler": SamplerSettings(cache_weight=lam, cache_correction=by),
    }  # type: ignore[arg-type]
    return LearnerSettings(
        model=model or shape(),
        trainer=TrainerSettings(**(base | trainer)),
        cache_size=cache,  # type: ignore[arg-type]
    )


TRIALS = {
    "plain-ids": settings(shape(32, True, 0, 0, "off"), method="ssl-pop", optimizer="adam", rate=0.01),
    "default": settings(),
    # optimizers
    "adagrad-0.05": settings(rate=0.05),
    "adagrad-0.2": settings(rate=0.2),
    "adam-0.01": settings(optimizer="adam", rate=0.01),
    "adam-0.03": settings(optimizer="adam", rate=0.03),
    "sgd-1": settings(optimizer="sgd", rate=1.0),
    "sgd-10": settings(optimizer="sgd", rate=10.0),
    "dense-adam-0.01": settings(optimizer="dense-adam", rate=0.01),
    # methods
    "ssl": settings(method="ssl"),
    "ssl-pop": settings(method="ssl-pop"),
    "mns": settings(method="mns"),
    "g-tower": settings(method="g-tower"),
    "bir": settings(method="bir"),
    "lambda-0.5": settings(lam=0.5),
    "cache-by-popularity": settings(by="popularity"),
    # shapes
    "d32": settings(shape(32)),
    "d128": settings(shape(128)),
    "user-ids": settings(shape(ids=True)),
    "no-repeat": settings(shape(repeat=0)),
    "no-prior": settings(shape(prior="off")),
    "recent-20": settings(shape(recent=20)),
    "no-recent": settings(shape(ids=True, recent=0)),
    "dense-rate-0.01": settings(dense_rate=0.01),
    "prior-for-ever": dataclasses.replace(settings(), prior_half_life=None),
}


def run(log: tuple[list[str], list[str]], trial: LearnerSettings, batch_size: int) -> tuple[float, float, float]:
    """HR@10 on all events and on new ones over the second half, and events per second of training."""
    users, items = log
    learner = Learner(trial)
    half = len(users) // 2
    test = Prequential(learner, time_share=None, sample=None, new_only=True)
    seconds = 0.0
    for start in range(0, len(users), batch_size):
        batch = MicroBatch(users=users[start : start + batch_size], items=items[start : start + batch_size])
        before, spent = time.perf_counter(), test.seconds
        learner.learn(batch, test if start >= half else test.observe)
        seconds += time.perf_counter() - before - (test.seconds - spent)
    return test.model.overall or 0.0, test.new.overall or 0.0, len(users) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="+", type=Path)
    parser.add_argument("--trial", action="append", choices=list(TRIALS))
    parser.add_argument("--batch-size", type=int, default=512)
    options = parser.parse_args()
    for path in options.logs:
        log = read(path)
        for name in options.trial or TRIALS:
            hits, new, speed = run(log, TRIALS[name], options.batch_size)
            print(f"{path.name:24} {name:20} all {hits:.4f}  new {new:.4f}  {speed:9,.0f} events/s", flush=True)


if __name__ == "__main__":
    main()
