"""Follows one record through a real run, and lists the files that have it in hand.

The record is a micro-batch of its own in a run that has warmed up, on an embedded log: it is ranked, trained, saved and
committed. From the poll that returns it until its offset is committed, a file is listed if one of its functions, on
whatever thread, is given the record or returns it: as a `Chunk` of records, as decoded events, as a `MicroBatch` or
what is learned of one, or as the offset of its partition. Functions that compute with numbers taken from it (all of
`model/`), methods of the record itself, and what looks on (`streamer/metrics`) do not count; the source counts as one,
because another one may take its place.
"""

from __future__ import annotations

import ast
import re
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import streamer
from streamer.build import assemble
from streamer.dead_letters.base import FileDeadLetters
from streamer.evaluation import EventSampler, Prequential
from streamer.event import Decoded, EventDecoder, encode
from streamer.ingest.batcher import MicroBatch
from streamer.ingest.offsets import OffsetSnapshot
from streamer.learner import Learner
from streamer.settings import RunSettings
from streamer.sharing.sharing import LearnPart
from streamer.snapshot import CheckpointStore
from streamer.sources.base import Chunk, Partition, Positions
from streamer.sources.embedded.log import EmbeddedLog
from streamer.sources.embedded.source import EmbeddedSource

ROOT = Path(streamer.__file__).resolve().parents[1]
PACKAGES = ("streamer", "model", "cache_store")
CARRIERS = (Chunk, Decoded, MicroBatch, LearnPart, OffsetSnapshot)
PAGE = Path(__file__).with_name("architecture.md")
BEGIN = "<!-- record: begin -->"
END = "<!-- record: end -->"
TOPIC = "interactions"
WARM_UP = 64
EMBEDDED = "streamer/sources/embedded/"


class FilesSeen:
    """The files of Streamer that have a record in hand, in order, while it is on."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self.is_on = False
        self._names: dict[str, str | None] = {}

    def watch_new_threads(self) -> None:
        """Look at the calls of threads that are started from now on."""
        threading.setprofile(self._called)

    def watch_this_thread(self) -> None:
        """Look at the calls of this thread; not while it compiles, which would take minutes."""
        sys.setprofile(self._called)

    def remove(self) -> None:
        """Look no more."""
        self.is_on = False
        threading.setprofile(None)
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, returned: Any) -> None:
        if not self.is_on or event not in ("call", "return"):
            return
        path = frame.f_code.co_filename
        if path not in self._names:
            self._names[path] = _name_of(path)
        name = self._names[path]
        if name is None or name in self.files:
            return
        if event == "return":
            values = [returned]
        else:
            arguments = frame.f_code.co_varnames[: frame.f_code.co_argcount]
            values = [frame.f_locals.get(argument) for argument in arguments]
        if isinstance(values[0] if values else None, CARRIERS) and event == "call":
            return  # a method of the record itself
        if any(map(_holds_record, values)):
            self.files[name] = None


def _name_of(path: str) -> str | None:
    try:
        name = str(Path(path).resolve().relative_to(ROOT))
    except ValueError:
        return None
    if name.startswith("streamer/metrics/"):
        return None  # looks on
    if name.startswith(EMBEDDED):
        return EMBEDDED
    is_ours = name.split("/")[0] in PACKAGES and name.endswith(".py")
    return name if is_ours else None


def _holds_record(value: Any) -> bool:
    if isinstance(value, CARRIERS):
        return True
    if isinstance(value, (list, dict)) and value:
        first = next(iter(value))
        return isinstance(first, (Chunk, Partition))
    return False


class _WatchedSource(EmbeddedSource):
    """Switches the list of files on when a record is polled, and off when it is committed."""

    seen: FilesSeen
    is_committed: threading.Event

    def poll(self, max_records: int, timeout_s: float) -> list[Chunk]:
        found = super().poll(max_records, timeout_s)
        if any(chunk.offsets[-1] >= WARM_UP for chunk in found):
            self.seen.files[EMBEDDED] = None
            self.seen.is_on = True
        return found

    def commit(self, positions: Positions) -> None:
        super().commit(positions)
        if any(at > WARM_UP for at in positions.values()):
            self.seen.is_on = False
            self.is_committed.set()


def record_files() -> list[str]:
    """The files that a record passes from poll to committed offset, in order of the first call."""
    with tempfile.TemporaryDirectory() as name:
        return _record_files(Path(name))


def _record_files(directory: Path) -> list[str]:
    settings = RunSettings(
        data_dir=directory,
        topics=(TOPIC,),
        batch_size=1,
        dim=8,
        cache_size=16,
        checkpoint_every_events=1,
        checkpoint_every_s=0,
    )
    with EmbeddedLog(directory) as log:
        log.create_topic(TOPIC, 1)
        log.append(TOPIC, [_record(k) for k in range(WARM_UP)])
    learner = Learner(settings)
    source = _WatchedSource(directory, TOPIC)
    source.seen = FilesSeen()
    source.is_committed = threading.Event()
    source.seen.watch_new_threads()
    pipeline = assemble(
        learner,
        lambda: source,
        EventDecoder(),
        FileDeadLetters(directory / "dead-letters.jsonl"),
        settings,
        checkpoints=CheckpointStore(directory / "checkpoints"),
        prequential=Prequential(learner, EventSampler(time_share=None)),
    )
    try:
        pipeline.start()
        _step_until(pipeline.step, lambda: pipeline.accounting.consumed == WARM_UP)
        checkpoints = pipeline.progress.checkpoints
        assert checkpoints is not None
        _step_until(pipeline.step, lambda: checkpoints.is_safe(WARM_UP))
        with EmbeddedLog(directory) as log:
            log.append(TOPIC, [_record(WARM_UP)])
        source.seen.watch_this_thread()
        _step_until(pipeline.step, source.is_committed.is_set)
    finally:
        source.seen.remove()
        pipeline.close()
    return list(source.seen.files)


def _record(k: int) -> tuple[bytes, bytes, int]:
    return (
        b"",
        encode(f"u{k % 3}", f"i{k % 5}", 1_700_000_000.0 + k),
        1_700_000_000_000 + k,
    )


def _step_until(step: Callable[[], None], done: Callable[[], bool]) -> None:
    for _ in range(100_000):
        if done():
            return
        step()
    raise RuntimeError("the record did not come to its end")


def documented_files(page: str) -> list[str]:
    """The files that the page lists as the walk of a record."""
    between = page.partition(BEGIN)[2].partition(END)[0]
    return re.findall(r"^\d+\. `([^`]+)`", between, re.MULTILINE)


def main() -> None:
    """Write the list into the page, if it is another one; files that work side by side keep their order."""
    page = PAGE.read_text(encoding="utf-8")
    files = record_files()
    if set(files) == set(documented_files(page)):
        return
    listed = "\n".join(
        f"{k}. `{file}`: {_purpose(file)}" for k, file in enumerate(files, 1)
    )
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{listed}\n\n{END}{after}", encoding="utf-8")
    print("docs/architecture.md is written")


def _purpose(file: str) -> str:
    """The first sentence of a module's or room's docstring."""
    path = ROOT / file
    source = path / "__init__.py" if path.is_dir() else path
    docstring = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    sentence = (
        " ".join(docstring.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")
    )
    return sentence[0].lower() + sentence[1:]


if __name__ == "__main__":
    main()
