"""The public learner."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack, overload

import numpy as np

from streamer.api.evaluation import Evaluation, evaluate
from streamer.api.events import EventReader, to_seconds
from streamer.api.ids import Id, IdForms, to_id, to_texts
from streamer.api.settings import SettingChanges
from streamer.errors import EventError, StreamerError
from streamer.ingest.batcher import MicroBatch
from streamer.learner import OnlineLearner, newest_checkpoint
from streamer.learner.filters import Filter
from streamer.model.batch import Rows
from streamer.model.settings import LearnerSettings
from streamer.recommender import Reasons, Recommendation, Recommender, RecommendQuery
from streamer.settings import PipelineSettings
from streamer.vocabulary import Vocabulary

USERS_AT_ONCE = 1000
"""Users that are ranked together."""
BATCH_SIZE = PipelineSettings.batch_size


class PopularItem(NamedTuple):
    """An item, and how many events of it were learned."""

    item: Id
    events: int


class Learner:
    """A recommender that learns from events as they come.

    Ids are text or whole numbers, and come back as they went in.

    Args:
        settings: what is learned, and how; None for the defaults, which are those of
            `streamer run`. Or what a pipeline learns: `Learner(pipeline.learner)`
            recommends from it while it goes on.
        changes: settings that differ from those, by name.

    Raises:
        SettingsError: with every problem at once.

    Examples:
        >>> learner = Learner(dim=8)
        >>> learner.learn([("ann", 1), ("ann", 2), ("bob", 1)])
        3
        >>> sorted(found.item for found in learner.recommend("bob"))
        [1, 2]
    """

    def __init__(
        self,
        settings: LearnerSettings | OnlineLearner | None = None,
        **changes: Unpack[SettingChanges],
    ) -> None:
        if isinstance(settings, OnlineLearner):
            self._online = settings
        else:
            self._online = OnlineLearner(settings, **changes)
        self.settings = self._online.settings
        self._users = _forms_of(self._online.state.users)
        self._items = _forms_of(self._online.state.items)

    def __repr__(self) -> str:
        state = self._online.state
        default = LearnerSettings()
        changed = []
        for name in LearnerSettings.all():
            value = getattr(self.settings, name)
            if value != getattr(default, name):
                changed.append(f"{name}={value!r}")
        known = f"{len(state.users):,} users, {len(state.items):,} items"
        return (
            f"<Learner({', '.join(changed)}): {known}, {state.trainer.steps:,} steps>"
        )

    def learn(
        self,
        events: Any,
        *,
        fields: Mapping[str, str] | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> int:
        """Learn from events, and return their number.

        Args:
            events: a frame of pandas or polars, which is learned in the order of its
                times; or, learned in their own order, dictionaries or tuples
                (user, item) or (user, item, time). Times are seconds, milliseconds,
                datetime, Timestamp or ISO 8601 text, UTC unless they say otherwise; an
                event without one comes a second after the one before. Features that the
                settings name are read from columns or keys of their name, or from
                dictionaries `user_features` and `item_features`. A `weight`, or else
                the weight of its `event_type` by `event_weights`, says how much an
                event counts.
            fields: what the events call `user_id`, `item_id`, `timestamp` and so on, if
                it is not what is usual.
            batch_size: events of a training step.

        Raises:
            EventError: something is not an event; the message names its row. What has a
                length is checked before anything is learned.
        """
        count = 0
        for batch in self._batches(
            events, fields, batch_size, self._users, self._items
        ):
            for stretch in self._online.split_catalogue_events(batch):
                self._online.learn_batch(stretch)
            count += len(batch)
        return count

    @overload
    def recommend(  # type: ignore[overload-overlap]  # text is one user
        self,
        user: Id | None = None,
        k: int = 10,
        *,
        recent: Iterable[Id] | None = None,
        exclude_seen: bool = False,
        exclude: Iterable[Id] = (),
        among: Iterable[Id] | None = None,
        filter: Filter | None = None,
        max_per: str | None = None,
        features: Mapping[str, str | float] | None = None,
    ) -> list[Recommendation]: ...

    @overload
    def recommend(
        self,
        user: Iterable[Id],
        k: int = 10,
        *,
        exclude_seen: bool = False,
        exclude: Iterable[Id] = (),
        among: Iterable[Id] | None = None,
        filter: Filter | None = None,
        max_per: str | None = None,
    ) -> dict[Id, list[Recommendation]]: ...

    def recommend(
        self,
        user: Id | Iterable[Id] | None = None,
        k: int = 10,
        *,
        recent: Iterable[Id] | None = None,
        exclude_seen: bool = False,
        exclude: Iterable[Id] = (),
        among: Iterable[Id] | None = None,
        filter: Filter | None = None,
        max_per: str | None = None,
        features: Mapping[str, str | float] | None = None,
    ) -> list[Recommendation] | dict[Id, list[Recommendation]]:
        """The best items for a user, for many users, or for a session without one; best
        first, each with its score.

        Args:
            user: id; an unknown one gets what a user without history gets. Or many
                ids: the answer is a dictionary then.
            k: how many items, at most.
            recent: instead of a user: the items of a session, oldest first.
            exclude_seen: leave out what the user had, or the items of the session.
            exclude: items to leave out.
            among: recommend these items and no others.
            filter: recommend items that match, e.g. "category:tea" or "price<20", or
                several in a list, {"and": [...]}, {"or": [...]} or {"not": ...}; by
                features and `item_attributes`.
            max_per: "category:2" for at most two items of a category.
            features: of whoever the session is of.

        Raises:
            ValueError: neither or both of `user` and `recent` are given.
            FilterError: an attribute is not known, or a filter cannot be read.
        """
        many = user is not None and not isinstance(user, str | int | np.integer)
        users: list[Any] = list(user) if many else [user]  # type: ignore[arg-type]
        queries = [_query(self._online, one, recent, features) for one in users]
        left_out = _known(self._online.state.items, exclude)
        queries = [dataclasses.replace(one, exclude=left_out) for one in queries]
        rows = None if among is None else _known(self._online.state.items, among)
        found = []
        for best in _recommended(
            self._online,
            queries,
            k,
            exclude_seen=exclude_seen,
            among=rows,
            filter=filter,
            max_per=max_per,
        ):
            found.append(self._as_given(best))
        return dict(zip(map(to_id, users), found, strict=True)) if many else found[0]

    def similar(self, item: Id, k: int = 10) -> list[Recommendation]:
        """What users who had an item may like next, best first.

        Raises:
            StreamerError: the item is not known.
        """
        self._check_known(item)
        query = _query(self._online, None, [item], None)
        [found] = _recommended(self._online, [query], k, exclude_seen=True)
        return self._as_given(found)

    def popular(self, k: int = 10) -> list[PopularItem]:
        """The items with the most events, most first."""
        state = self._online.state
        rows = state.items.used
        counts = state.item_counts.counts(rows)
        best = np.argsort(-counts, kind="stable")[:k]
        best = best[counts[best] > 0]
        found = []
        ids = state.items.ids_of(rows[best].tolist())
        for item, count in zip(ids, counts[best].tolist(), strict=True):
            found.append(PopularItem(self._items.id_of(item), round(count)))
        return found

    def explain(
        self,
        item: Id,
        *,
        user: Id | None = None,
        recent: Iterable[Id] | None = None,
        exclude_seen: bool = False,
    ) -> Reasons:
        """What makes the score of an item, for a user or a session: what each kind of
        evidence adds to it, and which recent items are near.

        Args:
            item: id.
            user: id.
            recent: instead of a user: the items of a session, oldest first.
            exclude_seen: as for `recommend`.

        Raises:
            StreamerError: the item is not known.
        """
        self._check_known(item)
        query = _query(self._online, user, recent, None)
        (found,) = Recommender(self._online).reasons(
            query, [str(item)], exclude_seen=exclude_seen
        )
        near = [(self._items.id_of(text), nearness) for text, nearness in found.recent]
        return found._replace(recent=near)

    def evaluate(
        self,
        events: Any,
        *,
        k: int = 10,
        freeze_after: Any = None,
        fields: Mapping[str, str] | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> Evaluation:
        """How well events are predicted: hit rate, MRR and NDCG with standard errors,
        beside trivial recommenders. The learner itself stays as it is.

        Each event is ranked by what was learned before it, and then learned, as on a
        running line (test, then train); or, with `freeze_after`, events up to that time
        are learned, and those after it are ranked and not learned. What a user had
        last is known at once in both cases.

        Args:
            events: as for `learn`.
            k: length of the lists.
            freeze_after: a time, in any form that an event's time may have.
            fields: as for `learn`.
            batch_size: as for `learn`.

        Raises:
            EventError: something is not an event, or none is left to rank.
        """
        try:
            freeze_after_s = to_seconds(freeze_after)
        except ValueError as problem:
            raise EventError(f"freeze_after: {problem}") from None
        batches = self._batches(events, fields, batch_size, IdForms(), IdForms())
        return evaluate(self._online, batches, k, freeze_after_s)

    def save(self, directory: str | Path) -> Path:
        """Write a checkpoint into a directory, for `load`, `streamer recommend`,
        `inspect` and `export`.

        Raises:
            CheckpointError: it cannot be written.
        """
        forms = {"users": self._users.to_json(), "items": self._items.to_json()}
        return self._online.save(directory, {"id_forms": forms})

    @classmethod
    def load(cls, directory: str | Path, device: str | None = None) -> Learner:
        """The learner of the newest checkpoint in a directory, written by `save` or by
        `streamer run`, whose ids are text.

        Raises:
            CheckpointError: there is none, or none that this version can read.
        """
        checkpoint = newest_checkpoint(directory)
        learner = cls(OnlineLearner.from_checkpoint(checkpoint, device))
        forms = checkpoint.meta.get("id_forms")
        if forms is not None:
            learner._users = IdForms(**forms["users"])
            learner._items = IdForms(**forms["items"])
        return learner

    def _batches(
        self,
        events: Any,
        fields: Mapping[str, str] | None,
        size: int,
        users: IdForms,
        items: IdForms,
    ) -> Iterator[MicroBatch]:
        last_s = float(self._online.state.candidate_features.windows.now_s)
        for read in EventReader(self.settings, fields).read(events, size):
            batch = read.batch(users, items, last_s)
            last_s = batch.timestamps_s[-1]
            yield batch

    def _as_given(self, found: Sequence[Recommendation]) -> list[Recommendation]:
        """With the ids as they went in."""
        return [one._replace(item=self._items.id_of(one.item)) for one in found]

    def _check_known(self, item: Id) -> None:
        if self._online.state.items.row_of(str(to_id(item))) is None:
            raise StreamerError(f"no event of the item {item!r} has been learned")


def _forms_of(vocabulary: Vocabulary) -> IdForms:
    """Of ids that nobody gave as numbers: those of a checkpoint or a pipeline are text."""
    return IdForms("str" if len(vocabulary) else None)


def _known(vocabulary: Vocabulary, ids: Iterable[Id]) -> Rows:
    """The rows of those ids that are known, ascending."""
    rows = np.unique(vocabulary.known(to_texts(ids)))
    return rows[rows >= 0]


def _query(
    online: OnlineLearner,
    user: Id | None,
    recent: Iterable[Id] | None,
    features: Mapping[str, str | float] | None,
) -> RecommendQuery:
    """For a user or a session.

    Raises:
        ValueError: neither or both are given.
    """
    if (user is None) == (recent is None):
        raise ValueError("give either a user or the recent items of a session")
    recommender = Recommender(online)
    if recent is not None:
        return recommender.session(to_texts(recent), features)
    if features:
        raise ValueError("features are those of a session: a user has learned ones")
    return recommender.user(str(to_id(user)))


def _recommended(
    online: OnlineLearner,
    queries: Sequence[RecommendQuery],
    k: int,
    among: Rows | None = None,
    **options: Any,
) -> Iterator[list[Recommendation]]:
    """See `Recommender.recommend`."""
    if k < 1:
        raise ValueError(f"k is {k}: it must be at least 1")
    recommender = Recommender(online)
    recommender.check(options.get("filter"), options.get("max_per"))
    if (among is not None and not len(among)) or not len(online.state.items):
        yield from [[] for _ in queries]
        return
    for start in range(0, len(queries), USERS_AT_ONCE):
        asked = queries[start : start + USERS_AT_ONCE]
        yield from recommender.recommend(asked, k, among=among, **options)
