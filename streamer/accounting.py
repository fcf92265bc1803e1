"""What became of every event: consumed = trained + filtered + dead-lettered, always."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from streamer.ingest.batcher import MicroBatch


@dataclass(slots=True)
class Accounting:
    """How many events became what, over the life of a model and through all restarts."""

    trained: int = 0
    filtered: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    """Records that were removed by retention before they were read; they were never consumed."""

    @property
    def dead_lettered(self) -> int:
        """How many events became dead letters, for whatever reason."""
        return sum(self.dead_letters.values())

    @property
    def consumed(self) -> int:
        """How many events were read, whatever became of them."""
        return self.trained + self.filtered + self.dead_lettered

    def add(self, batch: MicroBatch) -> None:
        """Count the events of a batch that is trained."""
        self.trained += len(batch)
        self.filtered += batch.filtered
        self.dead_letters.update(str(letter.reason) for letter in batch.dead_letters)
        self.lost += batch.lost

    def to_json(self) -> dict[str, Any]:
        """Return the totals for a checkpoint or a summary."""
        return {
            "consumed": self.consumed,
            "trained": self.trained,
            "filtered": self.filtered,
            "dead_lettered": self.dead_lettered,
            "dead_letters": dict(self.dead_letters),
            "lost": self.lost,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Accounting:
        """Return what `to_json` has put into a checkpoint."""
        return cls(value["trained"], value["filtered"], Counter(value["dead_letters"]), value.get("lost", 0))
