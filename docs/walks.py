"""Follows one record and one request through real runs, and lists the files that have them in hand.

The record is a micro-batch of its own in a run that has warmed up, on an embedded log: it is ranked, trained, saved and
committed. From the poll that returns it until its offset is committed, a file is listed if one of its functions, on
whatever thread, is given the record or returns it: as a `Chunk` of records, as decoded events, as a `MicroBatch` or
what is learned of one, or as the offset of its partition.

The request asks a server for recommendations of one user: `GET /users/{user}/recommendations` over a socket, of a
server that reads the checkpoints of that run. From its first byte until the client has read the last one of the
response, a file is listed if one of its functions is given the request or the answer, or returns it: as an ASGI message
or FastAPI's objects, as a `RecommendRequest` or `RecommendQuery`, as text with the user's id in it, or as
recommendations.

Functions that compute with numbers taken from them do not count, but for the request `model/` counts as one, because
the answer is computed there. Methods of the carrier itself do not count, nor does what looks on (`streamer/metrics`);
the source counts as one, because another one may take its place. How many files had any function called at all, by
whatever thread, is counted as well, and is a larger number.
"""

from __future__ import annotations

import ast
import gc
import http.client
import inspect
import json
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from fastapi import Request, Response

import streamer
from streamer.build import assemble
from streamer.dead_letters.base import FileDeadLetters
from streamer.evaluation import EventSampler, Prequential
from streamer.event import Decoded, EventDecoder, encode
from streamer.ingest.batcher import MicroBatch
from streamer.ingest.offsets import OffsetSnapshot
from streamer.learner import OnlineLearner
from streamer.pipeline import Pipeline
from streamer.recommender import Recommendation, RecommendQuery
from streamer.serve.service import RecommendRequest
from streamer.serve.settings import ServeSettings
from streamer.settings import RunSettings
from streamer.sharing.sharing import LearnPart
from streamer.snapshot import CheckpointStore
from streamer.sources.base import Chunk, Partition, Positions
from streamer.sources.embedded.log import EmbeddedLog
from streamer.sources.embedded.source import EmbeddedSource
from streamer.web.serving import serving

ROOT = Path(streamer.__file__).resolve().parents[1]
PACKAGES = ("streamer", "model", "cache_store")
PAGE = Path(__file__).with_name("architecture.md")
TOPIC = "interactions"
USERS = [f"user-{k}" for k in range(3)]
WARM_UP = 64
EMBEDDED = "streamer/sources/embedded/"
MODEL = "model/"
OF_RECORD = (Chunk, Decoded, MicroBatch, LearnPart, OffsetSnapshot)
OF_REQUEST = (Request, Response, RecommendRequest, RecommendQuery, Recommendation)


@dataclass(frozen=True)
class Walk:
    """What a real run showed.

    Args:
        files: that had the record or request in hand, in order of the first call.
        called: all files that had any function called meanwhile.
    """

    files: list[str]
    called: set[str]

    @property
    def figures(self) -> str:
        """How many files had any function called."""
        of_model = sum(name.startswith(MODEL) for name in self.called)
        return f"{len(self.called)} files of Streamer, {of_model} of them in `model/`"


class FilesSeen:
    """The files of Streamer that are given what is followed, in order, while it is on.

    Args:
        carriers: types of what is followed.
        holds: whether a value, an argument or a result, is or has what is followed.
        counted: files that count whatever they are given, by the beginning of their names.
    """

    def __init__(
        self,
        carriers: tuple[type, ...],
        holds: Callable[[Any], bool],
        counted: str | None = None,
    ) -> None:
        self.files: dict[str, None] = {}
        self.is_on = False
        self._carriers = carriers
        self._holds = holds
        self._counted = counted
        self._called: set[str] = set()
        self._names: dict[str, str | None] = {}

    def walk(self) -> Walk:
        """What was seen until now."""
        return Walk(list(self.files), self._called)

    def watch_new_threads(self) -> None:
        """Look at the calls of threads that are started from now on."""
        threading.setprofile(self._look)

    def watch_this_thread(self) -> None:
        """Look at the calls of this thread; not while it compiles, which would take minutes."""
        sys.setprofile(self._look)

    def remove(self) -> None:
        """Look no more."""
        self.is_on = False
        threading.setprofile(None)
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, returned: Any) -> None:
        if not self.is_on or event not in ("call", "return"):
            return
        if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            return  # no function: a module or a class that is being defined
        path = frame.f_code.co_filename
        if path not in self._names:
            self._names[path] = _name_of(path)
        name = self._names[path]
        if name is None:
            return
        self._called.add(name)
        listed = _listed_name(name)
        if listed is None or listed in self.files:
            return
        if listed == self._counted or self._is_given(frame, event, returned):
            self.files[listed] = None

    def _is_given(self, frame: FrameType, event: str, returned: Any) -> bool:
        code = frame.f_code
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if arguments[:1] == ("self",):
            if isinstance(frame.f_locals.get("self"), self._carriers):
                return False  # a method of the carrier itself
            arguments = arguments[1:]
        if event == "return":
            return self._holds(returned)
        return any(self._holds(frame.f_locals.get(name)) for name in arguments)


def _name_of(path: str) -> str | None:
    """A file of the product by its path in the repository; None for any other."""
    try:
        name = str(Path(path).resolve().relative_to(ROOT))
    except ValueError:
        return None
    is_ours = name.split("/")[0] in PACKAGES and name.endswith(".py")
    return name if is_ours else None


def _listed_name(name: str) -> str | None:
    """How a file is listed; None if it is not."""
    if name.startswith("streamer/metrics/"):
        return None  # looks on
    for room in (EMBEDDED, MODEL):
        if name.startswith(room):
            return room
    return name


def _holds_record(value: Any) -> bool:
    if isinstance(value, OF_RECORD):
        return True
    if isinstance(value, (list, dict)) and value:
        first = next(iter(value))
        return isinstance(first, (Chunk, Partition))
    return False


def _holds_request(value: Any) -> bool:
    if isinstance(value, OF_REQUEST):
        return True
    if isinstance(value, str):
        return USERS[0] in value
    if isinstance(value, bytes):
        return USERS[0].encode() in value
    if isinstance(value, dict):
        is_asgi = str(value.get("type")).startswith("http")
        return is_asgi or value.get("user") == USERS[0]
    if isinstance(value, (list, tuple)) and value:
        return _holds_request(value[0])
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


def record_walk() -> Walk:
    """The walk of a record from poll to committed offset."""
    seen = FilesSeen(OF_RECORD, _holds_record)
    with tempfile.TemporaryDirectory() as name:
        settings = _settings(Path(name))
        seen.watch_new_threads()
        try:
            with _warm_pipeline(settings, seen) as (pipeline, source):
                with EmbeddedLog(settings.data_dir) as log:
                    log.append(TOPIC, [_record(WARM_UP)])
                seen.watch_this_thread()
                _step_until(pipeline.step, source.is_committed.is_set)
        finally:
            seen.remove()
    return seen.walk()


def request_walk() -> Walk:
    """The walk of a request from its first byte to the last one of the response."""
    seen = FilesSeen(OF_REQUEST, _holds_request, counted=MODEL)
    with tempfile.TemporaryDirectory() as name:
        settings = _settings(Path(name))
        with _warm_pipeline(settings, seen):
            pass
        server_settings = ServeSettings(
            checkpoint_dir=settings.checkpoints, data_dir=settings.data_dir, port=0
        )
        # the first server compiles, with nobody looking
        with serving(server_settings) as server, server:
            _ask(server.port)
        with serving(server_settings) as server:
            seen.watch_new_threads()
            try:
                with server:
                    _ask(server.port)
                    seen.is_on = True
                    _ask(server.port)
                    seen.is_on = False
            finally:
                seen.remove()
    gc.unfreeze()  # a server froze what was imported
    return seen.walk()


def _ask(port: int) -> None:
    """Ask for recommendations, again until the server is ready."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", f"/users/{USERS[0]}/recommendations?k=2")
        response = connection.getresponse()
        body = response.read()
        connection.close()
        if response.status == 200:
            assert json.loads(body)["items"]
            return
        time.sleep(0.05)
    raise RuntimeError("the server did not become ready")


def _settings(directory: Path) -> RunSettings:
    return RunSettings(
        data_dir=directory,
        topics=(TOPIC,),
        batch_size=1,
        dim=8,
        cache_size=16,
        checkpoint_every_events=1,
        checkpoint_every_s=0,
    )


@contextmanager
def _warm_pipeline(
    settings: RunSettings, seen: FilesSeen
) -> Iterator[tuple[Pipeline, _WatchedSource]]:
    """A pipeline that has trained and saved a few events, with its source; closed at the end."""
    directory = settings.data_dir
    with EmbeddedLog(directory) as log:
        log.create_topic(TOPIC, 1)
        log.append(TOPIC, [_record(k) for k in range(WARM_UP)])
    learner = OnlineLearner(settings)
    source = _WatchedSource(directory, TOPIC)
    source.seen = seen
    source.is_committed = threading.Event()
    pipeline = assemble(
        learner,
        lambda: source,
        EventDecoder(),
        FileDeadLetters(directory / "dead-letters.jsonl"),
        settings,
        checkpoints=CheckpointStore(settings.checkpoints),
        prequential=Prequential(learner, EventSampler(time_share=None)),
    )
    try:
        pipeline.start()
        _step_until(pipeline.step, lambda: pipeline.accounting.consumed == WARM_UP)
        checkpoints = pipeline.progress.checkpoints
        assert checkpoints is not None
        _step_until(pipeline.step, lambda: checkpoints.is_safe(WARM_UP))
        yield pipeline, source
    finally:
        sys.setprofile(None)
        pipeline.close()


def _record(k: int) -> tuple[bytes, bytes, int]:
    return (
        b"",
        encode(USERS[k % 3], f"item-{k % 40}", 1_700_000_000.0 + k),
        1_700_000_000_000 + k,
    )


def _step_until(step: Callable[[], None], done: Callable[[], bool]) -> None:
    for _ in range(100_000):
        if done():
            return
        step()
    raise RuntimeError("the record did not come to its end")


WALKS = {"record": record_walk, "request": request_walk}


def documented_files(page: str, name: str) -> list[str]:
    """The files that the page lists as a walk."""
    between = page.partition(_begin(name))[2].partition(_end(name))[0]
    return re.findall(r"^\d+\. `([^`]+)`", between, re.MULTILINE)


def _begin(name: str) -> str:
    return f"<!-- {name}: begin -->"


def _end(name: str) -> str:
    return f"<!-- {name}: end -->"


def main() -> None:
    """Write the lists into the page, if they are others; files that work side by side keep their order."""
    for name, follow in WALKS.items():
        page = PAGE.read_text(encoding="utf-8")
        walk = follow()
        print(f"{name}: {len(walk.files)} files have it in hand.")
        print(f"Any function was called in {walk.figures}.")
        if set(walk.files) == set(documented_files(page, name)):
            continue
        before, _, rest = page.partition(_begin(name))
        after = rest.partition(_end(name))[2]
        block = f"{_begin(name)}\n\n{_listed(walk)}\n\n{_end(name)}"
        PAGE.write_text(before + block + after, encoding="utf-8")
        print("docs/architecture.md is written")


def _listed(walk: Walk) -> str:
    lines = [f"{k}. `{file}`: {_purpose(file)}" for k, file in enumerate(walk.files, 1)]
    called = f"Meanwhile any function was called in {walk.figures} (the threads make it vary by a few)."
    return "\n".join([*lines, "", called])


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
