"""Learn from a data frame, save, load, recommend: no Kafka, no Redis, no files but the checkpoint.

    python examples/learn_from_frame.py [events.csv]

Works with pandas as with polars.
"""

import sys
import tempfile

import numpy as np
import pandas as pd

from streamer import Learner


def made_up(events: int = 20_000) -> pd.DataFrame:
    """People with tastes: each prefers the items of one shelf of twenty."""
    rng = np.random.default_rng(0)
    user = rng.integers(0, 500, events)
    item = (user % 20) * 50 + np.minimum(rng.geometric(0.1, events), 50) - 1
    return pd.DataFrame(
        {"user": user, "item": item, "time": 1_700_000_000 + np.arange(events)}
    )


frame = pd.read_csv(sys.argv[1]) if len(sys.argv) > 1 else made_up()
frame = frame.sort_values("time", kind="stable")

learner = Learner(dim=32)  # everything else as in `streamer run`
count = learner.learn(frame)
print(f"learned from {count:,} events: {learner}")

with tempfile.TemporaryDirectory() as directory:
    learner.save(directory)
    served = Learner.load(directory)
user = frame["user"].iloc[-1]
for item, score, recent in served.recommend(user, k=5):
    print(
        f"user {user}: item {item}, score {score:.2f}{', had it lately' if recent else ''}"
    )
