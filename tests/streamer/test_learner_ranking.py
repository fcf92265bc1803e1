"""Retrieve, then rank: what a learner's ranker sees, and what a person gets from it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from line_harness import Event, Watch, assert_same_learner, events, learn_all, micro_batch, small

import streamer
from streamer.ingest.batcher import MicroBatch
from streamer.learner import OnlineLearner
from streamer.model.batch import Batch
from streamer.model.ranking.candidates import Candidates
from streamer.model.ranking.ranker import ALL, DISCOVERY
from streamer.recommender import Recommender

STREAM = events(640, users=12, items=150)


def learned(stream: list[Event] = STREAM, **changes: object) -> OnlineLearner:
    learner = OnlineLearner(small(**changes))
    learn_all(learner, stream, batch_size=32)
    return learner


def ranked(learner: OnlineLearner, batch: MicroBatch) -> list[dict[str, list]]:
    """What each event of a batch is ranked by: candidates, features and scores."""
    found: list[dict[str, list]] = []

    def look(_: Batch, candidates: Candidates | None) -> None:
        assert candidates is not None
        scores = [learner.state.ranker.scores(candidates, purpose) for purpose in (ALL, DISCOVERY)]
        for k in range(len(candidates)):
            here = slice(candidates.first[k], candidates.first[k + 1])
            columns = {"items": candidates.items, "features": candidates.features, "all": scores[0], "new": scores[1]}
            found.append({name: column[here].tolist() for name, column in columns.items()})

    learner.learn_batch(batch, Watch(look))
    return found


def test_what_is_ranked_at_an_event_depends_on_nothing_that_comes_with_it_or_later():
    """The future is exchanged for another, in which other users have other items, unheard of ones among them."""
    past, same, size = STREAM[:400], 11, 32
    batch, rng = STREAM[400 : 400 + size], np.random.default_rng(0)
    other = [(batch[same][0], "never seen"), *(batch[k] for k in same + 1 + rng.permutation(size - same - 1))]
    other = [(user, item if k % 3 else f"other {k}") for k, (user, item) in enumerate(other)]
    times_s = [1000.0 + n for n in range(size)]
    futures = [batch, batch[:same] + other]
    results = [ranked(learned(past), micro_batch(stream, timestamps_s=times_s)) for stream in futures]
    for k in range(same + 1):  # the first event that differs is ranked alike, too
        assert results[0][k] == results[1][k], k
    assert results[0][same + 1 :] != results[1][same + 1 :]


def test_candidates_of_an_event_are_new_to_its_user_or_not_however_long_ago():
    learner, had = OnlineLearner(small(history=3)), {}
    wrong: list[tuple[int, int]] = []

    def look(batch: Batch, candidates: Candidates | None) -> None:
        assert candidates is not None
        for k, (user, item) in enumerate(zip(batch.users.tolist(), batch.items.tolist(), strict=True)):
            mine = had.setdefault(user, set())
            for c in range(candidates.first[k], candidates.first[k + 1]):
                candidate = int(candidates.items[c])
                if candidates.seen[c] != (candidate in mine):
                    wrong.append((user, candidate))
            mine.add(item)

    for start in range(0, len(STREAM), 32):
        learner.learn_batch(micro_batch(STREAM[start : start + 32]), Watch(look))
    assert not wrong, f"{len(wrong)} candidates are marked wrongly, such as {wrong[:3]} (user, item)"


def test_events_that_are_not_new_to_their_user_teach_nothing_about_discoveries():
    """An item that the user had long before the last few is not new."""
    learner = OnlineLearner(small(history=3))
    learn_all(learner, [("ann", f"i{n}") for n in range(40)])
    before = {name: array.copy() for name, array in learner.state.ranker.state().items()}
    learner.learn_batch(micro_batch([("ann", "i0")]))
    after = learner.state.ranker.state()
    assert not np.array_equal(after["all.weights.linear"], before["all.weights.linear"])
    np.testing.assert_array_equal(after["discovery.weights.linear"], before["discovery.weights.linear"])


def test_events_without_a_time_come_one_after_the_other():
    without, with_times = OnlineLearner(small()), OnlineLearner(small())
    streamer.Learner(without).learn(STREAM[:100], batch_size=30)
    streamer.Learner(with_times).learn(
        [(user, item, 1 + n) for n, (user, item) in enumerate(STREAM[:100])], batch_size=30
    )
    assert_same_learner(without, with_times)


class TestRecommending:
    @pytest.mark.parametrize("rerank", [True, False])
    def test_nothing_that_the_user_had_comes_back_however_long_ago(self, rerank):
        learner = learned(rerank=rerank)
        for user in {user for user, _ in STREAM}:
            had = {item for who, item in STREAM if who == user}
            assert len(had) > learner.settings.history
            found = [r.item for r in streamer.Learner(learner).recommend(user, k=20, exclude_seen=True)]
            assert len(found) == 20
            assert not had & set(found)
            assert had & {r.item for r in streamer.Learner(learner).recommend(user, k=20)}

    def test_items_of_the_session_do_not_come_back(self):
        learner, session = learned(), [f"i{n}" for n in range(15)]
        assert len(session) > learner.settings.history
        found = {r.item for r in streamer.Learner(learner).recommend(recent=session, k=30, exclude_seen=True)}
        assert len(found) == 30
        assert not set(session) & found

    def test_events_that_are_not_learned_yet_count_as_recent_and_seen(self):
        """As if the learner had taken them in; those of unknown items are passed over."""
        learner, later = learned(), learned()
        new = [("u3", "i7", 900.0), ("u3", "i1", 901.0), ("u3", "i7", 902.0)]
        streamer.Learner(later).learn(new)
        query = Recommender(learner).user("u3", [(item, at) for _, item, at in new] + [("never seen", 903.0)])
        wanted = Recommender(later).user("u3")
        for name, array in wanted.history._asdict().items():
            np.testing.assert_array_equal(getattr(query.history, name), array, err_msg=name)
        assert sorted(query.seen) == sorted(wanted.seen)

    @settings(max_examples=20)
    @given(
        user=st.sampled_from(["u3", "u4", None]),
        items=st.lists(st.sampled_from([f"i{n}" for n in range(25)]), min_size=1, max_size=15),
    )
    def test_the_answer_is_that_of_a_learner_that_has_counted_them(self, user, items):
        """Events of a known user, or a session without one; weights are not trained by them."""
        few_items = events(320, users=12, items=25)
        learner, counted = learned(few_items), learned(few_items)
        state = counted.state
        rows = state.rows_of("users", [user or "somebody new"] * len(items))
        times_s = state.event_times([], len(items))
        history = state.recent.observe(rows, state.items.known(items), times_s)
        nothing = np.empty(0, np.int64)
        state.candidate_features.observe(state.items.known(items), times_s, history, nothing)
        state.seen.observe(rows, state.items.known(items))

        recommender = Recommender(learner)
        query = recommender.user(user, list(zip(items, times_s.tolist(), strict=True))) if user else None
        query = query or recommender.session(items)
        for exclude_seen in (False, True):
            found = recommender.recommend([query], 25, exclude_seen=exclude_seen)[0]
            wanted = streamer.Learner(counted).recommend(user or "somebody new", 25, exclude_seen=exclude_seen)
            assert {r.item: r for r in found} == {r.item: r for r in wanted}

    @pytest.mark.parametrize("rerank", [True, False])
    def test_excluded_items_do_not_come_back_and_do_not_shorten_the_list(self, rerank):
        learner = learned(rerank=rerank)
        recommender = Recommender(learner)
        query = recommender.user("u3")
        best = [r.item for r in recommender.recommend([query], 30)[0]]
        left_out = np.array([learner.state.items.row_of(item) for item in best[:12]])
        assert [r.item for r in recommender.recommend([replace(query, exclude=left_out)], 18)[0]] == best[12:]

    def test_reasons_add_up_to_the_score_and_name_recent_items_that_occur_with_the_item(self):
        learner = learned()
        for weights in learner.state.ranker.weights:
            weights.bias[:] = 0  # the only part of a score that no kind of evidence has
        recommender = Recommender(learner)
        query = recommender.user("u3")
        found = recommender.recommend([query], 10, exclude_seen=True)[0]
        reasons = recommender.reasons(query, [r.item for r in found], exclude_seen=True)
        recent = {learner.state.items.id_of(row): row for row in query.recent}
        assert any(why.recent for why in reasons)
        for best, why in zip(found, reasons, strict=True):
            assert sum(why.parts.values()) == pytest.approx(best.score, abs=1e-3)
            row = learner.state.items.row_of(best.item)
            occurs_with = {
                item for item, at in recent.items() if row in learner.state.candidate_features.co_occurrence.of(at)
            }
            assert {item for item, _ in why.recent} == occurs_with

    @pytest.mark.parametrize("rerank", [True, False])
    def test_a_session_with_features_is_ranked_as_a_user_with_these_features(self, rerank):
        shape = {"user_features": ("country",), "user_numeric_features": ("age",), "user_ids": False, "rerank": rerank}
        asked, left_alone = (OnlineLearner(small(**shape)) for _ in range(2))
        described = [{"country": f"c{n % 3}", "age": float(n % 50)} for n in range(320)]
        batches = [micro_batch(STREAM[at : at + 32], user_features=described[at : at + 32]) for at in range(0, 320, 32)]
        for learner in (asked, left_alone):
            for batch in batches:
                learner.learn_batch(batch)
        recommender = Recommender(asked)

        def best(**features: object) -> list[tuple[str, float]]:
            query = recommender.session(["i1", "i2"], features or None)
            return [(found.item, found.score) for found in recommender.recommend([query], 20)[0]]

        assert best(country="c1", age=20.0) == best(age="20", country="c1")
        assert best(country="c1", age=20.0) != best(country="c2", age=20.0) != best()
        assert best(country="never heard of", unknown="x") == best()
        for learner in (asked, left_alone):
            learner.learn_batch(micro_batch([("a new user", "i1"), *STREAM[320:340]]))
        assert_same_learner(asked, left_alone)

    def test_a_user_who_had_almost_everything_gets_the_rest(self):
        """Popular items and those near to the user are all known to the user: they must not use up the list."""
        stream = [("other", f"rare {n}") for n in range(15)]
        stream += [("ann", f"i{n}") for _ in range(6) for n in range(120)]
        found = streamer.Learner(learned(stream)).recommend("ann", k=10, exclude_seen=True)
        assert len(found) == 10
        assert all(r.item.startswith("rare") for r in found)

    def test_an_item_that_only_other_trainers_counted_is_found_by_the_towers(self):
        learner = learned(retrieved_items=200)
        row = learner.state.items.rows(["theirs", "nobody's"])
        learner.state.trainer.model.grow(len(learner.state.users), len(learner.state.items))
        learner.state.item_counts.add(row[:1], np.array([3.0]))
        found = {r.item for r in streamer.Learner(learner).recommend("u3", k=1000)}
        assert "theirs" in found
        assert "nobody's" not in found

    def test_asking_changes_nothing_that_is_learned(self):
        asked, left_alone = learned(), learned()
        streamer.Learner(asked).recommend("u3", exclude_seen=True)
        streamer.Learner(asked).recommend("nobody")
        streamer.Learner(asked).recommend(recent=["i1", "i2", "i1"])
        Recommender(asked).recommend([Recommender(asked).user("u3", [("i5", 900.0)])])
        for learner in (asked, left_alone):
            learn_all(learner, events(64, seed=1))
        assert_same_learner(asked, left_alone)
