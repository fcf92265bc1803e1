"""The processes of a group and what they say to each other: every method is a
collective that all ranks call in order.

Sums run in an order that the number of ranks does not change. A step is computed in P
parts (`--parts`); partition p of the stream belongs to part p mod P, and part k to rank
k mod W. Parts are added pairwise along a tree, k and k + P/2 first, so that a rank
whose parts make up a whole branch sends one sum, and the total has the same bits for
every W.
"""

from __future__ import annotations

import datetime
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import GroupError
from streamer.model.jit import njit_borrowing

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Rows = NDArray[np.int64]
Number = TypeVar("Number", int, Rows)

LONGER = 1.5
"""Times the timeout: who was alone for longer was not waiting for others, but slept."""


class PartialSum(NamedTuple):
    """What some parts of a step add to its sums.

    Args:
        rows: [T, d], or [t, d] if the others are zero.
        vector: [n].
        at: [t] the places of the rows, ascending; None: all are there.
    """

    rows: Floats
    vector: Floats
    at: Rows | None = None


@dataclass(slots=True)
class Traffic:
    """What the collectives of this process cost so far."""

    sent_bytes: int = 0
    waiting_s: float = 0.0
    """Until every rank had entered a step: for the slowest of them."""
    exchange_s: float = 0.0
    """In collectives inside a step."""


@dataclass(slots=True)
class Group:
    """One rank among W. A group of one talks to nobody, and loads no torch.distributed.

    Args:
        rank: 0 to size - 1.
        size: W.
        parts: P, in how many parts a step is computed; at least W.
        generation: of this start of the group; each is higher than those before.
        timeout_s: how long the others wait for a rank.
    """

    rank: int = 0
    size: int = 1
    parts: int = 1
    generation: int = 0
    timeout_s: float = 15.0
    traffic: Traffic = field(default_factory=Traffic)
    _gather: Callable[[Bytes, Sequence[int]], list[Bytes]] | None = None

    def __post_init__(self) -> None:
        if self.parts & (self.parts - 1) or self.parts < self.size:
            raise GroupError(
                f"--parts is {self.parts}: it must be a power of two, and at least the number of trainers ({self.size})"
            )

    @property
    def own(self) -> range:
        """The parts that this rank computes."""
        return range(self.rank, self.parts, self.size)

    def owner(self, part: Number) -> Number:
        """The rank that computes a part."""
        return part % self.size

    def part_of(self, partition: Number) -> Number:
        """The part to which a partition's events belong."""
        return partition % self.parts

    def reads(self, partition: Any) -> Any:
        """Whether this rank reads a partition, by its number; or each of several."""
        return self.owner(self.part_of(partition)) == self.rank

    def gather(self, message: Bytes) -> list[Bytes]:
        """The messages of all ranks, by rank; they may differ in length."""
        own_length = np.array([len(message)])
        lengths = np.concatenate(self.gather_equal(own_length))
        return self.gather_sized(message, lengths.tolist())

    def gather_values(self, value: Any, type_: Any = Any) -> list[Any]:
        """What all ranks say, by rank; anything that msgpack can hold."""
        encoded = msgspec.msgpack.encode(value)
        decoder = msgspec.msgpack.Decoder(type_)
        messages = self.gather(np.frombuffer(encoded, np.uint8))
        return [decoder.decode(message.data) for message in messages]

    def gather_equal(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """The arrays of all ranks, by rank; all have the same shape."""
        lengths = [values.nbytes] * self.size
        found = []
        for message in self.gather_sized(as_bytes(values), lengths):
            array = message.view(values.dtype)
            found.append(array.reshape(values.shape))
        return found

    def gather_sized(self, message: Bytes, lengths: Sequence[int]) -> list[Bytes]:
        """The messages of all ranks, by rank; every rank knows the lengths of all."""
        if self._gather is None:
            return [message]
        started = time.perf_counter()
        found = self._gather(message, lengths)
        self.traffic.sent_bytes += len(message)
        self.traffic.exchange_s += time.perf_counter() - started
        return found

    def wait(self, value: Any, type_: Any) -> list[Any]:
        """As `gather_values`, at the beginning of a step, where ranks wait for the
        slowest.
        """
        before = self.traffic.exchange_s
        found = self.gather_values(value, type_)
        self.traffic.waiting_s += self.traffic.exchange_s - before
        self.traffic.exchange_s = before
        return found

    def total(
        self,
        shares: Mapping[int, PartialSum],
        touched: Callable[[Sequence[int]], Rows],
        shape: tuple[int, int],
        size: int,
    ) -> PartialSum:
        """The sum of the shares of all parts, in the order of the tree.

        Args:
            shares: of our parts, those without events left out.
            touched: rows, ascending, in which the shares of some parts may differ from
                zero; every rank knows them.
            shape: of the rows of a share.
            size: of the vector of a share.
        """
        if self.parts == 1:
            return shares[0]
        # 1. our parts are added up to our branches
        branches = _dealt(self.parts, self.branches)
        sums = []
        for parts in branches:
            of_parts = [shares.get(part) for part in parts]
            sums.append(tree_sum(of_parts, shape))
        # 2. the others' branches: of each, the rows that may differ from zero
        if self.size > 1:
            rows = [touched(parts) for parts in branches]
            self._exchange(sums, rows, shape[1], size)
        # 3.
        found = tree_sum(sums, shape)
        assert found is not None, "a step has events"
        return _dense(found, shape)

    def compare(self, digest: bytes, when: str) -> None:
        """See that all ranks have the same digest.

        Raises:
            GroupError: they have not.
        """
        found = self.gather_values(digest.hex())
        if len(set(found)) > 1:
            listed = ", ".join(f"rank {rank} has {d}" for rank, d in enumerate(found))
            raise GroupError(
                f"the trainers do not hold the same model {when}: {listed}. Start them again, and they resume from the "
                "last checkpoint. If it comes again, run all on machines with the same processors and versions"
            )

    @property
    def branches(self) -> int:
        """How many sums cross the wire: one a rank if its parts make up a branch of the
        tree, else one a part.
        """
        if self.parts % self.size == 0:
            return self.size
        return self.parts

    def _exchange(
        self,
        sums: list[PartialSum | None],
        touched: list[Rows],
        dim: int,
        size: int,
    ) -> None:
        """Fill in the sums of the other ranks; a branch that touches no row has no
        events.
        """
        numbers = []
        for places in touched:
            numbers.append(len(places) * dim + size if len(places) else 0)
        of_rank = _dealt(self.branches, self.size)
        ours = [np.empty(0, np.float32)]
        for k in of_rank[self.rank]:
            share = sums[k]
            if share is not None:
                ours.append(share.rows[touched[k]].reshape(-1))
                ours.append(share.vector)
        packed = np.concatenate(ours)

        lengths = []
        for branches in of_rank:
            total = sum(numbers[k] for k in branches)
            lengths.append(total * packed.itemsize)
        messages = self.gather_sized(as_bytes(packed), lengths)
        for rank, message in enumerate(messages):
            if rank == self.rank:
                continue
            branches = of_rank[rank]
            ends = np.cumsum([numbers[k] for k in branches])
            received = np.split(message.view(np.float32), ends[:-1])
            for k, of_branch in zip(branches, received, strict=True):
                if len(of_branch):
                    rows, vector = np.split(of_branch, [len(of_branch) - size])
                    sums[k] = PartialSum(rows.reshape(-1, dim), vector, touched[k])

    def close(self) -> None:
        """Leave; nothing may be gathered any more."""
        if self._gather is not None:
            import torch.distributed

            self._gather = None
            torch.distributed.destroy_process_group()


def as_bytes(values: NDArray[Any]) -> Bytes:
    """The memory of an array, as a message."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def _dealt(count: int, among: int) -> list[range]:
    """Numbers below `count`, dealt out in turn."""
    return [range(k, count, among) for k in range(among)]


def tree_sum(
    values: Sequence[PartialSum | None],
    shape: tuple[int, int],
) -> PartialSum | None:
    """The sum of a power of two of shares, k and k + n/2 first; None counts as zero.
    May change the first ones.
    """
    left = list(values)
    while len(left) > 1:
        half = len(left) // 2
        pairs = zip(left[:half], left[half:], strict=True)
        left = [_plus(a, b, shape) for a, b in pairs]
    return left[0]


def _plus(
    a: PartialSum | None,
    b: PartialSum | None,
    shape: tuple[int, int],
) -> PartialSum | None:
    if a is None:
        return b
    if b is None:
        return a
    if a.at is not None and b.at is None:
        a, b = b, a
    a = _dense(a, shape)
    if b.at is None:
        np.add(a.rows, b.rows, out=a.rows)
    else:
        _add_rows(a.rows, b.at, b.rows)
    np.add(a.vector, b.vector, out=a.vector)
    return a


def _dense(share: PartialSum, shape: tuple[int, int]) -> PartialSum:
    """The same with all rows."""
    if share.at is None:
        return share
    rows = np.zeros(shape, np.float32)
    rows[share.at] = share.rows
    return PartialSum(rows, share.vector.copy())


@njit_borrowing
def _add_rows(out: Floats, rows: Rows, values: Floats) -> None:
    for i in range(len(rows)):
        for k in range(out.shape[1]):
            out[rows[i], k] += values[i, k]


def connect(parts: int, timeout_s: float) -> Group:
    """The group that the environment describes, as torchrun and `--trainers` set it:
    RANK, WORLD_SIZE, MASTER_ADDR, ...

    Raises:
        GroupError: the other ranks do not come.
    """
    environment = os.environ
    rank = int(environment.get("RANK", "0"))
    size = int(environment.get("WORLD_SIZE", "1"))
    if size == 1:
        return Group(0, 1, parts, timeout_s=timeout_s)
    import torch
    import torch.distributed as distributed
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    timeout = datetime.timedelta(seconds=timeout_s)
    start = f"{environment.get('TORCHELASTIC_RUN_ID', '')}/{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    try:
        hosted = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        store = TCPStore(
            environment["MASTER_ADDR"],
            int(environment["MASTER_PORT"]),
            None,
            rank == 0 and not hosted,
            timeout,
        )
        # every start has keys of its own: addresses of the processes before it would be
        # taken for those of now
        ours = PrefixStore(f"streamer/{start}", store)
        distributed.init_process_group(
            "gloo",
            store=ours,
            rank=rank,
            world_size=size,
            timeout=timeout,
        )
    except (RuntimeError, KeyError, ValueError) as error:
        raise GroupError(
            f"rank {rank} could not join the other {size - 1} trainers: {error}"
        ) from error

    # the end of the last collective, and how long it was to it
    together_at = time.monotonic()
    alone_s = 0.0

    def gather(message: Bytes, lengths: Sequence[int]) -> list[Bytes]:
        # each pair of ranks exchanges its messages directly, into the memory where they
        # stay: for a few megabytes that takes half the time of all_gather, and messages
        # may differ in length
        nonlocal together_at, alone_s
        found = [np.empty(length, np.uint8) for length in lengths]
        found[rank] = message
        own = torch.from_numpy(np.require(message, requirements="W"))
        works = []
        try:
            for other in range(size):
                if other == rank:
                    continue
                if lengths[other]:
                    received = torch.from_numpy(found[other])
                    works.append(distributed.irecv(received, other))
                if len(message):
                    works.append(distributed.isend(own, other))
            for work in works:
                assert work is not None, "we belong to the group"
                work.wait()
        except RuntimeError as error:
            # what the others had sent still arrives
            silent_s = max(alone_s, time.monotonic() - together_at)
            if silent_s > LONGER * timeout_s:
                raise GroupError(
                    f"rank {rank} was stopped or busy for {silent_s:.0f} s, longer than --group-timeout "
                    f"({timeout_s:g} s): the others have given it up. All resume from the last checkpoint"
                ) from error
            raise GroupError(
                f"rank {rank} lost another trainer: {_reason(error)}"
            ) from error
        now = time.monotonic()
        alone_s = now - together_at
        together_at = now
        return found

    return Group(rank, size, parts, timeout_s=timeout_s, _gather=gather)


def _reason(error: BaseException) -> str:
    """What gloo says, without its file names and good wishes."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return re.sub(r"^\[[^\]]*\] ", "", lines[0]).partition(". This is")[0]
