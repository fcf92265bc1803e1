"""A small line in memory that is watched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from line_harness import TOPIC, memory_log, small
from memory_source import MemorySource
from prometheus_client import CollectorRegistry

from streamer.build import assemble
from streamer.dead_letters.base import DeadLetters
from streamer.evaluation import EventSampler, Prequential
from streamer.event import EventDecoder, EventSettings
from streamer.learner import OnlineLearner
from streamer.metrics.instruments import Instruments
from streamer.metrics.monitor import Monitor
from streamer.settings import PipelineSettings
from streamer.snapshot import CheckpointStore


class WatchedLine:
    """A pipeline on records in memory, a monitor of it, and what a scrape would see.

    Args:
        values: the records.
        directory: of checkpoints.
        partitions: of the topic.
        learner: what is learned with.
        settings: of the pipeline.
    """

    def __init__(
        self,
        values: list[bytes],
        directory: Path | None = None,
        partitions: int = 2,
        learner: OnlineLearner | None = None,
        **settings: Any,
    ) -> None:
        self.learner = learner or OnlineLearner(small())
        self.prequential = Prequential(self.learner, EventSampler(time_share=None))
        self.log = memory_log(values, partitions)
        self.source = MemorySource(self.log, TOPIC)
        base = {"batch_size": 16, "max_age_s": 0, "checkpoint_every_s": 0, "until_end": True}
        self.pipeline = assemble(
            self.learner,
            lambda: self.source,
            EventDecoder(EventSettings(event_types=("buy",))),
            DeadLetters(),
            PipelineSettings(**(base | settings)),
            checkpoints=CheckpointStore(directory) if directory is not None else None,
            prequential=self.prequential,
        )
        self.monitor = Monitor(CollectorRegistry(), "a log in memory")
        self.pipeline.watch(self.monitor)

    def run(self) -> Instruments:
        """To the end of the log; answers what can be scraped then."""
        self.pipeline.run()
        return self.monitor.instruments
