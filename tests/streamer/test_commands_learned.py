"""recommend, inspect and export, on checkpoints that `streamer run` wrote."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from line_harness import run_settings
from slow_candidates import Event, SlowCandidateFeatures

from streamer.build import build_pipeline
from streamer.cli import export as export_module
from streamer.cli.loading import load
from streamer.cli.main import cli
from streamer.errors import CheckpointError, StreamerError
from streamer.learner import OnlineLearner
from streamer.metrics.composition import Ranking
from streamer.model.batch import Batch
from streamer.model.ranking.features import BUCKETS, FEATURES
from streamer.model.ranking.ranker import ALL
from streamer.model.retrieval import COSINE, Retriever
from streamer.recommender import Recommender
from streamer.snapshot import SnapshotDirectory

USERS, ITEMS, EVENTS = 12, 40, 900
SMALL = [
    *("--dim", "8", "--batch-size", "64", "--max-age", "0", "--set", "hash_slots=4096", "--set", "evaluation_share=0"),
    *("--cache-size", "100", "--device", "cpu", "--threads", "1"),
]


def made_events(seed: int = 0) -> list[dict]:
    """A long-tailed stream in which every user has a taste."""
    rng = np.random.default_rng(seed)
    users = rng.integers(0, USERS, EVENTS)
    items = np.minimum(rng.zipf(1.4, EVENTS) + users % 4, ITEMS) - 1
    pairs = zip(users, items, strict=True)
    return [{"user_id": f"u{u}", "item_id": f"ï{i}", "timestamp": t} for t, (u, i) in enumerate(pairs)]


@dataclass
class Trained:
    """A directory with checkpoints, and what they should hold."""

    data_dir: Path
    events: list[dict]

    @property
    def directory(self) -> Path:
        return self.data_dir / "checkpoints"

    def learner(self) -> OnlineLearner:
        return load(self.directory)[1]


def train(data_dir: Path, events: list[dict], *arguments: str, bad_lines: tuple[str, ...] = ()) -> Trained:
    """What `streamer run` does, without its signal handlers and its log."""
    data_dir.mkdir()
    source = data_dir / "events.jsonl"
    source.write_text("\n".join([*map(json.dumps, events), *bad_lines]) + "\n")
    arguments = ("--source", str(source), "--data-dir", str(data_dir), *SMALL, *arguments)
    build_pipeline(run_settings(*arguments)).run()
    return Trained(data_dir, events)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """xir with everything on, and a few records that are no events."""
    bad = ("no json", '{"user_id": "u1"}', "neither")
    path = tmp_path_factory.mktemp("learned") / "data"
    return train(path, made_events(), "--checkpoint-every-events", "300", bad_lines=bad)


@pytest.fixture(scope="module")
def towers_alone(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """ssl with user ids, features and layers; no ranker, no recent items."""
    events = [e | {"item_features": {"genre": e["item_id"][-1]}} for e in made_events(1)]
    options = ["--method", "ssl", "--set", "rerank=false", "--set", "recent_items=0", "--set", "user_ids=true"]
    options += ["--item-feature", "genre", "--set", "item_layers=6", "--set", "user_layers=6"]
    return train(tmp_path_factory.mktemp("learned") / "data", events, *options)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def output(*arguments: object) -> str:
    """What a command prints, if it succeeds."""
    result = invoke(*arguments)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def answers(trained: Trained, *arguments: object) -> list[dict]:
    """The answers of `streamer recommend`."""
    return json.loads(output("recommend", "--data-dir", trained.data_dir, "--json", *arguments))["recommendations"]


def ids(answer: dict) -> list[str]:
    return [entry["item"] for entry in answer["items"]]


def slow_scores(trained: Trained, user: str) -> dict[str, float]:
    """Each item's score for a known user, from the events and the weights, an item at a time."""
    learner = trained.learner()
    users, items = (
        {u: k for k, u in enumerate(learner.state.users.ids)},
        {i: k for k, i in enumerate(learner.state.items.ids)},
    )
    evidence = SlowCandidateFeatures(learner.settings.co_occurring_items, learner.settings.history)
    for event in trained.events:
        evidence.observe(Event(users[event["user_id"]], items[event["item_id"]], event["timestamp"]))
    history = evidence.history(users[user])
    features = evidence.features(users[user], trained.events[-1]["timestamp"], set(items.values()))
    weights, bucket = (
        learner.state.ranker.weights[ALL],
        max(k for k, least in enumerate(BUCKETS) if least <= len(history)),
    )
    recent = [r.item for r in history][: learner.settings.recent_items]
    vectors, query = learner.state.retriever.items().vectors.numpy(), slow_query(learner, recent)
    had = {items[event["item_id"]] for event in trained.events if event["user_id"] == user}
    scores = {}
    for item, x in features.items():
        x["had before"] = float(item in had and not x["is recent"])
        x["tower"] = float(query @ vectors[item])
        x["tower cosine"] = COSINE * cosine(query, vectors[item])
        x["tower most"] = COSINE * max(0.0, *(cosine(vectors[r], vectors[item]) for r in recent))
        x_ = np.array([x[name] for name in FEATURES])
        units = np.maximum(weights.hidden @ x_ + weights.bias[bucket], 0)
        scores[learner.state.items.id_of(item)] = float(weights.linear[bucket] @ x_ + weights.out @ units)
    return scores


def slow_query(learner: OnlineLearner, recent: list[int]) -> np.ndarray:
    """A user's vector, from that of the last items."""
    model = learner.state.trainer.model
    table = model.item.tables["item.id"].weight.detach().numpy()
    weights = np.exp(model.recency.detach().numpy())[: len(recent)]
    return sum(w * table[item] for w, item in zip(weights, recent, strict=True)) / weights.sum() * model.scale.item()


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def remembered(trained: Trained, user: str) -> list[str]:
    """A user's last distinct items, most recent first, from the events themselves."""
    had = [e["item_id"] for e in trained.events if e["user_id"] == user]
    return list(dict.fromkeys(reversed(had)))[:30]


# --- recommend -----------------------------------------------------------------------------------------------


def test_items_come_with_the_scores_of_the_model_best_first(trained):
    (answer,) = answers(trained, "--user", "u3", "-k", "7")
    slow = sorted(slow_scores(trained, "u3").items(), key=lambda pair: -pair[1])[:7]
    assert ids(answer) == [name for name, _ in slow]
    assert [entry["score"] for entry in answer["items"]] == pytest.approx([score for _, score in slow], abs=1e-4)
    assert (answer["user"], answer["known"], answer["note"]) == ("u3", True, None)


def test_exclude_seen_leaves_out_exactly_what_the_user_had(trained):
    (everything,), (rest,) = (
        answers(trained, "--user", "u3", "-k", 1000, *flags) for flags in ([], ["--exclude-seen"])
    )
    had = remembered(trained, "u3")
    assert 0 < len(had) < 30
    assert sorted(ids(everything)) == sorted({e["item_id"] for e in trained.events})
    assert sorted(ids(rest)) == sorted(set(ids(everything)) - set(had))
    assert {entry["item"] for entry in everything["items"] if entry["recent"]} == set(had)


def test_an_unknown_user_gets_popular_items_and_a_note_says_so(trained):
    """Whoever has no history is ranked by a bucket of weights that starts out with what is popular lately."""
    (answer,) = answers(trained, "--user", "nobody", "-k", "6")
    counts = Counter(e["item_id"] for e in trained.events)
    assert set(ids(answer)) <= {item for item, _ in counts.most_common(12)}
    assert answer["known"] is False
    assert "nobody is not known" in answer["note"]
    assert "what a user without history gets" in answer["note"]


def test_towers_alone_give_an_unknown_user_the_most_popular_items(towers_alone):
    known, unknown = answers(towers_alone, "--user", "u1", "--user", "nobody", "-k", "5")
    learner = towers_alone.learner()
    counts = learner.state.item_counts.counts(np.arange(len(learner.state.items)))
    assert ids(unknown) == [learner.state.items.id_of(row) for row in np.argsort(-counts, kind="stable")[:5]]
    assert "most popular" in unknown["note"]
    assert known["note"] is None
    assert len(known["items"]) == 5


def test_a_session_gets_what_a_new_user_gets_who_has_these_items_one_after_the_other_now(trained):
    had = ["ï7", "ï2", "ï30", "ï2"]
    (answer,) = answers(trained, *(arg for item in had for arg in ("--recent", item)))
    assert answer["user"] is None
    learner = trained.learner()
    now_s = learner.state.candidate_features.windows.now_s
    recommender = Recommender(learner)
    query = recommender.user("somebody new", [(item, now_s + 1 + n) for n, item in enumerate(had)])
    (wanted,) = recommender.recommend([query], len(answer["items"]))
    assert answer["items"] == [best._asdict() for best in wanted]


def test_unknown_items_of_a_session_are_named_and_left_aside(trained):
    (mixed,), (clean,) = answers(trained, "--recent", "ï2", "--recent", "what"), answers(trained, "--recent", "ï2")
    assert mixed["items"] == clean["items"]
    assert mixed["known"]
    assert "what" in mixed["note"]


def test_a_session_needs_a_model_of_recent_items(towers_alone):
    result = invoke("recommend", "--data-dir", towers_alone.data_dir, "--recent", "ï2")
    assert isinstance(result.exception, StreamerError)
    assert "--set recent_items=10" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["recommend"], "either --user or --recent"),
        (["recommend", "--user", "u1", "--recent", "ï2"], "either --user or --recent"),
        (["export", "--out", "vectors.csv"], "ends in .npz"),
    ],
)
def test_what_makes_no_sense_is_refused(trained, arguments, words):
    result = invoke(*arguments, "--data-dir", trained.data_dir)
    assert result.exit_code == 2
    assert words in result.output


def test_a_person_sees_ids_scores_and_the_checkpoint(trained):
    text = output("recommend", "--checkpoint-dir", trained.directory, "--user", "u3", "--user", "nobody", "-k", "2")
    (answer, _) = answers(trained, "--user", "u3", "--user", "nobody", "-k", "2")
    for place, entry in enumerate(answer["items"], start=1):
        (line,) = [x for x in text.split("user nobody")[0].splitlines() if x.split()[:2] == [str(place), entry["item"]]]
        assert f"{entry['score']:.3f}" in line
    assert "note: user nobody is not known" in text
    assert str(load(trained.directory)[0].path) in text


def test_ids_cannot_write_codes_to_the_terminal(tmp_path):
    events = [{"user_id": f"u{k}", "item_id": "\x1b[2Jgone\n", "timestamp": k} for k in range(5)]
    evil = train(tmp_path / "data", events)
    for arguments in (["recommend", "--user", "u1"], ["recommend", "--user", "\x1b[2J"], ["inspect"]):
        text = output(*arguments, "--data-dir", evil.data_dir)
        assert "\x1b" not in text
        assert "gone" in text


def test_nothing_trained_is_said(tmp_path):
    empty = train(tmp_path / "data", [], "--accept-dead-letters", bad_lines=("no json",))
    result = invoke("recommend", "--data-dir", empty.data_dir, "--user", "u1")
    assert isinstance(result.exception, CheckpointError)
    assert "nothing was trained" in str(result.exception)


# --- which checkpoint ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["recommend", "--user", "u1"], ["inspect"], ["export", "--out", "x.npz"]])
def test_a_missing_or_empty_directory_is_explained(command, tmp_path, trained):
    for directory, words in [
        (tmp_path / "nowhere", "no directory"),
        (tmp_path, "no checkpoint in"),
        (trained.data_dir, f"try --checkpoint-dir {trained.directory}"),
    ]:
        result = invoke(*command, "--checkpoint-dir", directory)
        assert isinstance(result.exception, CheckpointError)
        assert words in str(result.exception)
        assert str(directory) in str(result.exception)
    assert not (tmp_path / "nowhere").exists()


def test_a_corrupt_checkpoint_is_passed_over_and_shown(tmp_path):
    data = train(tmp_path / "data", made_events(), "--checkpoint-every-events", "300")
    newest = load(data.directory)[0].path
    newest.write_text("{}")
    report = json.loads(output("inspect", "--data-dir", data.data_dir, "--json"))
    assert report["checkpoint"] < str(newest)
    assert report["accounting"]["consumed"] < EVENTS
    states = {Path(file["path"]).name: file["state"] for file in report["checkpoints"]}
    assert states[newest.name] == "corrupt"
    assert states[Path(report["checkpoint"]).name] == "newest"
    text = output("inspect", "--data-dir", data.data_dir)
    assert [line for line in text.splitlines() if newest.name in line and "corrupt" in line.split()]


# --- inspect -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report(trained) -> dict:
    return json.loads(output("inspect", "--data-dir", trained.data_dir, "--json", "--top", "3"))


def test_inspect_tells_sizes_and_settings(trained, report):
    learner = trained.learner()
    known = {side: len({e[side] for e in trained.events}) for side in ("user_id", "item_id")}
    sizes = report["sizes"]
    assert (sizes["users"], sizes["items"]) == (known["user_id"], known["item_id"])
    dense = sum(p.numel() for p in learner.state.trainer.model.parameters())
    assert sizes["parameters"] == known["item_id"] * 8 + dense
    chain = report["chain"]
    assert sizes["bytes"] == chain["base_bytes"] + chain["delta_bytes"] >= Path(report["checkpoint"]).stat().st_size
    assert report["settings"]["method"] == "xir"
    assert report["settings"]["dim"] == 8
    assert report["steps"] == learner.state.trainer.steps >= EVENTS // 64


def test_inspect_tells_offsets_and_accounting(report):
    assert report["positions"] == [{"topic": "events.jsonl", "partition": 0, "offset": EVENTS + 3}]
    accounting = report["accounting"]
    assert accounting["consumed"] == accounting["trained"] + accounting["filtered"] + accounting["dead_lettered"]
    assert (accounting["trained"], accounting["dead_lettered"]) == (EVENTS, 3)
    assert accounting["dead_letters"] == {"not_json": 2, "missing_item_id": 1}


def test_inspect_lists_all_checkpoints_with_the_newest_last(trained, report):
    files = report["checkpoints"]
    assert [Path(f["path"]) for f in files] == sorted(trained.directory.glob("ckpt-*"))
    assert [f["state"] for f in files] == ["older"] * (len(files) - 1) + ["newest"]
    assert len(files) > 1
    assert [f["consumed"] for f in files] == sorted({f["consumed"] for f in files})
    assert files[-1]["saved_at"] == report["saved_at"]


def test_inspect_tells_the_popularity_head(trained, report):
    counts = Counter(e["item_id"] for e in trained.events)
    top = report["popularity"]["top"]
    assert [entry["events"] for entry in top] == [count for _, count in counts.most_common(3)]
    for entry in top:
        assert entry["events"] == counts[entry["item"]]
        assert entry["share"] == pytest.approx(counts[entry["item"]] / EVENTS)
    assert report["popularity"]["estimate"] == "exact"


def test_inspect_tells_the_composition_of_the_cache(trained, report):
    learner, cache = trained.learner(), report["cache"]
    slots = Counter(learner.state.items.id_of(row) for row in learner.state.cache.tolist())
    assert (cache["slots"], cache["distinct"]) == (100, len(slots))
    assert cache["bands"] == Ranking.of(learner.state.item_counts).slot_shares(learner.state.cache)._asdict()
    assert sum(cache["bands"].values()) == pytest.approx(1)
    assert [entry["slots"] for entry in cache["top"]] == [count for _, count in slots.most_common(3)]
    assert all(slots[entry["item"]] == entry["slots"] for entry in cache["top"])
    assert all(entry["share"] == entry["slots"] / 100 for entry in cache["top"])


def test_inspect_tells_what_was_resampled_most(trained, report):
    learner, occurrence = trained.learner(), report["occurrence"]
    values = {
        item: learner.state.occurrence.values(learner.state.items.rows([item]))[0] for item in learner.state.items.ids
    }
    best = sorted(values.values(), reverse=True)[:3]
    assert [entry["count"] for entry in occurrence["top"]] == best
    assert occurrence["total"] == pytest.approx(sum(values.values()))
    assert occurrence["top"][0]["share"] == pytest.approx(best[0] / sum(values.values()))


def test_inspect_tells_what_decides_the_ranking(trained, towers_alone, report):
    assert report["ranking"]
    for row in report["ranking"]:
        shares = {name: value for name, value in row.items() if name.endswith("_share")}
        assert set(shares) == {"co_occurrence_share", "popularity_share", "own_history_share", "towers_share"}
        assert sum(shares.values()) == pytest.approx(1)
    lines = [line.split() for line in output("inspect", "--data-dir", trained.data_dir).splitlines()]
    header = "recent items  co occurrence share  popularity share  own history share  towers share"
    assert header.split() in lines
    assert json.loads(output("inspect", "--data-dir", towers_alone.data_dir, "--json"))["ranking"] == []


def test_a_person_sees_every_section(trained, towers_alone):
    lines = [line.split() for line in output("inspect", "--data-dir", trained.data_dir).splitlines()]
    for section in ("checkpoints", "settings", "sizes", "positions", "accounting", "popularity", "cache", "occurrence"):
        assert [section] in lines
    for name, value in (("consumed", EVENTS + 3), ("trained", EVENTS), ("dead lettered", 3), ("not json", 2)):
        assert [*name.split(), str(value)] in lines
    assert ["method", "xir"] in lines
    assert ["slots", "100"] in lines
    other = " ".join(output("inspect", "--data-dir", towers_alone.data_dir, "--top", 0).split())
    assert "item features genre" in other
    assert "slots 0 distinct 0 note empty: only the method xir fills it" in other
    assert "total 0 note nothing was resampled" in other


# --- export --------------------------------------------------------------------------------------------------


def exported(trained: Trained, out: Path, *arguments: object) -> dict[str, np.ndarray]:
    output("export", "--data-dir", trained.data_dir, "--out", out, *arguments)
    with np.load(out, allow_pickle=False) as npz:
        return dict(npz)


@pytest.mark.parametrize("name", ["trained", "towers_alone"])
def test_the_exported_inner_product_is_the_score_of_the_towers(name, request, tmp_path):
    data: Trained = request.getfixturevalue(name)
    arrays, learner = exported(data, tmp_path / "vectors.npz"), data.learner()
    users = np.arange(len(learner.state.users))
    recent, retriever = learner.candidates.recent_items(learner.state.recent.of(users)), learner.state.retriever
    rows, scores = retriever.top(retriever.items(), users, len(learner.state.items), recent)
    products = arrays["users.vectors"] @ arrays["items.vectors"].T
    expected = np.empty_like(products)
    np.put_along_axis(expected, rows, scores, axis=1)
    np.testing.assert_allclose(products, expected, atol=1e-4)


def test_vectors_have_the_size_of_the_towers_and_ids_their_order_without_objects(trained, towers_alone, tmp_path):
    arrays, learner = exported(trained, tmp_path / "a.npz"), trained.learner()
    assert arrays["items.vectors"].shape == (len(learner.state.items), 8)
    assert json.loads(arrays["about"].tobytes()) == {
        "checkpoint": load(trained.directory)[0].path.name,
        "saved_at": load(trained.directory)[0].meta["saved_at"],
        "dim": 8,
    }
    other = exported(towers_alone, tmp_path / "b.npz")
    assert other["items.vectors"].shape[1] == other["users.vectors"].shape[1] == 6
    assert {name for name in arrays if not name.startswith("ranker.")} == {"about"} | {
        f"{side}.{part}" for side in ("items", "users") for part in ("vectors", "ids")
    }
    assert not any(array.dtype.hasobject for array in arrays.values())
    for side, vocabulary in (("items", learner.state.items), ("users", learner.state.users)):
        assert arrays[f"{side}.ids"].tolist() == vocabulary.ids


def test_scores_follow_from_the_exported_weights_of_the_ranker(trained, towers_alone, tmp_path):
    arrays, learner = exported(trained, tmp_path / "a.npz"), trained.learner()
    users = np.arange(len(learner.state.users))
    found = learner.candidates.generate(Batch(users, np.full(len(users), -1)), learner.state.recent.of(users))
    x, bucket = found.features, np.repeat(found.bucket, np.diff(found.first))
    for purpose, name in enumerate(("all", "discovery")):
        linear, hidden, bias, out = (arrays[f"ranker.{name}.{part}"] for part in ("linear", "hidden", "bias", "out"))
        scores = (linear[bucket] * x).sum(1) + np.maximum(x @ hidden.T + bias[bucket], 0) @ out
        np.testing.assert_allclose(scores, learner.state.ranker.scores(found, purpose), atol=1e-3)
    features, kinds = (arrays[f"ranker.{names}"].tolist() for names in ("features", "evidence"))
    assert len(features) == len(arrays["ranker.evidence_of"]) == x.shape[1]
    assert kinds[arrays["ranker.evidence_of"][features.index("tower")]] == "towers"
    assert arrays["ranker.histories"].tolist() == ["0", "1", "2-3", "4-7", "8-15", "16+"]
    assert not [name for name in exported(towers_alone, tmp_path / "b.npz") if name.startswith("ranker")]


def test_many_small_blocks_make_the_same_vectors(trained, tmp_path, monkeypatch):
    whole = exported(trained, tmp_path / "whole.npz")
    largest = []
    monkeypatch.setattr(export_module, "BLOCK_ROWS", 5)
    queries = Retriever.queries
    monkeypatch.setattr(Retriever, "queries", lambda x, rows, of: largest.append(len(rows)) or queries(x, rows, of))
    parts = exported(trained, tmp_path / "parts.npz")
    assert max(largest) == 5
    assert whole.keys() == parts.keys()
    for name, array in whole.items():
        if array.dtype.kind == "U":
            assert array.tolist() == parts[name].tolist()
        else:
            np.testing.assert_allclose(array, parts[name], atol=1e-6)


def test_a_file_that_cannot_be_finished_leaves_the_old_one(trained, tmp_path, monkeypatch):
    out = tmp_path / "vectors.npz"
    out.write_bytes(b"old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    result = invoke("export", "--data-dir", trained.data_dir, "--out", out)
    assert isinstance(result.exception, StreamerError)
    assert "No space left on device" in str(result.exception)
    assert out.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [out]


def test_an_old_file_is_replaced_and_the_summary_tells_what_was_written(trained, tmp_path):
    out = tmp_path / "vectors.npz"
    out.write_bytes(b"old")
    summary = json.loads(output("export", "--data-dir", trained.data_dir, "--out", out, "--json"))
    learner = trained.learner()
    assert zipfile.is_zipfile(out)
    assert summary == {
        "out": str(out),
        "checkpoint": str(load(trained.directory)[0].path),
        "items": len(learner.state.items),
        "users": len(learner.state.users),
        "dim": 8,
        "bytes": out.stat().st_size,
    }
    assert f"{len(learner.state.items)} items and {len(learner.state.users)} users" in output(
        "export", "--data-dir", trained.data_dir, "--out", out
    )


# --- as a process --------------------------------------------------------------------------------------------


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from streamer.cli.main import cli\n"
        "for command in ('run', 'serve', 'recommend', 'inspect', 'export', 'doctor'):\n"
        "    cli([command, '--help'], standalone_mode=False)\n"
        "heavy = {'torch', 'numpy', 'numba', 'kafka', 'redis', 'plotly', 'fastapi', 'uvicorn'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for option in ("--exclude-seen", "--top", "--out", "--redis-url"):
        assert option in done.stdout


# --- checkpoint ----------------------------------------------------------------------------------------------


@pytest.fixture
def chain(tmp_path) -> Trained:
    """Checkpoints of which some are deltas."""
    return train(tmp_path / "data", made_events(), "--checkpoint-every-events", "64", "--keep-checkpoints", "20")


def checkpoint(trained: Trained, command: str, *arguments: object) -> dict:
    where = ("--data-dir", trained.data_dir, "--json")
    return json.loads(output("checkpoint", command, *where, *arguments))


def test_inspect_shows_the_chain(chain):
    report = json.loads(output("inspect", "--data-dir", chain.data_dir, "--json"))
    needed = load(chain.directory)[0].chain
    assert report["chain"]["deltas"] == len(needed) - 1
    assert report["chain"]["base"] == needed[0].path.name
    points = {Path(point["path"]).name: point for point in report["checkpoints"]}
    assert {point["kind"] for point in points.values()} == {"base", "delta"}
    for before, after in itertools.pairwise(needed):
        assert points[after.path.name]["after"] == before.end.number


def test_verify_names_what_is_corrupt_and_fails(chain):
    assert checkpoint(chain, "verify")["corrupt"] == 0
    delta = next(path for path in sorted(chain.directory.iterdir()) if path.suffix == ".delta")
    delta.write_bytes(delta.read_bytes()[:-1])
    result = invoke("checkpoint", "verify", "--data-dir", chain.data_dir)
    assert result.exit_code == 1
    (line,) = [line for line in result.stdout.splitlines() if line.startswith(delta.name)]
    assert "bytes" in line


def test_a_copy_recommends_the_same(chain, tmp_path):
    done = checkpoint(chain, "copy", tmp_path / "copy")
    assert done["files"] == len(load(chain.directory)[0].chain)
    where = ("--checkpoint-dir", tmp_path / "copy", "--json")
    assert json.loads(output("recommend", "--user", "u1", *where))["recommendations"] == answers(chain, "--user", "u1")


def test_what_is_copied_is_given_by_its_file(chain, tmp_path):
    path = SnapshotDirectory(chain.directory).paths()[1]
    for given in (path, path.name):
        done = checkpoint(chain, "copy", tmp_path / f"copy-{Path(given).is_absolute()}", "--checkpoint", given)
        assert done["from"] == str(path)
    for absent, words in (("43", "give the path"), ("ckpt-00000000000000012345.base", "12345")):
        result = invoke("checkpoint", "copy", tmp_path / "absent", "--checkpoint", absent, "--data-dir", chain.data_dir)
        assert words in str(result.exception)


def test_a_run_starts_from_a_chosen_checkpoint(chain):
    path = SnapshotDirectory(chain.directory).paths()[2]
    events = json.loads(output("inspect", "--data-dir", chain.data_dir, "--json"))["checkpoints"][2]["consumed"]
    arguments = ("--source", chain.data_dir / "events.jsonl", "--data-dir", chain.data_dir, *SMALL)
    pipeline = build_pipeline(run_settings(*arguments, "--from-checkpoint", path))
    assert pipeline.accounting.consumed == events
    pipeline.run()
    assert pipeline.summary()["consumed"] == EVENTS
