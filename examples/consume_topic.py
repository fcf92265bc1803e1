"""Consume a topic and do something after each batch: here, print what the last user should see next.

    python examples/consume_topic.py [host:9092 topic]

Without arguments a few events are written to an embedded log first, and read from there. Offsets and model are kept in
one checkpoint: killed at any moment and started again with the same `data_dir`, it resumes.
"""

import json
import sys
import tempfile
from pathlib import Path

from streamer import EmbeddedLog, Learner, RunSettings, build_pipeline


def write_some(directory: Path, topic: str) -> None:
    with EmbeddedLog(directory) as log:
        log.create_topic(topic, 2)
        for k in range(2000):
            event = {
                "user_id": f"u{k % 90}",
                "item_id": f"i{(k * 7 + k % 90) % 60}",
                "timestamp": 1_700_000_000 + k,
            }
            log.append(
                topic,
                [
                    (
                        event["user_id"].encode(),
                        json.dumps(event).encode(),
                        event["timestamp"] * 1000,
                    )
                ],
            )


directory = Path(tempfile.mkdtemp(prefix="streamer-example-"))
if len(sys.argv) > 2:
    settings = RunSettings(
        bootstrap_servers=sys.argv[1], topics=(sys.argv[2],), data_dir=directory
    )
else:
    write_some(directory, "clicks")
    settings = RunSettings(topics=("clicks",), data_dir=directory, until_end=True)

pipeline = build_pipeline(settings)
learner = Learner(pipeline.learner)


def after_batch(batch):
    user = batch.users[-1]
    found = learner.recommend(user, k=3, exclude_seen=True)
    best = ", ".join(recommendation.item for recommendation in found)
    print(f"{pipeline.accounting.trained:,} events trained; next for {user}: {best}")


pipeline.run(on_batch=after_batch)
print(f"the checkpoint with its offsets is {pipeline.last_checkpoint}")
