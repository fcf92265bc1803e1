"""What one trainer has of the shared state, between its training thread and the exchange with a server.

    its replica (a prefix of the log that all trainers write) + its own contributions that are not in it yet

and what of that the training thread has not been given yet. One lock guards it all, and is never held while the network
is waited for.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.cache_store.base import Contribution, Delta, Received, Rows, StoreStatus, Totals
from streamer.cache_store.codec import Entry
from streamer.cache_store.errors import Fenced
from streamer.cache_store.naming import Naming
from streamer.cache_store.outbox import Outbox, listed, unlisted, without
from streamer.cache_store.partitions import Partitions
from streamer.cache_store.replica import Position, Replica
from streamer.cache_store.server import SOFT_LOG_LENGTH, Claim

logger = logging.getLogger(__name__)

MOST_ROWS, MOST_ROWS_AN_ITEM = 1_000_000, 4
"""Once more rows of others wait than both allow, a trainer that takes in nothing gets the totals instead."""


@dataclass(frozen=True, slots=True)
class SharedSettings:
    """How a trainer takes part.

    Args:
        every_s: seconds between exchanges.
        live_s: a server that has not answered for so long, or for five exchanges if that is longer, is out of touch.
        soft_log_length: entries of the log after which it is trimmed.
        most_waiting: contributions that wait one by one before they are added up.
        keep_s: how long contributions are kept that have arrived, for a server that loses them.
        inline_every: contributions between exchanges with a server in memory; more than one is for a server that is
            shared with nobody.
    """

    every_s: float = 1.0
    live_s: float = 2.0
    soft_log_length: int = SOFT_LOG_LENGTH
    most_waiting: int = 256
    keep_s: float = 30.0
    inline_every: int = 1


class View:
    """Replica, outbox and inbox of a trainer. What changes them needs `lock`.

    Args:
        settings: how to take part.
        trainer: our name, for a person; made unique.
        kind: of the server.
        inline: whether the server answers at once.
        clock: monotonic seconds.
    """

    def __init__(
        self, settings: SharedSettings, trainer: str, kind: str, inline: bool, clock: Callable[[], float]
    ) -> None:
        self.settings, self.inline, self.clock = settings, inline, clock
        self.trainer = f"{trainer}-{secrets.token_hex(4)}"
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.replica: Replica | None = None
        self.outbox = Outbox(settings.most_waiting, settings.keep_s)
        self.naming = Naming()
        self.partitions = Partitions()
        self.inbox = Received()
        self._inbox_rows = 0
        self.make_anew = False
        """The training thread is to be given the totals, not what was added since."""
        self.fenced: Fenced | None = None
        self.status = StoreStatus(kind=kind)
        self.caught_up_at = -np.inf

    @property
    def joined(self) -> Replica:
        """The replica, which there is once we have joined."""
        assert self.replica is not None, "not joined"
        return self.replica

    @property
    def generation(self) -> str:
        return self.joined.position.generation

    @property
    def live(self) -> bool:
        """Whether the server is in touch."""
        if self.inline:
            return True
        return self.clock() - self.caught_up_at < max(self.settings.live_s, 5 * self.settings.every_s)

    # to the training thread -------------------------------------------------------------------------------------------

    def taken(self) -> Received:
        """What has come since the last time."""
        received, self.inbox, self._inbox_rows = self.inbox, Received(), 0
        received.live, received.naming = self.live, self.naming.turn
        if self.make_anew and self.replica is not None:
            self.make_anew = False
            self.replica.grow(len(self.naming.ids))
            pending = tuple(w.contribution for w in self.outbox.waiting)
            counts, drawn = (array.copy() for array in self.replica.arrays())
            received.reset = Totals(counts, drawn, pending)
            received.ids, received.deltas = list(self.naming.ids), []
        return received

    # from the server --------------------------------------------------------------------------------------------------

    def take_over(self, replica: Replica, ids: list[str]) -> None:
        """The server's state instead of ours; what it lacks of ours is sent again."""
        self.replica = replica
        self.naming.begin_anew(ids)
        self.inbox, self.make_anew = Received(), True
        for name in self.partitions.owned:
            self.begin_anew(name)
        self.outbox.recall(replica.next)

    def begin_anew(self, partition: str) -> None:
        """Where a partition ends before what the store had of it, the server forgets that; so does the replica."""
        end = self.partitions.end(partition)
        if end is not None and self.joined.next.get(partition, 0) > end:
            del self.joined.next[partition]

    def claimed(self, partition: str, claim: Claim) -> None:
        """The server knows that it is ours."""
        self.partitions.claimed(partition, claim)
        self.begin_anew(partition)

    def add_names(self, ids: list[str], names: str) -> None:
        """The store has named these, too; `names` is the fingerprint of all."""
        self.naming.extend(ids, names)
        self.inbox.ids += ids

    def add(self, entry: Entry, position: Position) -> None:
        """The entry that follows in the log."""
        self.joined.apply(entry, position)
        if entry.trainer == self.trainer:
            self.outbox.included(entry.last, self.clock())
            return
        if not self.make_anew:
            self.inbox.deltas.append(Delta(entry.items, entry.drawn))
            self._inbox_rows += len(entry.items.rows) + len(entry.drawn.rows)
        if self._inbox_rows > max(MOST_ROWS, MOST_ROWS_AN_ITEM * len(self.naming.ids)):
            self.inbox.deltas, self.make_anew, self._inbox_rows = [], True, 0

    def cut(self, numbers: Iterable[int], to: Callable[[Contribution], Contribution | None]) -> None:
        """Leave out what is not to be counted of some contributions; our view counted it, so it is made anew."""
        self.outbox.change(numbers, to)
        self.make_anew = True

    def give_up(self, numbers: Iterable[int], partition: str) -> None:
        """These contributions come too late: the partition is others'."""
        before, first = self.outbox.events, self.outbox.first(partition)
        if first is not None:
            self.partitions.give_up(partition, first)
        self.cut(numbers, lambda c: without(c, partition))
        refused = before - self.outbox.events
        self.status.refused_events += refused
        logger.warning("%s events of %s are not counted: it is others' now", refused, partition)

    def taken_over(self, partition: str) -> Fenced:
        """Another trainer has what is ours: this one must stop."""
        self.fenced = Fenced(
            f"another trainer has taken over {partition}: this process was out of touch for long, or the other one was "
            "started on the same input. It stops, so that nothing is counted twice; start it again to rejoin"
        )
        return self.fenced

    # the recovery unit ------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """What a restart needs."""
        replica = self.replica or Replica(Position.beginning(""))
        counts, drawn = replica.arrays()
        arrays: dict[str, NDArray[Any]] = {"counts": counts.copy(), "drawn": drawn.copy()}
        waiting = [listed(k, w.contribution, arrays) for k, w in enumerate(self.outbox.waiting)]
        values = {"replica": replica.values(), "waiting": waiting, "epochs": self.partitions.epochs}
        return arrays, values | {"refused": dict(self.partitions.given_up)}

    def load_state(
        self, arrays: Mapping[str, NDArray[Any]], values: dict[str, Any], ids: Sequence[str], own: Rows
    ) -> None:
        """Take over what `state` answered; see `CacheStore.load_state`."""
        replica = Replica.of(values["replica"], arrays["counts"], arrays["drawn"])
        if not replica.position.generation:
            return
        self.replica = replica
        self.naming.restore(ids, own)
        for k, spans in enumerate(values["waiting"]):
            self.outbox.add(unlisted(k, spans, arrays))
        self.partitions.claims = {name: Claim(epoch, None) for name, epoch in values["epochs"].items()}
        self.partitions.given_up = dict(values.get("refused", {}))
