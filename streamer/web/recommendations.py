"""The HTTP side of a server: what can be asked about recommendations.

Nothing is computed on the event loop: it has to answer `/healthz` meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Path, Query, Request, Response
from pydantic import BaseModel, Field

from streamer.errors import FilterError, StreamerError
from streamer.learner.filters import MAX_TERMS
from streamer.serve.freshness import LAST_S
from streamer.serve.names import KnownKeys
from streamer.serve.service import (
    MAX_IDS,
    MAX_K,
    Id,
    NotReady,
    RecommendRequest,
    Service,
    UnknownItem,
)
from streamer.web.app import error_response, json_response

MAX_BATCH = 16
"""Requests that are computed together."""
SLICE_ITEMS = 1000
"""Items that they name together; a single request may name more."""
MAX_QUERIES = 100
MAX_ITEMS = 10_000
"""Items that the queries of one request may name together: k, `recent` and `exclude`."""

IdPath = Annotated[str, Path(min_length=1, max_length=256)]
IdQuery = Annotated[Sequence[Id], Query(max_length=MAX_IDS)]
FilterQuery = Annotated[Sequence[str], Query(max_length=MAX_TERMS)]
K = Annotated[int, Query(ge=1, le=MAX_K)]
T = TypeVar("T")
Waiting = tuple[RecommendRequest, asyncio.Future[Any]]
"""A request, and who waits for its answer."""


class RecommendRequests(KnownKeys):
    """Several requests at once."""

    queries: list[RecommendRequest] = Field(max_length=MAX_QUERIES)


class NearItem(BaseModel):
    """A recent item that made a recommendation."""

    item: str
    nearness: float


class RecommendedBecause(BaseModel):
    """What made a recommendation."""

    parts: dict[str, float] = Field(
        description="What each kind of evidence adds to the score."
    )
    recent: list[NearItem]


class RecommendedItem(BaseModel):
    """A recommended item."""

    item: str
    score: float
    recent: bool
    reasons: RecommendedBecause | None = None


class Recommendations(BaseModel):
    """An answer, of one generation and step of the model."""

    user: str | None
    known: bool
    note: str | None
    recent: list[str] = Field(
        description="The recent items that it is based on, most recent first."
    )
    items: list[RecommendedItem]
    titles: dict[str, str] = Field(
        description="What people call the items above, of those that have a title."
    )
    generation: int
    step: int
    age_s: float


class RecommendationsOfSeveral(BaseModel):
    """Answers in the order of the queries, all of one generation."""

    answers: list[Recommendations]


class HiddenItems(BaseModel):
    """Items that are never recommended."""

    hidden: list[str]


class Click(KnownKeys):
    """What a visitor of the page did."""

    user: Id
    item: Id


def work_of(request: RecommendRequest) -> int:
    """How many items a request names, which is what it costs."""
    return request.offset + request.k + len(request.recent) + len(request.exclude)


class RequestBatcher:
    """Computes recommendations on a thread of its own; requests that wait at the same
    time are computed together, which costs less than one by one.

    No slice of the work is large, so that whoever comes later waits for few others.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._thread = ThreadPoolExecutor(1, "recommend")
        self._waiting: deque[Waiting] = deque()
        self._task: asyncio.Task[None] | None = None

    async def recommend(self, request: RecommendRequest) -> dict[str, Any]:
        """See `Service.recommend`."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        if self._task is None:
            self._task = asyncio.create_task(self._compute_waiting())
        found: dict[str, Any] = await answer
        return found

    async def recommend_all(
        self, requests: Sequence[RecommendRequest]
    ) -> list[dict[str, Any]]:
        """Answers of one generation, in the order of the requests; those that wait for
        others get their turn between two slices.
        """
        while True:
            answers: list[Any] = []
            left = deque(requests)
            while left:
                computed = map(self.recommend, _take_slice(left, work_of))
                answers += await asyncio.gather(*computed, return_exceptions=True)
            found = [_answer_or_error(answer) for answer in answers]
            if len({one["generation"] for one in found if "error" not in one}) <= 1:
                return found

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a function that is called on the thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, function, *arguments)

    async def _compute_waiting(self) -> None:
        while self._waiting:
            slice_ = _take_slice(self._waiting, lambda waiting: work_of(waiting[0]))
            wanted = [waiting for waiting in slice_ if not waiting[1].cancelled()]
            requests = [request for request, _ in wanted]
            results: Sequence[Any]
            try:
                results = await self.run(self._service.recommend_all, requests)
            except Exception as error:  # each of them has a client that waits
                results = [error] * len(wanted)
            for (_, answer), result in zip(wanted, results, strict=True):
                if answer.cancelled():
                    continue
                if isinstance(result, Exception):
                    answer.set_exception(result)
                else:
                    answer.set_result(result)
        self._task = None


def _take_slice(queue: deque[T], work: Callable[[T], int]) -> list[T]:
    """Take the first of a queue, as many as are computed together."""
    taken = [queue.popleft()]
    items = work(taken[0])
    while queue and len(taken) < MAX_BATCH:
        items += work(queue[0])
        if items > SLICE_ITEMS:
            break
        taken.append(queue.popleft())
    return taken


def _answer_or_error(answer: dict[str, Any] | BaseException) -> dict[str, Any]:
    """An answer, or why one of several requests has none; what has nothing to do with
    the request is raised.
    """
    if isinstance(answer, dict):
        return answer
    if isinstance(answer, StreamerError) and not isinstance(answer, NotReady):
        return {"error": str(answer)}
    raise answer


def add_recommendations(app: FastAPI, service: Service) -> None:
    """Serve recommendations for users and sessions, and of items."""
    batcher = RequestBatcher(service)

    @app.get("/users/{user:path}/recommendations", response_model=Recommendations)
    async def for_user(
        user: IdPath,
        k: K = 10,
        exclude_seen: bool = True,
        exclude: IdQuery = (),
        filter: FilterQuery = (),
        max_per: str | None = None,
        offset: Annotated[int, Query(ge=0, le=MAX_K)] = 0,
        explain: bool = False,
    ) -> Response:
        """The best items for a user; one who is not known gets what a user without
        history gets.
        """
        request = RecommendRequest.model_construct(
            user=user,
            k=k,
            exclude_seen=exclude_seen,
            exclude=exclude,
            filter=list(filter) or None,
            max_per=max_per,
            offset=offset,
            explain=explain,
        )
        return json_response(await batcher.recommend(request))

    @app.post("/recommendations", response_model=Recommendations)
    async def for_session(request: RecommendRequest) -> Response:
        """The best items for a session of recent items, or for a user."""
        return json_response(await batcher.recommend(request))

    @app.post("/recommendations/batch", response_model=RecommendationsOfSeveral)
    async def for_several(requests: RecommendRequests) -> Response:
        """Several at once, answered by one generation of the model; one that cannot be
        answered has an `error`.
        """
        items = sum(map(work_of, requests.queries))
        if items > MAX_ITEMS:
            detail = (
                f"The queries name {items:,} items together (k, recent, exclude), "
                f"more than {MAX_ITEMS:,}: ask in several requests."
            )
            return error_response(HTTPStatus.BAD_REQUEST, detail)
        answers = await batcher.recommend_all(requests.queries)
        return json_response({"answers": answers})

    @app.get("/items/{item:path}/similar", response_model=Recommendations)
    async def similar(item: IdPath, k: K = 10, explain: bool = False) -> Response:
        """What users who had an item may like next."""
        return json_response(await batcher.run(service.similar, item, k, explain))

    _add_error(app, NotReady, HTTPStatus.SERVICE_UNAVAILABLE)
    _add_error(app, UnknownItem, HTTPStatus.NOT_FOUND)
    _add_error(app, FilterError, HTTPStatus.BAD_REQUEST)
    _add_error(app, StreamerError, HTTPStatus.CONFLICT)


def add_hidden_items(
    app: FastAPI, service: Service, write: Callable[[str, bool], None] | None
) -> None:
    """Serve the items that are never recommended.

    Args:
        app: serves them.
        service: knows them.
        write: writes to the catalogue whether an item is hidden; None if there is none.
    """

    def written(item: str, hidden: bool) -> Response:
        if write is None:
            raise StreamerError(
                "Hiding an item is an event of the catalogue, and this server has none: "
                "start trainer and server with --catalogue-topic TOPIC."
            )
        write(item, hidden)
        return json_response({"written": True}, HTTPStatus.ACCEPTED)

    @app.get("/hidden", response_model=HiddenItems)
    def get_hidden() -> Response:
        """All hidden items."""
        return json_response({"hidden": service.hidden()})

    @app.put("/hidden/{item:path}", status_code=HTTPStatus.ACCEPTED)
    def hide(item: IdPath) -> Response:
        """Write to the catalogue that an item is never recommended; all servers know
        with the next delta.
        """
        return written(item, True)

    @app.delete("/hidden/{item:path}", status_code=HTTPStatus.ACCEPTED)
    def show(item: IdPath) -> Response:
        """Write to the catalogue that it is recommended again."""
        return written(item, False)


def add_status(
    app: FastAPI,
    service: Service,
    write_event: Callable[[str, str], None] | None = None,
) -> None:
    """Serve what is served, and take events in.

    Args:
        service: answers.
        write_event: writes an event of a user and an item to the stream; None if that
            is not allowed.
    """

    @app.get("/status")
    def status(last_s: Annotated[float, Query(gt=0)] = LAST_S) -> Response:
        """What is served, and how fresh it was in the last seconds."""
        ready, reason = service.ready()
        found = {
            "ready": ready,
            "reason": reason,
            "freshness": service.freshness.quantiles(time.time(), last_s),
            "writes_events": write_event is not None,
            "example_users": service.example_users(),
        }
        return json_response(found | service.status())

    if write_event is None:
        return

    @app.post("/events", status_code=HTTPStatus.ACCEPTED)
    def click(event: Click) -> Response:
        """Write an event to the stream, as the page does when an item is clicked."""
        write_event(event.user, event.item)
        return json_response({"written": True}, HTTPStatus.ACCEPTED)


def _add_error(app: FastAPI, kind: type[Exception], status: HTTPStatus) -> None:
    def explain(_: Request, error: Exception) -> Response:
        return error_response(status, str(error))

    app.add_exception_handler(kind, explain)
