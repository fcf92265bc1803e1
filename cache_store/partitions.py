"""What a trainer knows of the partitions that it reads."""

from __future__ import annotations

from streamer.cache_store.server import Claim, Wanted


class Partitions:
    """Which are ours, in which epoch, and from where on their events are fresh. Not for several threads at once."""

    def __init__(self) -> None:
        self.owned: dict[str, int | None] = {}
        """Ours, with the offset after the last record when they became ours, as far as it was known."""
        self.claims: dict[str, Claim] = {}
        """The last that we made of each."""
        self.unclaimed: dict[str, Wanted] = {}
        """Ours, but the server has not been told yet."""
        self.seen: dict[str, int] = {}
        """Events before these offsets are not fresh."""
        self.given_up: dict[str, int] = {}
        """From where on contributions were refused."""

    def want(self, name: str, end: int | None, seen: int) -> None:
        """This is ours now; events before `seen` have been contributed."""
        self.owned[name] = end
        self.unclaimed[name] = Wanted(self.epoch(name), end, anew=True)
        self.seen[name] = seen

    def want_again(self) -> None:
        """All of ours, from a server that may have forgotten us."""
        for name in self.owned:
            self.unclaimed.setdefault(name, Wanted(self.epoch(name), self.end(name), anew=False))

    def release(self, name: str) -> None:
        """This is others' now."""
        for known in (self.owned, self.seen, self.unclaimed):
            known.pop(name, None)

    def claimed(self, name: str, claim: Claim) -> None:
        """The server has been told."""
        self.claims[name] = claim
        self.see(name, claim.next or 0)
        del self.unclaimed[name]

    def see(self, name: str, upto: int) -> None:
        """Events before this offset have been contributed."""
        self.seen[name] = max(self.seen.get(name, 0), upto)

    def give_up(self, name: str, first: int) -> None:
        """Contributions from this offset on were refused."""
        self.given_up[name] = min(first, self.given_up.get(name, first))

    def epoch(self, name: str) -> int:
        """In which we claimed it last; 0 if we never did."""
        claim = self.claims.get(name)
        return claim.epoch if claim is not None else 0

    @property
    def epochs(self) -> dict[str, int]:
        """Of all that we ever claimed."""
        return {name: claim.epoch for name, claim in self.claims.items()}

    def end(self, name: str) -> int | None:
        """The offset beyond which nothing can be contributed of a partition of ours but by us; None if not known."""
        end = self.owned[name]
        return None if end is None else max(end, self.seen.get(name, 0))

    def is_settled(self, name: str) -> bool:
        """Whether it is ours, and the server knows."""
        return name in self.owned and name not in self.unclaimed
