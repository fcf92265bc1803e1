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
    """Among them those that are `not_admitted`, `catalogue`, and those that others have
    trained and we only counted.
    """
    dead_letters: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    """Records that were removed by retention before they were read; they were never
    consumed.
    """
    not_admitted: int = 0
    """Events of users or items that had not come often enough to get a row."""
    catalogue: int = 0
    """Events that created, described or deleted an item."""

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
        self.trained += batch.learned
        self.filtered += len(batch) - batch.learned + batch.filtered
        self.not_admitted += batch.not_admitted
        self.catalogue += batch.catalogue
        self.dead_letters.update(str(letter.reason) for letter in batch.dead_letters)
        self.lost += batch.lost

    def merge(self, other: Accounting) -> None:
        """Count what another trainer of the same model has counted."""
        self.trained += other.trained
        self.filtered += other.filtered
        self.not_admitted += other.not_admitted
        self.catalogue += other.catalogue
        self.dead_letters.update(other.dead_letters)
        self.lost += other.lost

    def to_json(self) -> dict[str, Any]:
        """Return the totals for a checkpoint or a summary."""
        return {
            "consumed": self.consumed,
            "trained": self.trained,
            "filtered": self.filtered,
            "dead_lettered": self.dead_lettered,
            "dead_letters": dict(self.dead_letters),
            "lost": self.lost,
            "not_admitted": self.not_admitted,
            "catalogue": self.catalogue,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Accounting:
        """Return what `to_json` has put into a checkpoint."""
        letters = Counter(value["dead_letters"])
        more = ("lost", "not_admitted", "catalogue")
        return cls(
            value["trained"],
            value["filtered"],
            letters,
            *(value.get(name, 0) for name in more),
        )
