"""Ranks as processes on the embedded log: the model is the same however many they are and whatever befalls them."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from commands import signal_at
from group_harness import Ranks, assert_same_model, assert_served, model
from line_harness import until
from serve_harness import Server

from streamer.event import encode
from streamer.learner import OnlineLearner
from streamer.snapshot import SnapshotDirectory
from streamer.snapshot.lease import generation_of
from streamer.sources.embedded.log import EmbeddedLog

EVENTS, PARTITIONS = 3000, 5


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    """Uneven partitions: one has half of all events, one has none."""
    directory, rng = tmp_path_factory.mktemp("log"), random.Random(0)
    records: dict[int, list] = {p: [] for p in range(PARTITIONS)}
    for k in range(EVENTS):
        partition = rng.choice([0, 0, 0, 1, 2, 3])
        user, item = f"u{partition}.{rng.randrange(20)}", f"i{int(rng.paretovariate(0.6)) % 300}"
        value = encode(user, item, 1_700_000_000 + k) if k % 100 else b"no event"
        records[partition].append((user.encode(), value, 1_700_000_000_000 + 1000 * k))
    with EmbeddedLog(directory) as log:
        log.create_topic("interactions", PARTITIONS)
        for partition, of_partition in records.items():
            log.append("interactions", of_partition, partition)
    return directory


@pytest.fixture(scope="module")
def undisturbed(log, tmp_path_factory) -> dict[str, object]:
    checkpoints = tmp_path_factory.mktemp("one") / "checkpoints"
    assert Ranks(log, checkpoints, 1, "--trainers", "1").wait_all() == [0]
    return model(checkpoints)


def test_ranks_train_the_same_model_as_one(log, undisturbed, tmp_path):
    assert undisturbed["accounting"]["trained"] == EVENTS - EVENTS // 100
    assert undisturbed["accounting"]["dead_letters"] == {"not_json": EVENTS // 100}
    assert Ranks(log, tmp_path / "checkpoints", 3).wait_all() == [0] * 3
    assert model(tmp_path / "checkpoints") == undisturbed


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize(
    ("target", "nth"),
    [
        pytest.param("os:write", 4, id="while a part is written"),
        pytest.param("pathlib:Path:rename", 2, id="before a part or the manifest is renamed"),
        pytest.param("torch.distributed:isend", 40, id="inside a collective"),
    ],
)
def test_killed_at_the_worst_moments_the_model_is_the_same_however_many_go_on(
    log, undisturbed, tmp_path, target, nth, victim
):
    checkpoints = tmp_path / "checkpoints"
    often = ["--checkpoint-every-events", "300", "--keep-checkpoints", "9"]
    ranks = Ranks(log, checkpoints, 2, *often, preludes={victim: signal_at(target, nth)})
    assert ranks.wait(victim) == -signal.SIGKILL
    assert ranks.wait(1 - victim) == 1
    assert "lost another trainer" in ranks.errors(1 - victim)
    half_written = list((checkpoints / f"rank-{victim}" if victim else checkpoints).glob(".tmp-*"))
    assert len(half_written) == 1 or target == "torch.distributed:isend"
    manifests, parts = list(checkpoints.glob("ckpt-*")), list((checkpoints / "rank-1").glob("ckpt-*"))
    if victim == 0 and "rename" in target:
        assert (len(manifests), len(parts)) == (1, 2), "all parts are there, only the manifest is not"
    size = 3 if victim else 1
    assert Ranks(log, checkpoints, size, *often, "--trainers", str(size)).wait_all() == [0] * size
    assert model(checkpoints) == undisturbed


def test_a_checkpoint_with_a_damaged_part_counts_for_nothing(log, undisturbed, tmp_path):
    checkpoints = tmp_path / "checkpoints"
    often = ["--checkpoint-every-events", "500", "--keep-checkpoints", "9"]
    assert Ranks(log, checkpoints, 2, *often).wait_all() == [0, 0]
    *_, part = sorted((checkpoints / "rank-1").glob("ckpt-*"))
    part.write_bytes(part.read_bytes()[:-10])
    again = Ranks(log, checkpoints, 2, *often)
    assert again.wait_all() == [0, 0]
    assert "unusable" in again.errors(0)
    assert model(checkpoints) == undisturbed


def test_a_rank_that_slept_stops_itself_and_the_others_do_not_wait_for_ever(log, tmp_path):
    ranks = Ranks(log, tmp_path / "checkpoints", 2, "--group-timeout", "2")
    until(lambda: "Assigned" in ranks.errors(0))
    os.kill(ranks.pids[1], signal.SIGSTOP)
    stopped = time.monotonic()
    assert ranks.wait(0) == 1
    assert "lost another trainer" in ranks.errors(0)
    time.sleep(max(0.0, stopped + 3.5 - time.monotonic()))
    os.kill(ranks.pids[1], signal.SIGCONT)
    assert ranks.wait(1) == 1
    assert "rank 1 was stopped or busy" in ranks.errors(1)


@pytest.mark.parametrize("size", [1, 2])
def test_a_group_that_slept_is_superseded_and_can_neither_save_nor_commit(log, undisturbed, tmp_path, size):
    """All ranks of a start are stopped, as on a machine that was paused, and the group starts again elsewhere."""
    checkpoints = tmp_path / "checkpoints"
    often = ["--trainers", str(size), "--group-timeout", "2", "--checkpoint-every-events", "300"]
    letters = ["--dead-letters", str(tmp_path / "zombies.jsonl")]
    zombies = Ranks(log, checkpoints, size, *often, *letters, "--no-until-end")
    until(lambda: list(checkpoints.glob("ckpt-*")), lambda: time.sleep(0.005))
    for pid in zombies.pids:
        os.kill(pid, signal.SIGSTOP)
    stopped = time.monotonic()
    again = Ranks(log, tmp_path / "checkpoints", size, *often, name="again")
    assert again.wait_all() == [0] * size, again.errors(0)
    assert "takes its place" in again.errors(0)
    saved = {path.name: path.read_bytes() for path in checkpoints.glob("ckpt-*")}
    time.sleep(max(0.0, stopped + 3.5 - time.monotonic()))
    for pid in zombies.pids:
        os.kill(pid, signal.SIGCONT)
    assert {0, None}.isdisjoint(zombies.wait_all()), "they saved, or did not end"
    said = "".join(zombies.errors(rank) for rank in range(size))
    # ranks that wait for each other may notice first that time has passed
    assert "a newer start (generation 2)" in said or (size > 1 and "was stopped or busy" in said), said
    assert {path.name: path.read_bytes() for path in checkpoints.glob("ckpt-*")} == saved
    assert model(checkpoints) == undisturbed


def test_a_group_whose_directory_another_one_uses_does_not_start(log, tmp_path):
    """One that lives is not superseded, however often it is tried."""
    idle = ["--trainers", "1", "--group-timeout", "5", "--start", "latest", "--dead-letters"]
    living = Ranks(log, tmp_path / "checkpoints", 1, *idle, str(tmp_path / "living.jsonl"), "--no-until-end")
    until(lambda: "Assigned" in living.errors(0))
    letters = str(tmp_path / "second.jsonl")
    second = Ranks(log, tmp_path / "checkpoints", 1, *idle, letters, name="second")
    assert second.wait_all() == [1]
    assert f"another process (pid {living.pids[0]}) uses" in second.errors(0)
    os.kill(living.pids[0], signal.SIGTERM)
    assert living.wait_all() == [0]


def test_what_a_group_publishes_is_served_also_after_a_crash_and_with_another_number_of_ranks(log, tmp_path):
    checkpoints, points = tmp_path / "checkpoints", tmp_path / "points"
    publish = ["--publish-dir", str(points), "--publish-every", "0.05", "--checkpoint-every-events", "500"]
    ranks = Ranks(log, checkpoints, 2, *publish, "--set", "max_events=1500")
    assert ranks.wait_all() == [0, 0]
    server, rng = Server(points), random.Random(2)
    assert_served(server, checkpoints, generation=1)
    killed = Ranks(log, checkpoints, 3, *publish)
    killed.wait(0, rng.uniform(0.5, 1.5))
    for rank in range(3):
        killed.kill(rank)
    killed.wait_all()
    assert generation_of(points) <= 2
    again = Ranks(log, checkpoints, 3, *publish)
    assert again.wait_all() == [0, 0, 0], again.errors(0)
    assert_served(server, checkpoints, generation=generation_of(points))
    of_checkpoints = Server(checkpoints)
    newest = SnapshotDirectory(checkpoints).load()
    assert_served(of_checkpoints, checkpoints, generation=newest.end.generation)
    of_checkpoints.close()
    server.close()


def test_a_catalogue_is_read_by_any_rank_and_learned_by_all(tmp_path):
    with EmbeddedLog(tmp_path / "log") as log:
        for topic in ("interactions", "items"):
            log.create_topic(topic, 3)
        for k in range(60):
            item = encode(
                None, f"i{k}", item_features={"kind": f"k{k % 4}"}, title=f"the title of i{k}", deleted=k % 20 == 7
            )
            log.append("items", [(f"i{k}".encode(), item, 1_700_000_000_000)], k % 3)
            event = encode(f"u{k % 5}", f"i{k % 12}", 1_700_000_000 + k)
            log.append("interactions", [(f"u{k % 5}".encode(), event, 1_700_000_000_000 + 1000 * k)], k % 5 % 3)
    catalogue = ["--catalogue-topic", "items", "--item-feature", "kind"]
    for size in (1, 2):
        ranks = Ranks(tmp_path / "log", tmp_path / str(size), size, *catalogue, "--trainers", str(size))
        assert ranks.wait_all() == [0] * size, ranks.errors(0)
    assert_same_model(tmp_path / "2", tmp_path / "1")
    learner = OnlineLearner.load(tmp_path / "2")
    assert {learner.state.items.id_of(row) for row in learner.state.cold_items.tolist()} == {
        f"i{k}" for k in range(12, 60) if k % 20 != 7
    }
    assert learner.state.titles.of(learner.state.items.row_of("i13")) == "the title of i13"
