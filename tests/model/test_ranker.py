"""The ranker: its gradient by finite differences, that it learns which evidence counts, and that it restarts."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.model.ranking.candidates import Candidates
from streamer.model.ranking.features import BUCKETS, FEATURES, TOWERS
from streamer.model.ranking.ranker import ALL, DISCOVERY, HIDDEN, Ranker

PURPOSES = {"all": ALL, "discovery": DISCOVERY}
PARTS = {
    "linear": (len(BUCKETS), len(FEATURES)),
    "hidden": (HIDDEN, len(FEATURES)),
    "bias": (len(BUCKETS), HIDDEN),
    "out": (HIDDEN,),
}
State = dict[str, np.ndarray]


def made_candidates(seed: int = 0, events: int = 12) -> Candidates:
    """Events with few and many candidates, some without their own item, some whose item is not new."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 9, events)
    first = np.concatenate([[0], np.cumsum(sizes)])
    target = np.where(rng.random(events) < 0.8, first[:-1] + rng.integers(0, sizes), -1)
    return Candidates(
        first,
        np.arange(first[-1], dtype=np.int32),
        rng.normal(size=(first[-1], len(FEATURES))).astype(np.float32),
        target,
        rng.integers(0, 3, events),  # some buckets have no event
        rng.random(first[-1]) < 0.3,
        np.arange(events, dtype=np.float32) % 4,
    )


def weights_of(state: State, purpose: str) -> State:
    return {part: state[f"{purpose}.weights.{part}"].astype(np.float64) for part in PARTS}


def copied(ranker: Ranker) -> State:
    return {name: array.copy() for name, array in ranker.state().items()}


def moved(seed: int = 0, **changes: float) -> Ranker:
    """A ranker whose weights are nowhere zero."""
    ranker, rng = Ranker(**changes), np.random.default_rng(seed)
    for weights in ranker.weights:
        for part in weights:
            part += rng.normal(size=part.shape).astype(np.float32) * np.float32(0.3)
    return ranker


def slow_score(weights: State, x: np.ndarray, bucket: int) -> float:
    units = [max(weights["bias"][bucket, h] + weights["hidden"][h] @ x, 0.0) for h in range(HIDDEN)]
    return float(weights["linear"][bucket] @ x + weights["out"] @ units)


def slow_loss(weights: State, found: Candidates, events: np.ndarray, discovery: bool) -> float:
    """The sum of -log softmax at the target times the weight, over the events that teach something."""
    total = 0.0
    for e in events:
        own = found.target[e]
        among = [c for c in range(found.first[e], found.first[e + 1]) if not (discovery and found.seen[c])]
        if own in among:
            scores = {c: slow_score(weights, found.features[c].astype(np.float64), found.bucket[e]) for c in among}
            total += found.weights[e] * (np.log(sum(np.exp(s) for s in scores.values())) - scores[own])
    return total


@pytest.mark.parametrize("purpose", PURPOSES)
def test_scores_are_those_of_the_formula(purpose):
    ranker, found = moved(), made_candidates()
    weights, scores = weights_of(ranker.state(), purpose), ranker.scores(found, PURPOSES[purpose])
    for e in range(len(found)):
        for c in range(found.first[e], found.first[e + 1]):
            slow = slow_score(weights, found.features[c], found.bucket[e])
            assert scores[c] == pytest.approx(slow, rel=1e-4, abs=1e-5)


def test_scores_without_features_are_those_of_candidates_whose_features_are_zero():
    ranker, found = moved(), made_candidates()
    without = ranker.scores(found, without=[*TOWERS, 3])
    assert np.abs(without - ranker.scores(found)).max() > 0.01
    found.features[:, [*TOWERS, 3]] = 0
    np.testing.assert_allclose(without, ranker.scores(found), atol=1e-5)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("purpose", PURPOSES)
def test_steps_follow_finite_differences_of_the_softmax_loss(purpose, part):
    """Adagrad divides by the root of the sum of squares, which the state holds: so a step shows its gradient."""
    ranker, found = moved(), made_candidates()
    events = np.arange(0, len(found), 2)
    before = copied(ranker)
    ranker.learn(found.only(events))
    after = ranker.state()
    rate = ranker.learning_rate * (1 if part == "linear" else 1 / 3)
    step = before[f"{purpose}.weights.{part}"] - after[f"{purpose}.weights.{part}"]
    gradient = step / rate * np.sqrt(after[f"{purpose}.squares.{part}"])
    weights, h = weights_of(before, purpose), 1e-5
    for at in np.ndindex(PARTS[part]):
        ends = []
        for change in (h, -h):
            weights[part][at] += change
            ends.append(slow_loss(weights, found, events, purpose == "discovery"))
            weights[part][at] -= change
        assert gradient[at] == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=2e-3, abs=1e-4), at


def test_only_events_whose_item_is_a_candidate_teach_anything():
    ranker = moved()
    before, found = copied(ranker), made_candidates()
    ranker.learn(found.only(np.flatnonzero(found.target < 0)))
    ranker.learn(found.only(np.empty(0, np.int64)))
    for name, array in ranker.state().items():
        np.testing.assert_array_equal(array, before[name])


def toy_event(rng: np.random.Generator, telling: str, size: int = 20) -> Candidates:
    """One event whose item is the candidate with the most of one feature; the others say nothing."""
    features = rng.random((size, len(FEATURES)), np.float32)
    own = int(features[:, FEATURES.index(telling)].argmax())
    first, items = np.array([0, size]), np.arange(size, dtype=np.int32)
    return Candidates(first, items, features, np.array([own]), np.array([2]), np.zeros(size, np.bool_))


@pytest.mark.parametrize("telling", ["tower", "recent gap", "hours since last"])
def test_it_learns_which_evidence_counts_for_whom(telling):
    ranker, rng = Ranker(), np.random.default_rng(0)
    for _ in range(600):
        ranker.learn(toy_event(rng, telling))
    tests = [toy_event(rng, telling) for _ in range(100)]
    for purpose in PURPOSES.values():
        hits = sum(ranker.scores(test, purpose).argmax() == test.target[0] for test in tests)
        untaught = sum(Ranker().scores(test, purpose).argmax() == test.target[0] for test in tests)
        assert untaught < 40 < 70 < hits
        linear = ranker.weights[purpose].linear
        assert FEATURES[int(linear[2].argmax())] == telling
        np.testing.assert_array_equal(linear[0], Ranker().weights[purpose].linear[0])  # nobody of that bucket came


def test_a_step_of_few_events_after_steps_of_many_is_small():
    ranker, many = Ranker(), made_candidates(events=512)
    for _ in range(20):
        ranker.learn(many)
    steps = []
    for events in (np.arange(4), np.arange(512)):
        before = copied(ranker)["all.weights.linear"]
        ranker.learn(many.only(events))
        steps.append(np.abs(ranker.weights[ALL].linear - before).sum())
    assert steps[0] < steps[1]


def test_the_two_purposes_learn_different_things():
    """What users have again is told by one feature, what is new to them by another."""
    ranker, rng = Ranker(), np.random.default_rng(0)
    for k in range(600):
        event = toy_event(rng, "recent gap" if k % 2 else "near most")
        if k % 2:
            event.seen[event.target[0]] = True
        ranker.learn(event)
    column = FEATURES.index("recent gap")
    assert ranker.weights[ALL].linear[2, column] > 1 > 0.5 > ranker.weights[DISCOVERY].linear[2, column]


def test_a_restarted_ranker_goes_on_with_the_same_bits():
    ranker, restarted = Ranker(seed=1), Ranker(seed=2)
    for k in range(5):
        ranker.learn(made_candidates(k).only(np.arange(12)))
    restarted.load_state(copied(ranker))
    for one in (ranker, restarted):
        for k in range(5, 10):
            one.learn(made_candidates(k).only(np.arange(12)))
    for name, array in ranker.state().items():
        np.testing.assert_array_equal(restarted.state()[name], array)


def test_the_seed_determines_the_first_weights():
    same, other = (Ranker(seed=seed).state() for seed in (7, 8))
    for name, array in Ranker(seed=7).state().items():
        np.testing.assert_array_equal(array, same[name])
    assert not np.array_equal(same["all.weights.hidden"], other["all.weights.hidden"])
    assert not np.array_equal(same["all.weights.hidden"], same["discovery.weights.hidden"])


def test_a_ranker_of_other_features_is_refused():
    state = copied(Ranker())
    state["all.weights.linear"] = state["all.weights.linear"][:, 1:]
    with pytest.raises(ValueError, match=r"all\.weights\.linear has the shape"):
        Ranker().load_state(state)
