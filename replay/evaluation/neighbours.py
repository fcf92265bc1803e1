"""The baseline of similar sessions: V-SKNN (Ludewig and Jannach, UMUAI 2018).

    near(u, s)  = sum over common items of (1 - (k - 1) / 10)  / number of recent items of u
    score(u, j) = sum over the 100 nearest s that have j of near(u, s) (1 - f / 10) (1 + idf(j))

where the common item is u's k-th last and f is the smallest of the k, so that the last
item counts most. The nearest are sought among the 1,000 latest sessions that share an
item with u. idf(j) is the log of all sessions over those that have j. A session is what
one user did; of a long one, the last 50 events count.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.evaluation.baselines import RECENT, Stretch
from streamer.evaluation.tally import MISS, Doubles, Ranks
from streamer.model.batch import Recent, Rows
from streamer.model.jit import njit_allocating
from streamer.model.rows.growing import grown
from streamer.model.rows.seen_items import SeenBefore

NEIGHBOURS = 100
LATEST_SESSIONS = 1000
SESSION_EVENTS = 50


class _Events(NamedTuple):
    """Events by number, from 1; 0 stands for none."""

    item: Rows
    session: Rows
    session_before: Rows  # the event before in the same session
    item_before: Rows  # the event before of the same item


class _Latest(NamedTuple):
    """Where to begin."""

    of_item: Rows  # its latest event
    of_session: Rows
    session_of_user: Rows
    sessions_of_item: Rows  # how many have it
    size: Rows  # [2] events, sessions


class _Scratch(NamedTuple):
    """Zero between two queries, but for marks."""

    weights: Doubles  # of the query's items
    scores: Doubles
    item_mark: Rows  # number of the last walk that met an item
    session_mark: Rows
    walks: Rows  # [1]


class SessionNeighbours:
    """Recommends what the sessions have that are most like the user's last ten items."""

    name = "session-neighbours"

    def __init__(self) -> None:
        # each array its own: one that need not grow is written to as it is
        self._events = _Events(*np.zeros((4, 1), np.int64))
        self._latest = _Latest(
            of_item=np.zeros(1, np.int64),
            of_session=np.zeros(1, np.int64),
            session_of_user=np.zeros(1, np.int64),
            sessions_of_item=np.zeros(1, np.int64),
            size=np.zeros(2, np.int64),
        )
        self._scratch = _Scratch(
            weights=np.zeros(1),
            scores=np.zeros(1),
            item_mark=np.zeros(1, np.int64),
            session_mark=np.zeros(1, np.int64),
            walks=np.zeros(1, np.int64),
        )

    def walk(self, stretch: Stretch) -> Ranks:
        """Rank what is to be ranked and learn from what is due, event by event."""
        self._reserve(stretch)
        ranks = Ranks.missed(len(stretch.ranked))
        _walk(
            self._events,
            self._latest,
            self._scratch,
            _Asked(
                stretch.users,
                stretch.items,
                stretch.recent,
                stretch.ranked,
                stretch.due,
            ),
            stretch.end,
            stretch.seen,
            ranks,
        )
        return ranks

    def forget(self, items: Rows) -> None:
        """Retire items: no session has them."""
        items = items[items < len(self._latest.of_item)]
        self._latest.of_item[items] = 0
        self._latest.sessions_of_item[items] = 0
        self._events.item[np.isin(self._events.item, items)] = -1

    def _reserve(self, stretch: Stretch) -> None:
        items = int(max(stretch.items.max(initial=0), stretch.recent.max(initial=0)))
        users = int(stretch.users.max(initial=0))
        events = int(self._latest.size[0]) + stretch.end
        self._events = _Events(*(grown(a, events + 1) for a in self._events))
        latest = self._latest
        self._latest = _Latest(
            grown(latest.of_item, items + 1),
            grown(latest.of_session, events + 1),
            grown(latest.session_of_user, users + 1),
            grown(latest.sessions_of_item, items + 1),
            latest.size,
        )
        scratch = self._scratch
        self._scratch = _Scratch(
            grown(scratch.weights, items + 1),
            grown(scratch.scores, items + 1),
            grown(scratch.item_mark, items + 1),
            grown(scratch.session_mark, events + 1),
            scratch.walks,
        )


class _Asked(NamedTuple):
    """What of a stretch is ranked and learned."""

    users: Rows
    items: Rows
    recent: Recent
    ranked: Rows
    due: Rows


@njit_allocating
def _walk(
    events: _Events,
    latest: _Latest,
    scratch: _Scratch,
    asked: _Asked,
    end: int,
    seen: SeenBefore,
    ranks: Ranks,
) -> None:
    learned = 0
    for k in range(len(asked.ranked)):
        while learned < asked.due[k]:
            _learn(events, latest, scratch, asked, learned)
            learned += 1
        event = asked.ranked[k]
        recent = asked.recent[event]
        own = latest.session_of_user[asked.users[event]]
        for place in range(RECENT):
            if recent[place] >= 0:
                scratch.weights[recent[place]] = 1.0 - place / RECENT
        found = _sessions(events, latest, scratch, recent, own)
        touched = _score(events, latest, scratch, recent, found)
        target = asked.items[event]
        known = seen.items[seen.first[k] : seen.first[k + 1]]
        if scratch.scores[target] > 0:
            ranks.among_all[k] = _rank(scratch.scores, touched, target, known[:0])
            if seen.fresh[k]:
                ranks.among_new[k] = _rank(scratch.scores, touched, target, known)
        scratch.scores[touched] = 0.0
        for item in recent:
            if item >= 0:
                scratch.weights[item] = 0.0
    while learned < end:
        _learn(events, latest, scratch, asked, learned)
        learned += 1


@njit_allocating
def _learn(
    events: _Events, latest: _Latest, scratch: _Scratch, asked: _Asked, at: int
) -> None:
    """Add an event to the session of its user; a user without recent items begins one."""
    user = asked.users[at]
    item = asked.items[at]
    if asked.recent[at, 0] < 0 or latest.session_of_user[user] == 0:
        latest.size[1] += 1
        latest.session_of_user[user] = latest.size[1]
    session = latest.session_of_user[user]
    again = False
    for other in _items_of(events, latest, scratch, session):
        again = again or other == item
    latest.sessions_of_item[item] += not again
    latest.size[0] += 1
    event = latest.size[0]
    events.item[event] = item
    events.session[event] = session
    events.session_before[event] = latest.of_session[session]
    events.item_before[event] = latest.of_item[item]
    latest.of_session[session] = event
    latest.of_item[item] = event


@njit_allocating
def _items_of(
    events: _Events, latest: _Latest, scratch: _Scratch, session: int
) -> Rows:
    """The distinct items of the last events of a session."""
    scratch.walks[0] += 1
    found = np.empty(SESSION_EVENTS, np.int64)
    size = 0
    event = latest.of_session[session]
    for _ in range(SESSION_EVENTS):
        if event == 0:
            break
        item = events.item[event]
        if item >= 0 and scratch.item_mark[item] != scratch.walks[0]:
            scratch.item_mark[item] = scratch.walks[0]
            found[size] = item
            size += 1
        event = events.session_before[event]
    return found[:size]


@njit_allocating
def _sessions(
    events: _Events, latest: _Latest, scratch: _Scratch, recent: Recent, own: int
) -> Rows:
    """The latest sessions with one of the recent items, the latest first; not `own`."""
    scratch.walks[0] += 1
    heads = np.zeros(RECENT, np.int64)
    for place in range(RECENT):
        if recent[place] >= 0:
            heads[place] = latest.of_item[recent[place]]
    found = np.empty(LATEST_SESSIONS, np.int64)
    size = 0
    while size < LATEST_SESSIONS:
        place = int(heads.argmax())
        event = heads[place]
        if event == 0:
            break
        heads[place] = events.item_before[event]
        session = events.session[event]
        if session != own and scratch.session_mark[session] != scratch.walks[0]:
            scratch.session_mark[session] = scratch.walks[0]
            found[size] = session
            size += 1
    return found[:size]


@njit_allocating
def _score(
    events: _Events,
    latest: _Latest,
    scratch: _Scratch,
    recent: Recent,
    sessions: Rows,
) -> Rows:
    """Add up the scores of the items of the nearest sessions; returns these items."""
    length = max((recent >= 0).sum(), 1)
    near = np.zeros(len(sessions))
    decay = np.zeros(len(sessions))
    for n, session in enumerate(sessions):
        for item in _items_of(events, latest, scratch, session):
            near[n] += scratch.weights[item] / length
            decay[n] = max(decay[n], scratch.weights[item] - 1.0 / RECENT)
    nearest = np.argsort(-near, kind="mergesort")[:NEIGHBOURS]
    touched = np.empty(NEIGHBOURS * SESSION_EVENTS, np.int64)
    size = 0
    for n in nearest:
        for item in _items_of(events, latest, scratch, sessions[n]):
            if scratch.scores[item] == 0.0:
                touched[size] = item
                size += 1
            idf = np.log(latest.size[1] / max(latest.sessions_of_item[item], 1))
            scratch.scores[item] += near[n] * decay[n] * (1.0 + idf) + 1e-12
    return touched[:size]


@njit_allocating
def _rank(
    scores: Doubles, touched: Rows, target: int, left_out: NDArray[np.int32]
) -> int:
    """The rank of the target; ties count against it."""
    own = scores[target]
    rank = 0
    for item in touched:
        rank += scores[item] >= own
    for item in left_out:
        rank -= scores[item] >= own
    return min(rank, MISS)
