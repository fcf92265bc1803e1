"""What became of every event: consumed = trained + filtered + dead-lettered, always."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from streamer.ingest.batcher import MicroBatch


@dataclass(slots=True)
class Accounting:
    """Totals over the life of a model, through all restarts."""

    trained: int = 0
    filtered: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)

    @property
    def dead_lettered(self) -> int:
        """Dead letters of all reasons."""
        return sum(self.dead_letters.values())

    @property
    def consumed(self) -> int:
        """Events that were taken in, whatever became of them."""
        return self.trained + self.filtered + self.dead_lettered

    def add(self, batch: MicroBatch) -> None:
        """Count a batch that is done."""
        self.trained += len(batch)
        self.filtered += batch.filtered
        self.dead_letters.update(str(letter.reason) for letter in batch.dead_letters)

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint or a summary."""
        return {
            "consumed": self.consumed,
            "trained": self.trained,
            "filtered": self.filtered,
            "dead_lettered": self.dead_lettered,
            "dead_letters": dict(self.dead_letters),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Accounting:
        """From a checkpoint."""
        return cls(value["trained"], value["filtered"], Counter(value["dead_letters"]))
