"""A server serves what its trainer has learned, whatever becomes of the snapshots on their way."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import weakref
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import environment
from line_harness import events, small
from memory_place import MemoryPlace
from memory_source import MemoryLog, MemorySource
from serve_harness import CLICKS, Server, Trainer, said, served, wait_until

import streamer
from streamer.event import EventDecoder, EventSettings
from streamer.learner import OnlineLearner
from streamer.serve.follower import Tail
from streamer.serve.service import NotReady, Service
from streamer.snapshot.directory import SnapshotDirectory, number_of
from streamer.snapshot.places import WANTED
from streamer.snapshot.publisher import Due
from streamer.snapshot.snapshot import SnapshotFile
from tests.streamer.snapshot.test_checkpointer import Run

STREAM = events(900, users=30, items=150)
USERS = [f"u{n}" for n in range(30)] + ["nobody"]
FEATURES = {"item_features": ("brand",), "item_numeric_features": ("price",), "item_layers": (8,)}


@pytest.fixture
def pair(tmp_path):
    """A trainer and a server that follows it through a directory."""
    trainer, server = Trainer(tmp_path / "points"), Server(tmp_path / "points")
    yield trainer, server
    server.close()
    trainer.close()


def delta_of(directory: Path, number: int) -> Path:
    return SnapshotDirectory(directory).path(number, is_base=False)


def assert_equal(service: Service, learner: OnlineLearner, exclude_seen: bool = True) -> None:
    for user in USERS:
        assert served(service, user, exclude_seen=exclude_seen) == said(learner, user, exclude_seen=exclude_seen), user


LIMITS = {"max_items": 60, "max_users": 12, "admit_after": 2}


@pytest.mark.parametrize("settings", [{}, {"rerank": False}, {"user_ids": False}, FEATURES, LIMITS], ids=str)
def test_what_is_served_equals_what_recommend_says_from_a_checkpoint_of_that_step(tmp_path, settings):
    trainer, server = Trainer(tmp_path / "points", **settings), Server(tmp_path / "points")
    for part in range(0, len(STREAM), 150):
        trainer.learn(STREAM[part : part + 150])
        server.reach(trainer)
        trainer.learner.save(tmp_path / "checkpoints")
        assert_equal(server.service, OnlineLearner.load(tmp_path / "checkpoints"))
    assert_equal(server.service, trainer.learner, exclude_seen=False)
    assert trainer.publisher.status.number == 6
    server.close()
    trainer.close()


def test_a_server_that_comes_later_starts_from_the_base_and_its_deltas(pair, tmp_path):
    trainer, first = pair
    for part in range(0, len(STREAM), 300):
        trainer.learn(STREAM[part : part + 300])
    trainer.base()
    trainer.learn(events(64, seed=5))
    trainer.publisher.step(lambda: trainer.positions, due=Due.DELTA)  # nothing has changed
    assert trainer.publisher.flush()
    later = Server(tmp_path / "points")
    later.reach(trainer)
    first.reach(trainer)
    assert_equal(later.service, trainer.learner)
    assert_equal(first.service, trainer.learner)
    assert len(SnapshotDirectory(tmp_path / "points").load().chain) == 3
    assert (first.service.bases, later.service.bases) == (1, 1)
    later.close()


def test_a_server_says_what_it_serves_while_a_delta_is_applied(pair):
    trainer, server = pair
    trainer.learn(STREAM[:100])
    server.reach(trainer)
    replica, service, said = server.service.replica, server.service, []
    apply = replica.apply
    replica.apply = lambda delta: (said.append((service.replica is replica, service.about()["step"])), apply(delta))
    before = service.about()["step"]
    trainer.learn(STREAM[100:200])
    server.reach(trainer)
    assert said == [(True, before)]


def test_after_a_delta_that_could_not_be_applied_nothing_is_served_until_a_base(pair):
    trainer, server = pair
    trainer.learn(STREAM[:100])
    server.reach(trainer)

    def fail(delta) -> None:
        raise RuntimeError("half of it")

    delta, server.service.replica.apply = SimpleNamespace(end=server.service.end), fail
    with pytest.raises(RuntimeError):
        server.service.apply(delta)
    with pytest.raises(NotReady):
        served(server.service, "u1")


def test_a_trainer_that_was_replaced_and_writes_on_is_not_followed(pair, tmp_path):
    """It was believed dead; its snapshots are of an older generation."""
    zombie, server = pair
    zombie.learn(STREAM[:200])
    trainer = Trainer(tmp_path / "points")
    trainer.learn(STREAM[200:400])
    server.reach(trainer)
    zombie.publisher.step(lambda: {CLICKS: 0})
    streamer.Learner(zombie.learner).learn(STREAM[:50])
    trainer.learn(STREAM[400:500])
    server.reach(trainer)
    assert_equal(server.service, trainer.learner)
    trainer.close()


def test_a_replica_whose_generation_has_ended_is_freed(tmp_path):
    """What is frozen is never collected: the memory of a model would be lost with each start of its trainer."""
    trainer, server = Trainer(tmp_path / "points"), Server(tmp_path / "points")
    tail = Tail(server.service, lambda: MemorySource(MemoryLog(), "clicks"), EventDecoder(EventSettings()))
    trainer.learn(STREAM[:100])
    server.reach(trainer)
    tail.start()
    before, again = weakref.ref(server.service.replica.learner), Trainer(tmp_path / "points")
    again.learn(STREAM[:100])
    server.reach(again)
    wait_until(lambda: before() is None, "freeing")
    for thread in (tail, server, trainer, again):
        thread.close()


def test_later_collections_pass_over_what_is_served(pair):
    trainer, server = pair
    trainer.learn(STREAM[:100])
    server.reach(trainer)
    wait_until(lambda: not any(one is server.service.replica for one in gc.get_objects()), "freezing")


def test_a_server_follows_checkpoints_also_when_their_trainer_goes_back(tmp_path):
    directory = tmp_path / "checkpoints"
    run, server = Run(directory), Server(directory)

    def assert_follows(path: Path) -> None:
        number = number_of(path)
        wait_until(lambda: server.service.end is not None and server.service.end.number == number, "following")
        assert_equal(server.service, OnlineLearner.load(directory))

    assert_follows(run.learn_and_save(200))
    chosen = run.learn_and_save(16, seed=1)
    assert_follows(chosen)
    assert_follows(run.learn_and_save(16, seed=2))
    assert server.service.bases == 1, "deltas are applied"
    run.close()
    back = Run(directory, start_from=chosen)
    assert_follows(back.learn_and_save(16, seed=3))
    assert_follows(back.learn_and_save(16, seed=4))
    back.store.links.clear()
    assert_follows(back.learn_and_save(16, seed=5))
    back.close()
    server.close()


def flip(path: Path, share: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 4
    path.write_bytes(content)


def truncate(path: Path, share: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])


DAMAGES = {
    "it is lost": Path.unlink,
    "a bit is flipped": partial(flip, share=0.3),
    "the rest of it is left out": partial(truncate, share=0.4),
    "the one before comes again": lambda path: shutil.copy(delta_of(path.parent, 2), path),
    "it is of another run": lambda path: shutil.copy(delta_of(path.parents[1] / "other", 3), path),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_delta_is_refused_and_a_base_follows(tmp_path, damage):
    """What is served is always a state that the trainer had; the server is not ready while newer state is refused."""
    points, other = tmp_path / "points", Trainer(tmp_path / "other")
    for part in (slice(100, 400), slice(0, 100), slice(100, 200)):
        other.learn(STREAM[part])
    other.close()
    trainer, server = Trainer(points), Server(points)
    trainer.learn(STREAM[:200])
    trainer.learn(STREAM[200:300])
    server.reach(trainer)
    before = {user: served(server.service, user) for user in USERS}
    server.close()
    trainer.learn(STREAM[300:400])
    DAMAGES[damage](delta_of(points, 3))
    server.follower = type(server.follower)(server.service, server.follower._reader)
    server.follower.start()
    trainer.learn(STREAM[400:500])
    wait_until(lambda: server.service.refused_points, "noticing")
    wait_until(lambda: server.service.caught_up, "waiting for a base")
    is_ready, why = server.service.ready()
    assert not is_ready
    assert "a snapshot was refused" in why
    assert {user: served(server.service, user) for user in USERS} == before
    trainer.base()
    server.reach(trainer)
    assert_equal(server.service, trainer.learner)
    wait_until(lambda: server.service.ready()[0], "readiness")
    trainer.learn(STREAM[500:600])
    server.reach(trainer)
    assert_equal(server.service, trainer.learner)
    server.close()
    trainer.close()


def test_a_damaged_base_is_passed_over(tmp_path):
    trainer = Trainer(tmp_path / "points")
    trainer.learn(STREAM[:200])
    trainer.learn(STREAM[200:300])
    trainer.base()
    newest = SnapshotDirectory(tmp_path / "points").path(3, is_base=True)
    newest.write_bytes(newest.read_bytes()[:-5])
    server = Server(tmp_path / "points")
    server.reach(trainer)  # at the state before it
    assert_equal(server.service, trainer.learner)
    trainer.learn(STREAM[300:400])
    trainer.base()
    server.reach(trainer)
    assert_equal(server.service, trainer.learner)
    server.close()
    trainer.close()


def test_deltas_that_are_doubled_or_out_of_order_change_nothing(tmp_path):
    place = MemoryPlace()
    trainer = Trainer(place)
    for part in range(0, 600, 100):
        trainer.learn(STREAM[part : part + 100])
    base, two, three, four, five, six = place.snapshots
    place.snapshots = [two, base, base, two, two, three, two, five, four, three, base, six]
    server = Server(place)
    wait_until(lambda: place._read == len(place.snapshots) and server.service.caught_up, "reading")
    assert server.service.replica.end.number == 4  # five came too early, and does not come again
    trainer.base()
    trainer.learn(STREAM[600:700])
    server.reach(trainer)
    assert_equal(server.service, trainer.learner)
    server.close()
    trainer.close()


def test_a_volume_that_is_away_is_shown_and_caught_up(pair, tmp_path):
    trainer, server = pair
    trainer.learn(STREAM[:200])
    server.reach(trainer)
    (tmp_path / "points").rename(tmp_path / "away")
    streamer.Learner(trainer.learner).learn(STREAM[200:300])
    wait_until(lambda: trainer.publisher.step(lambda: {CLICKS: 300}) or trainer.publisher.status.problem, "noticing")
    for part in range(300, 600, 100):  # what changes meanwhile is remembered as rows
        streamer.Learner(trainer.learner).learn(STREAM[part : part + 100])
        trainer.publisher.step(lambda: {CLICKS: 600})
    wait_until(lambda: server.follower.problem, "noticing")
    wait_until(lambda: server.service.ready().reason == server.follower.problem, "saying so")
    assert served(server.service, "u1")
    (tmp_path / "away").rename(tmp_path / "points")
    wait_until(lambda: trainer.publisher.status.problem is None, "writing")
    trainer.learn(STREAM[600:650])
    server.reach(trainer)
    assert_equal(server.service, trainer.learner)
    wait_until(lambda: server.follower.problem is None, "noticing")


def test_where_too_much_has_changed_for_a_delta_a_base_takes_its_place(pair, monkeypatch):
    """As after a long time in which nothing could be written: training is not held up by one large copy."""
    trainer, server = pair
    trainer.learn(STREAM[:300])
    server.reach(trainer)
    trainer.learn(STREAM[300:350])
    server.reach(trainer)
    monkeypatch.setattr("streamer.snapshot.publisher.MAX_DELTA_ROWS", 20)
    trainer.learn(STREAM[350:600])
    server.reach(trainer)
    assert (server.service.bases, server.service.applied_deltas) == (2, 1)
    assert_equal(server.service, trainer.learner)
    monkeypatch.undo()
    trainer.learn(STREAM[600:700])
    server.reach(trainer)
    assert server.service.applied_deltas == 2
    assert_equal(server.service, trainer.learner)


def test_a_directory_that_was_emptied_is_filled_again(pair, tmp_path):
    trainer, server = pair
    trainer.learn(STREAM[:300])
    server.reach(trainer)
    for path in SnapshotDirectory(tmp_path / "points").paths():
        path.unlink()
    trainer.learn(STREAM[300:400])
    server.reach(trainer)
    trainer.base()
    later = Server(tmp_path / "points")
    later.reach(trainer)
    assert_equal(later.service, trainer.learner)
    later.close()


def test_what_no_server_needs_is_removed(pair, tmp_path):
    trainer, server = pair
    for part in range(0, 400, 100):
        trainer.learn(STREAM[part : part + 100])
        trainer.base()
    server.reach(trainer)
    left = SnapshotDirectory(tmp_path / "points").numbers()
    assert list(left) == list(range(trainer.publisher.status.number - 2, trainer.publisher.status.number + 1))
    assert [path.suffix for path in left.values()] == [".base", ".delta", ".base"]


def test_a_large_model_comes_by_slice_after_slice_while_deltas_go_on(tmp_path, monkeypatch):
    """A server starts when every row was published, and from any state after that."""
    monkeypatch.setattr("streamer.snapshot.publisher.SLICE_CHUNKS", 2)
    monkeypatch.setattr("streamer.snapshot.publisher.CHUNK_ROWS", 32)
    monkeypatch.setattr("streamer.snapshot.publisher.MAX_DELTAS", 7)
    monkeypatch.setattr("streamer.snapshot.publisher.MIN_BASE_S", 0.0)
    learner = OnlineLearner(small())
    streamer.Learner(learner).learn(STREAM[:600])
    trainer, server = Trainer(tmp_path / "points", learner), Server(tmp_path / "points")
    snapshots, first = SnapshotDirectory(tmp_path / "points"), []
    for seed in range(30):
        trainer.learn(events(8, seed=seed, users=30, items=150))
        first.append(SnapshotFile(list(snapshots.numbers().values())[-1]).end.first)
        if first[-1]:
            server.reach(trainer)
            assert_equal(server.service, learner)
        if first[-1] and seed % 10 == 0:
            later = Server(tmp_path / "points")
            later.reach(trainer)
            assert_equal(later.service, learner)
            later.close()
    assert first[:2] == [0] * 2
    assert len(set(first)) > 3, "there is a base again and again"
    assert min(snapshots.numbers()) == sorted(set(first))[-2], "what is needed to start from is kept, and that before"
    assert server.service.bases == 1, "who follows needs no other"
    server.close()
    trainer.close()


def test_a_server_that_is_ready_has_compiled_what_requests_need(tmp_path):
    """In a process of its own, in which nothing else has loaded compiled loops."""
    trainer = Trainer(tmp_path / "points")
    trainer.learn(STREAM)
    trainer.close()
    done = subprocess.run(
        [sys.executable, "-c", COUNT_COMPILED, tmp_path / "points"], env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    ready, later = map(int, done.stdout.split())
    assert later == ready > 0


COUNT_COMPILED = """
import pathlib, sys
from numba.core.dispatcher import Dispatcher
from serve_harness import Server, wait_until
from streamer.serve.service import RecommendRequest

def compiled():
    modules = [module for name, module in sys.modules.items() if name.startswith("streamer.")]
    loops = {id(found): found for module in modules for found in vars(module).values() if isinstance(found, Dispatcher)}
    return sum(len(found.signatures) for found in loops.values())

server = Server(pathlib.Path(sys.argv[1]))
wait_until(lambda: server.service.ready().ok)
print(compiled())
service = server.service
service.recommend(RecommendRequest(user="u1", explain=True))
service.recommend(RecommendRequest(user="nobody"))
service.recommend(RecommendRequest(recent=["i3", "i4"], exclude_seen=False))
service.similar("i5", 3)
print(compiled())
server.close()
"""


@pytest.fixture
def growing(tmp_path, monkeypatch):
    """A trainer whose model is small at first, and to which every event brings a new item; and how it goes on."""
    monkeypatch.setattr("streamer.snapshot.publisher.MIN_BASE_S", 0.0)
    trainer = Trainer(tmp_path / "points")

    def grow(deltas: int) -> None:
        for _ in range(deltas):
            trainer.learn([(f"u{k % 30}", f"i{k}") for k in range(trainer.offset, trainer.offset + 32)])

    yield trainer, grow
    trainer.close()


@pytest.mark.parametrize("max_deltas", [10, 10**9])
def test_bases_come_again_and_the_directory_stays_small_while_the_model_grows(
    growing, tmp_path, monkeypatch, max_deltas
):
    """Without a limit to their number, because the deltas outweigh the base."""
    trainer, grow = growing
    monkeypatch.setattr("streamer.snapshot.publisher.MAX_DELTAS", max_deltas)
    grow(60)
    Trainer(tmp_path / "base", trainer.learner).publish()
    base, published = SnapshotDirectory(tmp_path / "base"), SnapshotDirectory(tmp_path / "points")
    assert len(published.load().chain) <= 12
    sizes = [sum(path.stat().st_size for path in one.paths()) for one in (base, published)]
    assert sizes[1] < 5 * sizes[0]


def bytes_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


def test_the_directory_is_bounded_also_if_more_changes_than_a_slice_has_and_trainers_start_again(tmp_path, monkeypatch):
    """Of a base of many slices: while it is under way, everything has changed several times."""
    monkeypatch.setattr("streamer.snapshot.publisher.MIN_BASE_S", 0.0)
    monkeypatch.setattr("streamer.snapshot.publisher.MAX_DELTAS", 10**9)
    learner = OnlineLearner(small())
    streamer.Learner(learner).learn(events(900, users=200, items=400))
    Trainer(tmp_path / "base", learner).publish()
    monkeypatch.setattr("streamer.snapshot.publisher.CHUNK_ROWS", 8)
    monkeypatch.setattr("streamer.snapshot.publisher.SLICE_CHUNKS", 1)
    most = 0
    for start in range(6):
        trainer = Trainer(tmp_path / "points", learner)
        for number in range(25):
            trainer.learn(events(32, seed=25 * start + number, users=200, items=400))
            most = max(most, bytes_of(tmp_path / "points"))
        trainer.close()
    assert most < 25 * bytes_of(tmp_path / "base")


@pytest.mark.parametrize("starts", [False, True], ids=["follows", "starts"])
def test_a_server_that_misses_a_delta_asks_for_a_base(growing, tmp_path, monkeypatch, starts):
    trainer, grow = growing
    points = tmp_path / "points"
    grow(8)
    monkeypatch.setattr("streamer.snapshot.publisher.CHUNK_ROWS", 16)
    monkeypatch.setattr("streamer.snapshot.publisher.SLICE_CHUNKS", 2)
    server = Server(points)
    server.reach(trainer)
    server.close()
    grow(3)
    trainer.publisher._base = None  # whatever was under way: none is due for long
    trainer.publisher._base_bytes = 1 << 40
    delta_of(points, trainer.publisher.status.number - 1).unlink()
    server = Server(points) if starts else server
    if not starts:
        server.follower = type(server.follower)(server.service, server.follower._reader)
        server.follower.start()
    wait_until(lambda: (points / WANTED).exists(), "asking")
    asked_at = trainer.publisher.status.number
    while trainer.publisher._base_first <= asked_at or trainer.publisher._base is not None:
        grow(1)
    slices = -(-(30 + 2 * trainer.publisher._base_first * 32) // 32)
    assert trainer.publisher.status.number <= asked_at + slices + 3, "it does not grow with the model"
    server.reach(trainer)
    assert_equal(server.service, trainer.learner)
    server.close()
