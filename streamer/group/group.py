"""The processes of a group and what they say to each other: every method is a collective that all ranks call in order.

Sums run in an order that the number of ranks does not change. A step is computed in P parts (`--parts`); partition p of
the stream belongs to part p mod P, and part k to rank k mod W. Parts are added pairwise along a tree, k and k + P/2
first, so that a rank whose parts make up a whole branch sends one sum, and the total has the same bits for every W.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamer.errors import GroupError
from streamer.model.jit import compiled

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Rows = NDArray[np.int64]
Number = TypeVar("Number", int, NDArray[np.int32])

HEADER = 8
FIRST_CAPACITY = 1 << 14


class Share(NamedTuple):
    """What a part of a step adds to its sums."""

    rows: Floats  # [T, d]
    vector: Floats  # [n]


class Sparse(NamedTuple):
    """A sum that differs from zero in some rows only."""

    rows: Rows
    values: Floats


Addend = Floats | Sparse | None


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
    """

    rank: int = 0
    size: int = 1
    parts: int = 1
    generation: int = 0
    traffic: Traffic = field(default_factory=Traffic)
    _capacity: int = FIRST_CAPACITY
    _gather: Callable[[Any], list[Any]] | None = None

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

    def gather(self, message: Bytes) -> list[Bytes]:
        """The messages of all ranks, by rank; they may differ in length.

        A message that fits into what all have room for takes one collective, any other two.
        """
        if self._gather is None:
            return [message]
        started = time.perf_counter()
        framed = _framed(message, self._capacity)
        found = self._gather(framed)
        lengths = [int(f[:HEADER].view(np.int64)[0]) for f in found]
        if (longest := max(lengths)) > self._capacity - HEADER:
            self._capacity = 2 * longest + HEADER
            found = self._gather(_framed(message, self._capacity))
        self.traffic.sent_bytes += len(framed)
        self.traffic.exchange_s += time.perf_counter() - started
        return [f[HEADER : HEADER + n] for f, n in zip(found, lengths, strict=True)]

    def gather_equal(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """The arrays of all ranks, by rank; all have the same shape."""
        if self._gather is None:
            return [values]
        started = time.perf_counter()
        found = self._gather(np.ascontiguousarray(values).reshape(-1).view(np.uint8))
        self.traffic.sent_bytes += values.nbytes
        self.traffic.exchange_s += time.perf_counter() - started
        return [f.view(values.dtype).reshape(values.shape) for f in found]

    def wait(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """As `gather_equal`, at the beginning of a step, where ranks wait for the slowest."""
        before = self.traffic.exchange_s
        found = self.gather_equal(values)
        self.traffic.waiting_s += self.traffic.exchange_s - before
        self.traffic.exchange_s = before
        return found

    @property
    def units(self) -> int:
        """How many sums cross the wire: one a rank if its parts make up a branch of the tree, else one a part."""
        return self.size if self.parts % self.size == 0 else self.parts

    def total(
        self, shares: Mapping[int, Share], touched: Callable[[Sequence[int]], Rows], shape: tuple[int, int], size: int
    ) -> Share:
        """The sum of the shares of all parts, in the order of the tree.

        Args:
            shares: of our parts, those without events left out.
            touched: rows, ascending, in which the shares of some parts may differ from zero; every rank knows them.
            shape: of the rows of a share.
            size: of the vector of a share.
        """
        if self.parts == 1:
            return shares[0]
        # 1. vectors stand below the rows; our parts are added up to our branches
        lines = -(-size // shape[1])
        own = {part: _stacked(share, lines) for part, share in shares.items()}
        branches = [range(k, self.parts, self.branches) for k in range(self.branches)]
        whole = (shape[0] + lines, shape[1])
        sums: list[Addend] = [tree_sum([own.get(part) for part in parts], whole) for parts in branches]
        # 2. the others' branches: of each, the rows that may differ from zero
        if self.size > 1:
            rows = [np.append(touched(parts), shape[0] + np.arange(lines)) for parts in branches]
            self._exchange(sums, rows, whole)
        # 3.
        found = tree_sum(sums, whole)
        assert found is not None, "a step has events"
        return Share(found[: shape[0]], found[shape[0] :].reshape(-1)[:size])

    def compare(self, digest: bytes, when: str) -> None:
        """See that all ranks have the same digest.

        Raises:
            GroupError: they have not.
        """
        found = [d.tobytes().hex() for d in self.gather_equal(np.frombuffer(digest, np.uint8))]
        if len(set(found)) > 1:
            listed = ", ".join(f"rank {rank} has {d}" for rank, d in enumerate(found))
            raise GroupError(
                f"the trainers do not hold the same model {when}: {listed}. Start them again, and they resume from the "
                "last checkpoint. If it comes again, run all on machines with the same processors and versions"
            )

    @property
    def branches(self) -> int:
        """How many sums cross the wire: one a rank if its parts make up a branch of the tree, else one a part."""
        return self.size if self.parts % self.size == 0 else self.parts

    def _exchange(self, sums: list[Addend], rows: list[Rows], shape: tuple[int, int]) -> None:
        """Fill in the sums of the other ranks."""
        of_rank = [range(rank, self.branches, self.size) for rank in range(self.size)]
        longest = max(sum(len(rows[k]) for k in branches) for branches in of_rank)
        packed, at = np.zeros((longest, shape[1]), np.float32), 0
        for k in of_rank[self.rank]:
            if isinstance(value := sums[k], np.ndarray):
                np.take(value, rows[k], axis=0, out=packed[at : at + len(rows[k])])
            at += len(rows[k])
        for rank, received in enumerate(self.gather_equal(packed)):
            at = 0
            for k in of_rank[rank] if rank != self.rank else ():
                sums[k], at = Sparse(rows[k], received[at : at + len(rows[k])]), at + len(rows[k])

    def close(self) -> None:
        """Leave; nothing may be gathered any more."""
        if self._gather is not None:
            import torch.distributed

            self._gather = None
            torch.distributed.destroy_process_group()


def _stacked(share: Share, lines: int) -> Floats:
    """[T + lines, d] the rows of a share, and its vector below them."""
    rows, vector = share
    whole = np.zeros((len(rows) + lines, rows.shape[1]), np.float32)
    whole[: len(rows)] = rows
    whole[len(rows) :].reshape(-1)[: len(vector)] = vector
    return whole


def tree_sum(values: Sequence[Addend], shape: tuple[int, int]) -> Floats | None:
    """The sum of a power of two of addends, k and k + n/2 first; None counts as zero. May change the first ones."""
    left = list(values)
    while len(left) > 1:
        half = len(left) // 2
        left = [_plus(left[k], left[k + half], shape) for k in range(half)]
    return _plus(np.zeros(shape, np.float32), left[0], shape) if isinstance(left[0], Sparse) else left[0]


def _plus(a: Addend, b: Addend, shape: tuple[int, int]) -> Any:
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, Sparse):
        a, b = (_plus(np.zeros(shape, np.float32), a, shape), b) if isinstance(b, Sparse) else (b, a)
    if isinstance(b, Sparse):
        _add_rows(a, b.rows, b.values)
    else:
        a += b
    return a


@compiled
def _add_rows(out: Floats, rows: Rows, values: Floats) -> None:
    for i in range(len(rows)):
        for k in range(out.shape[1]):
            out[rows[i], k] += values[i, k]


def _framed(message: Bytes, capacity: int) -> Bytes:
    framed = np.zeros(capacity, np.uint8)
    framed[:HEADER] = np.array([len(message)], np.int64).view(np.uint8)
    fits = min(len(message), capacity - HEADER)
    framed[HEADER : HEADER + fits] = message[:fits]
    return framed


def connect(parts: int, timeout_s: float, environment: dict[str, str] | os._Environ[str] = os.environ) -> Group:
    """The group that the environment describes, as torchrun and `--trainers` set it: RANK, WORLD_SIZE, MASTER_ADDR, ...

    Raises:
        GroupError: the other ranks do not come.
    """
    rank, size = int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1"))
    if size == 1:
        return Group(0, 1, parts)
    import torch
    import torch.distributed as distributed
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    timeout = datetime.timedelta(seconds=timeout_s)
    start = f"{environment.get('TORCHELASTIC_RUN_ID', '')}/{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    try:
        hosted = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        store = TCPStore(
            environment["MASTER_ADDR"], int(environment["MASTER_PORT"]), None, rank == 0 and not hosted, timeout
        )
        # every start has keys of its own: addresses of the processes before it would be taken for those of now
        ours = PrefixStore(f"streamer/{start}", store)
        distributed.init_process_group("gloo", store=ours, rank=rank, world_size=size, timeout=timeout)
    except (RuntimeError, KeyError, ValueError) as error:
        raise GroupError(f"rank {rank} could not join the other {size - 1} trainers: {error}") from error

    def gather(values: Bytes) -> list[Bytes]:
        own = torch.from_numpy(values)
        found = torch.empty(size, len(values), dtype=torch.uint8)
        try:
            distributed.all_gather(list(found), own)
        except RuntimeError as error:
            raise GroupError(f"rank {rank} lost another trainer: {_first_line(error)}") from error
        return list(found.numpy())

    return Group(rank, size, parts, _gather=gather)


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
