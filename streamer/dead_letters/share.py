"""How much of what is read becomes dead letters, and when that is too much.

A wrong setting, or records of another format, turn a whole stream into dead letters
that look like work done. So the share is watched where records are decoded, ahead of
training: while it is too high nothing more is trained, and nothing is committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from streamer.dead_letters.base import DeadLetter
from streamer.errors import SourceError

WINDOW = 1000
"""Events over which the share is taken, the latest that were read."""
FIRST_LOOK = 100
"""Events that must not all be dead letters where a model begins; of fewer no share is
taken.
"""
FIRST_LOOK_BYTES = 8 << 20
"""Dead letters of this size are looked at without waiting for more."""
KEPT_LETTERS = 20
"""The latest ones, by which a person learns what is wrong."""
ACCEPT = "--accept-dead-letters goes on with them put aside"


class DeadLetterShare:
    """Watches the share of dead letters. Guarded by the lock of `Ingest`.

    Args:
        max_share: above this share of the last thousand events, training pauses; 1 for
            never.
        explain: what is wrong with some dead letters, and what to try.
    """

    def __init__(
        self,
        max_share: float = 1.0,
        explain: Callable[[Sequence[DeadLetter]], str] = lambda letters: (
            letters[-1].detail
        ),
    ) -> None:
        self.max_share = max_share
        self.is_first_look = True
        """Whether a stream without a single event ends the run: where a model begins,
        not where it resumes.
        """
        self.pause_reason: str | None = None
        """Why nothing is trained or committed now; None if nothing is wrong."""
        self._explain = explain
        self._recent: deque[tuple[int, int]] = deque()  # read, and dead among them
        self._letters: deque[DeadLetter] = deque(maxlen=KEPT_LETTERS)
        self._letter_bytes = 0

    def add(self, read: int, letters: Sequence[DeadLetter]) -> None:
        """Count what was read, in its order: events whatever became of them, and the
        dead letters among them.

        Raises:
            SourceError: a model is to begin with this stream, and nothing in it is an
                event.
        """
        if self.max_share >= 1:
            self.is_first_look = False
            return
        self._recent.append((read, len(letters)))
        if self.is_first_look:  # the first ones: the header of a CSV is among them
            self._letters.extend(letters[: KEPT_LETTERS - len(self._letters)])
            self._letter_bytes += sum(letter.size for letter in letters)
        else:
            self._letters.extend(letters[-KEPT_LETTERS:])
        total = sum(count for count, _ in self._recent)
        while total - self._recent[0][0] >= WINDOW:
            total -= self._recent.popleft()[0]
        dead = sum(count for _, count in self._recent)

        self.is_first_look = self.is_first_look and dead == total
        self.pause_reason = None
        if self.is_first_look and dead:
            self.pause_reason = f"0 of {total:,} records are events: {self._wrong()}"
            if total >= FIRST_LOOK or self._letter_bytes >= FIRST_LOOK_BYTES:
                self.end()
        elif total >= FIRST_LOOK and dead > self.max_share * total:
            self.pause_reason = (
                f"{dead:,} of the last {total:,} records are not events (limit "
                f"{self.max_share:.0%}): {self._wrong()} Nothing is trained or committed "
                f"until the share falls; {ACCEPT}"
            )

    def _wrong(self) -> str:
        return self._explain(list(self._letters))

    def end(self) -> None:
        """Note that no more will be read, so that a share that is too high stays so.

        Raises:
            SourceError: it is too high.
        """
        if self.pause_reason is not None:
            reason = self.pause_reason
            hint = "" if ACCEPT in reason else f" Nothing was committed; {ACCEPT}."
            raise SourceError(f"{reason}{hint}")
