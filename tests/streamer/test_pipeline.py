"""The line: what is saved belongs together, what is committed is safe, and a restart ends where no crash would have."""

from __future__ import annotations

import json
import resource
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from line_harness import (
    TOPIC,
    assert_closed,
    assert_same_checkpoint,
    events,
    memory_log,
    micro_batch,
    newest,
    popularity_counts,
    small,
    until,
    values_of,
)
from memory_source import MemoryDeadLetters, MemoryLog, MemorySource

from streamer.build import assemble
from streamer.dead_letters.base import DeadLetter
from streamer.errors import CheckpointError, SourceError, SourceUnavailable, StreamerError
from streamer.evaluation import EventSampler, Prequential
from streamer.event import EventDecoder, EventSettings, encode
from streamer.ingest.batcher import MicroBatch
from streamer.learner import Learned, OnlineLearner
from streamer.metrics.status import Status
from streamer.settings import PipelineSettings
from streamer.snapshot import CheckpointStore
from streamer.sources.base import Partition

P0, P1 = Partition(TOPIC, 0), Partition(TOPIC, 1)
SMALL = {"batch_size": 16, "max_age_s": 0, "checkpoint_every_s": 0, "until_end": True}


class Store(CheckpointStore):
    """Keeps the meta of every checkpoint, and fails when it is told to."""

    def __init__(self, directory: Path, keep: int = 3) -> None:
        super().__init__(directory, keep)
        self.saved: list[dict[str, Any]] = []
        self.failures_left = 0

    def save(self, chunks: Any, arrays: Any, meta: Any, *, base: bool = True) -> Path:
        if self.failures_left:
            self.failures_left -= 1
            raise CheckpointError("cannot write a checkpoint: no space left on device")
        path = super().save(chunks, arrays, meta, base=base)
        self.saved.append(json.loads(json.dumps(meta)))
        return path


class Line:
    """A pipeline on a log in memory."""

    def __init__(
        self,
        log: MemoryLog,
        directory: Path | None = None,
        dead_letters: Any = None,
        events: EventSettings | None = None,
        store: CheckpointStore | None = None,
        learner: OnlineLearner | None = None,
        evaluate: bool = False,
        **settings: Any,
    ) -> None:
        self.log, self.letters = log, dead_letters or MemoryDeadLetters()
        self.store = store or (Store(directory) if directory else None)
        self.learner = learner or OnlineLearner(small())
        self.source = MemorySource(log, TOPIC, trainer=self.store.trainer if self.store is not None else "")
        self.pipeline = assemble(
            self.learner,
            lambda: self.source,
            EventDecoder(events),
            self.letters,
            PipelineSettings(**(SMALL | settings)),
            checkpoints=self.store,
            prequential=Prequential(self.learner, EventSampler(time_share=None)) if evaluate else None,
        )

    def run(self) -> dict[str, Any]:
        self.pipeline.run()
        return self.pipeline.summary()

    def run_with_every_checkpoint(self) -> dict[str, Any]:
        """The same, but waits for each checkpoint: on a slow disk the next one is not left out."""
        self.pipeline.start()
        while not self.pipeline.ingest.finished:
            self.step_and_save()
        self.pipeline.close()
        return self.pipeline.summary()

    def step_and_save(self) -> None:
        """A step, and the checkpoint that it begins."""
        self.pipeline.step()
        saver = self.pipeline.progress.checkpoints
        until(lambda: not saver.is_saving, saver.advance)

    def trained(self, events: int) -> None:
        """Starts, and takes steps until this many events are trained."""
        self.pipeline.start()
        until(lambda: self.pipeline.accounting.trained >= events, self.pipeline.step)

    def after_learning(self, called: Callable[[MicroBatch], None]) -> None:
        """Has something called after each batch that is learned, as a part of its step."""
        learn = self.learner.learn_batch

        def learn_and_call(batch: MicroBatch, *rest: Any) -> Learned:
            learned = learn(batch, *rest)
            called(batch)
            return learned

        self.learner.learn_batch = learn_and_call  # type: ignore[method-assign]


def mixed(count: int) -> list[bytes]:
    """Records of which some are filtered, some are no events, and some hold several."""
    values = values_of(events(count))
    typed = [encode(user, item, 1.0, event_type="buy") for user, item in events(count)]
    for k in range(0, count, 7):
        typed[k] = encode("u", "i", 1.0, event_type="view")
    for k in range(3, count, 11):
        typed[k] = b"no event"
    for k in range(5, count, 13):
        typed[k] = b"[" + typed[k] + b"," + values[k] + b', {"user_id": 7, "event_type": "buy"}]'
    return typed


class TestAccounting:
    def test_it_closes_at_every_checkpoint(self, tmp_path):
        line = Line(
            memory_log(mixed(600), partitions=2),
            tmp_path,
            events=EventSettings(event_types=("buy",)),
            checkpoint_every_events=40,
        )
        summary = line.run_with_every_checkpoint()
        assert len(line.store.saved) > 3
        for meta in line.store.saved:
            assert_closed(meta["accounting"])
        last = line.store.saved[-1]
        assert last["positions"] == [[TOPIC, 0, 300], [TOPIC, 1, 300]]
        assert min(last["accounting"][key] for key in ("trained", "filtered", "dead_lettered")) > 0
        assert {key: summary[key] for key in last["accounting"]} == last["accounting"]
        assert sum(popularity_counts(line.learner).values()) == summary["trained"]

    def test_what_a_checkpoint_counts_is_what_lies_before_its_positions(self, tmp_path):
        """Each record holds one event, so the positions tell how many there must be."""
        line = Line(memory_log(values_of(events(500)), partitions=2), tmp_path, checkpoint_every_events=20)
        line.run()
        for meta in line.store.saved:
            assert meta["accounting"]["consumed"] == sum(offset for _, _, offset in meta["positions"])


class TestCheckpoints:
    def test_by_events(self, tmp_path):
        line = Line(memory_log(values_of(events(400))), tmp_path, checkpoint_every_events=100)
        line.run_with_every_checkpoint()
        counts = [meta["accounting"]["consumed"] for meta in line.store.saved]
        assert counts == [112, 224, 336, 400], "after the batch with which a hundred more are reached; and at the end"

    def test_by_time(self, tmp_path):
        line = Line(memory_log(values_of(events(400))), tmp_path, checkpoint_every_s=10.0)
        now = [0.0]
        line.pipeline.progress.checkpoints._clock = lambda: now[0]
        line.pipeline.progress.checkpoints._tried_at = 0.0
        line.pipeline.start()
        for seconds in range(25):
            now[0] = float(seconds)
            until(lambda: line.pipeline.ingest.queued_events > 0 or line.pipeline.ingest.finished)
            line.step_and_save()
        assert [meta["accounting"]["consumed"] for meta in line.store.saved] == [11 * 16, 21 * 16]
        assert line.pipeline.progress.checkpoints.age_s == 4.0
        line.pipeline.close()

    def test_none_is_written_where_nothing_is_new(self, tmp_path):
        log = memory_log(values_of(events(100)))
        Line(log, tmp_path).run()
        line = Line(log, tmp_path)
        summary = line.run()
        assert line.store.saved == []
        assert summary["checkpoint"] == str(newest(tmp_path).path)
        assert summary["events_this_run"] == 0

    def test_none_is_written_while_the_stream_is_quiet(self, tmp_path):
        line = Line(memory_log(values_of(events(64))), tmp_path, until_end=False, checkpoint_every_s=0.01)
        line.pipeline.start()
        until(lambda: line.pipeline.accounting.consumed == 64 and line.store.saved, line.pipeline.step)
        until(lambda: line.store.saved[-1]["accounting"]["consumed"] == 64, line.pipeline.step)
        count = len(line.store.saved)
        for _ in range(10):
            line.pipeline.step(timeout_s=0.02)
        line.pipeline.close()
        assert len(line.store.saved) == count


class TestCommits:
    def test_partitions_that_leave_at_the_end_are_committed_though_an_earlier_checkpoint_is_being_written(
        self, tmp_path
    ):
        log = memory_log(values_of(events(320)), partitions=2)
        line = Line(log, tmp_path, until_end=False, batch_size=8)
        pipeline, write, writing, may_write = line.pipeline, line.store.save, threading.Event(), threading.Event()

        def slow(*state: Any, base: bool) -> Path:
            writing.set()
            assert may_write.wait(60)
            return write(*state, base=base)

        line.store.save = slow
        line.trained(64)
        pipeline.checkpoint()
        assert writing.wait(60)
        pipeline.step()
        line.source.revoke([P0])
        until(lambda: P0 in pipeline.ingest.offsets.releasing())
        pipeline.step()  # saves what is handed over, behind the one that is being written
        trained = pipeline.ingest.offsets.snapshot().positions
        writer = pipeline.progress.checkpoints._writer
        close = writer.close
        writer.close = lambda: (may_write.set(), close())  # nothing is left to do but to wait for it
        pipeline.close()  # SIGTERM
        assert log.committed["streamer"] == trained

    def test_partitions_leave_also_when_the_checkpoint_fails(self, tmp_path):
        log = memory_log(values_of(events(320)), partitions=2)
        line = Line(log, tmp_path, until_end=False)
        line.store.failures_left = 1
        pipeline = line.pipeline
        line.trained(64)
        line.source.revoke([P0])
        offsets = pipeline.ingest.offsets
        until(lambda: P0 not in offsets.assigned() and not offsets.releasing(), pipeline.step)
        assert log.committed == {}
        pipeline.close()


@pytest.fixture
def files_of_at_most():
    """A limit for the size of all files that this process writes."""

    @contextmanager
    def limited(size_bytes: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited


class TestFailingCheckpoints:
    def test_a_failure_is_tried_again_though_the_stream_is_quiet(self, tmp_path):
        log = memory_log(values_of(events(64)))
        line = Line(log, tmp_path, until_end=False, checkpoint_every_s=0.05)
        line.store.failures_left = 3
        line.pipeline.start()
        until(lambda: line.store.saved, line.pipeline.step)
        assert line.store.saved[0]["accounting"]["consumed"] == 64
        line.pipeline.close()

    def test_a_full_disk(self, tmp_path, caplog, files_of_at_most):
        """As a full disk behaves: writing beyond a limit fails in the middle of a file."""
        line = Line(memory_log(values_of(events(640))), tmp_path, checkpoint_every_events=64)
        line.pipeline.start()
        with files_of_at_most(4096):
            until(lambda: "failed, will retry" in caplog.text, line.pipeline.step)
        until(lambda: line.pipeline.ingest.finished, line.pipeline.step)
        line.pipeline.close()
        assert line.store.saved[-1]["accounting"]["trained"] == 640
        assert not list(tmp_path.glob(".tmp-*")), "what was half written is removed"

    @pytest.mark.parametrize("replaced", [False, True], ids=["vanished", "became a file"])
    def test_a_directory_that_is_none_any_more(self, tmp_path, caplog, replaced):
        directory = tmp_path / "checkpoints"
        line = Line(memory_log(values_of(events(320))), directory, checkpoint_every_events=64)
        directory.rename(tmp_path / "elsewhere")
        if replaced:
            directory.write_text("nobody may write below a file, not even root")
        with pytest.raises(CheckpointError, match=r"cannot write a checkpoint.*choose another directory"):
            line.run()
        assert line.pipeline.accounting.trained == 320
        assert "will retry" in caplog.text


class TestLoss:
    def test_a_last_smaller_batch_does_not_read_as_a_drop(self, tmp_path):
        """Of three events the loss is lower, because each has two negatives."""
        stream = events(5 * 64 + 3)
        line = Line(memory_log(values_of(stream)), tmp_path, batch_size=64)
        line.run()
        learner, losses = OnlineLearner(line.learner.settings), []
        for start in range(0, len(stream), 64):
            losses.append(float(learner.learn_batch(micro_batch(stream[start : start + 64])).step.loss))
        assert losses[-1] < 0.6 * losses[-2]
        assert line.pipeline.summary()["loss"] > 0.9 * np.mean(losses[:-1])


class TestRestart:
    def undisturbed(self, values: Sequence[bytes], directory: Path, partitions: int = 1) -> Any:
        Line(memory_log(values, partitions), directory).run()
        return newest(directory)

    def test_another_number_of_threads_is_logged(self, tmp_path, caplog):
        threads = torch.get_num_threads()
        Line(memory_log(values_of(events(32))), tmp_path).run()
        Line(memory_log(values_of(events(32))), tmp_path).run()
        assert "CPU threads" not in caplog.text
        torch.set_num_threads(threads + 1)
        try:
            Line(memory_log(values_of(events(32))), tmp_path).run()
        finally:
            torch.set_num_threads(threads)
        assert f"was written with {threads} CPU threads, this run has {threads + 1}" in caplog.text

    def test_settings_that_change_between_runs_are_logged(self, tmp_path, caplog):
        log = memory_log(values_of(events(64)))
        Line(log, tmp_path, learner=OnlineLearner(small(seed=1))).run()
        log.create_topic("other", 1)
        line = Line(log, tmp_path, learner=OnlineLearner(small(seed=2)))
        line.source = MemorySource(log, "other")
        line.run()
        assert "The setting seed was 1 in ckpt-00000000000000000001.base, and is 2 now" in caplog.text
        assert caplog.text.count("The setting") == 1
        assert f"Reading topic other; the model was trained on {TOPIC} so far." in caplog.text

    def test_a_corrupt_checkpoint_is_passed_over_and_its_events_are_trained_again(self, tmp_path, caplog):
        values = values_of(events(480))
        expected = self.undisturbed(values, tmp_path / "a")
        log = memory_log(values)
        for limit in (160, 160):
            Line(log, tmp_path / "b", max_events=limit).run()
        broken = newest(tmp_path / "b")
        assert broken.meta["accounting"]["consumed"] == log.committed["streamer"][P0] == 320
        broken.path.write_bytes(broken.path.read_bytes()[:-1] + b"\xff")
        line = Line(log, tmp_path / "b")
        assert line.pipeline.accounting.consumed == 160, "the one before, although more was committed"
        assert "Skipped 1 unusable checkpoint" in caplog.text
        summary = line.run()
        assert summary["consumed"] == 480
        assert_same_checkpoint(newest(tmp_path / "b"), expected)


class FailingLetters(MemoryDeadLetters):
    """Fails at the given calls; what it was given is kept, as Kafka's does."""

    def __init__(self, error: StreamerError, writes: int = 0, flushes: int = 0) -> None:
        super().__init__()
        self.error, self.writes, self.flushes = error, writes, flushes

    def write(self, letters: Sequence[DeadLetter]) -> None:
        super().write(letters)
        if self.writes:
            self.writes -= 1
            raise self.error

    def flush(self) -> None:
        if self.flushes:
            self.flushes -= 1
            raise self.error


def raise_(error: BaseException) -> None:
    raise error


class TestErrors:
    def test_a_batch_that_failed_halfway_is_never_saved(self, tmp_path, caplog):
        """It was trained but its letters are lost: saving it with the old positions would train it twice."""
        values = values_of(events(320))
        values[200] = b"no event"
        Line(memory_log(values), tmp_path / "a").run()
        log = memory_log(values)
        line = Line(
            log, tmp_path / "b", FailingLetters(StreamerError("disk full"), writes=1), checkpoint_every_events=32
        )
        with pytest.raises(StreamerError, match="disk full"):
            line.run()
        assert line.learner.state.trainer.steps == 13
        for meta in line.store.saved:
            assert meta["accounting"]["consumed"] <= 192
        assert f"nothing is saved after {line.store.paths()[-1]}" in caplog.text
        Line(log, tmp_path / "b").run()
        assert_same_checkpoint(newest(tmp_path / "b"), newest(tmp_path / "a"))

    @pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a bug")])
    def test_nor_one_that_was_interrupted_while_it_was_learned(self, tmp_path, error):
        log = memory_log(values_of(events(160)))
        line = Line(log, tmp_path)
        line.after_learning(lambda _: raise_(error) if line.learner.state.trainer.steps == 5 else None)
        with pytest.raises(type(error)):
            line.run()
        assert line.store.saved == []
        assert Line(log, tmp_path).run()["trained"] == 160

    def test_nothing_is_taken_while_letters_hold_it_up(self, tmp_path, caplog):
        """Nor is it at the start, when nobody answers."""
        away = MemoryDeadLetters()
        away.open = lambda: raise_(SourceUnavailable("nobody answers"))  # type: ignore[method-assign]
        away.backpressure_reason = lambda: why  # type: ignore[method-assign]
        line, why = Line(memory_log(values_of(events(320))), tmp_path, away), "9 letters wait"
        line.pipeline.start()
        for _ in range(3):
            line.pipeline.step(0.1)
        assert (line.pipeline.accounting.consumed, line.pipeline.progress.backpressure_reason) == (0, why)
        why = None
        until(lambda: line.pipeline.ingest.finished, line.pipeline.step)
        line.pipeline.close()
        assert (line.pipeline.accounting.trained, line.pipeline.status.backpressure_reason) == (320, None)
        assert caplog.text.count("Paused reading: 9 letters wait.") == caplog.text.count("Resumed reading.") == 1
        assert "Dead letters cannot be written yet, will retry: nobody answers" in caplog.text

    def test_no_checkpoint_passes_letters_that_are_not_safe(self, tmp_path, caplog):
        log = memory_log(values_of(events(320)))
        away = FailingLetters(SourceUnavailable("nobody answers"), flushes=3)
        line = Line(log, tmp_path, away, checkpoint_every_events=64)
        summary = line.run()
        assert caplog.text.count("its dead letters could not be written") == 3
        assert line.store.saved[0]["accounting"]["consumed"] > 3 * 64
        assert summary["checkpoint"] is not None

    def test_letters_that_are_lost_at_the_end_are_an_error_and_no_checkpoint(self, tmp_path):
        log = memory_log(values_of(events(64)))
        away = FailingLetters(SourceUnavailable("nobody answers"), flushes=1000)
        away.close = away.flush  # type: ignore[method-assign]
        line = Line(log, tmp_path, away)
        with pytest.raises(SourceUnavailable):
            line.run()
        assert line.store.saved == []

    def test_an_error_of_the_source_ends_the_run_and_what_was_trained_is_saved(self, tmp_path):
        line = Line(memory_log(values_of(events(160))), tmp_path, until_end=False)
        poll, polled = line.source.poll, []

        def poll_and_fail(max_records: int, timeout_s: float) -> Any:
            polled.append(max_records)
            if line.pipeline.accounting.consumed >= 160:
                raise SourceError("the log was replaced")
            return poll(max_records, timeout_s)

        line.source.poll = poll_and_fail  # type: ignore[method-assign]
        with pytest.raises(SourceError, match="the log was replaced"):
            line.run()
        assert line.store.saved[-1]["positions"] == [[TOPIC, 0, 160]]


class TestStatus:
    def test_what_a_person_sees(self, tmp_path):
        log = memory_log(values_of(events(640)))
        line = Line(log, tmp_path, evaluate=True, max_queued_events=64, until_end=False)
        seen: list[Status] = []
        line.pipeline.on_status = seen.append
        line.trained(320)
        line.pipeline._show_status(last=True)
        status = seen[-1]
        trained = line.pipeline.accounting.trained
        assert status.accounting["consumed"] == trained
        assert status.lag == {P0: 640 - trained}
        assert 0 < status.queued_events < 64 + 16
        assert status.steps == trained // 16
        assert (status.users, status.items) == (len(line.learner.state.users), len(line.learner.state.items))
        assert status.loss is not None
        assert 0 <= status.hit_rate <= 1
        assert status.best_baseline.name == "most-popular"
        assert 0 <= status.best_baseline.hit_rate <= 1
        assert sum(status.sampler.cache_bands) == pytest.approx(1)
        assert status.checkpoint_age_s is None
        line.pipeline.close()
        assert status.checkpoint_age_s is not None
