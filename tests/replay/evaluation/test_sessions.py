"""Sessions: learned once, frozen, asked for the next item; beside baselines as they were published."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from comparisons import TINY, compare, streamer
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_cases import Moment, moments, streams, walked

from streamer.errors import SettingsError, SourceError
from streamer.evaluation.tally import MISS
from streamer.replay.datasets import open_log
from streamer.replay.datasets.files import periods
from streamer.replay.evaluation.baselines import SequentialRules
from streamer.replay.evaluation.neighbours import LATEST_SESSIONS, NEIGHBOURS, SessionNeighbours
from streamer.replay.evaluation.sessions import SessionRun, sessions
from streamer.replay.evaluation.settings import SessionSettings

SHARED = Path(__file__).parents[4] / "shared" / "data"
ROUNDS = ["a b c d", "b c d", "c d a", "d a b c"]
"""Items follow one another in a ring."""


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def slow_rules(moment: Moment) -> dict[int, float]:
    scores: dict[int, float] = {}
    for item, last, _ in moment.learned:
        if moment.last and moment.last[0] in last:
            scores[item] = scores.get(item, 0) + 1 / (last.index(moment.last[0]) + 1)
    return scores


def slow_neighbours(moment: Moment, learned: list[tuple[int, int]]) -> dict[int, float]:
    """From (user, item) of each event that is learned from; of at most 100 sessions, of at most 50 events."""
    by_user: dict[int, dict[int, None]] = {}
    for user, item in learned:
        by_user.setdefault(user, {})[item] = None
    weights = {item: 1 - place / 10 for place, item in enumerate(moment.last)}
    scores: dict[int, float] = {}
    for user, items in by_user.items():
        common = [weights[item] for item in items if item in weights]
        if user == moment.user or not common:
            continue
        near, decay = sum(common) / len(moment.last), max(common) - 0.1
        for item in items:
            having = sum(item in other for other in by_user.values())
            scores[item] = scores.get(item, 0) + near * decay * (1 + math.log(len(by_user) / having)) + 1e-12
    return scores


def assert_ranked(found: int, item: int, scores: dict[int, float], left_out: set[int]) -> None:
    if item not in scores or item in left_out:
        assert found == MISS
        return
    others = [score for other, score in scores.items() if other != item and other not in left_out]
    more = sum(score > scores[item] + 1e-9 for score in others)
    equal = sum(abs(score - scores[item]) <= 1e-9 for score in others)
    assert more < found <= more + equal + 1


@settings(max_examples=50)
@given(streams(50), st.sampled_from([0, 5]))
def test_new_baselines_rank_as_their_slow_versions(stream, delay):
    users, items, ends = stream
    rules = walked(SequentialRules(), users, items, ends, delay)
    near = walked(SessionNeighbours(), users, items, ends, delay)
    pairs = list(zip(users.tolist(), items.tolist(), strict=True))
    for t, moment in enumerate(moments(users, items, delay)):
        learned = pairs[: len(moment.learned)]
        for ranks, scores in ((rules, slow_rules(moment)), (near, slow_neighbours(moment, learned))):
            assert_ranked(ranks.among_all[t], moment.item, scores, set())
            assert_ranked(ranks.among_new[t], moment.item, scores, moment.seen)


def test_neighbours_are_the_nearest_of_the_latest_sessions():
    """Older sessions than the 1,000 latest with the item do not count, nor do those beyond the 100 nearest."""
    old = [(0, 0), (0, 1)]
    latest = [(user, item) for user in range(1, LATEST_SESSIONS + 1) for item in (0, 2)]
    far = [(user, item) for user in range(5000, 5000 + NEIGHBOURS) for item in (0, 3)]
    for before, found in ((old, True), (old + latest, False)):
        stream = [*before, *far[:2], (9000, 0), (9000, 1)]
        users, items = np.array(stream).T
        rank = walked(SessionNeighbours(), users, items, [len(stream)]).among_all[-1]
        assert (rank < MISS) == found


def test_forgotten_items_are_in_no_session():
    baseline = SessionNeighbours()
    users, items = np.array([(0, 0), (0, 1), (1, 0)]).T
    walked(baseline, users, items, [3])
    baseline.forget(np.array([1]))
    assert walked(baseline, np.array([2, 2]), np.array([0, 1]), [2]).among_all.tolist() == [MISS, MISS]


class TestSessionFiles:
    def test_events_are_a_second_apart_one_session_after_the_other(self, tmp_path):
        with open_log(write(tmp_path / "x.sessions", ["7 7 3", "", " 3\t9 "])) as log:
            (events,) = log.batches()
            assert list(sessions(log)) == [["7", "7", "3"], ["3", "9"]]
        assert events.items == ["7", "7", "3", "3", "9"]
        assert len(set(events.users)) == 2
        assert np.diff(events.timestamps_s).tolist() == [1.0] * 4

    def test_periods_are_in_the_order_of_their_numbers(self, tmp_path):
        for week in (10, 9, 1):
            write(tmp_path / f"week{week}.sessions", ROUNDS)
        found = [Path(path).name for path in periods(str(tmp_path / "week*"))]
        assert found == ["week1.sessions", "week9.sessions", "week10.sessions"]
        with pytest.raises(SourceError, match="periods are several files"):
            periods(str(tmp_path / "week1.sessions"))
        with pytest.raises(SourceError, match="one file at a time"):
            open_log(tmp_path / "week*", "sessions")

    @pytest.mark.skipif(not SHARED.exists(), reason="the public logs are not in ../shared/data")
    def test_a_public_log_has_the_sizes_that_are_known_of_it(self):
        with open_log(SHARED / "yoochoose64.sessions.gz") as log:
            about = log.describe()
        assert (about["name"], about["users"], about["items"], about["events"]) == (
            "sessions",
            116_167,
            17_376,
            486_026,
        )


class TestProtocol:
    def run(self, **changes: object) -> SessionRun:
        return SessionRun(SessionSettings(dim=8, batch_size=16, **changes))  # type: ignore[arg-type]

    def test_what_is_learned_is_frozen_and_figures_are_those_of_the_ranks(self, tmp_path):
        train = open_log(write(tmp_path / "x.sessions", ROUNDS * 30))
        test = open_log(write(tmp_path / "x.test", ["a b", "b c", "d a", "c unknown", "d"]), "sessions")
        with train, test:
            run = self.run()
            result = run.run(train, test)
            learned = run.learner.state.item_counts.total
        assert learned == 30 * 14
        assert result.about["ranked"] == 4
        # after one item of the ring the next one is known, and what was never learned is missed
        for baseline in (None, "sequential-rules", "session-neighbours", "counting"):
            assert result.value("hr", 20, baseline=baseline) == 0.75
        assert result.value("hr", 20, baseline="last-items") == 0
        assert result.value("mrr", 20, baseline="sequential-rules") == 0.75
        errors = {m.metric: m.error for m in result.measures if m.baseline == "sequential-rules" and m.k == 10}
        assert errors["hr"] == pytest.approx(math.sqrt(0.75 * 0.25 / 4))

    def test_repeats_count(self, tmp_path):
        train = open_log(write(tmp_path / "x.sessions", ROUNDS))
        test = open_log(write(tmp_path / "x.test", ["a b a"]), "sessions")
        with train, test:
            result = self.run().run(train, test)
        assert result.value("mrr", 20, baseline="last-items") == 0.5
        assert result.value("hr", 20) == 1.0

    def test_figures_of_periods_are_means_of_what_was_learned_before_each(self, tmp_path):
        lines = [["a b"], ["a b", "x y"], ["x y", "a new b"]]
        paths = [write(tmp_path / f"p{n}.sessions", text * 20) for n, text in enumerate(lines)]
        logs = [open_log(path) for path in paths]
        result = self.run().run_periods(logs)
        for log in logs:
            log.close()
        # of the second period x and y are unknown; of the third, the item that is new
        assert result.about["ranked"] == 20 + 40
        assert result.value("hr", 10, baseline="sequential-rules") == 1.0

    def test_the_sample_is_the_same_for_all_and_limits_what_is_asked(self):
        prefixes = [([str(n)], "x") for n in range(100)]
        one, other = self.run(sample=10), self.run(sample=10, seed=3, method="bir")
        assert one.sampled(prefixes) == other.sampled(prefixes)
        assert len(one.sampled(prefixes)) == 10
        assert self.run(sample=1000).sampled(prefixes) == prefixes
        with pytest.raises(SourceError, match="no session of two known items"):
            one.sampled([])


class TestCommand:
    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        return write(tmp_path / "ring.sessions", ROUNDS * 20)

    def test_a_comparison_of_sessions_has_the_figures_of_the_literature(self, log, tmp_path):
        test = write(tmp_path / "ring.test", ["a b", "c d"])
        command = ("compare", "--data", log, "--test", test, "--protocol", "sessions", "--methods", "xir", *TINY)
        shown = streamer(*command, "--sample", 1)
        assert re.search(r"^ +P@20 +MRR@20 +R@10 +MRR@10\b", shown, re.MULTILINE)
        assert re.search(r"^baseline: session-neighbours +1\.0000 ± 0\.0000 ", shown, re.MULTILINE)
        assert "ring, sessions" in shown
        assert "1 asked" in shown

    def test_periods_and_a_given_offline_test(self, log, tmp_path):
        for n in range(3):
            write(tmp_path / f"week{n}.sessions", ROUNDS * 5)
        (found,) = compare(tmp_path / "week*", "--protocol", "periods", "--methods", "bir")
        assert found["about"]["ranked"] == 2 * 5 * 10
        test = write(tmp_path / "pairs.txt", ["1 d", "2 a"])
        offline = ["--protocol", "offline", "--format", "lightgcn", "--methods", "ssl", "--set", "epochs=1"]
        pairs = write(tmp_path / "train.txt", ["1 a b c", "2 b c d"])
        (found,) = compare(pairs, "--test", test, *offline)
        assert found["about"]["ranked"] == 2

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--protocol", "sessions"], "--test is not given"),
            (["--protocol", "periods", "--test", "x"], "the periods protocol has none"),
            (["--test", "x"], "the prequential protocol has none"),
            (["--protocol", "periods", "--set", "baselines=nobody"], "there is no baseline 'nobody'"),
            (["--protocol", "periods", "--item-feature", "x"], "the periods protocol learns from ids alone"),
        ],
    )
    def test_what_is_wrong_is_said(self, log, arguments, said):
        with pytest.raises((SettingsError, SourceError), match=said):
            streamer("compare", "--data", log, *arguments)
